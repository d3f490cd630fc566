//! Where answers end, and what their heads say of it: whatever the worker's connection is like, the client's is another.

use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use warmpath::shutdown::Tasks;

use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::http2::http2;
use crate::raw::{connect, exchange, post as raw_post, streamed_text};
use crate::retries::{read, retries};
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece, whole};

fn only(worker: &Scripted) -> FleetBuilder {
    fleet().engines(0).stranger(worker.address)
}

fn bare(head: &str) -> Step {
    Step::Send(format!("{head}\r\n\r\n").into_bytes())
}

async fn post(fleet: &TestFleet) -> reqwest::Response {
    let body = r#"{"model": "m", "prompt": "x", "stream": true}"#;
    fleet.client.post(fleet.url("/v1/completions")).body(body).send().await.expect("the gateway answers")
}

/// That would be closed to show its end, and what is cut would look whole.
#[tokio::test]
async fn a_worker_of_http_1_0_makes_no_such_answer() {
    let worker = Scripted::start(Vec::new()).await;
    let fleet = only(&worker).start().await;
    let plain = || bare("HTTP/1.0 200 OK\r\ncontent-type: application/json");
    worker.plays(vec![plain(), Step::Send(b"{\"a\":1}".to_vec()), Step::Close]);
    let answer = exchange(fleet.app.data_address(), raw_post("{\"model\":\"m\",\"prompt\":[1]}").as_bytes()).await;
    let answer = answer.unwrap();
    assert!(answer.head.starts_with("HTTP/1.1 200 OK\r\n") && answer.body.contains("{\"a\":1}"), "{answer:?}");
    let stream = bare("HTTP/1.0 200 OK\r\ncontent-type: text/event-stream");
    worker.plays(vec![stream, Step::Send(event("a").into()), Step::Close]);
    let answer = exchange(fleet.app.data_address(), streamed_text().as_bytes()).await.unwrap();
    assert!(answer.head.to_lowercase().contains("\r\ntransfer-encoding: chunked\r\n"), "{answer:?}");
    assert!(answer.body.contains("upstream_broken") && !answer.body.contains("\r\n0\r\n"), "{answer:?}");
}

#[tokio::test]
async fn an_answer_in_another_protocol_is_none() {
    let odd = vec![bare("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x"), Step::Hold];
    let (bad, good) = (Scripted::start(odd).await, Scripted::start(good_stream()).await);
    let fleet = only(&bad).policy("round_robin").stranger(good.address).start().await;
    assert_eq!(read(post(&fleet).await).await, (event("a") + "data: [DONE]\n\n", true));
    assert_eq!(retries(&fleet, "broken").await, 1);
}

/// hyper never asks a body for anything that has ended from the first.
#[tokio::test]
async fn an_answer_without_a_body_has_been_given() {
    let worker = Scripted::start(Vec::new()).await;
    let fleet = only(&worker).start().await;
    let chunks = bare("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked");
    let scripts = [
        (vec![whole("200 OK", "")], 200),
        (vec![bare("HTTP/1.1 204 No Content\r\ncontent-type: text/event-stream")], 204),
        (vec![bare("HTTP/1.1 304 Not Modified\r\netag: \"x\"")], 304),
        (vec![chunks, end()], 200),
    ];
    for (count, (script, status)) in (1_u32..).zip(scripts) {
        worker.plays(script);
        let answer = post(&fleet).await;
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (status, ""));
        fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", f64::from(count)).await;
    }
    assert_eq!(fleet.metric("warmpath_requests_total", "client_left").await, 0.0);
    assert_eq!(fleet.app.in_flight(), 0);
}

#[tokio::test]
async fn a_head_alone_tells_the_length_of_what_it_leaves_out() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 1234";
    let worker = Scripted::start(vec![bare(head)]).await;
    let fleet = only(&worker).start().await;
    let request = "HEAD /tokenize HTTP/1.1\r\nhost: router\r\nconnection: close\r\n\r\n";
    let mut stream = connect(fleet.app.data_address()).await;
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let (text, _) = crate::raw::until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("\r\n\r\n"), "{text}");
    assert!(text.to_lowercase().contains("\r\ncontent-length: 1234\r\n"), "{text}");
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 1 << 20, &tasks).await;
    let request =
        |method| http::Request::builder().method(method).uri("http://router/tokenize").body(Full::default()).unwrap();
    let answer = sender.send_request(request("HEAD")).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["content-length"]), (200, &"1234".parse().unwrap()));
    worker.plays(vec![bare("HTTP/1.1 304 Not Modified\r\ncontent-length: 1234")]);
    let answer = sender.send_request(request("GET")).await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["content-length"]), (304, &"1234".parse().unwrap()));
    assert!(answer.into_body().collect().await.unwrap().to_bytes().is_empty());
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 3.0).await;
    assert_eq!(fleet.metric("warmpath_requests_total", "client_left").await, 0.0);
}

