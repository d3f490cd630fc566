//! Requests through the gateway to simulated engines: who gets them, and what comes back.

use std::time::Duration;

use serde_json::json;

use crate::fleet::fleet;
use crate::scripted::{Scripted, Step};

/// Tokens 100, 101, …
fn tokens(count: u32) -> serde_json::Value {
    (100..100 + count).collect::<Vec<_>>().into()
}

/// after the stored event of the first request, all that share its prefix go to the same worker.
#[tokio::test]
async fn a_shared_prefix_goes_where_it_is_cached() {
    let fleet = fleet().start().await;
    let first = fleet.complete(tokens(40)).await;
    assert_eq!((first.status, first.predicted, first.cached()), (200, Some(0), 0));
    fleet.until_metric("warmpath_index_blocks", &first.worker, 10.0).await;
    for _ in 0..20 {
        let again = fleet.complete(tokens(38)).await;
        assert_eq!((again.worker.as_str(), again.predicted, again.cached()), (first.worker.as_str(), Some(36), 36));
    }
}

#[tokio::test]
async fn round_robin_does_not_care() {
    let fleet = fleet().policy("round_robin").start().await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(fleet.complete(tokens(40)).await.worker);
    }
    assert_eq!(workers, ["engine-1", "engine-2", "engine-1", "engine-2"]);
}

/// Policies that look at no cache do without the prompts: what engines report is counted, and nothing is predicted unless
/// it is asked for.
#[tokio::test]
async fn a_baseline_reads_no_prompts_unless_it_is_to_predict() {
    for (predict, promised, shown) in [("needed", 0, 0.0), ("always", 36, 36.0)] {
        let config = format!("routing: {{policy: round_robin, predict: {predict}}}");
        let fleet = fleet().engines(1).config(&config).start().await;
        fleet.complete(tokens(40)).await;
        fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
        let again = fleet.complete(tokens(40)).await;
        assert_eq!((again.predicted, again.cached()), (Some(promised), 36), "{predict}");
        fleet.until_metric("warmpath_cached_tokens_total", "reported", 36.0).await;
        let predicted = fleet.metric("warmpath_cached_tokens_total", "predicted").await;
        let counted = fleet.metric("warmpath_prompt_tokens_total", "engine-1").await;
        assert_eq!((predicted, counted), (shown, 80.0), "{predict}");
        let hit_rate = fleet.metric("warmpath_kv_hit_rate", "engine-1").await;
        assert!((hit_rate - 0.45).abs() < 1e-9, "{predict}: {hit_rate}");
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2});
        assert_eq!(fleet.post("/v1/chat/completions", &chat).await.status, 200);
        assert_eq!(fleet.metric("warmpath_untokenized_total", "").await, 0.0);
    }
}

/// what the router knows of sessions outweighs turns, whatever the prompts are.
#[tokio::test]
async fn a_session_stays_with_its_worker_where_sessions_count() {
    let fleet = fleet().config("routing: {policy: round_robin, sessions: {weight: 1.0}}").start().await;
    let ask = async |session: Option<&str>, key: Option<&str>, first: u32| {
        let prompt: Vec<u32> = (first..first + 8).collect();
        let body = json!({"model": "m", "prompt": prompt, "max_tokens": 1, "prompt_cache_key": key});
        let mut request = fleet.client.post(fleet.url("/v1/completions")).json(&body);
        if let Some(session) = session {
            request = request.header("x-session-id", session);
        }
        request.send().await.unwrap().headers()["x-warmpath-worker"].to_str().unwrap().to_owned()
    };
    let home = ask(Some("s"), None, 0).await;
    let other = ask(Some("t"), None, 100).await;
    assert_ne!(home, other);
    for turn in 2..6 {
        assert_eq!(ask(Some("s"), Some("t"), turn * 100).await, home);
        // What the body says counts where the header is silent.
        assert_eq!(ask(None, Some("t"), turn * 100 + 50).await, other);
        // Of what passes unread, too.
        let body = json!({"model": "m", "prompt": "x", "prompt_cache_key": "t"});
        let passed = fleet.client.post(fleet.url("/tokenize")).json(&body).send().await.unwrap();
        assert_eq!(passed.headers()["x-warmpath-worker"], other.as_str());
    }
}

