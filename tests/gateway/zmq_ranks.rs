//! Engines with two data-parallel ranks, each of which publishes on a port of its own: what one rank holds is credited to
//! it, and not to the other.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::time::timeout;
use warmpath::bridge::{Bridge, RankFeed};
use warmpath::config::ZmqEndpoint;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::publish::Bus;
use warmpath::events::publish::zmq::{ZmqOutlet, ZmqPublisher};
use warmpath::events::source::source;
use warmpath::events::zmq::ZmqEngine;
use warmpath::events::{Abilities, Message};
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::Metrics;

use crate::bridge::Played;
use crate::by_hand::{batch, stored};
use crate::fleet::{TestFleet, fleet, value_of};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, whole};
use crate::sidecar::{ABILITIES, bridge_settings};
use crate::zmq::{bus, outlet, until, worker};

/// A port of this machine.
fn at(port: u16) -> ZmqEndpoint {
    format!("tcp://127.0.0.1:{port}").parse().unwrap()
}

/// The publishers of two ranks, at a port and the one that follows, as vLLM counts them. What they have kept is asked for
/// at the two ports behind those.
async fn two_ranks(tasks: &Tasks) -> (ZmqEndpoint, ZmqEndpoint, [ZmqPublisher; 2]) {
    let publisher = |port: u16| {
        let settings = ZmqOutlet { bind: Some(at(port)), replay: Some(at(port + 2)), ..outlet() };
        ZmqPublisher::start(settings, tasks)
    };
    for _ in 0..100 {
        let Ok(free) = std::net::TcpListener::bind("127.0.0.1:0") else { continue };
        let port = free.local_addr().unwrap().port();
        drop(free);
        if port > u16::MAX - 3 {
            continue;
        }
        if let (Ok(zero), Ok(one)) = (publisher(port).await, publisher(port + 1).await) {
            return (at(port), at(port + 2), [zero, one]);
        }
    }
    panic!("no four ports side by side are free");
}

/// The publishers of two ranks of the worker `stranger-1`, which connect to one place under one topic, and that place.
async fn two_that_connect(tasks: &Tasks) -> (ZmqEndpoint, [ZmqPublisher; 2]) {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let gate = at(free.local_addr().unwrap().port());
    let publisher = async || {
        let topic = "kv@stranger-1@m".to_owned();
        let settings = ZmqOutlet { bind: None, connect: Some(gate.clone()), replay: None, topic, ..outlet() };
        ZmqPublisher::start(settings, tasks).await.unwrap()
    };
    let ranks = [publisher().await, publisher().await];
    (gate, ranks)
}

async fn subscribed(ranks: &[ZmqPublisher; 2]) {
    until("both are subscribed", || ranks.iter().all(|rank| rank.subscribers() == 1)).await;
}

/// Each rank says to its subscriber that it has ten blocks which the other has not.
async fn speak(ranks: &[ZmqPublisher; 2]) {
    subscribed(ranks).await;
    say(ranks);
}

fn say(ranks: &[ZmqPublisher; 2]) {
    for (rank, publisher) in (0..).zip(ranks) {
        let payload = batch(Some(rank), vec![stored(1000 * rank, 10)]).into();
        let message = Message { payload, seq: Some(0), epoch: None };
        publisher.keep(message.clone());
        publisher.send(message);
    }
}

/// Blocks of the index by rank.
async fn blocks(fleet: &TestFleet) -> Vec<(u64, u64)> {
    let workers: Value = serde_json::from_str(&fleet.admin("/api/v1/workers").await.1).unwrap();
    let rows = workers["workers"].as_array().unwrap().iter();
    rows.map(|row| (row["rank"].as_u64().unwrap(), row["index_blocks"].as_u64().unwrap())).collect()
}

async fn each_rank_is_credited(fleet: &TestFleet, engine: &Scripted) {
    fleet.eventually("both ranks' blocks are known", async |fleet| blocks(fleet).await == [(0, 10), (1, 10)]).await;
    for (number, rank) in [1_u32, 0, 1, 0].into_iter().enumerate() {
        let prompt: Vec<u32> = (1000 * rank..1000 * rank + 44).collect();
        let answer = fleet.complete(prompt.into()).await;
        assert_eq!((answer.status, answer.predicted), (200, Some(40)), "rank {rank}");
        assert_eq!(engine.seen()[number].header("x-data-parallel-rank"), [rank.to_string()]);
    }
    assert_eq!(fleet.metric("warmpath_kv_events_total", "outcome=\"foreign\"").await, 0.0);
}