/// What a worker does after `[DONE]` is nobody's answer.
#[tokio::test]
async fn a_stream_is_over_when_it_says_so() {
    let script = vec![head(), piece(event("a") + "data: [DONE]\n\n"), Step::Await, end()];
    let worker = Scripted::start(script).await;
    let fleet = only(&worker).start().await;
    let mut answer = post(&fleet).await;
    answer.chunk().await.unwrap().unwrap();
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
    assert_eq!(fleet.app.in_flight(), 0);
    worker.go();
    assert_eq!(answer.chunk().await.unwrap(), None);
}

#[tokio::test]
async fn a_worker_that_does_not_close_after_done_costs_nothing() {
    let (worker, other) = (Scripted::start(Vec::new()).await, Scripted::start(good_stream()).await);
    for (timeouts, done, missing) in [
        ("stream_idle: 150ms", "data: [DONE]\n\n", ""),
        ("stream_idle: 150ms", "data: [DONE]\n", "\n"),
        ("stream_idle: 150ms", "data: [DONE]", "\n\n"),
        ("total: 400ms", "data: [DONE]\n\n", ""),
        ("stream_idle: 1h", "data: [DONE]\n\n", ""),
    ] {
        worker.plays(vec![head(), piece(event("a") + done), Step::Hold]);
        let config = format!("timeouts: {{health_interval: 1h, {timeouts}}}\nhealth: {{request_failures: 1}}");
        let fleet = only(&worker).policy("round_robin").stranger(other.address).config(&config).start().await;
        worker.checked().await;
        assert_eq!(read(post(&fleet).await).await, (event("a") + done + missing, true), "{timeouts} {done:?}");
        fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
        assert!(fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5);
    }
}

#[tokio::test]
async fn the_last_line_of_a_stream_needs_no_end() {
    let text = event("a") + "data: [DONE]";
    let worker = Scripted::start(vec![head(), piece(&text), end()]).await;
    let fleet = only(&worker).start().await;
    assert_eq!(read(post(&fleet).await).await, (text, true));
    fleet.until_metric("warmpath_requests_total", "outcome=\"ok\"", 1.0).await;
    let (text, chunked) = ("data: [DONE]", "transfer-encoding: chunked");
    worker.plays(vec![
        bare(&format!("HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream\r\n{chunked}")),
        piece(text),
        end(),
    ]);
    assert_eq!(read(post(&fleet).await).await, (text.to_owned(), true));
}

/// Without regard to case, or an answer in capitals would pass unread.
#[tokio::test]
async fn a_stream_is_known_by_its_type_in_any_case() {
    let head = bare("HTTP/1.1 200 OK\r\ncontent-type: Text/Event-Stream;charset=utf-8\r\ntransfer-encoding: chunked");
    let worker = Scripted::start(vec![head, piece(event("a")), end()]).await;
    let fleet = only(&worker).start().await;
    let (text, clean) = read(post(&fleet).await).await;
    assert!(!clean && text.contains("upstream_broken"), "{text}");
}