/// Both policies see the same; what the shadow says is counted, and nobody follows it.
#[tokio::test]
async fn a_shadow_is_asked_and_counted() {
    let fleet = fleet().config("routing: {policy: round_robin, shadow: [random, chwbl]}").start().await;
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(fleet.complete(tokens(40)).await.worker);
    }
    assert_eq!(workers, ["engine-1", "engine-2", "engine-1", "engine-2"]);
    let agrees = fleet.metric("warmpath_shadow_placements_total", "policy=\"chwbl\",result=\"agrees\"").await;
    assert!((agrees - 2.0).abs() < 1e-9);
    let regret = fleet.metric("warmpath_shadow_regret_count", "chwbl").await;
    assert!((regret - 4.0).abs() < 1e-9);
}

/// Who waited in the queue for longer than was promised is not left out: neither who was refused there, nor whose own time was
/// over, nor who left.
#[tokio::test]
async fn a_promise_is_broken_in_the_queue_too() {
    let worker = Scripted::start(vec![Step::Hold]).await;
    let promised = "queue: {timeout: 200ms}\nrouting: {policy: predicted, objectives: {normal: {ttft: 50ms}}}";
    let fleet = fleet().engines(0).stranger_with(worker.address, "events: none, max_num_seqs: 1");
    let fleet = fleet.config(promised).start().await;
    let ask = || {
        let body = json!({"model": "m", "prompt": "x", "stream": true});
        fleet.client.post(fleet.url("/v1/completions")).json(&body)
    };
    let missed = async |count| {
        fleet.until_metric("warmpath_objectives_total", "objective=\"ttft\",result=\"missed\"", count).await;
    };
    let second = async {
        worker.asked(1).await;
        assert_eq!(ask().send().await.unwrap().status().as_u16(), 503);
        missed(1.0).await;
        let late = ask().header("x-request-timeout-ms", "100").send().await;
        assert_eq!(late.unwrap().status().as_u16(), 504);
        missed(2.0).await;
        assert!(ask().timeout(Duration::from_millis(100)).send().await.unwrap_err().is_timeout());
        missed(3.0).await;
    };
    tokio::select! {
        first = ask().send() => panic!("{first:?}"),
        () = second => {}
    }
}

/// Of streams only: nobody sees when the tokens of an answer in one piece come.
#[tokio::test]
async fn streams_are_counted_by_whether_their_class_got_what_it_was_promised() {
    let objectives = "{high: {ttft: 1h, itl: 1h}, low: {itl: 1h}}";
    let fleet = fleet().config(&format!("routing: {{policy: predicted, objectives: {objectives}}}")).start().await;
    for (priority, stream) in [(-1, true), (-1, false), (0, true), (1, true), (1, true)] {
        let body = json!({"model": "m", "prompt": tokens(40), "max_tokens": 4, "stream": stream, "priority": priority});
        assert_eq!(fleet.post("/v1/completions", &body).await.status, 200);
    }
    fleet.until_metric("warmpath_objectives_total", "objective=\"itl\",result=\"met\"", 3.0).await;
    let counted = async |labels| fleet.metric("warmpath_objectives_total", labels).await;
    assert_eq!(counted("objective=\"itl\",result=\"met\"").await, 3.0);
    assert_eq!(counted("objective=\"ttft\",result=\"met\"").await, 1.0);
    assert_eq!(counted("missed").await, 0.0);
}

