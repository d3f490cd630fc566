//! What engines say of themselves over bridges: workers that a test gives every word to, a real NATS server and real
//! bridges between them and the gateway.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath::bridge::{Bridge, BridgeSettings, RankFeed};
use warmpath::events::source::{Line, source};

use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, whole};
use crate::sidecar::{ABILITIES, bridge_settings};

async fn worker() -> Scripted {
    let answer = r#"{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
    Scripted::start(vec![whole("200 OK", answer)]).await
}

fn metrics(rank: u32, running: u32, waiting: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"{rank}\"}} {running}\nvllm:num_requests_waiting{{engine=\"{rank}\"}} {waiting}\n\
         vllm:kv_cache_usage_perc{{engine=\"{rank}\"}} 0.5\n"
    )
}

/// A bridge beside `engine`, which speaks for `worker`. Its events stay away.
async fn bridge(engine: &Scripted, worker: &str, server: &NatsServer) -> (Bridge, Line) {
    let (source, line) = source(ABILITIES, 64);
    let settings = BridgeSettings { register: false, ..bridge_settings(engine.address, "m", worker, &server.url()) };
    (Bridge::start(settings, vec![RankFeed { rank: 0, source, blocks: None }]).await.unwrap(), line)
}

fn before(workers: &[&Scripted], settings: &str, server: &NatsServer) -> FleetBuilder {
    let fleet = fleet().engines(0).nats(server.url());
    workers.iter().fold(fleet, |fleet, worker| fleet.stranger_with(worker.address, settings))
}

async fn rows(fleet: &TestFleet) -> Vec<Value> {
    let workers: Value = serde_json::from_str(&fleet.admin("/api/v1/workers").await.1).unwrap();
    workers["workers"].as_array().unwrap().clone()
}

async fn asked(fleet: &TestFleet) -> String {
    let answered = fleet.complete((0..40).collect::<Vec<u32>>().into()).await;
    assert_eq!(answered.status, 200, "{answered:?}");
    answered.worker
}

/// The gateway itself cannot read the metrics: what it knows came over the bridge.
#[tokio::test]
async fn others_requests_count_while_a_bridge_tells_of_them_and_fade_when_it_is_gone() {
    let server = NatsServer::core();
    let (first, second, engine) = (worker().await, worker().await, worker().await);
    [&first, &second].into_iter().for_each(|worker| worker.says(None));
    let more = "vllm:cache_config_info{block_size=\"4\",num_gpu_blocks=\"129\"} 1.0\nprocess_start_time_seconds 1000\n";
    engine.says(Some(&(metrics(0, 100, 5) + more)));
    let config = "engines: {half_life: 200ms}\nrouting: {seed: 1, policy: least_requests}";
    let fleet = before(&[&first, &second], "events: nats", &server).config(config).start().await;
    let (bridge, _line) = bridge(&engine, "stranger-1", &server).await;
    fleet.until_metric("warmpath_engine_load_reports_total", "stranger-1\",outcome=\"ok", 3.0).await;
    assert_eq!(asked(&fleet).await, "stranger-2");
    assert_eq!(fleet.metric("warmpath_engine_requests_running", "stranger-1").await, 100.0);
    let rows = rows(&fleet).await;
    let said = &rows[0]["engine"];
    assert_eq!((&said["names"], &said["running"], &said["waiting"]), (&json!("bridge"), &json!(100), &json!(5)));
    assert_eq!((&said["kv_usage"], &said["blocks"], &said["block_size"]), (&json!(0.5), &json!(129), &json!(4)));
    assert_eq!((&said["process_start_ms"], &rows[1]["engine"]), (&json!(1_000_000), &Value::Null));
    assert_eq!(fleet.metric("warmpath_engine_scrapes_total", "outcome=\"ok").await, 0.0);
    assert!(bridge.stop(Duration::from_secs(5)).await);
    fleet.eventually("it has faded", async |fleet| asked(fleet).await == "stranger-1").await;
}

