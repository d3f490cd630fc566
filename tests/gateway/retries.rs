//! Workers that fail. Until the first data another takes over and the client notices nothing; after it, the client is
//! told loudly.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::{Answered, FleetBuilder, TestFleet, fleet};
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece, until, whole};

const ERROR_EVENT: &str = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";

/// The first of these workers gets the first request.
pub(crate) fn in_turn(workers: &[&Scripted]) -> FleetBuilder {
    let fleet = fleet().engines(0).policy("round_robin");
    workers.iter().fold(fleet, |fleet, worker| fleet.stranger(worker.address))
}

pub(crate) async fn good() -> Scripted {
    Scripted::start(good_stream()).await
}

fn streamed() -> Vec<u8> {
    br#"{"model": "m", "prompt": "x", "stream": true}"#.to_vec()
}

pub(crate) async fn send(fleet: &TestFleet) -> reqwest::Response {
    fleet.client.post(fleet.url("/v1/completions")).body(streamed()).send().await.expect("the gateway answers")
}

pub(crate) async fn refused(fleet: &TestFleet) -> Answered {
    fleet.post_bytes("/v1/completions", streamed()).await
}

/// Sends a request whose first worker fails, and checks that the second answers it whole.
async fn another_takes_over(fleet: &TestFleet, bad: &Scripted, good: &Scripted, reason: &str) {
    let answer = send(fleet).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["x-warmpath-worker"]),
        (200, &"stranger-2".parse().unwrap())
    );
    assert_eq!(answer.text().await.unwrap(), event("a") + "data: [DONE]\n\n", "{reason}");
    assert_eq!(good.seen().len(), 1);
    if let Some(first) = bad.seen().first() {
        assert_eq!(first.body, good.seen()[0].body);
    }
    let (all, of_reason) = (retries(fleet, "").await, retries(fleet, reason).await);
    assert_eq!((all, of_reason), (1, 1), "{reason}");
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
}

