//! Events straight from the engines over ZeroMQ: one connection to each (worker, rank)'s PUB socket, made again whenever
//! it ends, or a place to which engines connect; and what was missed, asked of the engine's ROUTER socket.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::Authority;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use warmpath_core::ids::{Rank, WorkerId};

use super::source::{Heard, Line, Message, Room};
use super::zmtp::{Kind, Link, LinkError, Traffic};
use crate::config::ZmqEndpoint;
use crate::fleet::{Worker, place_of};
use crate::printable;
use crate::telemetry::metrics::WorkerMetrics;
use board::{Board, Place};
use replay::Replays;

mod board;
mod gate;
mod replay;

pub use gate::Gate;
pub use replay::ReplaySettings;

/// The number that ends a replay; no batch has it.
const END: u64 = u64::MAX;

/// How long a batch waits for room in a worker's queue. In the meantime the engine's own queue holds what follows.
const ROOM_WITHIN: Duration = Duration::from_secs(1);

/// The first pause before a connection is made again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// A connection that lasts this long was a good one: the next pause is short again.
const GOOD: Duration = Duration::from_secs(1);

/// How sockets are used.
#[derive(Clone, Debug)]
pub struct ZmqSettings {
    /// The topic that engines are configured with. Others are read too, and counted.
    pub topic: String,
    /// Bound on making a connection.
    pub connect_timeout: Duration,
    /// Longest pause between two attempts.
    pub reconnect_delay_max: Duration,
    /// After this long without a word the peer is asked for a sign of life; after twice as long it counts as gone.
    pub heartbeat: Duration,
    /// Bounds on replays.
    pub replay: ReplaySettings,
}

/// Where one (worker, rank) publishes.
#[derive(Clone, Debug)]
pub struct ZmqEngine {
    /// Its PUB socket.
    pub events: ZmqEndpoint,
    /// Its ROUTER socket, where it has one.
    pub replay: Option<ZmqEndpoint>,
}

/// Whose events are read.
#[derive(Clone)]
pub struct ZmqWorker {
    /// The worker.
    pub id: WorkerId,
    /// Which of its data-parallel ranks; none where there is only one, numbered 0.
    pub rank: Option<Rank>,
    /// The model that it serves.
    pub model: Arc<str>,
    /// Host and port of its API, by which topics may name it.
    pub authority: Authority,
    /// Its metrics.
    pub metrics: WorkerMetrics,
}

impl From<&Worker> for ZmqWorker {
    fn from(worker: &Worker) -> Self {
        Self {
            id: worker.id.clone(),
            rank: worker.rank,
            model: Arc::clone(&worker.model),
            authority: worker.link.authority().clone(),
            metrics: worker.metrics.clone(),
        }
    }
}

impl ZmqWorker {
    /// What people call it.
    fn place(&self) -> String {
        place_of(&self.id, self.rank)
    }
}

/// All that is read over ZeroMQ. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ZmqBus {
    settings: Arc<ZmqSettings>,
    board: Board,
}

/// What a connection hands on of one (worker, rank).
struct Ear {
    metrics: WorkerMetrics,
    tell: mpsc::Sender<Heard>,
    room: Room,
    place: Place,
    /// Connections that have spoken for it.
    links: AtomicUsize,
}

impl ZmqBus {
    /// A bus without connections.
    pub fn new(settings: ZmqSettings) -> Self {
        Self { settings: Arc::new(settings), board: Board::default() }
    }

    /// What keeps events from arriving, in words; none while every engine is connected.
    pub fn trouble(&self) -> Option<String> {
        self.board.trouble()
    }

    /// Whether there are engines or a gate to be connected with, and none is.
    pub fn is_cut_off(&self) -> bool {
        self.board.is_cut_off()
    }

    /// What does not work, in words: who is not connected, replays that failed, topics that name nobody of late.
    pub fn complaints(&self) -> Vec<String> {
        self.board.complaints(Instant::now())
    }

    /// Messages whose topic named no worker.
    pub fn unmatched(&self) -> u64 {
        self.board.unmatched()
    }

    /// Hands on one (worker, rank)'s batches, connecting again for ever; the future ends when nobody listens any more.
    pub fn follow(&self, worker: &ZmqWorker, engine: ZmqEngine, line: Line) -> impl Future<Output = ()> + use<> {
        let place = self.board.enter(&worker.place(), &engine.events, Arc::clone(&line.course));
        let ear = Ear::new(worker, &line, place.clone());
        let expected = Topics { topic: self.settings.topic.clone(), model: Arc::clone(&worker.model) };
        let replays = Replays::new(line, engine.replay, self.settings.replay, place);
        let settings = Arc::clone(&self.settings);
        keep_following(settings, ear, expected, engine.events, replays)
    }
}

