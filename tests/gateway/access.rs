//! The access log of a router in a process of its own, and the trace that its requests belong to.

use serde_json::{Value, json};

use crate::scripted::{Scripted, Step, event, good_stream, head, piece, until, whole};
use crate::serving::Serving;

const SECRET: &str = "tell nobody: my secret";
const GIVEN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
const ANSWER: &str = r#"{"choices":[{"index":0,"text":"it is safe"}],"usage":{"prompt_tokens":22,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}"#;

fn serving(name: &str, workers: &[&Scripted], more: &str) -> Serving {
    let mut text = format!("models: [{{name: m, tokenizer: bytes, block_size: 4}}]\n{more}\nworkers:\n");
    for (number, worker) in (1..).zip(workers) {
        text += &format!("- {{id: w{number}, url: 'http://{}', model: m, events: none}}\n", worker.address);
    }
    Serving::configured(name, &text)
}

/// The lines of the access log, once there are so many.
async fn lines(serving: &Serving, count: usize) -> Vec<Value> {
    let of_requests = || -> Vec<Value> {
        let lines = serving.logged().into_iter().filter_map(|line| serde_json::from_str(&line).ok());
        lines.filter(|line: &Value| line["target"] == "access").collect()
    };
    until("there is a line for each", || of_requests().len() >= count).await;
    of_requests()
}

async fn post(serving: &Serving, headers: &[(&str, &str)], body: &Value) -> Result<u16, reqwest::Error> {
    let request = reqwest::Client::new().post(format!("http://{}/v1/completions", serving.data)).json(body);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await?;
    let status = response.status().as_u16();
    response.bytes().await?;
    Ok(status)
}

