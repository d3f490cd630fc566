//! Engines behind bridges, a real NATS server between them and the gateway.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use warmpath::bridge::{Bridge, BridgeSettings, RankFeed};
use warmpath::events::nats::OUTBOX_BATCHES;
use warmpath::events::source::{Line, source};
use warmpath::events::{Ask, Heard, Message, ReplayEnd};
use warmpath::shutdown::Tasks;
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::event::{CacheEvent, EventBatch};

use crate::fleet::{TestFleet, fleet};
use crate::link::Link;
use crate::nats::NatsServer;
use crate::sidecar::{ABILITIES, bridge_settings};

/// An engine that a test plays: what it says of itself over HTTP, and its events.
pub(crate) struct Played {
    pub(crate) address: SocketAddr,
    started: Arc<Mutex<f64>>,
    healthy: Arc<Mutex<bool>>,
    tell: mpsc::Sender<Heard>,
    kept: Arc<Mutex<Vec<Message>>>,
    tasks: Tasks,
}

impl Played {
    /// The engine, and what a bridge gets of it.
    pub(crate) async fn start() -> (Self, RankFeed) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tell, feed, kept, tasks) = Self::connect(Arc::default());
        let played = Self {
            address: listener.local_addr().unwrap(),
            started: Arc::new(Mutex::new(1000.0)),
            healthy: Arc::new(Mutex::new(true)),
            tell,
            kept,
            tasks,
        };
        let (started, healthy) = (Arc::clone(&played.started), Arc::clone(&played.healthy));
        played.tasks.spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                let status = if *healthy.lock().unwrap() { "200 OK" } else { "503 Service Unavailable" };
                let body = format!(
                    "process_start_time_seconds {}\nvllm:num_requests_running{{engine=\"0\"}} 2.0\n\
                     vllm:cache_config_info{{block_size=\"16\",num_gpu_blocks=\"129\"}} 1.0\n",
                    started.lock().unwrap()
                );
                let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all((head + &body).as_bytes()).await;
            }
        });
        (played, feed)
    }

    fn connect(kept: Arc<Mutex<Vec<Message>>>) -> (mpsc::Sender<Heard>, RankFeed, Arc<Mutex<Vec<Message>>>, Tasks) {
        let (source, Line { tell, asked, .. }) = source(ABILITIES, 64);
        let (tasks, replay, kept_there) = (Tasks::new(), tell.clone(), Arc::clone(&kept));
        tasks.spawn(async move {
            while let Some(ask) = asked.recv().await {
                let Ask::Replay { id, from } = ask else { continue };
                let messages = kept_there.lock().unwrap().clone();
                for message in messages.into_iter().filter(|message| message.seq >= Some(from)) {
                    let _ = replay.send(Heard::Replayed(id, message)).await;
                }
                let _ = replay.send(Heard::ReplayEnded(id, ReplayEnd::Whole)).await;
            }
        });
        (tell, RankFeed { rank: 0, source, blocks: None }, kept, tasks)
    }

    /// The events again, for another bridge.
    fn again(&mut self) -> RankFeed {
        let (tell, feed, _, tasks) = Self::connect(Arc::clone(&self.kept));
        (self.tell, self.tasks) = (tell, tasks);
        feed
    }

    pub(crate) async fn says(&self, heard: Heard) {
        self.tell.send(heard).await.unwrap();
    }

    /// Makes the next batch; it is kept, and sent unless it is to be lost on the way.
    pub(crate) async fn batch(&self, ts: f64, is_sent: bool) -> Message {
        let seq = u64::try_from(self.kept.lock().unwrap().len()).unwrap();
        let message = Message { payload: payload(ts), seq: Some(seq), epoch: None };
        self.kept.lock().unwrap().push(message.clone());
        if is_sent {
            self.says(Heard::Live(message.clone())).await;
        }
        message
    }

    /// Another process, which has done nothing yet.
    pub(crate) fn restarts(&self, started: f64) {
        *self.started.lock().unwrap() = started;
        self.kept.lock().unwrap().clear();
    }
}

