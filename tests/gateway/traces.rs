//! Spans of requests, as a receiver of OTLP over HTTP gets them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, Seen, Step, whole};

const SECRET: &str = "tell nobody: my secret";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const ANSWER: &str = r#"{"choices":[{"index":0,"text":"it is safe"}],"usage":{"prompt_tokens":22,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;

async fn before(receiver: &Scripted, workers: &[&Scripted], more: &str) -> TestFleet {
    let config =
        format!("tracing: {{otlp: 'http://{}/otlp'{more}}}\ntimeouts: {{health_interval: 1h}}", receiver.address);
    let fleet = fleet().engines(0).policy("round_robin").config(&config);
    workers.iter().fold(fleet, |fleet, worker| fleet.stranger(worker.address)).start().await
}

async fn ask(fleet: &TestFleet, parent: &str) -> u16 {
    let body = json!({"model": "m", "prompt": SECRET});
    let request = fleet.client.post(fleet.url("/v1/completions")).json(&body);
    let response = request.header("traceparent", parent).header("x-request-id", "mine").send().await.unwrap();
    let status = response.status().as_u16();
    response.bytes().await.unwrap();
    status
}

fn spans(seen: &Seen) -> Vec<Value> {
    assert!(seen.head.starts_with("POST /otlp/v1/traces HTTP/1.1\r\n"), "{}", seen.head);
    assert_eq!(seen.header("content-type"), ["application/json"]);
    let told: Value = serde_json::from_slice(&seen.body).unwrap();
    let resource = &told["resourceSpans"][0];
    assert_eq!(
        resource["resource"]["attributes"][0],
        json!({"key": "service.name", "value": {"stringValue": "warmpath"}})
    );
    resource["scopeSpans"][0]["spans"].as_array().unwrap().clone()
}

fn attributes(span: &Value) -> BTreeMap<String, Value> {
    let all = span["attributes"].as_array().unwrap().iter();
    all.map(|one| {
        (one["key"].as_str().unwrap().to_owned(), one["value"].as_object().unwrap().values().next().unwrap().clone())
    })
    .collect()
}