/// Retries for a reason, or for all together.
pub(crate) async fn retries(fleet: &TestFleet, reason: &str) -> u64 {
    let metrics = fleet.admin("/metrics").await.1;
    let series = metrics.lines().filter(|line| line.starts_with("warmpath_retries_total{"));
    let of_reason = series.filter(|line| reason.is_empty() || line.contains(&format!("reason=\"{reason}\"")));
    of_reason.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn a_worker_that_refuses_connections_is_replaced() {
    let (bad, good) = (Scripted::start(Vec::new()).await, good().await);
    let fleet = in_turn(&[&bad, &good]).start().await;
    bad.checked().await;
    bad.leave().await;
    another_takes_over(&fleet, &bad, &good, "connect").await;
}

#[tokio::test]
async fn a_worker_that_says_that_it_cannot_is_replaced() {
    for (status, reason) in [
        ("502 Bad Gateway", "unavailable"),
        ("503 Service Unavailable", "unavailable"),
        ("504 Gateway Timeout", "unavailable"),
        ("429 Too Many Requests", "too_many_requests"),
    ] {
        let (bad, good) = (Scripted::start(vec![whole(status, "{\"error\":{}}")]).await, good().await);
        let fleet = in_turn(&[&bad, &good]).start().await;
        another_takes_over(&fleet, &bad, &good, reason).await;
        assert_eq!(bad.seen().len(), 1);
    }
}

#[tokio::test]
async fn a_worker_that_breaks_off_before_any_data_is_replaced() {
    let half_a_head = Step::Send(b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec());
    let no_event = vec![head(), end()];
    for (script, reason) in [
        (vec![Step::Close], "broken"),
        (vec![half_a_head, Step::Close], "broken"),
        (vec![head(), Step::Close], "broken"),
        (vec![head(), Step::Send(b"10\r\n".to_vec()), Step::Close], "broken"),
        (no_event, "unavailable"),
    ] {
        let (bad, good) = (Scripted::start(script).await, good().await);
        let fleet = in_turn(&[&bad, &good]).start().await;
        another_takes_over(&fleet, &bad, &good, reason).await;
    }
}

/// Some engines say 200 before they know. The event may come in pieces.
#[tokio::test]
async fn a_worker_whose_first_event_is_an_error_is_replaced() {
    for cut in [ERROR_EVENT.len(), 1, 8, 20, ERROR_EVENT.len() - 1] {
        let (begin, rest) = ERROR_EVENT.split_at(cut);
        let mut script = vec![head(), piece(begin)];
        if !rest.is_empty() {
            script.push(piece(rest));
        }
        script.extend([piece("data: [DONE]\n\n"), end()]);
        let (bad, good) = (Scripted::start(script).await, good().await);
        let fleet = in_turn(&[&bad, &good]).start().await;
        another_takes_over(&fleet, &bad, &good, "unavailable").await;
    }
}

/// R3.
#[tokio::test]
async fn a_worker_that_never_answers_is_replaced_and_cancelled() {
    for script in [vec![Step::Hold], vec![head(), Step::Hold]] {
        let (bad, good) = (Scripted::start(script).await, good().await);
        let fleet = in_turn(&[&bad, &good]).config("timeouts: {first_byte: 200ms}").start().await;
        let start = Instant::now();
        another_takes_over(&fleet, &bad, &good, "first_byte_timeout").await;
        assert!(start.elapsed() >= Duration::from_millis(200));
        until("the first attempt is cancelled", || bad.hangups() == 1).await;
    }
}

/// A prompt that breaks an engine would break the next one too.
#[tokio::test]
async fn faults_of_the_request_are_passed_on_and_not_tried_again() {
    for status in [
        "500 Internal Server Error",
        "400 Bad Request",
        "401 Unauthorized",
        "404 Not Found",
        "422 Unprocessable Entity",
    ] {
        let body = "{\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":1}}";
        let (bad, good) = (Scripted::start(vec![whole(status, body)]).await, good().await);
        let fleet = in_turn(&[&bad, &good]).start().await;
        let answer = send(&fleet).await;
        assert_eq!(answer.status().as_u16().to_string(), status[..3]);
        assert_eq!(answer.text().await.unwrap(), body);
        assert_eq!((bad.seen().len(), good.seen().len(), retries(&fleet, "").await), (1, 0, 0), "{status}");
        assert_eq!(fleet.app.in_flight(), 0);
        let outcome = if status.starts_with('5') { "worker_error" } else { "worker_refused" };
        fleet.until_metric("warmpath_requests_total", outcome, 1.0).await;
    }
}

/// R2: whatever breaks after the first data is told by an error event, and by a body that does not end properly.
#[tokio::test]
async fn a_stream_that_breaks_is_told_and_never_tried_again() {
    let broken = [
        vec![head(), piece(event("a")), Step::Close],
        vec![head(), piece(event("a")), piece("data: {\"choi"), Step::Close],
        vec![head(), piece(event("a")), Step::Send(b"7fff\r\ndata: ".to_vec()), Step::Close],
        // A clean end without `[DONE]`.
        vec![head(), piece(event("a")), end()],
        vec![
            Step::Send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec()),
            Step::Send(event("a").into()),
            Step::Close,
        ],
    ];
    for script in broken {
        let (bad, good) = (Scripted::start(script).await, good().await);
        let fleet = in_turn(&[&bad, &good]).start().await;
        let (text, clean) = read(send(&fleet).await).await;
        assert!(!clean, "the body ended properly: {text}");
        let error = told(&text);
        assert_eq!((&error["type"], &error["code"]), (&json!("upstream_error"), &json!("upstream_broken")), "{text}");
        assert_eq!((good.seen().len(), retries(&fleet, "").await), (0, 0));
        fleet.until_metric("warmpath_requests_total", "outcome=\"broken\"", 1.0).await;
        assert_eq!(fleet.app.in_flight(), 0);
    }
}

