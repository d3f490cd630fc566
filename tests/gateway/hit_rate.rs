//! Which answers count in the hit rate, as promised and as reported.

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, good_stream, head, piece, whole};

const PROMISED: &str = "warmpath_prompt_tokens_total";
const REPORTED: &str = "warmpath_prompt_tokens_reported_total";
const REQUESTS: &str = "warmpath_requests_total";

/// Eight tokens.
async fn ask(fleet: &TestFleet, stream: bool) -> u16 {
    let body = json!({"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7, 8], "stream": stream});
    fleet.post("/v1/completions", &body).await.status
}

/// A whole answer that tells its usage, with these details.
fn telling(details: &Value) -> Vec<Step> {
    let usage = json!({"prompt_tokens": 8, "completion_tokens": 1, "prompt_tokens_details": details});
    vec![whole("200 OK", &json!({"choices": [], "usage": usage}).to_string())]
}

/// The metric of all workers together.
async fn sum(fleet: &TestFleet, metric: &str) -> f64 {
    let text = fleet.admin("/metrics").await.1;
    let lines = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

/// vLLM and SGLang tell cached tokens only with a flag, and many of them leave out a 0 even then.
#[tokio::test]
async fn answers_that_do_not_tell_their_cached_tokens_are_no_misses() {
    for policy in ["kv", "round_robin"] {
        let worker = Scripted::start(telling(&Value::Null)).await;
        let fleet = fleet().engines(0).policy(policy).stranger(worker.address).start().await;
        let answered = async |details: &Value, count: f64| {
            worker.plays(telling(details));
            assert_eq!(ask(&fleet, false).await, 200);
            fleet.until_metric(REQUESTS, "outcome=\"ok\"", count).await;
            let hit_rate = fleet.metric("warmpath_kv_hit_rate", "").await;
            let cached = fleet.metric("warmpath_cached_tokens_total", "reported").await;
            (sum(&fleet, PROMISED).await, sum(&fleet, REPORTED).await, cached, hit_rate)
        };
        // Nobody tells what this engine holds: what it reports stands in for what is not promised, under any policy.
        assert_eq!(answered(&Value::Null, 1.0).await, (8.0, 0.0, 0.0, 0.0), "{policy}");
        assert_eq!(answered(&json!({"cached_tokens": 6}), 2.0).await, (16.0, 8.0, 6.0, 0.75), "{policy}");
        assert_eq!(answered(&Value::Null, 3.0).await, (24.0, 16.0, 6.0, 0.375), "an engine that tells: none");
        assert_eq!(sum(&fleet, "warmpath_predictions_total").await, 0.0, "{policy}");
    }
}

#[tokio::test]
async fn a_request_counts_once_and_only_with_an_answer() {
    let refused = "data: {\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":400}}\n\n";
    let (first, second) = (Scripted::start(vec![Step::Close]).await, Scripted::start(good_stream()).await);
    let quiet = "timeouts: {health_interval: 1h}\nhealth: {request_failures: 1000}";
    let fleet = fleet().engines(0).policy("round_robin").config("routing: {policy: round_robin, predict: always}");
    let fleet = fleet.config(quiet).stranger(first.address).stranger(second.address).start().await;
    first.checked().await;
    assert_eq!(ask(&fleet, true).await, 200);
    assert_eq!((first.seen().len(), second.seen().len()), (1, 1), "it was tried again");
    assert_eq!((sum(&fleet, PROMISED).await, fleet.metric(PROMISED, "stranger-2").await), (8.0, 8.0));
    for script in [vec![whole("400 Bad Request", "{}")], vec![head(), piece(refused), end()]] {
        first.plays(script.clone());
        second.plays(script);
        ask(&fleet, true).await;
    }
    fleet.until_metric(REQUESTS, "outcome=\"worker_refused\"", 2.0).await;
    assert_eq!(sum(&fleet, PROMISED).await, 8.0, "what was refused is no miss");
}
