//! What workers say of requests that are at fault: it passes as it came, and tells nothing against them.

use std::time::Duration;

use serde_json::json;

use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::retries::{read, retries};
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece, whole};

/// Two workers, of which the first gets the first request. So many faults take it out, and no check brings it back.
fn patient(faults: usize, workers: [&Scripted; 2]) -> FleetBuilder {
    let fleet = fleet().engines(0).policy("round_robin");
    let fleet = workers.into_iter().fold(fleet, |fleet, worker| fleet.stranger(worker.address));
    let timeouts = "timeouts: {health_interval: 1h, stream_idle: 150ms}";
    fleet.config(&format!("{timeouts}\nhealth: {{request_failures: {faults}}}"))
}

/// One fault is too many.
fn strict(workers: [&Scripted; 2]) -> FleetBuilder {
    patient(1, workers)
}

async fn post(fleet: &TestFleet, path: &str) -> reqwest::Response {
    let body = r#"{"model": "m", "prompt": "x", "stream": true}"#;
    fleet.client.post(fleet.url(path)).body(body).send().await.expect("the gateway answers")
}

async fn serves(fleet: &TestFleet) -> bool {
    fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5
}

fn error_event(code: u16) -> String {
    format!("data: {{\"error\":{{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":{code}}}}}\n\n")
}

/// The first worker plays this, and the client gets the body as it is, without another attempt.
async fn passes(path: &str, script: Vec<Step>, body: &str) {
    let (bad, other) = (Scripted::start(script).await, Scripted::start(good_stream()).await);
    let fleet = strict([&bad, &other]).start().await;
    bad.checked().await;
    let (text, clean) = read(post(&fleet, path).await).await;
    assert_eq!((text.as_str(), clean), (body, true), "{path}");
    assert_eq!((other.seen().len(), retries(&fleet, "").await), (0, 0), "{body}");
    fleet.until_metric("warmpath_requests_total", "worker_refused", 1.0).await;
    let tokens = f64::from(u8::from(body.starts_with(&event("a"))));
    assert_eq!(
        fleet.metric("warmpath_time_to_first_token_seconds_count", "").await,
        tokens,
        "an error is none: {body}"
    );
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    assert!(serves(&fleet).await, "{body}");
}

/// Engines say 200 before they have looked at the request.
#[tokio::test]
async fn a_stream_that_begins_with_the_requests_own_fault_passes_as_it_came() {
    let (done, of_vllm) = ("data: [DONE]\n\n", error_event(400));
    let of_sglang = "data: {\"object\":\"error\",\"message\":\"too long\",\"code\":422}\n\n";
    let named = "event: error\ndata: {\"type\":\"error\",\"error\":{\"code\":404}}\n\n";
    for error in [of_vllm.as_str(), of_sglang, named] {
        let script = vec![head(), piece(error), piece(done), end()];
        passes("/v1/completions", script, &[error, done].concat()).await;
    }
    // Nothing more comes of it, `[DONE]` or not, and nobody has to understand the path.
    passes("/v1/completions", vec![head(), piece(&of_vllm), end()], &of_vllm).await;
    passes("/v1/completions", vec![head(), piece(&of_vllm), Step::Hold], &(of_vllm.clone() + "\n\n")).await;
    passes("/v1/responses", vec![head(), piece(named), end()], named).await;
}

#[tokio::test]
async fn a_fault_that_an_engine_finds_late_is_the_requests_own_as_well() {
    let text = event("a") + &error_event(400) + "data: [DONE]\n\n";
    passes("/v1/completions", vec![head(), piece(&text), end()], &text).await;
}

