//! The sending side over ZeroMQ, as an engine has it: a PUB socket and a ROUTER socket that replays.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, broadcast};
use tokio::time::{sleep, timeout};

use crate::config::ZmqEndpoint;
use crate::events::Message;
use crate::events::zmtp::{Arrival, Kind, Link, LinkError, Listener, Traffic};
use crate::shutdown::Tasks;

/// Batches that may wait for a subscriber; then the oldest are dropped, and the gap in the numbers is noticed.
const WAITING: usize = 16_384;

/// Bytes that are gathered before they are sent.
const GATHER: usize = 64 * 1024;

/// Bound on a handshake, and on sending to a peer that takes nothing.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long an engine waits for a next request on a replay connection.
const IDLE: Duration = Duration::from_secs(60);

/// Where the sockets are, and how they speak.
#[derive(Clone, Debug)]
pub struct ZmqOutlet {
    /// The PUB socket listens here, …
    pub bind: Option<ZmqEndpoint>,
    /// … and connects to here.
    pub connect: Option<ZmqEndpoint>,
    /// The ROUTER socket listens here.
    pub replay: Option<ZmqEndpoint>,
    /// How it answers.
    pub envelope: Envelope,
    /// Batches that it keeps.
    pub kept: usize,
    /// The first frame of every message.
    pub topic: String,
}

/// The two layouts of replay answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Envelope {
    /// `["", topic, number, payload]`: vLLM since 0.26, and SGLang.
    #[default]
    Topic,
    /// `["", number, payload]`: vLLM before.
    Plain,
}

/// How a replay answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplayFault {
    /// Whole.
    #[default]
    None,
    /// With nothing, not even the end.
    Refused,
    /// Without the older half of what it has, as if that were lost.
    MissingStart,
}

/// An engine's two sockets. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ZmqPublisher {
    shared: Arc<Shared>,
    /// Where the PUB socket listens.
    pub events: Option<ZmqEndpoint>,
    /// Where the ROUTER socket listens.
    pub replay: Option<ZmqEndpoint>,
}

#[derive(Debug)]
struct Shared {
    outlet: ZmqOutlet,
    state: Mutex<State>,
    dropped: AtomicU64,
    hang_up: Notify,
}

#[derive(Debug)]
struct State {
    /// To whom batches go; another one after a restart, so that no connection of before counts or hears any more.
    live: broadcast::Sender<Message>,
    kept: VecDeque<Message>,
    fault: ReplayFault,
}

