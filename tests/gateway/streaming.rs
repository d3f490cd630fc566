//! Bytes on their way through: untouched, at once, and cancelled when the client leaves.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::raw::{MODELS, connect, streamed_text};
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece, until, whole};

/// A router before one scripted worker and nobody else.
fn only(worker: &Scripted) -> FleetBuilder {
    fleet().engines(0).stranger(worker.address)
}

fn streamed() -> Vec<u8> {
    br#"{"model": "m", "prompt": "x", "stream": true}"#.to_vec()
}

fn post(fleet: &TestFleet, body: Vec<u8>) -> reqwest::RequestBuilder {
    fleet.client.post(fleet.url("/v1/completions")).header("content-type", "application/json").body(body)
}

/// The first event is at the client before the worker makes the next.
#[tokio::test]
async fn a_stream_is_relayed_as_it_comes() {
    let rest = event("b") + "data: [DONE]\n\n";
    let worker = Scripted::start(vec![head(), piece(event("a")), Step::Await, piece(&rest), end()]).await;
    let fleet = only(&worker).start().await;
    let mut answer = post(&fleet, streamed()).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream; charset=utf-8");
    assert_eq!(answer.chunk().await.unwrap().unwrap(), event("a"));
    assert_eq!(fleet.app.in_flight(), 1);
    worker.go();
    assert_eq!(answer.bytes().await.unwrap(), rest);
    fleet.eventually("the worker is given back", async |fleet| fleet.app.in_flight() == 0).await;
}

/// R15: CRLF, comments, runes and `[DONE]` may be cut anywhere.
#[tokio::test]
async fn every_cut_of_a_stream_reaches_the_client_byte_for_byte() {
    const STREAM: &str = ": ping\r\n\r\ndata: {\"choices\":[{\"text\":\"é🦀\"}],\"usage\":null}\r\n\r\n\
        event: x\ndata:{\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\
        \"prompt_tokens_details\":{\"cached_tokens\":0}}}\n\ndata: [DONE]\n\n";
    let worker = Scripted::start(Vec::new()).await;
    let fleet = only(&worker).start().await;
    let bytes = STREAM.as_bytes();
    for cut in 1..bytes.len() {
        worker.plays(vec![head(), piece(&bytes[..cut]), piece(&bytes[cut..]), end()]);
        let answer = post(&fleet, streamed()).send().await.unwrap();
        assert_eq!(answer.bytes().await.unwrap_or_else(|error| panic!("cut at {cut}: {error}")), bytes, "cut at {cut}");
    }
    worker.plays([vec![head()], bytes.iter().map(|byte| piece([*byte])).collect(), vec![end()]].concat());
    assert_eq!(post(&fleet, streamed()).send().await.unwrap().bytes().await.unwrap(), bytes);
    let answers = u32::try_from(bytes.len()).unwrap();
    // Usage was read from every one, and none counts as broken.
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", f64::from(answers)).await;
    let reported = fleet.metric("warmpath_prompt_tokens_reported_total", "").await;
    assert!((reported - f64::from(answers)).abs() < 1e-9, "a token each");
}

/// Engines send the head before prefill; it would commit the router to this worker.
#[tokio::test]
async fn the_head_is_held_back_until_the_first_data() {
    let script = vec![head(), Step::Await, piece(event("a") + "data: [DONE]\n\n"), end()];
    let worker = Scripted::start(script).await;
    let fleet = only(&worker).start().await;
    let sending = post(&fleet, streamed()).send();
    tokio::pin!(sending);
    tokio::select! {
        _ = &mut sending => panic!("the head came before any data"),
        () = async { worker.asked(1).await; tokio::time::sleep(Duration::from_millis(100)).await } => {}
    }
    worker.go();
    assert_eq!(sending.await.unwrap().status(), 200);
}

#[tokio::test]
async fn the_body_reaches_the_worker_byte_for_byte() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = only(&worker).start().await;
    let bodies = [
        "  {\t\"prompt\" :\r\n\"caf\\u00e9 \\ud83e\\udd80 é\"  , \"model\":\"m\", \"x\":1e400 }\n",
        r#"{"model":"m","prompt":[1,2],"deep":{"a":{"model":"x","model":"y","":[[[]],null,-0.0,1E+2]}},"z":"\/"}"#,
        r#"{"model":"\u006d","prompt":["a","b"],"logit_bias":{"1":1.10},"vendor":{"n":12345678901234567890123}}"#,
    ];
    for (count, body) in (1..).zip(bodies) {
        let answer = fleet.post_bytes("/v1/completions", body.as_bytes().to_vec()).await;
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        let seen = worker.seen();
        assert_eq!((seen.len(), std::str::from_utf8(&seen[count - 1].body).unwrap()), (count, body));
    }
}

