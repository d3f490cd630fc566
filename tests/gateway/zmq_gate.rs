//! Engines that connect to the router.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmpath::config::ZmqEndpoint;
use warmpath::events::publish::zmq::{ZmqOutlet, ZmqPublisher};
use warmpath::events::source::source;
use warmpath::events::zmq::{Gate, ZmqBus, ZmqWorker};
use warmpath::events::{Abilities, Heard, Message, Source};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::Metrics;
use warmpath_core::ids::Rank;
use warmpath_indexer::feed::Patience;

use crate::by_hand::batch;
use crate::pyzmq::{Peer, RECORDINGS};
use crate::zmq::{MS, bus, hear, message, outlet, until, worker};
use crate::zmq_strangers::handshake;

/// Nothing but what is heard.
const ABILITIES: Abilities = Abilities { patience: Patience::NONE, replays: false, snapshots: false };

/// Where nobody listens.
async fn free_endpoint() -> ZmqEndpoint {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("tcp://{}", free.local_addr().unwrap()).parse().unwrap()
}

/// A gate, and the two workers that it expects.
async fn gate(tasks: &Tasks) -> (ZmqBus, ZmqEndpoint, [Source; 2]) {
    let (bus, _, endpoint, sources) = open_gate(tasks).await;
    (bus, endpoint, sources)
}

/// The same, and the gate itself.
async fn open_gate(tasks: &Tasks) -> (ZmqBus, Arc<Gate>, ZmqEndpoint, [Source; 2]) {
    let (bus, metrics) = (bus(), Metrics::new("w"));
    let endpoint = free_endpoint().await;
    let gate = Arc::new(Gate::new(&bus, endpoint.clone()));
    let sources = ["pod-1", "pod-2"].map(|id| {
        let (source, line) = source(ABILITIES, 100);
        let mut described = worker(&metrics, "org/m", id);
        if id == "pod-2" {
            described.authority = "127.0.0.1:8102".parse().unwrap();
        }
        tasks.spawn(gate.expect(&described, &["org/m", "alias"], None, line));
        source
    });
    tasks.spawn(Arc::clone(&gate).run(tasks.clone()));
    (bus, gate, endpoint, sources)
}

#[tokio::test]
async fn engines_that_connect_are_known_by_their_topic() {
    let tasks = Tasks::new();
    let (bus, expecting, endpoint, [mut first, mut second]) = open_gate(&tasks).await;
    let connect = async |topic: &str| {
        let outlet = ZmqOutlet {
            bind: None,
            replay: None,
            connect: Some(endpoint.clone()),
            topic: topic.to_owned(),
            ..outlet()
        };
        let publisher = ZmqPublisher::start(outlet, &tasks).await.unwrap();
        until("it is subscribed", || publisher.subscribers() == 1).await;
        publisher
    };
    let by_name = connect("kv@pod-1@org/m").await;
    let by_address = connect("kv@127.0.0.1:8102@alias").await;
    let nobodies = [connect("kv@pod-3@org/m").await, connect("kv@pod-1@other").await, connect("").await];
    assert_eq!(bus.trouble(), None);
    by_name.send(message(1));
    by_address.send(message(2));
    nobodies.iter().for_each(|nobody| nobody.send(message(3)));
    for (source, expected) in [(&mut first, 1), (&mut second, 2)] {
        assert!(matches!(hear(source).await, Heard::Connected));
        assert!(matches!(hear(source).await, Heard::Live(message) if message.seq == Some(expected)));
    }
    until("three are counted", || bus.unmatched() == 3).await;
    let complaint = bus.complaints().concat();
    assert!(complaint.starts_with("3 event messages name no worker: topic `"), "{complaint}");
    assert!(
        ["`kv@pod-3@org/m`", "`kv@pod-1@other`", "``"].iter().all(|topic| complaint.contains(topic)),
        "{complaint}"
    );
    // One of them joins.
    let (_joined, line) = source(ABILITIES, 100);
    tasks.spawn(expecting.expect(&worker(&Metrics::new("w"), "org/m", "pod-3"), &["org/m"], None, line));
    let complaint = bus.complaints().concat();
    assert!(complaint.starts_with("2 event messages") && !complaint.contains("pod-3"), "{complaint}");
    // It goes, and comes again.
    by_name.restart();
    until("it is missed", || bus.trouble().is_some_and(|trouble| trouble.starts_with("pod-1 at tcp://"))).await;
    until("it is back", || by_name.subscribers() == 1).await;
    by_name.send(message(0));
    assert!(matches!(hear(&mut first).await, Heard::Connected));
    assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(0)));
    assert_eq!(bus.trouble(), None);
}

