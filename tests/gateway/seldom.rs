//! Answers that HTTP allows and that workers seldom give: with trailers, before a request was read, errors of megabytes.

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use warmpath::shutdown::Tasks;

use crate::chaos::before;
use crate::faulty::{Faulty, stream};
use crate::fleet::fleet;
use crate::http2::{http2, streamed};
use crate::raw::{connect, streamed_text, until_closed};
use crate::scripted::{Scripted, Step, event, head, piece, until, whole};

const REQUESTS: &str = "warmpath_requests_total";

fn ended_by(trailer: &str) -> Step {
    Step::Send(format!("0\r\n{trailer}\r\n\r\n").into_bytes())
}

/// R2. A proper end of the framing is none of the stream, trailers or not.
#[tokio::test]
async fn a_cut_stream_with_trailers_is_told_and_does_not_end_cleanly() {
    let worker = Scripted::start(vec![head(), piece(event("a")), ended_by("x-t: 1")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut client = connect(fleet.app.data_address()).await;
    client.write_all(streamed_text().as_bytes()).await.unwrap();
    let (text, _) = until_closed(&mut client).await;
    assert!(text.contains("\"code\":\"upstream_broken\"") && !text.contains("\r\n0\r\n"), "{text}");
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 1 << 20, &tasks).await;
    let mut body = sender.send_request(streamed()).await.unwrap().into_body();
    let mut text = Vec::new();
    let broken = loop {
        match body.frame().await {
            Some(Ok(frame)) => text.extend_from_slice(&frame.into_data().expect("no trailers")),
            ended => break matches!(ended, Some(Err(_))),
        }
    };
    assert!(broken && String::from_utf8(text).unwrap().contains("upstream_broken"));
    fleet.until_metric(REQUESTS, "outcome=\"broken\"", 2.0).await;
}

/// R14. What a worker says behind its answer is of its connection, or forged.
#[tokio::test]
async fn trailers_stay_behind() {
    for trailer in ["x-warmpath-worker: forged", "connection: x", "x-t: 1"] {
        let done = piece("data: [DONE]\n\n");
        let worker = Scripted::start(vec![head(), piece(event("a")), done, ended_by(trailer)]).await;
        let fleet = fleet().engines(0).stranger(worker.address).start().await;
        let tasks = Tasks::new();
        let mut sender = http2(connect(fleet.app.data_address()).await, 1 << 20, &tasks).await;
        let answer = sender.send_request(streamed()).await.unwrap().into_body().collect().await.expect(trailer);
        assert_eq!(answer.trailers(), None, "{trailer}");
        assert_eq!(answer.to_bytes(), (event("a") + "data: [DONE]\n\n").as_bytes(), "{trailer}");
    }
}

/// Answers as soon as it has a head, and closes with most of the request unread.
async fn hasty() -> (std::net::SocketAddr, Tasks) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, tasks) = (listener.local_addr().unwrap(), Tasks::new());
    let more = tasks.clone();
    tasks.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            more.spawn(async move {
                let mut request = vec![0; 4096];
                let len = stream.read(&mut request).await.unwrap_or_default();
                let status = if request[..len].starts_with(b"GET ") { "200 OK" } else { "413 Content Too Large" };
                let answer = format!(
                    "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-type: application/json\r\n\
                     content-length: 15\r\n\r\n{{\"error\":\"big\"}}"
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (address, tasks)
}

/// The answer counts, not that the worker did not wait for the rest.
#[tokio::test]
async fn an_answer_before_the_end_of_a_long_request_is_the_answer() {
    let ((first, _first), (second, _second)) = (hasty().await, hasty().await);
    let fleet = fleet().engines(0).policy("round_robin").stranger(first).stranger(second).start().await;
    for number in 0..8 {
        let long = format!("{{\"model\":\"m\",\"prompt\":\"{number}{}\"}}", "a".repeat(15_000_000));
        let answer = fleet.post_bytes("/v1/completions", long.into_bytes()).await;
        assert_eq!((answer.status, answer.body["error"].as_str()), (413, Some("big")), "{number}");
    }
    assert_eq!(fleet.metric(REQUESTS, "outcome=\"worker_refused\"").await, 8.0);
    assert_eq!(fleet.metric("warmpath_retries_total", "").await, 0.0);
}

/// Engines may repeat a request of megabytes in what they say against it.
#[tokio::test]
async fn an_error_of_megabytes_comes_as_it_is() {
    let worker = Scripted::start(Vec::new()).await;
    let healthy = "health: {request_failures: 1000}";
    let fleet = fleet().engines(0).stranger(worker.address).config(healthy).start().await;
    for (status, should_retry) in [("400 Bad Request", None), ("500 Internal Server Error", Some("false"))] {
        let said = format!("{{\"error\":\"{}\"}}", "x".repeat(3 << 20));
        worker.plays(vec![whole(status, &said)]);
        let answer = fleet.post_bytes("/v1/completions", b"{\"model\":\"m\",\"prompt\":\"x\"}".to_vec()).await;
        assert!(status.starts_with(&answer.status.to_string()), "{}", answer.status);
        assert_eq!(answer.body["error"].as_str().map(str::len), Some(3 << 20));
        let told = answer.headers.get("x-should-retry").map(|value| value.to_str().unwrap());
        assert_eq!(told, should_retry, "{status}");
    }
    fleet.until_metric(REQUESTS, "outcome=\"worker_refused\"", 1.0).await;
    fleet.until_metric(REQUESTS, "outcome=\"worker_error\"", 1.0).await;
    assert_eq!(fleet.app.in_flight(), 0);
    // One that breaks off is none.
    worker.plays(vec![
        Step::Send(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 3000000\r\n\r\n".to_vec()),
        Step::Send(vec![b'x'; 2_000_000]),
        Step::Close,
    ]);
    let mut client = connect(fleet.app.data_address()).await;
    client.write_all(crate::raw::post("{\"model\":\"m\",\"prompt\":\"y\"}").as_bytes()).await.unwrap();
    let (text, _) = until_closed(&mut client).await;
    assert!(text.starts_with("HTTP/1.1 400 ") && text.len() < 2_100_000, "{}", text.len());
    fleet.until_metric(REQUESTS, "outcome=\"broken\"", 1.0).await;
    until("nothing is in flight", || fleet.app.in_flight() == 0).await;
}

/// That a worker refused stands, whatever comes of the reason: no other is asked, and none would say otherwise.
#[tokio::test]
async fn a_refusal_that_breaks_off_is_the_answer() {
    let told = "content-type: application/json\r\ncontent-encoding: identity\r\ncontent-length: 100\r\n\r\n{\"error";
    let (first, second) = (Scripted::start(Vec::new()).await, Scripted::start(Vec::new()).await);
    let patience = "timeouts: {first_byte: 300ms, stream_idle: 200ms}";
    let fleet = fleet().engines(0).stranger(first.address).stranger(second.address).config(patience).start().await;
    for (number, (status, last)) in
        [(400, Step::Close), (400, Step::Hold), (422, Step::Close), (404, Step::Close)].into_iter().enumerate()
    {
        for worker in [&first, &second] {
            let begun = Step::Send(format!("HTTP/1.1 {status} No\r\n{told}").into_bytes());
            worker.plays(vec![begun, last.clone()]);
        }
        let body = format!("{{\"model\":\"m\",\"prompt\":\"{number}\"}}");
        let answer = fleet.post_bytes("/v1/completions", body.into_bytes()).await;
        assert_eq!((answer.status, &answer.body["error"]["code"]), (status, &"upstream_failed".into()), "{status}");
        assert_eq!(first.seen().len() + second.seen().len(), number + 1, "nobody is asked twice");
    }
    fleet.until_metric(REQUESTS, "outcome=\"worker_refused\"", 4.0).await;
    assert_eq!(fleet.metric("warmpath_retries_total", "").await, 0.0);
    until("nothing is in flight", || fleet.app.in_flight() == 0).await;
}

/// An engine that says in its stream that the request is at fault has not failed, whatever words it has for that.
#[tokio::test]
async fn a_request_that_is_refused_in_a_stream_costs_no_worker() {
    let event = "data: {\"error\":{\"type\":\"invalid_request_error\",\"code\":\"context_length_exceeded\"}}\n\n";
    let refusing = move |_: &str, _: usize| {
        let mut acts = stream(0);
        acts.truncate(1);
        acts.push(crate::faulty::Act::Send(format!("{:x}\r\n{event}\r\n0\r\n\r\n", event.len()).into_bytes()));
        acts
    };
    let (first, second) = (Faulty::start(refusing).await, Faulty::start(refusing).await);
    let fleet = before(&[&first, &second]).start().await;
    for number in 0..6 {
        let mut client = connect(fleet.app.data_address()).await;
        let body = format!("{{\"model\":\"m\",\"prompt\":\"{number}\",\"stream\":true}}");
        let request = crate::raw::post(&body).replacen("\r\n", "\r\nconnection: close\r\n", 1);
        client.write_all(request.as_bytes()).await.unwrap();
        let (text, _) = until_closed(&mut client).await;
        assert!(text.starts_with("HTTP/1.1 200 ") && text.contains(event), "{text}");
    }
    assert_eq!(first.count() + second.count(), 6, "nobody was asked twice");
    for worker in ["stranger-1", "stranger-2"] {
        assert_eq!(fleet.metric("warmpath_worker_up", worker).await, 1.0, "{worker}");
    }
}
