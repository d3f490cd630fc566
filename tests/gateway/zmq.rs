//! Events over ZeroMQ: our sockets against libzmq's, and against peers that are not what they should be.

use std::time::{Duration, Instant};

use warmpath::config::ZmqEndpoint;
use warmpath::events::publish::zmq::{Envelope, ReplayFault, ZmqOutlet, ZmqPublisher};
use warmpath::events::source::source;
use warmpath::events::zmq::{ReplaySettings, ZmqBus, ZmqEngine, ZmqSettings, ZmqWorker};
use warmpath::events::{Abilities, Ask, AskId, Heard, Message, Source};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::Metrics;
use warmpath_core::ids::WorkerId;
use warmpath_indexer::feed::Patience;

use crate::fleet::value_of;
use crate::pyzmq::{Peer, RECORDINGS, recorded, unhex};

pub(crate) const MS: Duration = Duration::from_millis(1);

/// A worker that is no more than its name.
pub(crate) fn worker(metrics: &Metrics, model: &str, id: &str) -> ZmqWorker {
    ZmqWorker {
        id: WorkerId::from(id),
        rank: None,
        model: model.into(),
        authority: "127.0.0.1:8101".parse().unwrap(),
        metrics: metrics.worker(id, None),
    }
}

/// A bus that loses patience soon.
pub(crate) fn bus() -> ZmqBus {
    ZmqBus::new(ZmqSettings {
        topic: String::new(),
        connect_timeout: 500 * MS,
        reconnect_delay_max: 50 * MS,
        heartbeat: 100 * MS,
        replay: ReplaySettings { connect_timeout: 500 * MS, idle_timeout: 300 * MS, timeout: 5000 * MS },
    })
}

/// One engine's events, as a task would hear them.
pub(crate) struct Listening {
    pub(crate) bus: ZmqBus,
    source: Source,
    metrics: Metrics,
    pub(crate) tasks: Tasks,
}

impl Listening {
    pub(crate) fn to(engine: ZmqEngine) -> Self {
        Self::with_room(engine, 10_000)
    }

    pub(crate) fn with_room(engine: ZmqEngine, room: usize) -> Self {
        let (bus, metrics, tasks) = (bus(), Metrics::new("w"), Tasks::new());
        let abilities = Abilities { patience: Patience::NONE, replays: true, snapshots: false };
        let (source, line) = source(abilities, room);
        tasks.spawn(bus.follow(&worker(&metrics, "tiny", "e"), engine, line));
        Self { bus, source, metrics, tasks }
    }

    pub(crate) async fn hear(&mut self) -> Heard {
        hear(&mut self.source).await
    }

    pub(crate) async fn connected(&mut self) {
        let heard = self.hear().await;
        assert!(matches!(heard, Heard::Connected), "{heard:?}");
    }

    pub(crate) async fn live(&mut self) -> (u64, Vec<u8>) {
        match self.hear().await {
            Heard::Live(message) => plain(&message),
            other => panic!("{other:?}"),
        }
    }

    /// Asks for a replay, and returns it.
    pub(crate) async fn replay(&mut self, from: u64) -> Vec<(u64, Vec<u8>)> {
        self.source.asks.send(again_from(from)).await.unwrap();
        self.replayed().await
    }

