//! HTTP/2 towards clients.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use warmpath::shutdown::Tasks;

use crate::door::counted;
use crate::fleet::{fleet, value_of};
use crate::raw::connect;
use crate::scripted::{Scripted, Step, head, piece};

/// Speaks HTTP/2 over `stream` at once.
pub(crate) async fn http2(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    window: u32,
    tasks: &Tasks,
) -> SendRequest<Full<Bytes>> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(window).initial_connection_window_size(1 << 20);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    tasks.spawn(async move { connection.await.unwrap_or_default() });
    sender
}

/// A streamed completion over HTTP/2.
pub(crate) fn streamed() -> http::Request<Full<Bytes>> {
    let body = r#"{"model":"m","prompt":"x","stream":true}"#;
    http::Request::post("http://router/v1/completions").body(Full::from(body)).unwrap()
}

/// What lists the models, over HTTP/2.
pub(crate) fn models() -> http::Request<Full<Bytes>> {
    http::Request::get("http://router/v1/models").body(Full::default()).unwrap()
}

#[tokio::test]
async fn http2_is_spoken_to_clients_that_begin_with_it() {
    let fleet = fleet().engines(1).start().await;
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 1 << 20, &tasks).await;
    let body = r#"{"model":"m","prompt":[1,2,3],"max_tokens":2}"#;
    let request = || http::Request::post("http://router/v1/completions").body(Full::from(body)).unwrap();
    let (first, second, third) = tokio::join!(
        sender.send_request(request()),
        sender.clone().send_request(request()),
        sender.clone().send_request(models())
    );
    for answer in [first, second, third] {
        let answer = answer.unwrap();
        assert_eq!((answer.status(), answer.version()), (http::StatusCode::OK, http::Version::HTTP_2));
        let body: serde_json::Value =
            serde_json::from_slice(&answer.into_body().collect().await.unwrap().to_bytes()).unwrap();
        assert!(body["object"].is_string(), "{body}");
    }
    // What is wrong with a head is said in the same words.
    let other_host =
        http::Request::get("http://router/v1/models").header("host", "other").body(Full::default()).unwrap();
    let large = |bytes: usize| {
        let mut large = models();
        large.headers_mut().insert("x-large", "x".repeat(bytes).parse().unwrap());
        large
    };
    let long = http::Request::get(format!("http://router/{}", "x".repeat(9_000))).body(Full::default()).unwrap();
    for (request, status) in [(other_host, 400), (large(66_000), 431), (large(500_000), 431), (long, 414)] {
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status().as_u16(), status);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert!(body.starts_with(b"{\"error\":{\"message\":\""), "{body:?}");
    }
    assert!((counted(&fleet, "warmpath_client_connections_opened_total", "").await - 1.0).abs() < 1e-9);
    assert_eq!(fleet.app.in_flight(), 0);
}

/// HTTP/2's library answers such a head by itself; the words are added as they leave.
#[tokio::test]
async fn a_head_beyond_what_http2_announces_is_refused_in_words_and_nobody_else_hears_of_it() {
    let fleet = fleet().engines(1).start().await;
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 1 << 20, &tasks).await;
    let stream = sender.send_request(streamed()).await.unwrap();
    for body in ["", r#"{"model":"m","prompt":"x"}"#] {
        let large = http::Request::post("http://router/v1/completions")
            .header("x-large", "x".repeat(600_000))
            .body(Full::from(body))
            .unwrap();
        let (head, body) = sender.send_request(large).await.unwrap().into_parts();
        assert_eq!((head.status.as_u16(), head.headers["content-type"].as_bytes()), (431, &b"application/json"[..]));
        assert!(head.headers["x-request-id"].to_str().unwrap().starts_with("wp-"), "{head:?}");
        let body: serde_json::Value = serde_json::from_slice(&body.collect().await.unwrap().to_bytes()).unwrap();
        assert_eq!(body["error"]["type"], "invalid_request_error", "{body}");
    }
    // What else is on the connection ends as it should, and so does what follows.
    let text = stream.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{text:?}");
    assert_eq!(sender.send_request(models()).await.unwrap().status(), http::StatusCode::OK);
    let (_, text) = fleet.admin("/metrics").await;
    let refused = value_of(&text, "warmpath_requests_total", "outcome=\"bad_request\"");
    assert!((refused - 2.0).abs() < 1e-9, "{refused}");
    assert!((counted(&fleet, "warmpath_client_connections_opened_total", "").await - 1.0).abs() < 1e-9);
}

