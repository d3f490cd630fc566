//! How far promises are believed, and what engines say of themselves: workers that a test gives every word to, and
//! simulated engines.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath::app::App;
use warmpath::config::Config;
use warmpath_indexer::event::{CacheEvent, Stored};

use crate::by_hand::{batch, stored};
use crate::fleet::{Answered, TestFleet, fleet};
use crate::nats::NatsServer;
use crate::scripted::{Scripted, Step, whole};

/// A gateway before two scripted workers, whose events a test publishes.
struct Bench {
    fleet: TestFleet,
    workers: [Scripted; 2],
    bus: async_nats::Client,
    _server: NatsServer,
}

/// An answer of a worker that has counted `prompt` tokens and found `cached` of them.
fn answer(prompt: u32, cached: u32) -> Vec<Step> {
    let usage =
        json!({"prompt_tokens": prompt, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": cached}});
    let choices = json!([{"index": 0, "text": "a", "finish_reason": "length"}]);
    let body = json!({"id": "x", "object": "text_completion", "choices": choices, "usage": usage});
    vec![whole("200 OK", &body.to_string())]
}

fn metrics(running: u32, waiting: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\"}} {running}\nvllm:num_requests_waiting{{engine=\"0\"}} {waiting}\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 1.0\n"
    )
}

/// What an engine says that has nothing to do: its load must not count against it.
fn idle_since(start: u32) -> String {
    format!(
        "vllm:num_requests_running{{engine=\"0\"}} 0\nvllm:num_requests_waiting{{engine=\"0\"}} 0\n\
         vllm:kv_cache_usage_perc{{engine=\"0\"}} 0.0\nprocess_start_time_seconds {start}\n"
    )
}

impl Bench {
    async fn start(routing: &str) -> Self {
        let server = NatsServer::core();
        let workers = [Scripted::start(answer(40, 0)).await, Scripted::start(answer(40, 0)).await];
        let mut builder = fleet().engines(0).nats(server.url());
        for worker in &workers {
            builder = builder.stranger_with(worker.address, "events: nats, capacity_blocks: 1000");
        }
        let config = format!("engines: {{metrics_interval: 20ms, half_life: 200ms}}\nrouting: {{seed: 1, {routing}}}");
        let fleet = builder.config(&config).start().await;
        let bus = async_nats::connect(server.url()).await.unwrap();
        for worker in &workers {
            worker.checked().await;
        }
        Self { fleet, workers, bus, _server: server }
    }

    async fn publish(&self, worker: u32, number: u64, event: CacheEvent) {
        let mut headers = async_nats::HeaderMap::new();
        headers.insert("Warmpath-Epoch", "1");
        headers.insert("Warmpath-Seq", number.to_string().as_str());
        let payload = batch(Some(0), vec![event]).into();
        self.bus.publish_with_headers(format!("warmpath.kv.m.stranger-{worker}.0"), headers, payload).await.unwrap();
        self.bus.flush().await.unwrap();
    }

    /// The second worker says that it holds the tokens 0 to 39.
    async fn second_holds_the_prompt(&self) {
        self.publish(2, 0, stored(0, 10)).await;
        self.fleet.until_metric("warmpath_index_blocks", "stranger-2", 10.0).await;
    }

    async fn ask(&self) -> Answered {
        let answered = self.fleet.complete((0..40).collect::<Vec<u32>>().into()).await;
        assert_eq!(answered.status, 200, "{answered:?}");
        // Its end is seen by the router a moment after its client has it; one in flight would move the next elsewhere.
        self.fleet.eventually("it has ended", async |fleet| fleet.app.in_flight() == 0).await;
        answered
    }

    /// The same as somebody; returns who answered.
    async fn ask_as(&self, key: &str) -> String {
        let body = json!({"model": "m", "prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 2});
        let request = self.fleet.client.post(self.fleet.url("/v1/completions")).bearer_auth(key).json(&body);
        let answered = request.send().await.unwrap();
        let worker = answered.headers()["x-warmpath-worker"].to_str().unwrap().to_owned();
        answered.bytes().await.unwrap();
        self.fleet.eventually("it has ended", async |fleet| fleet.app.in_flight() == 0).await;
        worker
    }

    /// Asks until the first worker is chosen; returns how often the second one was.
    async fn until_given_up(&self) -> usize {
        for asked in 0..64 {
            let answered = self.ask().await;
            if answered.worker == "stranger-1" {
                return asked;
            }
            assert_eq!(answered.predicted, Some(36), "what is promised is reported as it is");
        }
        panic!("it is believed for ever");
    }

    async fn row(&self, worker: usize) -> Value {
        row(&self.fleet, worker).await
    }

    async fn until_reasons(&self, worker: usize, reasons: Value) {
        let what = format!("reasons are {reasons}");
        self.fleet.eventually(&what, async |fleet| row(fleet, worker).await["reasons"] == reasons).await;
    }
}

/// The entry of the `number`-th worker in what the admin port says.
async fn row(fleet: &TestFleet, number: usize) -> Value {
    let (status, text) = fleet.admin("/api/v1/workers").await;
    assert_eq!(status, 200);
    serde_json::from_str::<Value>(&text).unwrap()["workers"][number - 1].clone()
}

/// Whom the router reads otherwise than the engine does, as by a field of which it knows nothing, spoils nobody else's.
#[tokio::test]
async fn what_one_tenant_finds_takes_nothing_from_others() {
    let bench = Bench::start("policy: kv").await;
    bench.second_holds_the_prompt().await;
    bench.workers[1].plays(answer(40, 36));
    for _ in 0..8 {
        assert_eq!(bench.ask_as("even").await, "stranger-2");
    }
    bench.workers[1].plays(answer(47, 0));
    for _ in 0..40 {
        assert_eq!(bench.ask_as("odd").await, "stranger-2");
    }
    let row = bench.row(2).await;
    let reasons = row["reasons"].as_array().unwrap();
    assert!(row["trust_weight"] == json!(1.0) && reasons[0] == "token counts differ by 7: chat template?", "{row}");
    assert!(reasons[1].as_str().unwrap().starts_with("promises 36 cached tokens, the engine reports 0"), "{row}");
    // A second one finds the same: half of what the three of them say without the worst.
    for _ in 0..23 {
        assert_eq!(bench.ask_as("also odd").await, "stranger-2");
    }
    bench.ask_as("also odd").await;
    assert_eq!(bench.row(2).await["trust_weight"], json!(0.5));
}

#[tokio::test]
async fn a_worker_that_counts_other_tokens_is_believed_less_and_less_until_it_counts_alike() {
    let bench = Bench::start("policy: kv").await;
    bench.second_holds_the_prompt().await;
    bench.workers[1].plays(answer(47, 36));
    assert_eq!(bench.until_given_up().await, 24);
    let row = bench.row(2).await;
    assert_eq!((&row["trust_weight"], &row["falls_back"]), (&json!(0.0), &json!(true)));
    assert_eq!(row["reasons"], json!(["token counts differ by 7: chat template?"]));
    assert_eq!(row["cached_tokens"], json!({"requests": 24, "predicted": 24 * 36, "reported": 24 * 36}));
    let labels = |result: &str| format!("worker=\"stranger-2\",result=\"{result}\"");
    assert_eq!(bench.fleet.metric("warmpath_token_parity_total", &labels("differs")).await, 24.0);
    assert_eq!(bench.fleet.metric("warmpath_trust_weight", "stranger-2").await, 0.0);
    assert_eq!(bench.fleet.metric("warmpath_trust_reason", "stranger-2\",reason=\"token_counts").await, 1.0);
    // Its template is set right; requests that others fail to answer show it.
    bench.workers[1].plays(answer(40, 36));
    bench.workers[0].plays(vec![Step::Close]);
    for _ in 0..24 {
        assert_eq!(bench.ask().await.worker, "stranger-2");
    }
    bench.workers[0].plays(answer(40, 0));
    assert_eq!(bench.ask().await.worker, "stranger-2");
    let row = bench.row(2).await;
    assert_eq!((&row["trust_weight"], &row["reasons"]), (&json!(1.0), &json!([])));
}

/// Engines skip their caches for them, and say that nothing was cached.
#[tokio::test]
async fn prompts_whose_tokens_are_scored_say_nothing_of_a_view_and_get_no_credit() {
    let bench = Bench::start("policy: kv").await;
    bench.second_holds_the_prompt().await;
    for asked in 0..32 {
        let mut body = json!({"model": "m", "prompt": (0..40).collect::<Vec<u32>>(), "max_tokens": 1});
        let (key, value) = if asked % 2 == 0 { ("prompt_logprobs", json!(1)) } else { ("echo", json!(true)) };
        body[key] = value;
        body["logprobs"] = json!(0);
        let answered = bench.fleet.post("/v1/completions", &body).await;
        assert_eq!((answered.status, answered.predicted), (200, Some(0)), "{answered:?}");
    }
    let row = bench.row(2).await;
    assert_eq!((&row["trust_weight"], &row["reasons"]), (&json!(1.0), &json!([])));
    assert_eq!(row["cached_tokens"]["requests"], json!(0));
    bench.workers[1].plays(answer(40, 36));
    let answered = bench.ask().await;
    assert_eq!((answered.worker.as_str(), answered.predicted), ("stranger-2", Some(36)));
}

/// What was sent to it takes the view's place, half as much.
#[tokio::test]
async fn a_worker_that_fell_back_is_known_by_what_it_was_sent() {
    let bench = Bench::start("policy: kv").await;
    bench.second_holds_the_prompt().await;
    bench.workers[1].plays(answer(47, 36));
    bench.until_given_up().await;
    bench.workers[0].plays(vec![Step::Close]);
    assert_eq!(bench.ask().await.worker, "stranger-2");
    bench.workers[0].plays(answer(40, 0));
    assert_eq!(bench.ask().await.worker, "stranger-2");
}

#[tokio::test]
async fn broken_promises_are_not_believed_until_the_process_is_another_one() {
    let bench = Bench::start("policy: kv").await;
    bench.second_holds_the_prompt().await;
    bench.workers[1].says(Some(&idle_since(1000)));
    bench.fleet.until_metric("warmpath_engine_scrapes_total", "stranger-2\",outcome=\"ok", 1.0).await;
    assert_eq!(bench.until_given_up().await, 24);
    let reason = "promises 36 cached tokens, the engine reports 0: prefix caching off, or removals lost?";
    assert_eq!(bench.row(2).await["reasons"], json!([reason]));
    assert_eq!(
        bench.fleet.metric("warmpath_prediction_error_tokens_total", "stranger-2\",direction=\"over").await,
        864.0
    );
    bench.workers[1].says(Some(&idle_since(2000)));
    bench.until_reasons(2, json!([])).await;
    assert_eq!(bench.row(2).await["trust_weight"], json!(1.0));
    assert_eq!(bench.row(2).await["engine"]["process_start_ms"], json!(2_000_000));
}

#[tokio::test]
async fn blocks_of_another_size_are_named_with_both_sizes() {
    let bench = Bench::start("policy: kv").await;
    let CacheEvent::Stored(event) = stored(0, 20) else { panic!("it is a store") };
    let hashes = event.hashes.iter().copied().take(10).collect();
    bench.publish(2, 0, Stored { block_size: Some(8), hashes, ..*event }.into()).await;
    bench.until_reasons(2, json!(["events carry block size 8, configured 4"])).await;
    let told = json!(["worker `stranger-2`: events carry block size 8, configured 4"]);
    assert_eq!(bench.fleet.health().await["degraded"], told);
    let row = bench.row(2).await;
    assert_eq!((&row["index_blocks"], &row["trust_weight"]), (&json!(0), &json!(0.0)));
    // It was started again with the right size.
    for number in 1..20_u32 {
        bench.publish(2, number.into(), stored(number * 1000, 100)).await;
    }
    bench.until_reasons(2, json!([])).await;
    assert_eq!(bench.row(2).await["trust_weight"], json!(1.0));
}

/// The events of simulated engines go nowhere, and they say what they found.
#[tokio::test]
async fn silence_is_noticed_only_while_requests_finish() {
    let server = NatsServer::core();
    let config = "engines: {metrics_interval: 20ms}\nrouting: {seed: 1, trust: {event_silence: 1s}}";
    let fleet = fleet().engines(1).silent().nats(server.url()).config(config).start().await;
    fleet.eventually("it has listened", async |fleet| row(fleet, 1).await["reasons"] == json!([])).await;
    for family in 0..4_u32 {
        let prompt: Vec<u32> = (family * 1000..family * 1000 + 40).collect();
        assert_eq!(fleet.complete(prompt.into()).await.status, 200);
    }
    fleet
        .eventually("it is said", async |fleet| {
            let row = row(fleet, 1).await;
            let reason = row["reasons"][0].as_str().unwrap_or_default();
            reason.starts_with("no events for ") && reason.ends_with(" s although requests finish")
        })
        .await;
    let seen = row(&fleet, 1).await;
    assert_eq!((&seen["trust_weight"], &seen["last_event_age_s"]), (&json!(0.0), &Value::Null));
    assert_eq!((&seen["engine"]["names"], &seen["engine"]["block_size"]), (&json!("vllm"), &json!(4)));
    let bus = async_nats::connect(server.url()).await.unwrap();
    bus.publish("warmpath.kv.m.engine-1.0", batch(Some(0), vec![stored(0, 10)]).into()).await.unwrap();
    bus.flush().await.unwrap();
    fleet.eventually("all is well", async |fleet| row(fleet, 1).await["reasons"] == json!([])).await;
    assert_eq!(row(&fleet, 1).await["trust_weight"], json!(1.0));
}

#[tokio::test]
async fn others_requests_count_while_the_engine_tells_of_them_and_fade_when_it_falls_silent() {
    let bench = Bench::start("policy: least_requests").await;
    bench.workers[0].says(Some(&metrics(100, 5)));
    bench.fleet.until_metric("warmpath_engine_scrapes_total", "stranger-1\",outcome=\"ok", 3.0).await;
    assert_eq!(bench.ask().await.worker, "stranger-2");
    assert_eq!(bench.fleet.metric("warmpath_engine_requests_running", "stranger-1").await, 100.0);
    let engine = bench.row(1).await["engine"].clone();
    assert_eq!((&engine["running"], &engine["waiting"], &engine["kv_usage"]), (&json!(100), &json!(5), &json!(1.0)));
    bench.workers[0].says(None);
    bench.fleet.eventually("it has faded", async |_| bench.ask().await.worker == "stranger-1").await;
    assert!(bench.fleet.metric("warmpath_engine_metrics_age_seconds", "stranger-1").await > 0.2);
}

#[tokio::test]
async fn what_is_known_of_workers_is_told_to_whoever_has_the_token() {
    let yaml = "listen: {data: '127.0.0.1:0', admin: '127.0.0.1:0', admin_token: secret}\n\
                models: [{name: m}]\nworkers: [{id: a, url: 'http://127.0.0.1:9', model: m, dp_ranks: 2}]\n";
    let app = App::start(Config::parse("a test", yaml.to_owned()).unwrap(), None).await.unwrap();
    let url = format!("http://{}/api/v1/workers", app.admin_address());
    let client = reqwest::Client::new();
    assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
    let answer = client.get(&url).bearer_auth("secret").send().await.unwrap();
    let known: Value = answer.json().await.unwrap();
    let names: Vec<_> = (0..2).map(|at| (&known["workers"][at]["slot"], &known["workers"][at]["rank"])).collect();
    assert_eq!(names, [(&json!(0), &json!(0)), (&json!(1), &json!(1))]);
    assert_eq!((&known["workers"][0]["view"], &known["workers"][0]["engine"]), (&json!("current"), &Value::Null));
}

/// Metrics that are stuck, that never come, or that make no sense keep no request back.
#[tokio::test]
async fn no_metrics_stop_a_request() {
    let bench = Bench::start("policy: kv, on_all_busy: error").await;
    let nonsense = "vllm:num_requests_running{engine=\"0\" NaN\n".repeat(1000);
    for said in [Some(metrics(100_000, 100_000)), None, Some(nonsense)] {
        for worker in &bench.workers {
            worker.says(said.as_deref());
        }
        let start = Instant::now();
        for _ in 0..20 {
            assert_eq!(bench.ask().await.body["choices"][0]["text"], "a");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
    assert_eq!(bench.row(1).await["state"], "up");
    assert_eq!(bench.fleet.metric("warmpath_worker_up", "stranger-2").await, 1.0);
}