impl ZmqPublisher {
    /// Binds and serves.
    ///
    /// # Errors
    /// When a place is taken.
    pub async fn start(outlet: ZmqOutlet, tasks: &Tasks) -> io::Result<Self> {
        let events = listener(outlet.bind.as_ref()).await?;
        let replay = listener(outlet.replay.as_ref()).await?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                live: broadcast::Sender::new(WAITING),
                kept: VecDeque::new(),
                fault: ReplayFault::default(),
            }),
            dropped: AtomicU64::new(0),
            hang_up: Notify::new(),
            outlet,
        });
        let place = |listener: &Option<Listener>| listener.as_ref().map(Listener::endpoint).transpose();
        let publisher = Self { events: place(&events)?, replay: place(&replay)?, shared: Arc::clone(&shared) };
        if let Some(listener) = events {
            tasks.spawn(accept(listener, Kind::Pub, Arc::clone(&shared), tasks.clone()));
        }
        if let Some(listener) = replay {
            tasks.spawn(accept(listener, Kind::Router, Arc::clone(&shared), tasks.clone()));
        }
        if let Some(endpoint) = shared.outlet.connect.clone() {
            tasks.spawn(keep_connected(endpoint, shared));
        }
        Ok(publisher)
    }

    /// Keeps a batch for replays.
    pub fn keep(&self, message: Message) {
        let mut state = self.shared.state();
        while state.kept.len() >= self.shared.outlet.kept.max(1) {
            state.kept.pop_front();
        }
        state.kept.push_back(message);
    }

    /// Sends a batch to all that listen. Never waits.
    pub fn send(&self, message: Message) {
        // Nobody may be listening.
        let _ = self.shared.state().live.send(message);
    }

    /// Forgets what was kept and ends every connection, as an engine does that starts anew.
    pub fn restart(&self) {
        {
            let mut state = self.shared.state();
            state.kept.clear();
            state.live = broadcast::Sender::new(WAITING);
        }
        self.shared.hang_up.notify_waiters();
    }

    /// How replays answer from now on.
    pub fn set_fault(&self, fault: ReplayFault) {
        self.shared.state().fault = fault;
    }

    /// Connections that batches are sent to.
    pub fn subscribers(&self) -> usize {
        self.shared.state().live.receiver_count()
    }

    /// Batches that were dropped because a subscriber was slow.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a replay from `from` on says; none: nothing at all.
    fn replayed(&self, from: u64) -> Option<Vec<Message>> {
        let state = self.state();
        let skipped = match state.fault {
            ReplayFault::None => 0,
            ReplayFault::Refused => return None,
            ReplayFault::MissingStart => state.kept.len().div_ceil(2),
        };
        let asked = state.kept.iter().skip(skipped).filter(|message| message.seq.is_some_and(|seq| seq >= from));
        Some(asked.cloned().collect())
    }

    async fn serve(&self, kind: Kind, arrival: Arrival) -> Result<(), LinkError> {
        let link = arrival.greet(kind, PATIENCE).await?;
        let serving = async {
            match kind {
                Kind::Router => self.answer(link).await,
                _ => self.publish(link).await,
            }
        };
        tokio::select! {
            served = serving => served,
            () = self.hang_up.notified() => Ok(()),
        }
    }

    /// Sends what the subscriber wants to hear.
    async fn publish(&self, mut link: Link) -> Result<(), LinkError> {
        let mut topics: Vec<Bytes> = Vec::new();
        let topic = self.outlet.topic.as_bytes();
        let mut live = None;
        loop {
            let next = async {
                match &mut live {
                    Some(live) => broadcast::Receiver::recv(live).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                traffic = link.reader.next() => match traffic? {
                    Traffic::Command(command) if command.starts_with(b"\x04P") => link.writer.answer(&command).await?,
                    said => {
                        subscribe(&mut topics, &said);
                        let wanted = topics.iter().any(|prefix| topic.starts_with(prefix));
                        live = wanted.then(|| live.take().unwrap_or_else(|| self.state().live.subscribe()));
                    }
                },
                message = next => {
                    let Some(live) = &mut live else { continue };
                    self.put(&mut link, message, topic)?;
                    while link.writer.waiting() < GATHER {
                        match live.try_recv() {
                            Ok(message) => self.put(&mut link, Ok(message), topic)?,
                            Err(broadcast::error::TryRecvError::Lagged(count)) => self.lagged(count),
                            Err(_) => break,
                        }
                    }
                    link.writer.flush().await?;
                }
            }
        }
    }

    fn put(
        &self,
        link: &mut Link,
        message: Result<Message, broadcast::error::RecvError>,
        topic: &[u8],
    ) -> Result<(), LinkError> {
        match message {
            Ok(message) => link.writer.put(&[topic, &message.seq.unwrap_or(0).to_be_bytes(), &message.payload]),
            Err(broadcast::error::RecvError::Lagged(count)) => self.lagged(count),
            Err(broadcast::error::RecvError::Closed) => return Err(LinkError::Closed),
        }
        Ok(())
    }

    fn lagged(&self, count: u64) {
        self.dropped.fetch_add(count, Ordering::Relaxed);
    }

    /// Answers replay requests, `["", number]`; others are ignored, as engines do.
    async fn answer(&self, mut link: Link) -> Result<(), LinkError> {
        loop {
            let next = timeout(IDLE, link.reader.next()).await.map_err(|_| LinkError::Silent(IDLE))?;
            let frames = match next? {
                Traffic::Message(frames) => frames,
                Traffic::Command(command) => {
                    link.writer.answer(&command).await?;
                    continue;
                }
            };
            let [delimiter, from] = frames.as_slice() else { continue };
            let Ok(from) = <[u8; 8]>::try_from(&from[..]) else { continue };
            let Some(batches) = self.replayed(u64::from_be_bytes(from)).filter(|_| delimiter.is_empty()) else {
                continue;
            };
            for batch in batches {
                let seq = batch.seq.unwrap_or(0).to_be_bytes();
                self.put_answer(&mut link, self.outlet.topic.as_bytes(), &seq, &batch.payload);
                if link.writer.waiting() >= GATHER {
                    link.writer.flush().await?;
                }
            }
            self.put_answer(&mut link, b"", &[0xff; 8], b"");
            link.writer.flush().await?;
        }
    }

    fn put_answer(&self, link: &mut Link, topic: &[u8], seq: &[u8], payload: &[u8]) {
        match self.outlet.envelope {
            Envelope::Topic => link.writer.put(&[b"", topic, seq, payload]),
            Envelope::Plain => link.writer.put(&[b"", seq, payload]),
        }
    }
}

async fn listener(endpoint: Option<&ZmqEndpoint>) -> io::Result<Option<Listener>> {
    match endpoint {
        Some(endpoint) => Ok(Some(Listener::bind(endpoint).await?)),
        None => Ok(None),
    }
}

/// Takes note of what a subscriber wants to hear, or no more: a message that begins with 1 or 0, or a command.
fn subscribe(topics: &mut Vec<Bytes>, said: &Traffic) {
    let wanted = match said {
        Traffic::Message(frames) => match frames.as_slice() {
            [frame] if frame.starts_with(&[1]) => Some((true, frame.slice(1..))),
            [frame] if frame.starts_with(&[0]) => Some((false, frame.slice(1..))),
            _ => None,
        },
        Traffic::Command(command) if command.starts_with(b"\x09SUBSCRIBE") => Some((true, command.slice(10..))),
        Traffic::Command(command) if command.starts_with(b"\x06CANCEL") => Some((false, command.slice(7..))),
        Traffic::Command(_) => None,
    };
    match wanted {
        Some((true, topic)) if topics.len() < 64 => topics.push(topic),
        Some((false, topic)) => {
            if let Some(at) = topics.iter().position(|wanted| *wanted == topic) {
                topics.swap_remove(at);
            }
        }
        _ => {}
    }
}

async fn accept(listener: Listener, kind: Kind, shared: Arc<Shared>, tasks: Tasks) {
    loop {
        match listener.accept().await {
            Ok(arrival) => {
                let shared = Arc::clone(&shared);
                tasks.spawn(async move {
                    if let Err(error) = shared.serve(kind, arrival).await {
                        tracing::debug!(%error, "a connection ended");
                    }
                });
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn keep_connected(endpoint: ZmqEndpoint, shared: Arc<Shared>) {
    loop {
        let ended = match Link::connect(&endpoint, Kind::Pub, PATIENCE).await {
            Ok(link) => tokio::select! {
                ended = shared.publish(link) => ended,
                () = shared.hang_up.notified() => Ok(()),
            },
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %endpoint, "not connected");
        }
        sleep(Duration::from_millis(100)).await;
    }
}