/// The topics that are no surprise.
struct Topics {
    topic: String,
    model: Arc<str>,
}

impl Topics {
    /// The configured one, or one by which a worker says what it serves.
    fn expect(&self, topic: &[u8]) -> bool {
        topic == self.topic.as_bytes() || split(topic).is_some_and(|(_, model)| model == &*self.model)
    }
}

/// Who a topic `kv@<who>@<model>` names, and the model, which may hold anything but a control character.
fn split(topic: &[u8]) -> Option<(&str, &str)> {
    let (who, model) = std::str::from_utf8(topic).ok()?.strip_prefix("kv@")?.split_once('@')?;
    (!who.is_empty() && !model.is_empty()).then_some((who, model))
}

async fn keep_following(
    settings: Arc<ZmqSettings>,
    ear: Ear,
    expected: Topics,
    endpoint: ZmqEndpoint,
    mut replays: Replays,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let connecting = Link::connect(&endpoint, Kind::Sub, settings.connect_timeout);
        let made = tokio::select! {
            made = connecting => made,
            () = replays.work() => return,
        };
        let begun = tokio::time::Instant::now();
        let error = match made {
            Ok(link) => {
                let ended = listen(link, &settings, &ear, &expected, &mut replays).await;
                replays.disconnect();
                match ended {
                    Some(error) => error,
                    None => return,
                }
            }
            Err(error) => error,
        };
        ear.place.down(&error);
        pause = if begun.elapsed() >= GOOD { FIRST_PAUSE } else { (pause * 2).min(settings.reconnect_delay_max) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = replays.work() => return,
        }
    }
}

/// Listens until the connection ends, and says why; None when nobody is there to be told.
async fn listen(
    link: Link,
    settings: &ZmqSettings,
    ear: &Ear,
    expected: &Topics,
    replays: &mut Replays,
) -> Option<LinkError> {
    let mut pulse = match Pulse::start(link, settings.heartbeat).await {
        Ok(pulse) => pulse,
        Err(error) => return Some(error),
    };
    let (mut told, mut warned) = (false, false);
    loop {
        let beat = tokio::select! {
            beat = pulse.next() => match beat {
                Ok(beat) => beat,
                Err(error) => return Some(error),
            },
            () = replays.work() => return None,
        };
        // Whoever answers or sends something has the subscription: what comes from now on is heard.
        if !std::mem::replace(&mut told, true) {
            if ear.tell.send(Heard::Connected).await.is_err() {
                return None;
            }
            replays.connected = true;
            ear.place.up();
        }
        let Beat::Frames(frames) = beat else { continue };
        if let Some(topic) = frames.first().filter(|topic| !expected.expect(topic)) {
            ear.metrics.events("unexpected_topic", 1);
            if !std::mem::replace(&mut warned, true) {
                tracing::warn!(worker = ear.place.name(), topic = shown(topic), "events come with an unexpected topic");
            }
        }
        if !ear.hand_on(frames).await {
            return None;
        }
    }
}

/// What a peer does.
enum Beat {
    /// It is there.
    Pong,
    /// It sends something.
    Frames(Vec<Bytes>),
}

/// A subscription, kept alive.
struct Pulse {
    link: Link,
    ticks: tokio::time::Interval,
    heartbeat: Duration,
    /// Ticks since the peer was heard last.
    silent: u32,
    /// Whether it cannot be asked whether it is there.
    believed: bool,
    /// Answers that say nothing yet.
    early: u32,
}

impl Pulse {
    /// Subscribes to everything, and asks whether that arrived.
    async fn start(mut link: Link, heartbeat: Duration) -> Result<Self, LinkError> {
        link.writer.send(&[b"\x01"]).await?;
        if link.pings {
            link.writer.ping().await?;
        }
        let mut ticks = interval(heartbeat);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.reset();
        // libzmq may write its first answer before it hands the subscription over, but not its second.
        Ok(Self { believed: !link.pings, link, ticks, heartbeat, silent: 0, early: 1 })
    }