fn payload(ts: f64) -> bytes::Bytes {
    let batch = EventBatch { ts: Some(ts), events: vec![CacheEvent::Cleared], ..EventBatch::default() };
    encode(&batch, Form::Map, HashForm::Int).unwrap().into()
}

/// What the stream has of worker `w`: epoch, number and payload, in its order.
async fn stored(server: &NatsServer) -> Vec<(u64, u64, Vec<u8>)> {
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let Ok(stream) = context.get_stream("WARMPATH_KV").await else { return Vec::new() };
    let mut messages = Vec::new();
    for sequence in 1..=stream.cached_info().state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        let number = |name: &str| message.headers.get(name).unwrap().as_str().parse::<u64>().unwrap();
        assert_eq!(message.subject.as_str(), "warmpath.kv.m.w.0");
        let (epoch, seq) = (number("Warmpath-Epoch"), number("Warmpath-Seq"));
        let id = message.headers.get("Nats-Msg-Id").unwrap().as_str();
        assert_eq!(id, format!("w/0/{epoch}/{seq}"));
        messages.push((epoch, seq, message.payload.to_vec()));
    }
    messages
}

pub(crate) async fn numbers(server: &NatsServer) -> Vec<(u64, u64)> {
    stored(server).await.into_iter().map(|(epoch, seq, _)| (epoch, seq)).collect()
}

pub(crate) async fn until_published(bridge: &Bridge, count: u64) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while bridge.counts().published < count {
        assert!(Instant::now() < deadline, "{:?}, not {count} published", bridge.counts());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn start(played: &Played, feed: RankFeed, server: &NatsServer) -> Bridge {
    Bridge::start(bridge_settings(played.address, "m", "w", &server.url()), vec![feed]).await.unwrap()
}

fn tokens(family: u32) -> Value {
    (family * 1000..family * 1000 + 40).collect::<Vec<_>>().into()
}

/// Sends a prompt, and again until it is predicted as it is reported.
async fn learns(fleet: &TestFleet, family: u32) {
    let first = fleet.complete(tokens(family)).await;
    assert_eq!((first.status, first.predicted, first.cached()), (200, Some(0), 0));
    fleet
        .eventually("the prompt is predicted where it was answered", async |fleet| {
            let again = fleet.complete(tokens(family)).await;
            again.worker == first.worker && (again.predicted, again.cached()) == (Some(36), 36)
        })
        .await;
}

#[tokio::test]
async fn a_shared_prefix_goes_to_its_holder_over_bridges_and_both_kinds_of_nats() {
    for server in [NatsServer::core(), NatsServer::jetstream()] {
        let fleet = fleet().nats(server.url()).bridged().start().await;
        for family in 1..4 {
            learns(&fleet, family).await;
        }
        assert_eq!(fleet.metric("warmpath_predictions_total", "over").await, 0.0);
        assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "").await, 0.0);
    }
}

/// Nobody keeps what core NATS lost, but the bridge has the blocks: the view is whole again, not empty, and exact.
#[tokio::test]
async fn what_core_nats_loses_comes_back_in_a_snapshot() {
    let server = NatsServer::core();
    let mut link = Link::to(&server.url()).await;
    let fleet = fleet().engines(1).nats(server.url()).gateway_nats(link.url()).bridged().start().await;
    learns(&fleet, 1).await;
    // The first connection asks for one as well. Whether there were blocks by the time that it was answered is nobody's
    // business here, but it is to be over.
    let repairs = async |fleet: &TestFleet, outcome| fleet.metric("warmpath_kv_view_repairs_total", outcome).await;
    fleet
        .eventually("the first question is answered", async |fleet| {
            repairs(fleet, "whole").await + repairs(fleet, "snapshot").await > 0.0
        })
        .await;
    let before = repairs(&fleet, "snapshot").await;
    link.cut().await;
    for family in 2..5 {
        assert_eq!(fleet.complete(tokens(family)).await.status, 200);
    }
    link.mend().await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 40.0).await;
    fleet.until_metric("warmpath_kv_view_repairs_total", "snapshot", before + 1.0).await;
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 0.0);
    for family in 1..5 {
        let again = fleet.complete(tokens(family)).await;
        assert_eq!((again.predicted, again.cached()), (Some(36), 36), "family {family}");
    }
    learns(&fleet, 5).await;
}