/// HTTP/2's library drops what has not left as soon as an answer breaks off.
#[tokio::test]
async fn a_client_that_reads_slowly_gets_all_of_a_stream_that_breaks_and_what_broke_it() {
    const EVENTS: usize = 600;
    let long = format!("data: {{\"choices\":[{{\"text\":\"{}\"}}]}}\n\n", "x".repeat(900));
    let worker = Scripted::start(vec![head(), piece(long.repeat(EVENTS)), Step::Close]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 16 * 1024, &tasks).await;
    let mut body = sender.send_request(streamed()).await.unwrap().into_body();
    let mut text = Vec::new();
    let broke = loop {
        match body.frame().await {
            Some(Ok(frame)) => text.extend_from_slice(&frame.into_data().unwrap()),
            ended => break ended,
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    };
    assert!(matches!(broke, Some(Err(_))), "it does not end cleanly");
    let (all, event) = text.split_at(long.len() * EVENTS);
    assert!(all == long.repeat(EVENTS).as_bytes());
    let event = String::from_utf8_lossy(event);
    assert!(event.starts_with("\n\ndata: {\"error\":") && event.contains("upstream_broken"), "{event}");
    fleet.eventually("the worker is given back", async |fleet| fleet.app.in_flight() == 0).await;
    assert_eq!(sender.send_request(models()).await.unwrap().status(), 200, "its neighbours go on");
}

/// Browsers speak HTTP/2 to a port with a certificate, where `:authority` stands for the host.
#[tokio::test]
async fn operators_change_things_over_http2_and_other_sites_do_not() {
    let fleet = fleet().engines(1).start().await;
    let (admin, tasks) = (fleet.app.admin_address(), Tasks::new());
    let mut sender = http2(connect(admin).await, 1 << 20, &tasks).await;
    for (action, origin, status) in [
        ("drain", None, http::StatusCode::OK),
        ("undrain", Some(format!("http://{admin}")), http::StatusCode::OK),
        ("drain", Some("http://elsewhere.example".to_owned()), http::StatusCode::FORBIDDEN),
    ] {
        let mut request = http::Request::post(format!("http://{admin}/api/v1/workers/engine-1/{action}"));
        if let Some(origin) = &origin {
            request = request.header("origin", origin);
        }
        let answer = sender.send_request(request.body(Full::default()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status, "{action} from {origin:?}");
    }
}

/// A frame of HTTP/2: its type, flags and stream, and what it holds.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).unwrap();
    [&[0, 0, length, kind, flags, 0, 0, 0, stream][..], payload].concat()
}

/// The next frame's type, flags and payload.
async fn next_frame(stream: &mut tokio::net::TcpStream) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.unwrap();
    let mut payload = vec![0; usize::from(head[1]) * 256 + usize::from(head[2])];
    stream.read_exact(&mut payload).await.unwrap();
    (head[3], head[4], payload)
}

/// Its client cannot know that it was told to go, nor may it send again what may have been done.
#[tokio::test]
async fn a_request_that_crosses_the_farewell_to_an_idle_connection_is_answered() {
    const GOAWAY: u8 = 7;
    // A little more than a client takes that has said nothing of windows: the end is with the library when it stops.
    let [long, short] = [60_000, 6_000].map(|bytes| format!("data: {}\n\n", "x".repeat(bytes)));
    let rest = vec![Step::Await, piece(long), piece(short + "data: [DONE]\n\n"), crate::scripted::end()];
    let worker = Scripted::start([vec![head(), piece(crate::scripted::event("a"))], rest].concat()).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("timeouts: {client_idle: 200ms}").start().await;
    let mut client = connect(fleet.app.data_address()).await;
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    client.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    // All answers together may have more; each of them has what is usual.
    let more = 1_000_000_u32.to_be_bytes();
    client.write_all(&frame(8, 0, 0, &more)).await.unwrap();
    // The first answer begins the time of rest.
    let ask = |stream, method: u8, path: &str, ends: u8| {
        let length = u8::try_from(path.len()).unwrap();
        let head = [&[method, 0x86, 0x04, length][..], path.as_bytes(), &[0x01, 1, b'r']].concat();
        frame(1, 4 | ends, stream, &head)
    };
    client.write_all(&ask(1, 0x82, "/v1/models", 1)).await.unwrap();
    while next_frame(&mut client).await.0 != GOAWAY {}
    client.write_all(&ask(3, 0x83, "/v1/completions", 0)).await.unwrap();
    let body = br#"{"model":"m","prompt":"x","stream":true}"#;
    client.write_all(&frame(0, 1, 3, body)).await.unwrap();
    worker.asked(1).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    worker.go();
    let mut text = Vec::new();
    loop {
        let (kind, flags, payload) = next_frame(&mut client).await;
        if kind == 0 {
            text.extend(payload);
            if flags & 1 == 1 {
                break;
            }
            if text.len() == 65_535 {
                // What is left waits for its client to take it, though nobody asks for anything any more.
                tokio::time::sleep(Duration::from_millis(300)).await;
                client.write_all(&frame(8, 0, 3, &more)).await.unwrap();
            }
        }
    }
    assert!(text.ends_with(b"data: [DONE]\n\n"), "{}", String::from_utf8_lossy(&text));
    let closed = "warmpath_client_connections_closed_total";
    fleet.eventually("it is let go", async |fleet| counted(fleet, closed, "reason=\"idle\"").await == 1.0).await;
}

/// It has begun to speak and answers nothing: no ping, no farewell.
#[tokio::test]
async fn a_silent_connection_holds_no_router_up_that_stops() {
    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let fleet = fleet().engines(1).config("timeouts: {shutdown_grace: 30s}").start().await;
    let mut silent = connect(fleet.app.data_address()).await;
    silent.write_all(HELLO).await.unwrap();
    let mut settings = [0; 9];
    silent.read_exact(&mut settings).await.unwrap();
    assert_eq!(settings[3], 4, "it is answered in HTTP/2");
    let begun = Instant::now();
    fleet.stop_gateway().await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}
