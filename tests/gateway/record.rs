//! What a gateway records can be replayed: the same prompts, told by their blocks alone.

use serde_json::json;
use warmpath::replay::reachable;
use warmpath::replay::trace::{self, Options, Trace};
use warmpath::replay::workload::Workload;

use crate::fleet::fleet;

/// R33. A disk that is full.
#[tokio::test]
async fn r33_that_requests_cannot_be_recorded_is_told_by_healthz() {
    let fleet = fleet().engines(1).config("record: /dev/full").start().await;
    assert!(!fleet.admin("/healthz").await.1.contains("recorded"));
    assert_eq!(fleet.post("/v1/completions", &json!({"model": "m", "prompt": [1, 2]})).await.status, 200);
    let why = "requests cannot be recorded in /dev/full: No space left on device";
    fleet.eventually("it is told", async |fleet| fleet.admin("/healthz").await.1.contains(why)).await;
    assert_eq!(fleet.metric("warmpath_recorded_requests_total", "failed").await, 1.0);
}

#[tokio::test]
async fn a_recorded_trace_has_the_requests_and_the_hit_rate_of_what_was_sent() {
    let path = std::env::temp_dir().join(format!("warmpath-record-{}.jsonl", std::process::id()));
    let workload: Workload = "multi-turn?sessions=6&turns=4&system=2&user=1&answer=1&block=4".parse().unwrap();
    let sent = workload.generate(1);
    let fleet = fleet().engines(2).config(&format!("record: '{}'", path.display())).start().await;
    for (number, request) in sent.iter().enumerate() {
        let tokens = request.tokens(number, 4, 250);
        let body = json!({"model": "m", "prompt": tokens, "max_tokens": 3});
        assert_eq!(fleet.post("/v1/completions", &body).await.status, 200);
    }
    // What is refused or unknown is not recorded; a stream is, with the tokens that it had.
    assert_eq!(fleet.post("/v1/completions", &json!({"model": "none", "prompt": [1]})).await.status, 404);
    let streamed = json!({"model": "m", "prompt": sent[0].tokens(0, 4, 250), "max_tokens": 5, "stream": true});
    assert_eq!(fleet.post_bytes("/v1/completions", streamed.to_string().into_bytes()).await.status, 200);
    drop(fleet.stop_gateway().await);

    let bytes = std::fs::read(&path).unwrap();
    let recorded = Trace::read(&bytes, &Options::default()).unwrap();
    assert_eq!((recorded.requests.len(), recorded.block_size, recorded.skipped), (sent.len() + 1, 4, 0));
    let lengths = |requests: &[trace::TraceRequest]| requests.iter().map(|r| r.input_length).collect::<Vec<_>>();
    let (requests, last) = recorded.requests.split_at(sent.len());
    assert_eq!(lengths(requests), lengths(&sent));
    assert!(requests.iter().all(|request| request.output_length == 3));
    assert_eq!((last[0].output_length, &last[0].hash_ids), (5, &requests[0].hash_ids));
    let (reached, expected) = (reachable::hit_rate(requests, 4, usize::MAX), workload.hit_rate());
    assert!((reached - expected).abs() < 1e-12, "{reached} {expected}");
    std::fs::remove_file(&path).unwrap();
}