#[tokio::test]
async fn of_what_is_read_and_what_is_reported_the_newer_counts() {
    let server = NatsServer::core();
    let (worker, engine) = (worker().await, worker().await);
    let said = |seconds: u32, queries: u32, running: u32| {
        metrics(0, running, 0)
            + &format!(
                "process_start_time_seconds {seconds}\nvllm:prefix_cache_queries_total{{engine=\"0\"}} {queries}\n\
                 vllm:prefix_cache_hits_total{{engine=\"0\"}} 0\n"
            )
    };
    worker.says(Some(&said(1000, 500, 7)));
    engine.says(Some(&said(1000, 499, 3)));
    let config = "engines: {metrics_interval: 20ms}";
    let fleet = before(&[&worker], "events: nats", &server).config(config).start().await;
    fleet.until_metric("warmpath_engine_scrapes_total", "outcome=\"ok", 1.0).await;
    let (_bridge, _line) = bridge(&engine, "stranger-1", &server).await;
    fleet.until_metric("warmpath_engine_load_reports_total", "outcome=\"late", 2.0).await;
    assert_eq!(rows(&fleet).await[0]["engine"]["running"], json!(7));
    assert_eq!(fleet.metric("warmpath_engine_load_reports_total", "outcome=\"ok").await, 0.0);
    // The process is another one, and the bridge is the first that tells.
    engine.says(Some(&said(2000, 0, 3)));
    fleet.until_metric("warmpath_engine_load_reports_total", "outcome=\"ok", 1.0).await;
    fleet.until_metric("warmpath_engine_scrapes_total", "outcome=\"late", 1.0).await;
    let row = rows(&fleet).await[0]["engine"].clone();
    assert_eq!((&row["running"], &row["process_start_ms"]), (&json!(3), &json!(2_000_000)));
}

#[tokio::test]
async fn each_rank_is_told_of_by_itself() {
    let server = NatsServer::core();
    let (worker, engine) = (worker().await, worker().await);
    worker.says(None);
    engine.says(Some(&(metrics(0, 1, 0) + &metrics(1, 6, 2))));
    let fleet = before(&[&worker], "events: nats, dp_ranks: 3", &server).start().await;
    let (_bridge, _line) = bridge(&engine, "stranger-1", &server).await;
    fleet.until_metric("warmpath_engine_load_reports_total", "rank=\"1\",outcome=\"ok", 1.0).await;
    let rows = rows(&fleet).await;
    let running: Vec<_> = rows.iter().map(|row| row["engine"]["running"].as_u64()).collect();
    assert_eq!(running, [Some(1), Some(6), None]);
    fleet.until_metric("warmpath_engine_load_reports_total", "rank=\"2\",outcome=\"absent", 1.0).await;
}

/// Whoever may publish on a worker's subject can say what it likes, and nothing breaks.
#[tokio::test]
async fn what_is_no_report_is_refused_and_counted() {
    let server = NatsServer::core();
    let worker = worker().await;
    worker.says(None);
    let fleet = before(&[&worker], "events: nats", &server).start().await;
    let bus = async_nats::connect(server.url()).await.unwrap();
    fleet
        .eventually("it is refused", async |fleet| {
            for said in ["", "[", "{\"v\":9}", "{\"v\":1,\"worker\":\"other\",\"at_ms\":0,\"epoch\":0,\"ranks\":[]}"] {
                bus.publish("warmpath.load.stranger-1", said.into()).await.unwrap();
                bus.flush().await.unwrap();
            }
            fleet.metric("warmpath_engine_load_reports_total", "outcome=\"refused").await > 0.0
        })
        .await;
    assert_eq!(asked(&fleet).await, "stranger-1");
    assert_eq!(rows(&fleet).await[0]["engine"], Value::Null);
}

/// The worker is found by its registration. A second for two checks of the bridge, 500 ms apart, and two for all else.
#[tokio::test]
async fn a_worker_that_comes_back_behind_a_bridge_is_asked_within_two_seconds() {
    let server = NatsServer::jetstream();
    let config = "discovery: {nats: {enabled: true}}";
    let mut fleet = fleet().engines(1).unlisted().nats(server.url()).bridged().config(config).start().await;
    let serves = async |fleet: &TestFleet| fleet.complete(json!([1, 2, 3, 4, 5])).await.status == 200;
    fleet.eventually("it serves", serves).await;
    fleet.tasks.drain(Duration::ZERO).await;
    let is_gone = async |fleet: &TestFleet| !fleet.admin("/metrics").await.1.contains("worker=\"engine-1\"");
    fleet.eventually("it is gone", is_gone).await;
    fleet.restart_engines().await;
    let back = Instant::now();
    fleet.eventually("it serves again", serves).await;
    println!("\na worker behind a bridge was asked {:?} after it answered again", back.elapsed());
    assert!(back.elapsed() < Duration::from_secs(3), "{:?}", back.elapsed());
}