fn time(span: &Value, which: &str) -> u128 {
    span[which].as_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_request_is_a_span_between_its_client_s_and_its_worker_s_with_its_attempts_below() {
    let receiver = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let (fails, works) =
        (Scripted::start(vec![Step::Close]).await, Scripted::start(vec![whole("200 OK", ANSWER)]).await);
    let fleet = before(&receiver, &[&fails, &works], "").await;
    assert_eq!(ask(&fleet, &format!("00-{TRACE}-b7ad6b7169203331-01")).await, 200);
    receiver.asked(1).await;
    let seen = receiver.seen();
    let spans = spans(&seen[0]);
    let named: Vec<_> =
        spans.iter().map(|span| (span["name"].as_str().unwrap(), span["kind"].as_u64().unwrap())).collect();
    let expected = [("text_completion m", 2), ("route", 1), ("upstream attempt 1", 3), ("upstream attempt 2", 3)];
    assert_eq!(named, expected);
    assert!(
        spans
            .iter()
            .all(|span| span["traceId"] == TRACE && time(span, "startTimeUnixNano") <= time(span, "endTimeUnixNano"))
    );
    let own = spans[0]["spanId"].as_str().unwrap();
    assert_eq!(spans[0]["parentSpanId"], "b7ad6b7169203331");
    assert!(spans[1..].iter().all(|span| span["parentSpanId"] == own));
    assert_eq!(works.seen()[0].header("traceparent"), [format!("00-{TRACE}-{own}-01")]);
    let mut told = attributes(&spans[0]);
    assert_eq!(told.remove("warmpath.decision"), Some(json!("2")));
    // It came in one piece.
    assert!(!told.contains_key("gen_ai.response.time_to_first_chunk"));
    told.remove("warmpath.cost");
    let expected = json!({
        "gen_ai.operation.name": "text_completion", "gen_ai.provider.name": "warmpath", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": "22", "gen_ai.usage.output_tokens": "3", "gen_ai.usage.cache_read.input_tokens": "4",
        "http.response.status_code": "200", "warmpath.request": "mine", "warmpath.worker": "stranger-2",
        "warmpath.policy": "round_robin", "warmpath.decided_by": "policy", "warmpath.overlap_tokens": "0"
    });
    assert_eq!(json!(told), expected);
    assert_eq!(
        spans.iter().map(|span| span["status"]["code"].as_u64()).collect::<Vec<_>>(),
        [None, None, Some(2), None]
    );
    let workers: Vec<Value> = spans[2..].iter().map(|span| attributes(span)["warmpath.worker"].clone()).collect();
    assert_eq!(workers, ["stranger-1", "stranger-2"]);
    assert!(!String::from_utf8_lossy(&seen[0].body).contains("secret"));
    assert_eq!(fleet.metric("warmpath_traced_requests_total", "sent").await, 1.0);
}

#[tokio::test]
async fn what_a_client_does_not_want_recorded_is_not_and_the_last_ones_are_sent_at_the_end() {
    let receiver = Scripted::start(vec![whole("503 Service Unavailable", "{}")]).await;
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let fleet = before(&receiver, &[&worker], "").await;
    let unsampled = format!("00-{TRACE}-b7ad6b7169203331-00");
    assert_eq!(ask(&fleet, &unsampled).await, 200);
    assert_eq!(worker.seen()[0].header("traceparent"), [unsampled]);
    assert_eq!(ask(&fleet, "none").await, 200);
    receiver.asked(1).await;
    fleet.until_metric("warmpath_traced_requests_total", "failed", 1.0).await;
    assert_eq!(spans(&receiver.seen()[0]).len(), 3);
    worker.plays(vec![whole("500 Internal Server Error", "{}")]);
    assert_eq!(ask(&fleet, "none").await, 500);
    fleet.stop_gateway().await;
    let last = spans(receiver.seen().last().unwrap());
    assert_eq!((receiver.seen().len(), last.len(), &last[0]["status"]["code"]), (2, 3, &json!(2)));
    assert_eq!(attributes(&last[0])["error.type"], "worker_error");
    assert_eq!(last[0].get("parentSpanId"), None, "the trace began here");
}

#[tokio::test]
async fn of_the_traces_that_begin_here_a_share_is_recorded_and_the_receiver_gets_its_headers() {
    let receiver = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let more = ", headers: {X-Api-Key: s3cret, x-tenant: 7}, sample: 0";
    let fleet = before(&receiver, &[&worker], more).await;
    for _ in 0..5 {
        assert_eq!(ask(&fleet, "none").await, 200);
    }
    for seen in worker.seen() {
        let told = seen.header("traceparent");
        assert!(told.len() == 1 && told[0].starts_with("00-") && told[0].ends_with("-00"), "{told:?}");
    }
    assert_eq!(ask(&fleet, &format!("00-{TRACE}-b7ad6b7169203331-01")).await, 200);
    receiver.asked(1).await;
    let shown = fleet.admin("/api/v1/config").await.1;
    assert!(shown.contains("tracing.headers.X-Api-Key") && !shown.contains("s3cret"), "{shown}");
    fleet.stop_gateway().await;
    let seen = receiver.seen();
    assert_eq!((seen.len(), spans(&seen[0]).len()), (1, 3), "the client's alone");
    assert_eq!(spans(&seen[0])[0]["traceId"], TRACE);
    assert_eq!((seen[0].header("x-api-key"), seen[0].header("x-tenant")), (vec!["s3cret"], vec!["7"]));
}

/// The spans of this name, from all that the receiver has got.
fn named(receiver: &Scripted, name: &str) -> Vec<Value> {
    receiver.seen().iter().flat_map(spans).filter(|span| span["name"] == name).collect()
}

fn took(span: &Value) -> Duration {
    let nanos = time(span, "endTimeUnixNano") - time(span, "startTimeUnixNano");
    Duration::from_nanos(u64::try_from(nanos).unwrap())
}

#[tokio::test]
async fn a_wait_for_a_worker_is_a_span_of_its_own() {
    let receiver = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let worker = Scripted::start(vec![Step::Await, whole("200 OK", ANSWER)]).await;
    let config = format!("tracing: {{otlp: 'http://{}/otlp'}}\ntimeouts: {{health_interval: 1h}}", receiver.address);
    let fleet = fleet().engines(0).policy("round_robin").config(&config);
    let fleet = fleet.stranger_with(worker.address, "events: none, max_num_seqs: 1").start().await;
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let let_wait = async {
        worker.asked(1).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        worker.go();
        worker.go();
    };
    let (first, second, ()) = tokio::join!(ask(&fleet, &parent), ask(&fleet, &parent), let_wait);
    assert_eq!((first, second), (200, 200));
    fleet.stop_gateway().await;
    let waits = named(&receiver, "queue");
    assert_eq!(waits.len(), 1, "only one had to wait");
    assert!(took(&waits[0]) >= Duration::from_millis(300), "{waits:?}");
    let attempts = named(&receiver, "upstream attempt 1");
    let its_own = attempts.iter().find(|attempt| attempt["parentSpanId"] == waits[0]["parentSpanId"]).unwrap();
    assert!(time(&waits[0], "endTimeUnixNano") <= time(its_own, "startTimeUnixNano"));
}

/// What comes between two attempts is not the time of the first one's worker.
#[tokio::test]
async fn an_attempt_ends_when_its_worker_has_failed() {
    let receiver = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let refusal = "HTTP/1.1 503 Service Unavailable\r\nretry-after-ms: 700\r\ncontent-length: 2\r\n\r\n{}";
    let worker = Scripted::start(vec![Step::Send(refusal.into())]).await;
    let fleet = before(&receiver, &[&worker], "").await;
    let recover = async {
        worker.asked(1).await;
        worker.plays(vec![whole("200 OK", ANSWER)]);
    };
    let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
    let (status, ()) = tokio::join!(ask(&fleet, &parent), recover);
    assert_eq!(status, 200);
    fleet.stop_gateway().await;
    let [first, second] = ["upstream attempt 1", "upstream attempt 2"].map(|name| named(&receiver, name).remove(0));
    let between = time(&second, "startTimeUnixNano") - time(&first, "endTimeUnixNano");
    assert!(between >= 500_000_000, "{between} ns between them: {first} {second}");
}