    /// What comes next. May be dropped and called again. The first answer of the peer comes after it has taken the
    /// subscription; who cannot be asked is believed to have done so.
    async fn next(&mut self) -> Result<Beat, LinkError> {
        if std::mem::take(&mut self.believed) {
            return Ok(Beat::Pong);
        }
        loop {
            tokio::select! {
                biased;
                traffic = self.link.reader.next() => {
                    self.silent = 0;
                    match traffic? {
                        Traffic::Message(frames) => return Ok(Beat::Frames(frames)),
                        Traffic::Command(command) if command.starts_with(b"\x04PONG") => {
                            if self.early == 0 {
                                return Ok(Beat::Pong);
                            }
                            self.early -= 1;
                            self.link.writer.ping().await?;
                        }
                        Traffic::Command(command) => self.link.writer.answer(&command).await?,
                    }
                }
                _ = self.ticks.tick(), if self.link.pings => {
                    self.silent += 1;
                    match self.silent {
                        1 => {}
                        // Ten bytes, which the system takes at once: nothing is cut off when this is dropped.
                        2 => self.link.writer.ping().await?,
                        _ => return Err(LinkError::Silent(self.heartbeat * 2)),
                    }
                }
            }
        }
    }
}

impl Ear {
    /// That of `worker`, over whose connection nobody has spoken yet.
    fn new(worker: &ZmqWorker, line: &Line, place: Place) -> Self {
        Self {
            metrics: worker.metrics.clone(),
            tell: line.tell.clone(),
            room: line.room.clone(),
            place,
            links: AtomicUsize::new(0),
        }
    }

    /// Hands a message on; what is no batch is counted and left out. False when nobody is there.
    async fn hand_on(&self, frames: Vec<Bytes>) -> bool {
        let Some(message) = batch(frames) else {
            self.metrics.events("malformed", 1);
            return true;
        };
        let handed = async { self.tell.send(Heard::Live(self.room.take(message).await)).await };
        match timeout(ROOM_WITHIN, handed).await {
            Ok(handed) => handed.is_ok(),
            Err(_) => {
                self.metrics.events("queue_full", 1);
                true
            }
        }
    }
}

/// Topic, number and payload.
fn batch(frames: Vec<Bytes>) -> Option<Message> {
    let [_, seq, payload] = <[Bytes; 3]>::try_from(frames).ok()?;
    numbered(&seq, payload).filter(|message| message.seq != Some(END))
}

fn numbered(seq: &[u8], payload: Bytes) -> Option<Message> {
    let seq = u64::from_be_bytes(seq.try_into().ok()?);
    Some(Message { payload, seq: Some(seq), epoch: None })
}

/// A topic as it may stand in a log.
fn shown(topic: &[u8]) -> String {
    printable::line(&String::from_utf8_lossy(topic).chars().take(64).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_topic_is_split_into_three() {
        assert_eq!(split(b"kv@10.0.0.1:8000@Qwen/Qwen3@base"), Some(("10.0.0.1:8000", "Qwen/Qwen3@base")));
        assert_eq!(split(b"kv@pod-1@m"), Some(("pod-1", "m")));
        for topic in [&b""[..], b"kv", b"kv@", b"kv@a", b"kv@a@", b"kv@@m", b"KV@a@m", b"kv@a@\xff"] {
            assert_eq!(split(topic), None);
        }
    }

    #[test]
    fn what_is_expected_is_the_configured_topic_or_one_for_the_model() {
        let topics = Topics { topic: "events".to_owned(), model: "m".into() };
        assert!(topics.expect(b"events") && topics.expect(b"kv@anybody@m"));
        assert!(!topics.expect(b"") && !topics.expect(b"kv@anybody@other") && !topics.expect(b"events2"));
    }

    #[test]
    fn only_three_frames_with_a_number_are_a_batch() {
        let frames = |frames: &[&'static [u8]]| frames.iter().map(|frame| Bytes::from_static(frame)).collect();
        let found = batch(frames(&[b"t", &[0, 0, 0, 0, 0, 0, 1, 2], b"p"])).unwrap();
        assert_eq!((found.seq, found.epoch, &found.payload[..]), (Some(258), None, &b"p"[..]));
        for wrong in [
            &[&b"t"[..], b"1234567", b"p"][..],
            &[b"t", b"12345678"],
            &[b"", b"", b"12345678", b"p"],
            &[],
            &[b"t", &[0xff; 8], b""],
        ] {
            assert!(batch(frames(wrong)).is_none());
        }
    }
}