/// R4.
#[tokio::test]
async fn a_stream_that_falls_silent_is_told() {
    let (bad, good) = (Scripted::start(vec![head(), piece(event("a")), Step::Hold]).await, good().await);
    let fleet = in_turn(&[&bad, &good]).config("timeouts: {stream_idle: 150ms}").start().await;
    let (text, clean) = read(send(&fleet).await).await;
    assert!(!clean);
    assert_eq!(told(&text)["code"], "upstream_idle");
    assert_eq!(good.seen().len(), 0);
    until("the worker's connection is closed", || bad.hangups() == 1).await;
}

/// An engine's own error event passes as it came, with `[DONE]` behind it; the request counts as broken.
#[tokio::test]
async fn an_engines_error_in_mid_stream_passes_as_it_came() {
    let script = vec![head(), piece(event("a")), piece(ERROR_EVENT), piece("data: [DONE]\n\n"), end()];
    let (bad, good) = (Scripted::start(script).await, good().await);
    let fleet = in_turn(&[&bad, &good]).start().await;
    let (text, clean) = read(send(&fleet).await).await;
    assert_eq!((text, clean), (event("a") + ERROR_EVENT + "data: [DONE]\n\n", true));
    fleet.until_metric("warmpath_requests_total", "outcome=\"broken\"", 1.0).await;
}

/// A plain answer goes to the client when it is whole: until then another worker may give it.
#[tokio::test]
async fn an_answer_of_one_document_that_breaks_is_replaced() {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"a".to_vec();
    let (bad, good) = (Scripted::start(vec![Step::Send(head), Step::Close]).await, good().await);
    let fleet = in_turn(&[&bad, &good]).start().await;
    another_takes_over(&fleet, &bad, &good, "broken").await;
}

/// What came, and whether it ended properly.
pub(crate) async fn read(mut answer: reqwest::Response) -> (String, bool) {
    assert_eq!(answer.status(), 200);
    let mut text = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => text.extend_from_slice(&chunk),
            ended => return (String::from_utf8(text).unwrap(), ended.is_ok()),
        }
    }
}

/// The error event that a broken stream ends with.
fn told(text: &str) -> Value {
    assert!(text.starts_with(&event("a")) && !text.contains("[DONE]"), "{text}");
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let payload = last.strip_prefix("data: ").unwrap_or_else(|| panic!("no error event in {text:?}"));
    serde_json::from_str::<Value>(payload).unwrap()["error"].take()
}

/// R32.
#[tokio::test]
async fn with_every_worker_down_the_client_hears_at_once_when_to_come_back() {
    let workers = [Scripted::start(Vec::new()).await, Scripted::start(Vec::new()).await];
    let fleet = in_turn(&[&workers[0], &workers[1]]).start().await;
    for worker in &workers {
        worker.checked().await;
        worker.leave().await;
    }
    let answer = refused(&fleet).await;
    assert_eq!((answer.status, retries_headers(&answer)), (503, Some(("1", "1000"))), "{answer:?}");
    let error = &answer.body["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("upstream_error"), &json!("upstream_failed")));
    // Once checks have noticed, no worker is even tried.
    fleet
        .eventually("both are out", async |fleet| {
            fleet.metric("warmpath_worker_up", "stranger-1").await
                + fleet.metric("warmpath_worker_up", "stranger-2").await
                < 0.5
        })
        .await;
    let answer = refused(&fleet).await;
    assert_eq!((answer.status, retries_headers(&answer)), (503, Some(("1", "1000"))), "{answer:?}");
    let expected = json!({"error": {"message": answer.body["error"]["message"], "type": "service_unavailable",
        "param": null, "code": "no_worker"}});
    assert_eq!(answer.body, expected);
}

fn retries_headers(answer: &Answered) -> Option<(&str, &str)> {
    let header = |name| answer.headers.get(name)?.to_str().ok();
    Some((header("retry-after")?, header("retry-after-ms")?))
}

/// The deadline is the router's: the request is counted once, and not as if its client had left.
#[tokio::test]
async fn a_request_that_takes_too_long_is_504_and_counted_once() {
    let silent = Scripted::start(vec![Step::Hold]).await;
    let fleet = in_turn(&[&silent]).config("timeouts: {total: 200ms}").start().await;
    let answer = refused(&fleet).await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (504, &json!("deadline_exceeded")));
    fleet.eventually("the worker is given back", async |fleet| fleet.app.in_flight() == 0).await;
    assert!((fleet.metric("warmpath_requests_total", "deadline").await - 1.0).abs() < 1e-9);
    assert!(fleet.metric("warmpath_requests_total", "client_left").await.abs() < 1e-9);
}