/// R-083 end to end: of a prompt of ten whole blocks nine are promised and nine are hit.
#[tokio::test]
async fn the_promise_is_what_the_engine_keeps() {
    let fleet = fleet().engines(1).start().await;
    fleet.complete(tokens(40)).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    let again = fleet.complete(tokens(40)).await;
    assert_eq!((again.predicted, again.cached()), (Some(36), 36));
    assert!((fleet.metric("warmpath_predictions_total", "exact").await - 2.0).abs() < 1e-9);
    assert!((fleet.metric("warmpath_cached_tokens_total", "predicted").await - 36.0).abs() < 1e-9);
    assert!((fleet.metric("warmpath_cached_tokens_total", "reported").await - 36.0).abs() < 1e-9);
}

#[tokio::test]
async fn text_chat_and_token_ids_share_one_index() {
    let fleet = fleet().start().await;
    let text = "the quick brown fox jumps over the lazy dog";
    let first = fleet.complete(json!(text)).await;
    fleet.until_metric("warmpath_index_blocks", &first.worker, 10.0).await;
    let ids: Vec<u32> = text.bytes().map(u32::from).collect();
    let again = fleet.complete(json!(ids)).await;
    assert_eq!((again.worker, again.predicted), (first.worker, Some(40)));
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "Hello, how are you?"}], "max_tokens": 2});
    let first = fleet.post("/v1/chat/completions", &chat).await;
    assert_eq!(first.status, 200, "{first:?}");
    fleet
        .eventually("the chat is predicted where it was answered", async |fleet| {
            let again = fleet.post("/v1/chat/completions", &chat).await;
            again.predicted == Some(again.cached()) && again.cached() > 0
        })
        .await;
}

/// Overlap and new tokens of several prompts are summed; `n` counts as so many slots and one prefill.
#[tokio::test]
async fn several_prompts_and_several_sequences() {
    let fleet = fleet().engines(1).start().await;
    fleet.complete(tokens(40)).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    let two = json!({"model": "m", "prompt": [tokens(40), tokens(21)], "max_tokens": 2, "n": 2});
    let answer = fleet.post("/v1/completions", &two).await;
    assert_eq!((answer.status, answer.predicted), (200, Some(36 + 20)));
    assert_eq!(answer.body["choices"].as_array().unwrap().len(), 4);
}

#[tokio::test]
async fn a_salt_keeps_prefixes_apart() {
    let fleet = fleet().engines(1).start().await;
    let salted = |salt| json!({"model": "m", "prompt": tokens(40), "max_tokens": 2, "cache_salt": salt});
    fleet.post("/v1/completions", &salted("a")).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    let same = fleet.post("/v1/completions", &salted("a")).await;
    assert_eq!((same.predicted, same.cached()), (Some(36), 36));
    let other = fleet.post("/v1/completions", &salted("b")).await;
    assert_eq!((other.predicted, other.cached()), (Some(0), 0));
}

#[tokio::test]
async fn without_a_tokenizer_text_goes_by_load_and_is_counted() {
    let fleet = fleet().tokenizer("null").start().await;
    let answer = fleet.complete(json!("some text")).await;
    assert_eq!((answer.status, answer.predicted), (200, Some(0)));
    assert_eq!(answer.headers["x-warmpath-decision"], "load");
    assert!((fleet.metric("warmpath_untokenized_total", "no_tokenizer").await - 1.0).abs() < 1e-9);
    // Token ids need no tokenizer.
    let answer = fleet.complete(tokens(8)).await;
    assert_eq!(answer.headers["x-warmpath-decision"], "policy");
}

#[tokio::test]
async fn the_engines_own_tokenizer_can_be_asked() {
    let fleet = fleet().engines(1).tokenizer("remote").start().await;
    fleet.complete(json!("the quick brown fox jumps")).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 6.0).await;
    let again = fleet.complete(json!("the quick brown fox jumps")).await;
    assert_eq!((again.predicted, again.cached()), (Some(24), 24));
}