#[tokio::test]
async fn headers_pass_but_for_those_of_the_connection_and_ours() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = only(&worker).start().await;
    let request = post(&fleet, streamed())
        .header("authorization", "Bearer client")
        .header("x-custom", "1")
        .header("x-custom", "2")
        .header("connection", "x-hop")
        .header("x-hop", "secret")
        .header("te", "trailers")
        .header("proxy-authorization", "Basic eA==")
        .header("x-tenant-id", "forged")
        .header("x-warmpath-worker", "forged")
        .header("x-data-parallel-rank", "7")
        .header("x-request-id", "mine");
    let answer = request.send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "mine");
    let seen = worker.seen().pop().unwrap();
    assert!(seen.head.starts_with("POST /v1/completions HTTP/1.1\r\n"), "{}", seen.head);
    for (name, expected) in [
        ("authorization", vec!["Bearer client"]),
        ("x-custom", vec!["1", "2"]),
        ("x-request-id", vec!["mine"]),
        ("content-length", vec!["45"]),
        ("host", vec![worker.address.to_string().as_str()]),
        ("x-hop", vec![]),
        ("te", vec![]),
        ("connection", vec![]),
        ("proxy-authorization", vec![]),
        ("x-tenant-id", vec![]),
        ("x-warmpath-worker", vec![]),
        ("x-data-parallel-rank", vec![]),
        ("transfer-encoding", vec![]),
    ] {
        assert_eq!(seen.header(name), expected, "{name}");
    }
}

#[tokio::test]
async fn a_request_without_an_id_gets_one() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = only(&worker).start().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let answer = fleet.post_bytes("/v1/completions", streamed()).await;
        let id = answer.headers["x-request-id"].to_str().unwrap().to_owned();
        assert_eq!(worker.seen().pop().unwrap().header("x-request-id"), [id.as_str()]);
        ids.push(id);
    }
    assert_ne!(ids[0], ids[1]);
    let refused = fleet.post_bytes("/v1/completions", b"{".to_vec()).await;
    assert!(refused.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn a_workers_own_key_replaces_the_clients() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger_with(worker.address, "events: none, api_key: of-the-worker").start().await;
    let answer = post(&fleet, streamed()).header("authorization", "Bearer client").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(worker.seen().pop().unwrap().header("authorization"), ["Bearer of-the-worker"]);
}

/// R9.
#[tokio::test]
async fn a_client_that_hangs_up_in_mid_stream_gives_its_worker_back() {
    let worker = Scripted::start(vec![head(), piece(event("a")), Step::Hold]).await;
    let fleet = only(&worker).start().await;
    let mut answer = post(&fleet, streamed()).send().await.unwrap();
    answer.chunk().await.unwrap().unwrap();
    assert_eq!((fleet.app.in_flight(), worker.hangups()), (1, 0));
    drop(answer);
    gave_back(&fleet, &worker).await;
    fleet.until_metric("warmpath_requests_total", "outcome=\"client_left\"", 1.0).await;
}

#[tokio::test]
async fn a_client_that_hangs_up_before_the_first_data_gives_its_worker_back() {
    for script in [vec![head(), Step::Hold], vec![Step::Hold]] {
        let worker = Scripted::start(script).await;
        let fleet = only(&worker).start().await;
        let sending = post(&fleet, streamed()).send();
        tokio::select! {
            answer = sending => panic!("{answer:?}"),
            () = worker.asked(1) => assert_eq!(fleet.app.in_flight(), 1),
        }
        gave_back(&fleet, &worker).await;
        assert_eq!(worker.seen().len(), 1, "nothing is retried for a client that has left");
    }
}

/// Whatever it sent behind its request, its leaving is seen; so is a half of it, as where nothing lies behind.
#[tokio::test]
async fn a_client_that_hangs_up_with_something_behind_its_request_gives_its_worker_back() {
    let worker = Scripted::start(vec![head(), piece(event("a")), Step::Hold]).await;
    let fleet = only(&worker).start().await;
    let (pipelined, flood) = (MODELS.repeat(100), MODELS.repeat(2_500));
    for (number, behind) in (1..).zip(["", "\r\n", MODELS, &pipelined, &flood, &flood]) {
        let mut stream = connect(fleet.app.data_address()).await;
        stream.write_all((streamed_text() + behind).as_bytes()).await.unwrap();
        stream.read_u8().await.expect("it is being answered");
        if number % 2 == 0 {
            stream.shutdown().await.unwrap();
            until("the worker is cancelled", || worker.hangups() == number).await;
        }
        drop(stream);
        until("the worker is cancelled", || worker.hangups() == number).await;
        fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    }
}

async fn gave_back(fleet: &TestFleet, worker: &Scripted) {
    fleet.eventually("the worker is given back", async |fleet| fleet.app.in_flight() == 0).await;
    fleet.eventually("the worker's connection is closed", async |_| worker.hangups() == 1).await;
}