#[tokio::test]
async fn an_engine_that_restarts_behind_its_bridge_empties_its_view() {
    let server = NatsServer::jetstream();
    let mut fleet = fleet().engines(1).nats(server.url()).bridged().start().await;
    learns(&fleet, 1).await;
    fleet.restart_engines().await;
    fleet.eventually("it answers", async |fleet| fleet.complete(tokens(9)).await.status == 200).await;
    fleet.until_metric("warmpath_kv_event_restarts_total", "engine-1", 1.0).await;
    let again = fleet.complete(tokens(1)).await;
    assert_eq!((again.predicted, again.cached()), (Some(0), 0));
    learns(&fleet, 2).await;
    assert_eq!(fleet.bridges[0].counts().restarts, 1);
}

/// R20: the server is killed under load for two seconds; no request fails, and the index is true again soon after it is
/// back. `scripts/chaos.sh` prints how soon; the figure to reach is a second.
#[tokio::test]
async fn r20_a_bus_that_is_killed_under_load_costs_no_request_and_no_event() {
    let mut server = NatsServer::jetstream();
    let fleet = fleet().nats(server.url()).bridged().start().await;
    learns(&fleet, 1).await;
    server.kill();
    let (down, mut family) = (Instant::now(), 2);
    while down.elapsed() < Duration::from_secs(2) {
        assert_eq!(fleet.complete(tokens(family)).await.status, 200);
        family += 1;
        // Few enough that nothing is evicted: the truth is known.
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    let known = async |fleet: &TestFleet| {
        fleet.metric("warmpath_index_blocks", "engine-1").await
            + fleet.metric("warmpath_index_blocks", "engine-2").await
    };
    server.up();
    let up = Instant::now();
    let truth = f64::from(10 * (family - 1));
    while known(&fleet).await < truth {
        assert!(up.elapsed() < Duration::from_secs(5), "{} of {truth} blocks after 5 s", known(&fleet).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let asked = family - 2;
    println!("\nR20: {asked} requests without the bus, none failed; index as it should be after {:?}", up.elapsed());
    for family in [1, 2, family - 1] {
        let again = fleet.complete(tokens(family)).await;
        assert!(again.predicted.unwrap() <= again.cached(), "{again:?}");
    }
    assert_eq!(fleet.metric("warmpath_kv_event_gaps_total", "").await, 0.0);
}

#[tokio::test]
async fn what_the_engine_sent_stands_in_the_stream_byte_for_byte_each_once_and_in_order() {
    let server = NatsServer::jetstream();
    let (mut played, feed) = Played::start().await;
    let junk = Message { payload: vec![0xc1, 0x00].into(), seq: Some(0), epoch: None };
    played.kept.lock().unwrap().push(junk);
    let bridge = start(&played, feed, &server).await;
    played.says(Heard::Connected).await;
    for number in 1..5 {
        // Two of them are lost between engine and bridge.
        played.batch(1000.0 + f64::from(number), number % 2 == 0).await;
    }
    until_published(&bridge, 5).await;
    let expected: Vec<_> = (0..).zip(played.kept.lock().unwrap().clone()).collect();
    let expected: Vec<_> = expected.into_iter().map(|(seq, kept)| (1_000_000, seq, kept.payload.to_vec())).collect();
    assert_eq!(stored(&server).await, expected);
    assert_eq!((bridge.counts().unreadable, bridge.counts().lost), (1, 0));
    // The engine's connection is made again, and then another bridge takes over.
    played.says(Heard::Connected).await;
    played.batch(1006.0, true).await;
    until_published(&bridge, 6).await;
    assert!(bridge.stop(Duration::from_secs(5)).await);
    let second = played.again();
    let bridge = start(&played, second, &server).await;
    played.says(Heard::Connected).await;
    played.batch(1007.0, true).await;
    until_published(&bridge, 1).await;
    let expected: Vec<_> = (0..7).map(|seq| (1_000_000, seq)).collect();
    assert_eq!(numbers(&server).await, expected);
}

#[tokio::test]
async fn an_epoch_rises_with_the_process_however_it_is_noticed() {
    let server = NatsServer::jetstream();
    let (played, feed) = Played::start().await;
    let bridge = start(&played, feed, &server).await;
    played.says(Heard::Connected).await;
    played.batch(1001.0, true).await;
    until_published(&bridge, 1).await;
    // By its first events, which came before a poll.
    played.restarts(2000.0);
    played.batch(2001.0, true).await;
    until_published(&bridge, 2).await;
    // By its metrics alone: its clock is behind, so that its events look old.
    played.restarts(2500.0);
    played.batch(1500.0, false).await;
    until_published(&bridge, 3).await;
    assert_eq!(numbers(&server).await, [(1_000_000, 0), (2_000_000, 0), (2_500_000, 0)]);
    assert_eq!(bridge.counts().restarts, 2);
}

#[tokio::test]
async fn a_bus_that_is_away_at_the_start_gets_what_waited_and_sees_what_was_dropped() {
    let mut server = NatsServer::down(true);
    let (played, feed) = Played::start().await;
    let bridge = start(&played, feed, &server).await;
    played.says(Heard::Connected).await;
    let more = 10;
    let count = u64::try_from(OUTBOX_BATCHES).unwrap() + more;
    for seq in 0..count {
        let message = Message { payload: payload(1001.0), seq: Some(seq), epoch: None };
        played.says(Heard::Live(message)).await;
    }
    while bridge.counts().dropped < more {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.up();
    until_published(&bridge, count - more).await;
    assert_eq!((bridge.counts().dropped, bridge.counts().waiting), (more, 0));
    let client = async_nats::connect(server.url()).await.unwrap();
    let stream = async_nats::jetstream::new(client).get_stream("WARMPATH_KV").await.unwrap();
    assert_eq!(stream.cached_info().state.messages, count - more);
    assert_eq!(
        (stream.cached_info().config.max_age, stream.cached_info().config.max_bytes),
        (Duration::from_secs(3600), 1 << 30)
    );
    let first = stream.get_raw_message(1).await.unwrap();
    assert_eq!(first.headers.get("Warmpath-Seq").unwrap().as_str(), more.to_string());
}

#[tokio::test]
async fn a_worker_is_registered_while_it_is_healthy_and_the_bridge_runs() {
    let server = NatsServer::jetstream();
    let (played, feed) = Played::start().await;
    let settings = BridgeSettings { block_size: None, ..bridge_settings(played.address, "m", "w", &server.url()) };
    let bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let context = async_nats::jetstream::new(client);
    let entry = async || {
        let store = context.get_key_value("warmpath_workers").await.ok()?;
        store.get("w").await.unwrap()
    };
    let until = async |is_there: bool| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while entry().await.is_some() != is_there {
            assert!(Instant::now() < deadline, "registered: {}", !is_there);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    until(true).await;
    let found: Value = serde_json::from_slice(&entry().await.unwrap()).unwrap();
    let url = format!("http://{}", played.address);
    let expected = json!({"v": 1, "id": "w", "model": "m", "url": url, "block_size": 16, "dp_ranks": 1, "epoch": 0,
        "capacity_blocks": 129, "max_num_seqs": null, "events": "nats"});
    assert_eq!(found, expected);
    let bucket = context.get_stream("KV_warmpath_workers").await.unwrap();
    assert_eq!(bucket.cached_info().config.max_age, Duration::from_secs(15));
    *played.healthy.lock().unwrap() = false;
    until(false).await;
    *played.healthy.lock().unwrap() = true;
    until(true).await;
    assert!(bridge.stop(Duration::from_secs(5)).await);
    assert_eq!(entry().await, None);
}