    pub(crate) async fn replayed(&mut self) -> Vec<(u64, Vec<u8>)> {
        let mut replayed = Vec::new();
        loop {
            match self.hear().await {
                Heard::Replayed(_, message) => replayed.push(plain(&message)),
                Heard::ReplayEnded(..) => return replayed,
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn count(&self, outcome: &str) -> f64 {
        value_of(&self.metrics.render(), "w_kv_events_total", &format!("outcome=\"{outcome}\""))
    }

    pub(crate) async fn trouble(&self, part: &str) {
        until(&format!("the trouble is {part}"), || {
            let trouble = self.bus.trouble();
            trouble.is_some_and(|trouble| trouble.contains(part))
        })
        .await;
    }

    pub(crate) fn nothing_more(&mut self) {
        let more = self.source.heard.try_recv();
        assert!(more.is_err(), "{more:?}");
    }
}

pub(crate) async fn hear(source: &mut Source) -> Heard {
    let heard = tokio::time::timeout(Duration::from_secs(10), source.heard.recv()).await;
    heard.expect("something is heard").expect("the source lives")
}

pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come true that {what}");
        tokio::time::sleep(5 * MS).await;
    }
}

fn plain(message: &Message) -> (u64, Vec<u8>) {
    (message.seq.unwrap(), message.payload.to_vec())
}

fn frames(recording: &str) -> Vec<(u64, Vec<u8>)> {
    recorded(recording).into_iter().map(|message| (message.seq, message.payload)).collect()
}

fn anywhere() -> Option<ZmqEndpoint> {
    Some("tcp://127.0.0.1:0".parse().unwrap())
}

pub(crate) fn outlet() -> ZmqOutlet {
    let (topic, kept) = (String::new(), 1000);
    ZmqOutlet { bind: anywhere(), connect: None, replay: anywhere(), envelope: Envelope::Topic, kept, topic }
}

pub(crate) fn engine_of(publisher: &ZmqPublisher) -> ZmqEngine {
    ZmqEngine { events: publisher.events.clone().unwrap(), replay: publisher.replay.clone() }
}

pub(crate) fn message(seq: u64) -> Message {
    Message { payload: vec![7; 3].into(), seq: Some(seq), epoch: None }
}

fn again_from(from: u64) -> Ask {
    Ask::Replay { id: AskId::default(), from }
}

#[tokio::test]
async fn recorded_frames_come_from_libzmq_byte_for_byte_live_and_replayed() {
    for ((recording, _), layout) in RECORDINGS.into_iter().zip(["plain", "topic"]) {
        let all = frames(recording);
        let (mut peer, engine) = Peer::engine(recording, layout).await;
        let mut listening = Listening::to(engine);
        listening.connected().await;
        peer.tell(&format!("send 0 {}", all.len())).await;
        for expected in &all {
            assert_eq!(&listening.live().await, expected);
        }
        assert_eq!(listening.replay(0).await, all);
        assert_eq!(listening.replay(30).await, all[30..]);
        assert_eq!(listening.replay(1000).await, []);
        listening.nothing_more();
        assert_eq!((listening.bus.trouble(), listening.bus.complaints()), (None, vec![]));
        // The recorded topics name the model, as the recorded configuration did.
        assert_eq!((listening.count("malformed"), listening.count("unexpected_topic")), (0.0, 0.0));
    }
}

#[tokio::test]
async fn libzmq_hears_our_engine_byte_for_byte_live_and_replayed() {
    for envelope in [Envelope::Plain, Envelope::Topic] {
        let all = frames(RECORDINGS[1].0);
        let tasks = Tasks::new();
        let settings = ZmqOutlet { envelope, topic: "kv@e@tiny".to_owned(), ..outlet() };
        let engine = ZmqPublisher::start(settings, &tasks).await.unwrap();
        let mut peer = Peer::router(&engine.events.clone().unwrap(), &engine.replay.clone().unwrap(), all.len()).await;
        until("libzmq subscribes", || engine.subscribers() == 1).await;
        for (seq, payload) in &all {
            let message = Message { payload: payload.clone().into(), seq: Some(*seq), epoch: None };
            engine.keep(message.clone());
            engine.send(message);
        }
        let topic = "kv@e@tiny".bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
        let expect = async |peer: &mut Peer, kind: &str, (seq, payload): &(u64, Vec<u8>)| {
            let line = peer.line().await;
            let said: Vec<_> = line.split(' ').collect();
            let mut expected = vec![kind];
            expected.extend((kind == "replayed").then_some("-"));
            expected.extend((kind == "live" || envelope == Envelope::Topic).then_some(&*topic));
            assert_eq!(said[..said.len() - 2], expected);
            assert_eq!(unhex(said[said.len() - 2]), seq.to_be_bytes());
            assert_eq!(unhex(said[said.len() - 1]), *payload);
        };
        for one in &all {
            expect(&mut peer, "live", one).await;
        }
        peer.write("30");
        for one in &all[30..] {
            expect(&mut peer, "replayed", one).await;
        }
        let end = if envelope == Envelope::Topic {
            "replayed - - ffffffffffffffff -"
        } else {
            "replayed - ffffffffffffffff -"
        };
        assert_eq!((peer.line().await.as_str(), peer.line().await.as_str()), (end, "done"));
    }
}

/// R24, as far as sockets go: the engine comes back at its address and is heard again, told as a new connection.
#[tokio::test]
async fn r24_an_engine_that_comes_back_is_connected_to_at_once() {
    let (recording, _) = RECORDINGS[0];
    let (mut peer, engine) = Peer::engine(recording, "plain").await;
    let mut listening = Listening::to(engine.clone());
    listening.connected().await;
    peer.tell("send 0 3").await;
    for _ in 0..3 {
        listening.live().await;
    }
    drop(peer);
    listening.trouble("refused").await;
    let at = [engine.events.to_string(), engine.replay.unwrap().to_string()];
    let (mut peer, _) = Peer::engine_at(recording, "plain", [&at[0], &at[1]]).await;
    let back = Instant::now();
    listening.connected().await;
    assert!(back.elapsed() < 500 * MS, "{:?}", back.elapsed());
    peer.tell("send 0 2").await;
    // What was sent before the subscription arrived is lost, and a replay has it.
    let replayed = loop {
        listening.source.asks.send(again_from(0)).await.unwrap();
        let mut replayed = Vec::new();
        loop {
            match listening.hear().await {
                Heard::Replayed(_, message) => replayed.push(message.seq),
                Heard::ReplayEnded(..) => break,
                Heard::Live(_) => {}
                other => panic!("{other:?}"),
            }
        }
        if replayed.len() == 2 {
            break replayed;
        }
    };
    assert_eq!(replayed, [Some(0), Some(1)]);
}

#[tokio::test]
async fn each_replay_that_is_asked_for_ends_once_whatever_happens() {
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    (0..10).for_each(|seq| publisher.keep(message(seq)));
    let mut listening = Listening::to(engine_of(&publisher));
    listening.connected().await;
    publisher.set_fault(ReplayFault::MissingStart);
    let numbers: Vec<_> = listening.replay(0).await.into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(numbers, [5, 6, 7, 8, 9]);
    // Refused: it ends by the idle time-out, and says so.
    publisher.set_fault(ReplayFault::Refused);
    assert_eq!(listening.replay(0).await, []);
    assert_eq!(listening.bus.complaints(), ["events of e cannot be replayed (nothing was heard for 300ms)"]);
    // Asked anew: the first one ends, and the second one is answered.
    listening.source.asks.send(again_from(0)).await.unwrap();
    tokio::time::sleep(50 * MS).await;
    publisher.set_fault(ReplayFault::None);
    listening.source.asks.send(again_from(8)).await.unwrap();
    assert_eq!((listening.replayed().await, listening.replayed().await.len()), (vec![], 2));
    assert_eq!(listening.bus.complaints(), Vec::<String>::new());
    listening.source.asks.send(Ask::Snapshot { id: AskId::default() }).await.unwrap();
    assert!(matches!(listening.hear().await, Heard::SnapshotEnded(_)));
    // Disconnected: it ends.
    publisher.set_fault(ReplayFault::Refused);
    listening.source.asks.send(again_from(0)).await.unwrap();
    tokio::time::sleep(50 * MS).await;
    publisher.restart();
    assert_eq!(listening.replayed().await, []);
    listening.connected().await;
    tokio::time::sleep(400 * MS).await;
    listening.nothing_more();
}

#[tokio::test]
async fn without_a_replay_socket_a_replay_ends_with_nothing() {
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(ZmqOutlet { replay: None, ..outlet() }, &tasks).await.unwrap();
    let mut listening = Listening::to(engine_of(&publisher));
    listening.connected().await;
    assert_eq!(listening.replay(0).await, []);
    drop(tasks);
}

/// libzmq answers the sign of life for its program, and ours answers libzmq's.
#[tokio::test]
async fn idle_connections_stay() {
    let (_peer, engine) = Peer::engine(RECORDINGS[0].0, "plain").await;
    let mut listening = Listening::to(engine);
    listening.connected().await;
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    let mut ours = Listening::to(engine_of(&publisher));
    ours.connected().await;
    tokio::time::sleep(1000 * MS).await;
    listening.nothing_more();
    ours.nothing_more();
}

/// What finds no room for a second is dropped and counted; a task that is merely late loses nothing.
#[tokio::test]
async fn a_full_queue_is_waited_for_and_then_dropped_from() {
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    let mut listening = Listening::with_room(engine_of(&publisher), 4);
    listening.connected().await;
    until("it is subscribed", || publisher.subscribers() == 1).await;
    (0..8).for_each(|seq| publisher.send(message(seq)));
    tokio::time::sleep(100 * MS).await;
    for seq in 0..8 {
        assert_eq!(listening.live().await.0, seq);
    }
    (8..14).for_each(|seq| publisher.send(message(seq)));
    until("one is dropped", || listening.count("queue_full") >= 1.0).await;
    let mut heard = Vec::new();
    while heard.last() != Some(&13) {
        heard.push(listening.live().await.0);
    }
    assert_eq!(heard[..4], [8, 9, 10, 11]);
    assert!(heard.len() < 6 && !heard.contains(&12), "{heard:?}");
}

#[tokio::test]
async fn a_socket_in_the_file_system_does_as_well() {
    let path = |name: &str| {
        let file = format!("warmpath-{}-{name}.sock", std::process::id());
        Some(ZmqEndpoint::Ipc(std::env::temp_dir().join(file)))
    };
    let tasks = Tasks::new();
    let settings = ZmqOutlet { bind: path("events"), replay: path("replay"), ..outlet() };
    let publisher = ZmqPublisher::start(settings.clone(), &tasks).await.unwrap();
    publisher.keep(message(0));
    let mut listening = Listening::to(engine_of(&publisher));
    listening.connected().await;
    assert_eq!(listening.replay(0).await.len(), 1);
    // A process that was killed leaves its socket behind.
    tasks.drain(Duration::ZERO).await;
    let tasks = Tasks::new();
    let _again = ZmqPublisher::start(settings.clone(), &tasks).await.unwrap();
    listening.connected().await;
    for place in [settings.bind, settings.replay] {
        let Some(ZmqEndpoint::Ipc(path)) = place else { panic!() };
        std::fs::remove_file(path).unwrap();
    }
}