#[tokio::test]
async fn a_request_is_counted_in_flight_until_its_end_and_its_prefill_until_the_first_token() {
    let script = vec![Step::Await, head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()];
    let worker = Scripted::start(script).await;
    let fleet = only(&worker).start().await;
    let sending = post(&fleet, streamed()).send();
    let waiting = async {
        fleet.until_metric("warmpath_prefill_tokens_in_flight", "stranger-1", 1.0).await;
        worker.go();
    };
    let (answer, ()) = tokio::join!(sending, waiting);
    let mut answer = answer.unwrap();
    answer.chunk().await.unwrap().unwrap();
    assert!(fleet.metric("warmpath_prefill_tokens_in_flight", "stranger-1").await.abs() < 1e-9);
    let in_flight = fleet.metric("warmpath_in_flight_requests", "stranger-1").await;
    assert!((in_flight - 1.0).abs() < 1e-9, "{in_flight}");
    worker.go();
    answer.bytes().await.unwrap();
    fleet.eventually("it is free", async |fleet| fleet.app.in_flight() == 0).await;
    assert!(fleet.metric("warmpath_in_flight_requests", "stranger-1").await.abs() < 1e-9);
}

/// Clients may close as soon as they have read `[DONE]`.
#[tokio::test]
async fn a_client_that_leaves_after_done_has_had_it_all() {
    let worker = Scripted::start(vec![head(), piece(event("a") + "data: [DONE]\n\n"), Step::Hold]).await;
    let fleet = only(&worker).start().await;
    let mut answer = post(&fleet, streamed()).send().await.unwrap();
    answer.chunk().await.unwrap().unwrap();
    drop(answer);
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
    gave_back(&fleet, &worker).await;
}

#[tokio::test]
async fn usage_is_read_of_answers_streamed_and_not() {
    let fleet = fleet().engines(1).start().await;
    let prompt: Vec<u32> = (100..140).collect();
    let body = |stream: bool| {
        let mut body = json!({"model": "m", "prompt": prompt, "max_tokens": 2, "stream": stream});
        if stream {
            body["stream_options"] = json!({"include_usage": true});
        }
        body
    };
    assert_eq!(fleet.post("/v1/completions", &body(false)).await.status, 200);
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    let answer = post(&fleet, serde_json::to_vec(&body(true)).unwrap()).send().await.unwrap();
    assert_eq!(answer.headers()["x-warmpath-overlap-tokens"], "36");
    let text = answer.text().await.unwrap();
    let payloads: Vec<_> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let [.., usage, "[DONE]"] = payloads.as_slice() else { panic!("{text}") };
    let usage: Value = serde_json::from_str(usage).unwrap();
    assert_eq!(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 36);
    fleet.until_metric("warmpath_predictions_total", "result=\"exact\"", 2.0).await;
    assert!((fleet.metric("warmpath_cached_tokens_total", "source=\"reported\"").await - 36.0).abs() < 1e-9);
    // A stream that does not tell its usage counts in no ratio of what was reported; only streams have a first token.
    assert_eq!(fleet.metric("warmpath_time_to_first_token_seconds_count", "model=\"m\"").await, 1.0);
    let mut silent = body(true);
    silent.as_object_mut().unwrap().remove("stream_options");
    post(&fleet, serde_json::to_vec(&silent).unwrap()).send().await.unwrap().bytes().await.unwrap();
    fleet.until_metric("warmpath_time_to_first_token_seconds_count", "model=\"m\"", 2.0).await;
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 3.0).await;
    assert_eq!(fleet.metric("warmpath_prompt_tokens_total", "engine-1").await, 120.0);
    assert_eq!(fleet.metric("warmpath_prompt_tokens_reported_total", "engine-1").await, 80.0);
}

/// Nobody but the client can read it, so nobody else judges where it ends.
#[tokio::test]
async fn a_compressed_stream_passes_as_it_is() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n";
    let (first, rest) = (b"\x1f\x8b\x08\n\n", b"\x00\xff");
    let worker = Scripted::start(vec![Step::Send(head.into()), piece(first), Step::Await, piece(rest), end()]).await;
    let fleet = only(&worker).start().await;
    let mut answer = post(&fleet, streamed()).header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(answer.headers()["content-encoding"], "gzip");
    assert_eq!(answer.chunk().await.unwrap().unwrap(), first.as_slice());
    worker.go();
    assert_eq!(answer.bytes().await.unwrap(), rest.as_slice());
    assert_eq!(worker.seen()[0].header("accept-encoding"), ["gzip"]);
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
}

/// A worker that keeps its connection gets the next request over it.
#[tokio::test]
async fn connections_to_workers_are_kept() {
    let worker = Scripted::start(good_stream()).await;
    let fleet = only(&worker).start().await;
    for _ in 0..50 {
        let answer = post(&fleet, streamed()).send().await.unwrap();
        assert_eq!(answer.bytes().await.unwrap(), event("a") + "data: [DONE]\n\n");
    }
    assert_eq!(worker.seen().len(), 50);
}