async fn engine() -> Scripted {
    Scripted::start(vec![whole("200 OK", r#"{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}"#)]).await
}

#[tokio::test]
async fn over_zeromq_each_rank_is_credited_with_what_it_said() {
    let tasks = Tasks::new();
    let (place, _, ranks) = two_ranks(&tasks).await;
    let engine = engine().await;
    let settings = format!("events: zmq, zmq_endpoint: '{place}', dp_ranks: 2");
    let fleet = fleet().engines(0).stranger_with(engine.address, &settings).start().await;
    speak(&ranks).await;
    each_rank_is_credited(&fleet, &engine).await;
}

#[tokio::test]
async fn ranks_that_connect_are_told_apart_by_what_their_batches_say() {
    let tasks = Tasks::new();
    let (gate, ranks) = two_that_connect(&tasks).await;
    let engine = engine().await;
    let fleet = fleet().engines(0).config(&format!("events: {{zmq: {{bind: '{gate}'}}}}\n"));
    let fleet = fleet.stranger_with(engine.address, "events: zmq, dp_ranks: 2").start().await;
    speak(&ranks).await;
    each_rank_is_credited(&fleet, &engine).await;
}

#[tokio::test]
async fn what_each_rank_has_kept_is_asked_of_that_rank() {
    let tasks = Tasks::new();
    let (place, replay, ranks) = two_ranks(&tasks).await;
    say(&ranks); // Nobody hears it.
    let engine = engine().await;
    let settings = format!("events: zmq, zmq_endpoint: '{place}', zmq_replay: '{replay}', dp_ranks: 2");
    let fleet = fleet().engines(0).stranger_with(engine.address, &settings).start().await;
    each_rank_is_credited(&fleet, &engine).await;
}

#[tokio::test]
async fn over_a_bridge_each_rank_is_credited_with_what_it_said() {
    for server in [NatsServer::core(), NatsServer::jetstream()] {
        let (tasks, metrics) = (Tasks::new(), Metrics::new("w"));
        let (_, _, ranks) = two_ranks(&tasks).await;
        let (played, _) = Played::start().await;
        let feeds = (0..).zip(&ranks).map(|(rank, publisher)| {
            let abilities = Abilities { replays: false, ..ABILITIES };
            let (source, line) = source(abilities, 64);
            let engine = ZmqEngine { events: publisher.events.clone().unwrap(), replay: None };
            tasks.spawn(bus().follow(&worker(&metrics, "m", "stranger-1"), engine, line));
            RankFeed { rank, source, blocks: None }
        });
        let settings = bridge_settings(played.address, "m", "stranger-1", &server.url());
        let bridge = Bridge::start(settings, feeds.collect()).await.unwrap();
        let engine = engine().await;
        let fleet = fleet().engines(0).nats(server.url());
        let fleet = fleet.stranger_with(engine.address, "events: nats, dp_ranks: 2").start().await;
        speak(&ranks).await;
        each_rank_is_credited(&fleet, &engine).await;
        assert_eq!(bridge.counts().published, 2);
        let stopped = timeout(Duration::from_secs(10), bridge.stop(Duration::from_secs(5))).await;
        assert!(stopped.unwrap());
    }
}

/// A prompt, and how much of it the engine finds on the rank that is named.
async fn finds(fleet: &TestFleet, engine: SocketAddr, rank: &str, family: u32) -> (u16, Value) {
    let prompt: Vec<u32> = (family * 1000..family * 1000 + 40).collect();
    let body = serde_json::json!({"model": "m", "prompt": prompt, "max_tokens": 2});
    let request = fleet.client.post(format!("http://{engine}/v1/completions")).header("x-data-parallel-rank", rank);
    let response = request.json(&body).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// The whole way: what one rank of an engine was given by somebody else is found there, and nowhere else.
async fn a_prompt_goes_to_the_rank_that_holds_it(fleet: &TestFleet, engine: SocketAddr) {
    for (family, rank) in [(1, "1"), (2, "0"), (3, "1")] {
        assert_eq!(finds(fleet, engine, rank, family).await.0, 200);
    }
    fleet.eventually("both ranks' blocks are known", async |fleet| blocks(fleet).await == [(0, 10), (1, 20)]).await;
    for family in [1, 2, 3, 1, 2, 3] {
        let prompt: Vec<u32> = (family * 1000..family * 1000 + 40).collect();
        let answer = fleet.complete(prompt.into()).await;
        assert_eq!((answer.status, answer.predicted, answer.cached()), (200, Some(36), 36), "family {family}");
    }
    let metrics = fleet.get(format!("http://{engine}/metrics")).await.1;
    let hits = |rank: u32| value_of(&metrics, "vllm:prefix_cache_hits_total", &format!("engine=\"{rank}\""));
    assert_eq!((hits(0), hits(1)), (72.0, 144.0));
    // A prompt that nobody knows is learned where it was sent.
    let first = fleet.complete((9000..9040).collect::<Vec<u32>>().into()).await;
    assert_eq!((first.predicted, first.cached()), (Some(0), 0));
    fleet
        .eventually("it is predicted as it is reported", async |fleet| {
            let again = fleet.complete((9000..9040).collect::<Vec<u32>>().into()).await;
            (again.predicted, again.cached()) == (Some(36), 36)
        })
        .await;
    assert_eq!(fleet.metric("warmpath_predictions_total", "over").await, 0.0);
    let (status, refusal) = finds(fleet, engine, "2", 1).await;
    assert_eq!((status, &refusal["error"]["message"]), (400, &"data_parallel_rank 2 is out of range [0, 2).".into()));
}

async fn mock(ranks: Vec<Bus>, tasks: &Tasks) -> SocketAddr {
    let settings = MockSettings { ranks, worker: "stranger-1".to_owned(), ..crate::doctor::settings() };
    MockEngine::start(settings, tasks).await.unwrap().address
}

#[tokio::test]
async fn of_a_simulated_engine_over_zeromq_each_rank_is_asked_for_what_it_holds() {
    let tasks = Tasks::new();
    let (place, _, ranks) = two_ranks(&tasks).await;
    let engine = mock(ranks.iter().cloned().map(Bus::Zmq).collect(), &tasks).await;
    let settings = format!("events: zmq, zmq_endpoint: '{place}', dp_ranks: 2, capacity_blocks: 2000");
    let fleet = fleet().engines(0).stranger_with(engine, &settings).start().await;
    a_prompt_goes_to_the_rank_that_holds_it(&fleet, engine).await;
}

#[tokio::test]
async fn of_a_simulated_engine_whose_ranks_connect_each_is_asked_for_what_it_holds() {
    let tasks = Tasks::new();
    let (gate, ranks) = two_that_connect(&tasks).await;
    let engine = mock(ranks.iter().cloned().map(Bus::Zmq).collect(), &tasks).await;
    let fleet = fleet().engines(0).config(&format!("events: {{zmq: {{bind: '{gate}'}}}}\n"));
    let fleet = fleet.stranger_with(engine, "events: zmq, dp_ranks: 2, capacity_blocks: 2000").start().await;
    subscribed(&ranks).await;
    a_prompt_goes_to_the_rank_that_holds_it(&fleet, engine).await;
}

#[tokio::test]
async fn of_a_simulated_engine_over_nats_each_rank_is_asked_for_what_it_holds() {
    let (server, tasks) = (NatsServer::jetstream(), Tasks::new());
    let nats = NatsSettings::publisher(server.url(), "warmpath".to_owned());
    let bus = Bus::Nats(Box::new(NatsBus::connect(nats).await.unwrap()));
    let engine = mock(vec![bus.clone(), bus], &tasks).await;
    let settings = "events: nats, dp_ranks: 2, capacity_blocks: 2000";
    let fleet = fleet().engines(0).nats(server.url()).stranger_with(engine, settings).start().await;
    a_prompt_goes_to_the_rank_that_holds_it(&fleet, engine).await;
}