#[tokio::test]
async fn a_request_with_media_goes_by_load() {
    let fleet = fleet().start().await;
    let content =
        json!([{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]);
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 2});
    let answer = fleet.post("/v1/chat/completions", &chat).await;
    assert_eq!(answer.headers["x-warmpath-decision"], "load");
    assert!((fleet.metric("warmpath_untokenized_total", "media").await - 1.0).abs() < 1e-9);
}

#[tokio::test]
async fn models_are_listed_with_their_aliases() {
    let fleet = fleet().start().await;
    let (status, body) = fleet.get(fleet.url("/v1/models")).await;
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let ids: Vec<_> = body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((status, ids), (200, vec!["m", "alias/of-m"]));
    assert_eq!(fleet.get(fleet.url("/v1/models/alias/of-m")).await.0, 200);
    assert_eq!(fleet.get(fleet.url("/v1/models/other")).await.0, 404);
}

#[tokio::test]
async fn health_readiness_and_metrics_tell_how_it_is() {
    let fleet = fleet().start().await;
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
    assert_eq!(fleet.admin("/livez").await.0, 200);
    let (status, health) = fleet.admin("/healthz").await;
    let health: serde_json::Value = serde_json::from_str(&health).unwrap();
    assert_eq!((status, &health["status"], &health["version"]), (200, &json!("ok"), &json!(env!("CARGO_PKG_VERSION"))));
    fleet.complete(tokens(8)).await;
    let (_, metrics) = fleet.admin("/metrics").await;
    for name in ["routing_latency_seconds_bucket", "kv_hit_rate", "load_balance_score", "in_flight_requests", "kv_load"]
    {
        assert!(metrics.contains(&format!("warmpath_{name}")), "{name} is missing");
    }
}

/// no task survives.
#[tokio::test]
async fn stopping_ends_every_task() {
    let fleet = fleet().start().await;
    fleet.complete(tokens(8)).await;
    drop(fleet.client);
    assert!(fleet.app.tasks_alive() > 0);
    assert_eq!(fleet.app.stop().await, 0);
}

/// A tokenizer that cannot be loaded costs accuracy, never an answer; health says so.
#[tokio::test]
async fn a_broken_tokenizer_degrades_and_no_more() {
    let fleet = fleet().tokenizer("/nowhere/tokenizer.json").start().await;
    fleet
        .eventually("health names the tokenizer", async |fleet| {
            let (_, health) = fleet.admin("/healthz").await;
            health.contains("degraded") && health.contains("the tokenizer of `m` could not be loaded")
        })
        .await;
    let answer = fleet.complete(json!("some text")).await;
    assert_eq!((answer.status, answer.headers["x-warmpath-decision"].to_str().unwrap()), (200, "load"));
}

/// A full index costs hits, never answers, and says so.
#[tokio::test]
async fn an_index_that_is_full_refuses_blocks_and_counts_them() {
    let fleet = fleet().engines(1).config("index: {max_entries: 4}").start().await;
    fleet.complete(tokens(40)).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 4.0).await;
    let again = fleet.complete(tokens(40)).await;
    assert_eq!((again.status, again.predicted, again.cached()), (200, Some(16), 36));
    assert!(fleet.metric("warmpath_index_bytes", "").await > 0.0);
    let refused = fleet.metric("warmpath_kv_events_total", "over_limit").await;
    assert!(refused >= 6.0, "{refused} blocks were beyond the share of the only worker");

    let told: serde_json::Value = serde_json::from_str(&fleet.admin("/api/v1/index").await.1).unwrap();
    let of = |name: &str| told[name].as_u64().unwrap();
    assert_eq!((of("entries"), of("capacity")), (4, 4), "{told}");
    assert!(of("refused_blocks") + of("shed_entries") >= 6 && of("bytes") > 0, "{told}");
    let share = &told["workers"][0];
    let who = (share["worker"].as_str(), share["rank"].as_u64(), share["blocks"].as_u64());
    assert_eq!(who, (Some("engine-1"), Some(0), Some(4)), "{told}");
}