/// One connection may speak for several ranks; when it ends, each is told of by its own name.
#[tokio::test]
async fn ranks_that_leave_the_gate_are_told_apart() {
    let tasks = Tasks::new();
    let (bus, metrics) = (bus(), Metrics::new("w"));
    let endpoint = free_endpoint().await;
    let gate = Arc::new(Gate::new(&bus, endpoint.clone()));
    let mut ranks = [0, 1].map(|rank| {
        let (source, line) = source(ABILITIES, 100);
        let described = ZmqWorker { rank: Some(Rank(rank)), ..worker(&metrics, "m", "pod-1") };
        tasks.spawn(gate.expect(&described, &["m"], None, line));
        source
    });
    tasks.spawn(gate.run(tasks.clone()));
    let topic = "kv@pod-1@m".to_owned();
    let outlet = ZmqOutlet { bind: None, replay: None, connect: Some(endpoint), topic, ..outlet() };
    let publisher = ZmqPublisher::start(outlet, &tasks).await.unwrap();
    until("it is subscribed", || publisher.subscribers() == 1).await;
    for (rank, source) in (0..).zip(&mut ranks) {
        let payload = batch(Some(rank), Vec::new()).into();
        publisher.send(Message { payload, seq: Some(0), epoch: None });
        assert!(matches!(hear(source).await, Heard::Connected));
    }
    publisher.restart();
    until("both are missed", || bus.complaints().len() == 2).await;
    for (rank, complaint) in bus.complaints().iter().enumerate() {
        assert!(complaint.starts_with(&format!("events of pod-1/{rank} are not connected (tcp://")), "{complaint}");
    }
}

/// A rank that nobody expects is nobody's return: what is wrong is for the first to say, who missed nothing by it.
#[tokio::test]
async fn a_rank_that_is_not_expected_does_not_connect_another() {
    let tasks = Tasks::new();
    let (bus, endpoint, [mut first, _second]) = gate(&tasks).await;
    let topic = "kv@pod-1@org/m".to_owned();
    let outlet = ZmqOutlet { bind: None, replay: None, connect: Some(endpoint), topic, ..outlet() };
    let (zero, one) = (
        ZmqPublisher::start(outlet.clone(), &tasks).await.unwrap(),
        ZmqPublisher::start(outlet, &tasks).await.unwrap(),
    );
    until("both are subscribed", || zero.subscribers() == 1 && one.subscribers() == 1).await;
    let says = |seq, rank| Message { payload: batch(Some(rank), Vec::new()).into(), seq: Some(seq), epoch: None };
    zero.send(says(7, 0));
    assert!(matches!(hear(&mut first).await, Heard::Connected));
    assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(7)));
    one.send(says(1, 1));
    one.send(says(2, 1));
    for seq in 1..3 {
        assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(seq)));
    }
    // Nor is it missed when the other one goes.
    one.restart();
    until("it is back", || one.subscribers() == 1).await;
    zero.send(says(8, 0));
    assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(8)));
    assert_eq!((bus.trouble(), bus.unmatched()), (None, 0));
}

#[tokio::test]
async fn libzmq_can_connect_as_well() {
    let tasks = Tasks::new();
    let (bus, endpoint, [mut first, _second]) = gate(&tasks).await;
    let (mut peer, _) = Peer::engine(RECORDINGS[0].0, "plain").await;
    peer.tell(&format!("connect {endpoint} kv@pod-1@org/m")).await;
    let mut seq = 0;
    let heard = loop {
        // Until the subscription has arrived, what is sent goes nowhere.
        peer.tell(&format!("speak {seq}")).await;
        if let Ok(heard) = tokio::time::timeout(50 * MS, first.heard.recv()).await {
            break heard.unwrap();
        }
        seq += 1;
    };
    assert!(matches!(heard, Heard::Connected));
    assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(seq)));
    assert_eq!((bus.trouble(), bus.unmatched()), (None, 0));
}

#[tokio::test]
async fn a_stranger_at_the_gate_costs_nobody_anything() {
    let tasks = Tasks::new();
    let (bus, endpoint, [mut first, _second]) = gate(&tasks).await;
    let address = endpoint.to_string().replace("tcp://", "");
    until("it is open", || bus.trouble().is_none()).await;
    let mut strangers = Vec::new();
    for bytes in [vec![], b"GET / HTTP/1.1\r\n\r\n".to_vec(), handshake(b"REQ"), vec![0xff; 100]] {
        let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        strangers.push(stream);
    }
    let outlet =
        ZmqOutlet { bind: None, replay: None, connect: Some(endpoint), topic: "kv@pod-1@alias".to_owned(), ..outlet() };
    let publisher = ZmqPublisher::start(outlet, &tasks).await.unwrap();
    until("it is subscribed", || publisher.subscribers() == 1).await;
    publisher.send(message(4));
    assert!(matches!(hear(&mut first).await, Heard::Connected));
    assert!(matches!(hear(&mut first).await, Heard::Live(message) if message.seq == Some(4)));
    // Each is shown out, at the latest when it should have greeted.
    for stream in &mut strangers {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok());
    }
}