/// Too much to do is neither's fault.
#[tokio::test]
async fn a_stream_that_begins_with_429_is_tried_elsewhere_and_costs_nothing() {
    let script = vec![head(), piece(error_event(429)), end()];
    let (bad, other) = (Scripted::start(script).await, Scripted::start(good_stream()).await);
    let fleet = strict([&bad, &other]).start().await;
    bad.checked().await;
    assert_eq!(read(post(&fleet, "/v1/completions").await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(retries(&fleet, "too_many_requests").await, 1);
    assert!(serves(&fleet).await);
}

/// Some engines answer a streamed request with an error whose type is that of the stream.
#[tokio::test]
async fn an_error_passes_as_it_came_whatever_its_type() {
    let event = error_event(400);
    let (bad, other) = (Scripted::start(Vec::new()).await, Scripted::start(good_stream()).await);
    for kind in ["text/event-stream", "text/plain", "TEXT/Event-Stream; charset=utf-8"] {
        let head = format!("HTTP/1.1 422 Odd\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", event.len());
        bad.plays(vec![Step::Send((head + &event).into_bytes())]);
        let fleet = strict([&bad, &other]).start().await;
        bad.checked().await;
        let answer = post(&fleet, "/v1/completions").await;
        assert_eq!((answer.status().as_u16(), &answer.headers()["content-type"]), (422, &kind.parse().unwrap()));
        assert_eq!(answer.text().await.unwrap(), event, "{kind}");
        assert_eq!((other.seen().len(), retries(&fleet, "").await), (0, 0));
        assert!(serves(&fleet).await);
    }
}

/// It is worth no more patience than an answer.
#[tokio::test]
async fn an_error_that_stalls_does_not_hold_its_worker() {
    let half = "HTTP/1.1 599 Odd\r\ncontent-type: text/plain\r\ncontent-length: 20\r\n\r\nhal";
    let (bad, other) =
        (Scripted::start(vec![Step::Send(half.into()), Step::Hold]).await, Scripted::start(good_stream()).await);
    let fleet = strict([&bad, &other]).start().await;
    bad.checked().await;
    assert_eq!(read(post(&fleet, "/v1/completions").await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(retries(&fleet, "first_byte_timeout").await, 1);
}

#[tokio::test]
async fn of_what_passes_only_500_counts_against_a_worker() {
    for (status, stays) in [
        ("501 Not Implemented", true),
        ("505 HTTP Version Not Supported", true),
        ("599 Odd", true),
        ("307 Temporary Redirect", true),
        ("500 Internal Server Error", false),
    ] {
        let (bad, other) = (Scripted::start(vec![whole(status, "{}")]).await, Scripted::start(good_stream()).await);
        let fleet = strict([&bad, &other]).start().await;
        bad.checked().await;
        let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        let body = r#"{"model": "m", "prompt": "x"}"#;
        let answer = client.post(fleet.url("/v1/completions")).body(body).send().await.unwrap();
        assert_eq!(answer.status().as_u16().to_string(), status[..3]);
        assert_eq!((retries(&fleet, "").await, serves(&fleet).await), (0, stays), "{status}");
    }
}

/// Faults count in a row: whatever a worker answers between two shows that it lives.
#[tokio::test]
async fn an_answer_between_two_faults_clears_the_first() {
    let fault = || vec![whole("500 Internal Server Error", "{}")];
    let bare = |head: &str| vec![Step::Send(format!("HTTP/1.1 {head}\r\n\r\n").into_bytes())];
    let answers = [
        (vec![whole("400 Bad Request", "{}")], 400),
        (vec![whole("200 OK", "{}")], 200),
        (vec![whole("200 OK", "")], 200),
        (bare("204 No Content"), 204),
        (bare("304 Not Modified"), 304),
        ([bare("200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked"), vec![end()]].concat(), 200),
    ];
    let (bad, other) = (Scripted::start(Vec::new()).await, Scripted::start(good_stream()).await);
    for (answer, status) in answers {
        let fleet = patient(2, [&bad, &other]).start().await;
        bad.checked().await;
        let after = async |script| {
            bad.plays(script);
            let first = post(&fleet, "/v1/completions").await;
            let status = first.status().as_u16();
            first.bytes().await.unwrap();
            // The other one has the next.
            post(&fleet, "/v1/completions").await.bytes().await.unwrap();
            (status, serves(&fleet).await)
        };
        assert_eq!(after(fault()).await, (500, true));
        assert_eq!(after(answer).await, (status, true));
        assert_eq!(after(fault()).await, (500, true), "after {status}");
        assert_eq!(after(fault()).await, (500, false));
    }
}

/// Who computes it is nobody's business, and that all have too much to do is told as OpenAI tells it.
#[tokio::test]
async fn clients_hear_of_failures_without_names() {
    for (status, expected) in [
        (
            "429 Too Many Requests",
            json!(["the workers have too much to do", "rate_limit_error", "rate_limit_exceeded"]),
        ),
        ("503 Service Unavailable", json!(["a worker failed", "upstream_error", "upstream_failed"])),
    ] {
        let workers =
            [Scripted::start(vec![whole(status, "{}")]).await, Scripted::start(vec![whole(status, "{}")]).await];
        let fleet = strict([&workers[0], &workers[1]]).start().await;
        let answer = fleet.post("/v1/completions", &json!({"model": "m", "prompt": "x"})).await;
        let error = &answer.body["error"];
        assert_eq!(
            (answer.status, json!([error["message"], error["type"], error["code"]])),
            (status[..3].parse().unwrap(), expected)
        );
    }
}

/// The worker that is asked for a turn dies with many requests, whose retries take longer than anybody waits for one.
#[tokio::test]
async fn the_death_of_a_worker_costs_nobody_a_long_answer() {
    use crate::chaos::{Saw, ask, before};
    use crate::faulty::{Act, Faulty, stream};
    const ANSWER: Duration = Duration::from_millis(1_500);
    let dies = Faulty::start(|_, _| vec![Act::Hold]).await;
    let serves = Faulty::start(|_, _| [vec![Act::Pause(ANSWER)], stream(1)].concat()).await;
    let fleet = before(&[&dies, &serves]).config("retries: {budget: 0, budget_min: 1}").start().await;
    let url = fleet.url("/v1/completions");
    let asking = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|prompt| ask(&fleet.client, &url, prompt));
    let killing = async {
        fleet.eventually("both have their share", async |_| dies.count() + serves.count() == 8).await;
        assert_eq!(dies.count(), 4);
        dies.kill().await;
    };
    let (saw, ()) = tokio::join!(futures_util::future::join_all(asking), killing);
    assert_eq!(saw, [Saw::Whole; 8]);
    assert_eq!(retries(&fleet, "broken").await, 4);
}
