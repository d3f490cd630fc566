//! Workers that are described otherwise while the router runs: they stay what they are, and nothing of them is lost.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::reload::{File, Load};
use crate::scripted::{Scripted, Step, good_stream, whole};

impl TestFleet {
    pub(crate) async fn row(&self, worker: &str) -> Value {
        let told: Value = serde_json::from_str(&self.admin("/api/v1/workers").await.1).unwrap();
        told["workers"].as_array().unwrap().iter().find(|row| row["id"] == worker).unwrap().clone()
    }

    /// Puts `new` in the place of `old` in the file, and waits until a worker is as `check` says.
    async fn changes(&self, file: &File, (old, new): (&str, &str), worker: &str, check: impl Fn(&Value) -> bool) {
        assert!(self.yaml.contains(old), "{}", self.yaml);
        file.write(self.yaml.replace(old, new).as_bytes());
        let (status, told) = self.reload().await;
        assert_eq!((status, &told["ok"]), (200, &json!(true)), "{told}");
        self.eventually("the change is followed", async |fleet| check(&fleet.row(worker).await)).await;
    }
}

/// A worker that answers each request after one [`Scripted::go`].
async fn slow() -> Scripted {
    Scripted::start([vec![Step::Await], good_stream()].concat()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_every_workers_key_and_limits_drops_nothing_and_forgets_nothing() {
    let fleet = fleet().engines(3).start().await;
    let file = fleet.following("workers").await;
    let prompt: Vec<u32> = (97..121).collect();
    let first = fleet.complete(prompt.clone().into()).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 6.0).await;
    let idle = ["engine-1", "engine-2", "engine-3"].into_iter().find(|id| *id != first.worker).unwrap();
    assert_eq!(fleet.operate(idle, "drain").await.0, 200);
    let before = fleet.row(&first.worker).await;
    let load = Load::start(&fleet);
    fleet.eventually("there is load", async |_| load.answered() > 20).await;

    let new = "capacity_blocks: 900, max_num_seqs: 7, api_key: another";
    fleet.changes(&file, ("capacity_blocks: 1000", new), idle, |row| row["max_num_seqs"] == 7).await;

    let answered = load.answered();
    fleet.eventually("there is more", async |_| load.answered() > answered + 20).await;
    let (served, failed) = load.stop().await;
    assert!(failed == 0, "{served} served, {failed} failed");
    let after = fleet.row(&first.worker).await;
    assert_eq!((&after["slot"], &after["max_num_seqs"], &after["state"]), (&before["slot"], &json!(7), &json!("up")));
    assert!(after["index_blocks"].as_u64() >= before["index_blocks"].as_u64(), "{after}");
    assert_eq!(fleet.row(idle).await["condition"], "draining");
    let again = fleet.complete(prompt.into()).await;
    assert_eq!((again.worker, again.predicted), (first.worker, Some(20)));
}

#[tokio::test]
async fn a_request_that_waits_finds_the_room_that_a_change_makes_and_no_more() {
    let worker = slow().await;
    let fleet = fleet()
        .engines(0)
        .policy("round_robin")
        .stranger_with(worker.address, "events: none, max_num_seqs: 1")
        .start()
        .await;
    let file = fleet.following("room").await;
    let ask = async || {
        let body = json!({"model": "m", "prompt": "x", "stream": true}).to_string();
        fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap().status().as_u16()
    };
    let waiting = async |fleet: &TestFleet| fleet.metric("warmpath_queue_length", "class=\"normal\"").await;
    let act = async {
        worker.asked(1).await;
        fleet.eventually("two wait", async |fleet| waiting(fleet).await == 2.0).await;
        let change = ("max_num_seqs: 1", "max_num_seqs: 2");
        fleet.changes(&file, change, "stranger-1", |row| row["max_num_seqs"] == 2).await;
        worker.asked(2).await;
        // What is in flight is still counted: the third one has to wait.
        let row = fleet.row("stranger-1").await;
        assert_eq!((&row["in_flight"]["requests"], waiting(&fleet).await), (&json!(2), 1.0));
        assert_eq!(worker.seen().len(), 2);
        (0..3).for_each(|_| worker.go());
    };
    let (first, second, third, ()) = tokio::join!(ask(), ask(), ask(), act);
    assert_eq!([first, second, third], [200; 3]);
}

#[tokio::test]
async fn a_key_that_is_changed_is_shown_from_the_next_request_on() {
    let answer = r#"{"choices":[{"index":0,"text":"a","finish_reason":"length"}]}"#;
    let worker = Scripted::start(vec![whole("200 OK", answer)]).await;
    let keyed = "events: none, api_key: old";
    let fleet = fleet().engines(0).policy("round_robin").stranger_with(worker.address, keyed).start().await;
    let file = fleet.following("key").await;
    assert_eq!(fleet.complete(json!([1, 2])).await.status, 200);
    file.write(fleet.yaml.replace("api_key: old", "api_key: new").as_bytes());
    assert_eq!(fleet.reload().await.0, 200);
    let shown = || worker.seen().last().unwrap().header("authorization").join(",");
    assert_eq!(worker.seen()[0].header("authorization"), ["Bearer old"]);
    let asked = async |fleet: &TestFleet| fleet.complete(json!([1, 2])).await.status == 200 && shown() == "Bearer new";
    fleet.eventually("the new one is shown", asked).await;
}

fn told(blocks: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:num_requests_waiting{{engine=\"0\"}} 0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.0\nvllm:cache_config_info{{num_gpu_blocks=\"{blocks}\"}} 1.0\n"
    )
}

#[tokio::test]
async fn the_size_of_a_cache_is_what_its_operator_says_and_else_what_its_engine_said_last() {
    let worker = slow().await;
    worker.says(Some(&told(100)));
    let fleet = fleet()
        .engines(0)
        .policy("round_robin")
        .config("engines: {metrics_interval: 20ms}")
        .stranger_with(worker.address, "events: none")
        .start()
        .await;
    let file = fleet.following("size").await;
    let load = async |fleet: &TestFleet| fleet.row("stranger-1").await["kv_load"].as_f64().unwrap();
    // A prompt of ten blocks.
    let until = async |blocks: f64| {
        let is = async |fleet: &TestFleet| (load(fleet).await - 10.0 / blocks).abs() < 1e-9;
        fleet.eventually("the cache has this size", is).await;
    };
    let prompt: Vec<u32> = (0..40).collect();
    let ask = async { fleet.complete(prompt.into()).await.status };
    let act = async {
        worker.asked(1).await;
        until(100.0).await;
        // The engine was started anew with another size.
        worker.says(Some(&told(200)));
        until(200.0).await;
        let set = "events: none, capacity_blocks: 500";
        file.write(fleet.yaml.replace("events: none", set).as_bytes());
        assert_eq!(fleet.reload().await.0, 200);
        until(500.0).await;
        worker.says(Some(&told(400)));
        fleet.eventually("it is read", async |fleet| fleet.row("stranger-1").await["engine"]["blocks"] == 400).await;
        until(500.0).await;
        file.write(fleet.yaml.as_bytes());
        assert_eq!(fleet.reload().await.0, 200);
        until(400.0).await;
        worker.go();
    };
    let (status, ()) = tokio::join!(ask, act);
    assert_eq!(status, 200);
}

/// Another address is another worker: it has to pass its checks, and what was known goes.
#[tokio::test]
async fn a_worker_at_another_address_is_another_worker() {
    let (first, second) = (Scripted::start(good_stream()).await, Scripted::start(good_stream()).await);
    let config = "timeouts: {health_interval: 50ms}";
    let fleet = fleet().engines(0).policy("round_robin").config(config).stranger(first.address).start().await;
    let file = fleet.following("address").await;
    first.checked().await;
    let (old, new) = (first.address.to_string(), second.address.to_string());
    file.write(fleet.yaml.replace(&old, &new).as_bytes());
    assert_eq!(fleet.reload().await.0, 200);
    tokio::time::timeout(Duration::from_secs(10), second.checked()).await.unwrap();
    fleet.eventually("it serves", async |fleet| fleet.complete(json!([1, 2])).await.status == 200).await;
    assert!(first.seen().is_empty() && !second.seen().is_empty());
}

/// At no moment is there neither the one nor the other: those that wait are not told that nobody serves.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_go_to_the_new_address_of_the_only_worker() {
    let (first, second) = (slow().await, Scripted::start(good_stream()).await);
    let one = "events: none, max_num_seqs: 1";
    let fleet = fleet().engines(0).policy("round_robin").stranger_with(first.address, one).start().await;
    let file = fleet.following("only").await;
    let ask = async || {
        let body = json!({"model": "m", "prompt": "x", "stream": true}).to_string();
        fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap().status().as_u16()
    };
    let act = async {
        first.asked(1).await;
        let waiting = async |fleet: &TestFleet| fleet.metric("warmpath_queue_length", "class=\"normal\"").await == 3.0;
        fleet.eventually("three wait", waiting).await;
        let moved = fleet.yaml.replace(&first.address.to_string(), &second.address.to_string());
        file.write(moved.as_bytes());
        assert_eq!(fleet.reload().await.0, 200);
        second.asked(3).await;
        first.go();
    };
    // Two that race may both find the room of one.
    let others = async {
        first.asked(1).await;
        tokio::join!(ask(), ask(), ask())
    };
    let (a, (b, c, d), ()) = tokio::join!(ask(), others, act);
    assert_eq!([a, b, c, d], [200; 4]);
    assert_eq!((first.seen().len(), second.seen().len()), (1, 3));
}

/// Nobody sees it among the workers any more, and what hangs there keeps its place.
#[tokio::test(flavor = "multi_thread")]
async fn what_hangs_at_a_worker_that_left_goes_to_another_when_that_one_is_ejected() {
    let (silent, well) = (slow().await, Scripted::start(good_stream()).await);
    let fleet = fleet().engines(0).policy("round_robin").stranger(silent.address).start().await;
    let file = fleet.following("left").await;
    let ask = async {
        let body = json!({"model": "m", "prompt": "x", "stream": true}).to_string();
        fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap().status().as_u16()
    };
    let act = async {
        silent.asked(1).await;
        let replaced = fleet.yaml.replace(&silent.address.to_string(), &well.address.to_string());
        file.write(replaced.replace("stranger-1", "other").as_bytes());
        assert_eq!(fleet.reload().await.0, 200);
        let is_there = async |fleet: &TestFleet| fleet.admin("/api/v1/workers").await.1.contains("\"other\"");
        fleet.eventually("the other has come", is_there).await;
        assert_eq!(fleet.operate("stranger-1", "drain").await.0, 404);
        assert_eq!(fleet.operate("stranger-1", "eject").await.0, 200);
        well.asked(1).await;
    };
    assert_eq!(tokio::join!(ask, act).0, 200);
}

/// There is no engine inside this process that could tell of its blocks: the worker stays what it was.
#[tokio::test]
async fn a_worker_that_cannot_be_what_is_asked_for_stays_what_it_is() {
    let mut fleet = fleet().engines(1).without_events().start().await;
    fleet.restart_gateway().await;
    let file = fleet.following("stays").await;
    file.write(fleet.yaml.replace("events: none", "events: local").as_bytes());
    assert_eq!(fleet.reload().await.0, 200);
    let said = "worker `engine-1` cannot be taken in: ";
    fleet.eventually(said, async |fleet| fleet.health().await["degraded"].to_string().contains(said)).await;
    assert_eq!(fleet.complete(json!([1, 2])).await.status, 200);
}