#[tokio::test]
async fn attempts_are_bounded() {
    let unavailable = || Scripted::start(vec![whole("503 Service Unavailable", "{}")]);
    let workers = [unavailable().await, unavailable().await, unavailable().await, good().await];
    let all: Vec<&Scripted> = workers.iter().collect();
    for (attempts, expected, status) in [(0, [1, 0, 0, 0], 503), (1, [1, 1, 0, 0], 503), (3, [1, 1, 1, 1], 200)] {
        let before = workers.each_ref().map(|worker| worker.seen().len());
        let fleet = in_turn(&all).config(&format!("retries: {{attempts: {attempts}}}")).start().await;
        assert_eq!(refused(&fleet).await.status, status);
        let after = workers.each_ref().map(|worker| worker.seen().len());
        let tried: Vec<usize> = after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(tried, expected, "{attempts} attempts");
    }
}

#[tokio::test]
async fn where_all_have_too_much_to_do_the_client_gets_429() {
    let full = || Scripted::start(vec![whole("429 Too Many Requests", "{}")]);
    let workers = [full().await, full().await, full().await];
    let fleet = in_turn(&[&workers[0], &workers[1], &workers[2]]).config("retries: {attempts: 5}").start().await;
    let answer = refused(&fleet).await;
    assert_eq!((answer.status, retries_headers(&answer)), (429, Some(("1", "1000"))), "{answer:?}");
    let tried: usize = workers.iter().map(|worker| worker.seen().len()).sum();
    assert!(tried <= 3, "{tried} attempts");
}

/// A retry that no worker was left for is none.
#[tokio::test]
async fn only_attempts_that_were_made_are_counted() {
    let worker = Scripted::start(vec![whole("503 Service Unavailable", "{}")]).await;
    let fleet = in_turn(&[&worker]).start().await;
    assert_eq!(refused(&fleet).await.status, 503);
    assert_eq!((worker.seen().len(), retries(&fleet, "").await), (1, 0));
}

/// R-025 over HTTP.
#[tokio::test]
async fn r025_a_full_fleet_answers_503_where_the_configuration_says_so() {
    let script = vec![head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()];
    let worker = Scripted::start(script).await;
    let fleet = fleet().engines(0).stranger_with(worker.address, "events: none, max_num_seqs: 1");
    let fleet = fleet.config("routing: {policy: kv, on_all_busy: error}").start().await;
    let mut first = send(&fleet).await;
    first.chunk().await.unwrap().unwrap();
    let answer = refused(&fleet).await;
    assert_eq!((answer.status, retries_headers(&answer)), (503, Some(("1", "1000"))));
    assert_eq!(answer.body["error"]["code"], "all_workers_busy");
    assert_eq!(worker.seen().len(), 1);
    worker.go();
    first.bytes().await.unwrap();
    fleet.eventually("it is free", async |fleet| fleet.app.in_flight() == 0).await;
    worker.go();
    assert_eq!(read(send(&fleet).await).await.0, event("a") + "data: [DONE]\n\n");
}