/// Whole, streamed, broken, refused, failed, of a model that is not there, senseless, and one for the models.
async fn eight_requests(serving: &Serving, worker: &Scripted) {
    let body = json!({"model": "m", "prompt": SECRET});
    let named = [("x-request-id", "mine"), ("traceparent", GIVEN)];
    assert_eq!(post(serving, &named, &body).await.unwrap(), 200);
    worker.plays(good_stream());
    let streamed = json!({"model": "m", "prompt": SECRET, "stream": true});
    assert_eq!(post(serving, &[], &streamed).await.unwrap(), 200);
    worker.plays(vec![head(), piece(event("half a secret")), Step::Close]);
    assert!(post(serving, &[], &streamed).await.is_err());
    worker.plays(vec![whole("400 Bad Request", "{}")]);
    assert_eq!(post(serving, &[], &body).await.unwrap(), 400);
    worker.plays(vec![whole("503 Service Unavailable", "{}")]);
    assert_eq!(post(serving, &[], &body).await.unwrap(), 503);
    assert_eq!(post(serving, &[], &json!({"model": SECRET, "prompt": SECRET})).await.unwrap(), 404);
    let quoted = json!({"model": "m", "prompt": "x", "max_tokens": SECRET});
    assert_eq!(post(serving, &[], &quoted).await.unwrap(), 400);
    let models = reqwest::get(format!("http://{}/v1/models", serving.data)).await.unwrap();
    assert_eq!(models.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_is_one_line_with_its_decision_and_never_a_word_of_it() {
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let serving = serving("access", &[&worker], "log: {format: json, level: trace}\nretries: {attempts: 0}");
    worker.checked().await;
    eight_requests(&serving, &worker).await;
    let mut lines = lines(&serving, 8).await;
    assert_eq!(lines.len(), 8);
    let first = lines[0].as_object_mut().unwrap();
    for key in ["timestamp", "total_ms"] {
        assert!(first.remove(key).is_some_and(|value| value.is_string() || value.as_f64() > Some(0.0)), "{key}");
    }
    let expected = json!({
        "level": "INFO", "target": "access", "request": "mine", "trace_id": "0af7651916cd43dd8448eb211c80319c",
        "endpoint": "completions", "model": "m", "worker": "w1", "rank": 0, "status": 200, "outcome": "ok",
        "prompt_tokens": SECRET.len(), "overlap_tokens": 0, "reported_cached_tokens": 4, "output_tokens": 3, "attempts": 1,
        "policy": "kv", "decided_by": "policy", "cost": 0.7, "decision": 1
    });
    assert_eq!(lines[0], expected);
    let told = |line: &Value| {
        let has = |key: &str| !line[key].is_null();
        let (endpoint, outcome) = (line["endpoint"].as_str().unwrap(), line["outcome"].as_str().unwrap());
        let (status, attempts) = (line["status"].as_u64().unwrap(), line["attempts"].as_u64().unwrap());
        format!(
            "{endpoint} {status} {outcome} {attempts} {} {} {}",
            has("worker"),
            has("ttft_ms"),
            has("output_tokens")
        )
    };
    let expected = [
        "completions 200 broken 1 true true false",
        "completions 400 worker_refused 1 true false false",
        "completions 503 upstream_error 1 true false false",
        "completions 404 unknown_model 0 false false false",
        "completions 400 bad_request 0 false false false",
        "models 200 ok 0 false false false",
    ];
    assert_eq!(told(&lines[1]), "completions 200 ok 1 true true false");
    assert_eq!(lines[2..].iter().map(told).collect::<Vec<_>>(), expected);
    // What was begun for the second request is what its worker was told.
    let seen = worker.seen();
    assert_eq!(seen[0].header("traceparent"), [GIVEN]);
    let begun = seen[1].header("traceparent")[0].to_owned();
    assert_eq!((begun.len(), &begun[3..35], &begun[52..]), (55, lines[1]["trace_id"].as_str().unwrap(), "-01"));
    for line in serving.logged() {
        assert!(!line.contains("secret") && !line.contains("nobody"), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_are_counted_and_who_leaves_is_told() {
    let (fails, works) = (Scripted::start(vec![Step::Close]).await, Scripted::start(vec![Step::Hold]).await);
    let more = "log: {format: json}\nrouting: {policy: round_robin}\ntimeouts: {health_interval: 1h}";
    let serving = serving("access-left", &[&fails, &works], more);
    fails.checked().await;
    let body = json!({"model": "m", "prompt": "x"});
    let leaving = post(&serving, &[], &body);
    let left = tokio::time::timeout(std::time::Duration::from_millis(300), leaving).await;
    assert!(left.is_err(), "the second worker never answers");
    let lines = lines(&serving, 1).await;
    let of = |key: &str| lines[0][key].clone();
    assert_eq!(
        [of("worker"), of("attempts"), of("outcome"), of("status")],
        [json!("w2"), json!(2), json!("client_left"), Value::Null]
    );
    assert!(of("total_ms").as_f64() >= Some(250.0), "{}", lines[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_lines_where_they_are_not_wanted_and_traces_pass_as_they_came() {
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let serving = serving("access-off", &[&worker], "log: {format: json, level: trace, access: false}");
    worker.checked().await;
    let body = json!({"model": "m", "prompt": SECRET});
    // Nobody here tells of a trace, so even one that cannot be followed is the worker's business.
    let wrong = [("traceparent", "00-xyz"), ("tracestate", "a=1")];
    assert_eq!(post(&serving, &wrong, &body).await.unwrap(), 200);
    let seen = worker.seen();
    assert_eq!((seen[0].header("traceparent"), seen[0].header("tracestate")), (vec!["00-xyz"], vec!["a=1"]));
    until("what is traced is logged", || serving.logged().iter().any(|line| line.contains("placed"))).await;
    assert!(!serving.logged().iter().any(|line| line.contains("\"access\"") || line.contains("secret")));
}

/// Log, client and worker call a request by one name.
#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_logged_under_the_name_that_its_client_knows() {
    let worker = Scripted::start(vec![head(), piece(event("a")), Step::Close]).await;
    let serving = serving("access-names", &[&worker], "log: {format: json, access: false}\nretries: {attempts: 0}");
    worker.checked().await;
    let body = json!({"model": "m", "prompt": "x", "stream": true});
    assert!(post(&serving, &[("x-request-id", "cut")], &body).await.is_err());
    worker.plays(vec![whole("503 Service Unavailable", "{}")]);
    assert_eq!(post(&serving, &[("x-request-id", "refused")], &body).await.unwrap(), 503);
    let expected = [("answer broke off", "cut"), ("attempt failed", "refused"), ("request failed", "refused")];
    let told =
        || -> Vec<Value> { serving.logged().iter().filter_map(|line| serde_json::from_str(line).ok()).collect() };
    let is_told = |(message, request): (&str, &str)| {
        told().iter().any(|line| line["message"] == message && line["request"] == request && line["worker"] == "w1")
    };
    until("all three are told", || expected.into_iter().all(is_told)).await;
}