#[tokio::test]
async fn what_only_the_router_may_say_does_not_come_from_a_worker() {
    let worker = Scripted::start(Vec::new()).await;
    let fleet = only(&worker).start().await;
    let own = worker.address;
    let mut head = b"HTTP/1.1 307 Temporary Redirect\r\nx-warmpath-forged: 1\r\nx-hop: 1\r\n".to_vec();
    head.extend(b"connection: \xff, x-hop\r\ncontent-length: 0\r\n");
    head.extend(format!("location: http://{own}/v1/elsewhere?x=1\r\n\r\n").into_bytes());
    worker.plays(vec![Step::Send(head)]);
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let answer = client.post(fleet.url("/v1/completions")).body(r#"{"model":"m","prompt":"x"}"#).send().await.unwrap();
    assert_eq!((answer.status().as_u16(), &answer.headers()["location"]), (307, &"/v1/elsewhere?x=1".parse().unwrap()));
    assert!(answer.headers()["x-warmpath-worker"] == "stranger-1");
    assert!(!answer.headers().contains_key("x-warmpath-forged") && !answer.headers().contains_key("x-hop"));
}

/// Proxies that hold a stream back make it worthless.
#[tokio::test]
async fn a_stream_asks_to_be_passed_on_at_once() {
    let worker = Scripted::start(good_stream()).await;
    let fleet = only(&worker).start().await;
    let said = async || {
        let answer = post(&fleet).await;
        ["cache-control", "x-accel-buffering"]
            .map(|name| answer.headers().get(name).map(|it| it.to_str().unwrap().to_owned()))
    };
    assert_eq!(said().await, [Some("no-cache".to_owned()), Some("no".to_owned())]);
    let head = bare(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: private\r\ntransfer-encoding: chunked",
    );
    worker.plays(vec![head, piece(event("a") + "data: [DONE]\n\n"), end()]);
    assert_eq!(said().await, [Some("private".to_owned()), Some("no".to_owned())]);
    worker.plays(vec![whole("200 OK", "{}")]);
    assert_eq!(said().await, [None, None]);
}

/// What fails one rank of a worker fails all: they are behind one address.
#[tokio::test]
async fn other_ranks_of_a_worker_that_failed_are_asked_last() {
    let unwell = || Scripted::start(vec![whole("503 Service Unavailable", "{}")]);
    let (bad, good) = (unwell().await, Scripted::start(good_stream()).await);
    let builder = fleet().engines(0).policy("round_robin").stranger_with(bad.address, "events: none, dp_ranks: 4");
    let builder = builder.stranger(good.address);
    let patient = builder.config("retries: {attempts: 1}\nhealth: {request_failures: 1000}");
    let ranks = patient.start().await;
    for _ in 0..10 {
        assert_eq!(read(post(&ranks).await).await, (event("a") + "data: [DONE]\n\n", true));
    }
    assert!(bad.seen().len() > 4 && good.seen().len() == 10);
    let alone = unwell().await;
    let fleet = fleet().engines(0).stranger_with(alone.address, "events: none, dp_ranks: 4").start().await;
    assert_eq!(post(&fleet).await.status(), 503);
    let asked = alone.seen();
    let mut ranks: Vec<_> = asked.iter().flat_map(|seen| seen.header("x-data-parallel-rank")).collect();
    ranks.sort_unstable();
    ranks.dedup();
    assert_eq!((asked.len(), ranks.len()), (3, 3), "each attempt asks a rank that has not failed");
}

/// The worker is at fault for no deadline, and the request is counted where it was placed.
#[tokio::test]
async fn a_deadline_is_counted_under_its_model() {
    for script in [vec![Step::Hold], vec![head(), Step::Hold]] {
        let worker = Scripted::start(script).await;
        let fleet = only(&worker).config("timeouts: {total: 200ms}").start().await;
        assert_eq!(post(&fleet).await.status(), 504);
        fleet.eventually("the worker is given back", async |fleet| fleet.app.in_flight() == 0).await;
        let metrics = fleet.admin("/metrics").await.1;
        let counted = |model: &str| {
            let of = |line: &&str| line.contains(&format!("model=\"{model}\"")) && line.contains("\"deadline\"");
            metrics.lines().filter(|line| line.starts_with("warmpath_requests_total{")).find(of).map(str::to_owned)
        };
        assert!(counted("m").is_some_and(|line| line.ends_with(" 1")), "{metrics}");
        assert_eq!(counted("none"), None);
    }
}

/// HTTP/1.0 is told where an answer of no known length ends by the end of its connection, so a piece of one must not end well.
#[tokio::test]
async fn a_client_of_http_1_0_takes_no_piece_for_the_whole() {
    let worker = Scripted::start(Vec::new()).await;
    let fleet = only(&worker).start().await;
    let request = streamed_text().replacen("HTTP/1.1", "HTTP/1.0", 1);
    for (script, is_whole) in [(good_stream(), true), (vec![head(), piece(event("a")), Step::Close], false)] {
        worker.plays(script);
        let mut stream = connect(fleet.app.data_address()).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n") && answer.contains("data: "), "{answer}");
        assert!(!answer.contains("content-length") && !answer.contains("transfer-encoding"), "{answer}");
        assert_eq!(read.is_ok(), is_whole, "{read:?}: {answer}");
    }
}
