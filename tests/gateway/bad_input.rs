//! Requests that make no sense, are too large or too slow. Each gets its status and OpenAI's error object, and costs
//! nobody else anything.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::fleet::{Answered, TestFleet, fleet};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Status, type, param and code of a refusal whose body has OpenAI's shape and nothing else.
pub(crate) fn refusal(answer: &Answered) -> (u16, &str, Option<&str>, Option<&str>) {
    let error = &answer.body["error"];
    let keys: Vec<&String> = error.as_object().unwrap_or_else(|| panic!("{answer:?}")).keys().collect();
    assert_eq!(keys, ["message", "type", "param", "code"]);
    assert_eq!(answer.body.as_object().unwrap().len(), 1);
    assert!(!error["message"].as_str().unwrap().is_empty());
    assert_eq!(answer.headers["content-type"], "application/json");
    assert!(answer.headers.contains_key("x-request-id"));
    (answer.status, error["type"].as_str().unwrap(), error["param"].as_str(), error["code"].as_str())
}

fn message(answer: &Answered) -> &str {
    answer.body["error"]["message"].as_str().unwrap()
}

/// A request that makes sense is answered.
async fn is_well(fleet: &TestFleet) {
    assert_eq!(fleet.complete(json!("hello")).await.status, 200);
    assert_eq!(fleet.app.in_flight(), 0);
}

#[tokio::test]
async fn bodies_that_are_no_request_are_400() {
    let fleet = fleet().engines(1).start().await;
    for (path, body, param) in [
        (COMPLETIONS, "", None),
        (COMPLETIONS, "nonsense", None),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\"", None),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\"} {}", None),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\"},", None),
        (COMPLETIONS, "[]", None),
        (COMPLETIONS, "\"m\"", None),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"\\ud800\"}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"model\": \"m\", \"prompt\": \"x\"}", None),
        (COMPLETIONS, "{\"model\": 3, \"prompt\": \"x\"}", Some("model")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\", \"stream\": \"ja\"}", Some("stream")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\", \"max_tokens\": -1}", Some("max_tokens")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"x\", \"n\": 0}", Some("n")),
        (COMPLETIONS, "{\"model\": \"m\"}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": null}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": \"\"}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": []}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": [\"a\", 1]}", Some("prompt")),
        (COMPLETIONS, "{\"model\": \"m\", \"prompt\": [4294967296]}", Some("prompt")),
        (CHAT, "{\"model\": \"m\"}", Some("messages")),
        (CHAT, "{\"model\": \"m\", \"messages\": []}", Some("messages")),
        (CHAT, "{\"model\": \"m\", \"messages\": {}}", Some("messages")),
        (CHAT, "{\"model\": \"m\", \"messages\": [\"hi\"]}", Some("messages")),
    ] {
        let answer = fleet.post_bytes(path, body.as_bytes().to_vec()).await;
        assert_eq!(refusal(&answer), (400, "invalid_request_error", param, None), "{body}");
    }
    let answer = fleet.post_bytes(COMPLETIONS, b"{\"model\": \"m\", \xff}".to_vec()).await;
    assert_eq!(refusal(&answer).0, 400);
    assert!((fleet.metric("warmpath_requests_total", "outcome=\"bad_request\"").await - 24.0).abs() < 1e-9);
    is_well(&fleet).await;
}

/// The router would have to read it, and so would the engine.
#[tokio::test]
async fn a_compressed_body_is_415_and_named() {
    const GZIP: &[u8] = b"\x1f\x8b\x08\x00\x00\x00\x00\x00";
    const JSON: &str = "application/json";
    let fleet = fleet().engines(1).start().await;
    let send = async |path: &str, kind: &'static str, coding: &'static str, body: &'static [u8]| {
        let request = fleet.client.post(fleet.url(path)).header("content-type", kind);
        let answer = request.header("content-encoding", coding).body(body).send().await.unwrap();
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = answer.json().await.unwrap_or_default();
        Answered { status, body, worker: String::new(), predicted: None, headers }
    };
    for (path, kind) in [
        (COMPLETIONS, JSON),
        (CHAT, JSON),
        ("/v1/embeddings", JSON),
        ("/v1/audio/transcriptions", "multipart/form-data; boundary=b"),
    ] {
        let answer = send(path, kind, "gzip", GZIP).await;
        assert_eq!(refusal(&answer), (415, "invalid_request_error", None, None), "{path}");
        assert!(message(&answer).contains("`Content-Encoding: gzip`"), "{}", message(&answer));
    }
    let plain = br#"{"model": "m", "prompt": "x", "max_tokens": 1}"#;
    assert_eq!(send(COMPLETIONS, JSON, "identity", plain).await.status, 200);
    // Nobody reads it here.
    assert_ne!(send("/v1/audio/transcriptions", "audio/wav", "gzip", GZIP).await.status, 415);
    is_well(&fleet).await;
}

#[tokio::test]
async fn an_unknown_model_is_404_and_a_missing_one_is_fine_where_there_is_one() {
    let fleet = fleet().engines(1).start().await;
    let answer = fleet.post(COMPLETIONS, &json!({"model": "other", "prompt": "x"})).await;
    assert_eq!(refusal(&answer), (404, "invalid_request_error", Some("model"), Some("model_not_found")));
    assert_eq!(message(&answer), "the model `other` does not exist");
    let answer = fleet.post(COMPLETIONS, &json!({"model": "x".repeat(100_000), "prompt": "x"})).await;
    assert_eq!((refusal(&answer).0, message(&answer).len()), (404, 200 + "the model `` does not exist".len()));
    assert_eq!(fleet.post(COMPLETIONS, &json!({"prompt": "x"})).await.status, 200);
    is_well(&fleet).await;
}

#[tokio::test]
async fn with_two_models_a_request_must_name_one() {
    let fleet = fleet().engines(1).second_model().start().await;
    let answer = fleet.post(COMPLETIONS, &json!({"prompt": "x"})).await;
    assert_eq!(refusal(&answer), (400, "invalid_request_error", Some("model"), None));
    assert_eq!(message(&answer), "`model` is missing");
    is_well(&fleet).await;
}

/// What only the engine knows, the engine says.
#[tokio::test]
async fn a_prompt_longer_than_the_engines_limit_gets_the_engines_own_400() {
    let fleet = fleet().engines(2).start().await;
    let answer = fleet.complete(vec![7; 5000].into()).await;
    assert_eq!((answer.status, &answer.body["error"]["type"]), (400, &json!("Bad Request")), "{answer:?}");
    assert_eq!(answer.body["error"]["code"], 400);
    let (_, metrics) = fleet.admin("/metrics").await;
    assert!(!metrics.contains("warmpath_retries_total{"));
    is_well(&fleet).await;
}

#[tokio::test]
async fn too_many_messages_or_prompts_are_400() {
    let fleet = fleet().engines(1).config("limits: {messages: 3}").start().await;
    let chat = |count| json!({"model": "m", "messages": vec![json!({"role": "user", "content": "x"}); count], "max_tokens": 1});
    assert_eq!(fleet.post(CHAT, &chat(3)).await.status, 200);
    let answer = fleet.post(CHAT, &chat(4)).await;
    assert_eq!(refusal(&answer), (400, "invalid_request_error", Some("messages"), None));
    assert_eq!(message(&answer), "`messages` may have at most 3 elements");
    for prompt in [json!(["a", "b", "c", "d"]), json!([[1], [2], [3], [4]])] {
        assert_eq!(refusal(&fleet.complete(prompt).await).2, Some("prompt"));
    }
    is_well(&fleet).await;
}

/// Nesting that would overflow the stack of a reader that recurses is refused; what is sane passes, wherever it stands.
#[tokio::test]
async fn deep_nesting_harms_nobody() {
    let fleet = fleet().engines(1).start().await;
    for (depth, status) in [(60, 200), (65, 400), (100_000, 400)] {
        let deep = "[".repeat(depth) + &"]".repeat(depth);
        let body = format!("{{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":1,\"vendor\":{deep}}}");
        assert_eq!(fleet.post_bytes(COMPLETIONS, body.into_bytes()).await.status, status, "{depth} levels");
    }
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    for (path, body) in [
        (COMPLETIONS, format!("{{\"model\":\"m\",\"prompt\":{deep}}}")),
        (CHAT, format!("{{\"model\":\"m\",\"messages\":{deep}}}")),
        (CHAT, format!("{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":{deep}}}]}}")),
        (COMPLETIONS, format!("{{\"model\":\"m\",\"stream_options\":{deep}}}")),
    ] {
        let answer = fleet.post_bytes(path, body.into_bytes()).await;
        assert_eq!(refusal(&answer), (400, "invalid_request_error", None, None));
        assert_eq!(message(&answer), "the body is nested deeper than 64 levels");
    }
    is_well(&fleet).await;
}

#[tokio::test]
async fn unknown_paths_and_wrong_methods_are_refused_in_the_same_shape() {
    let fleet = fleet().engines(1).start().await;
    for path in ["/", "/v1/embedding", "/metrics", "/reset_prefix_cache", "/v1/completions/"] {
        let answer = fleet.post(path, &json!({})).await;
        assert_eq!(refusal(&answer), (404, "invalid_request_error", None, None), "{path}");
        assert_eq!(message(&answer), format!("unknown path `{path}`"));
    }
    for path in ["/v1/models", "/v1/models/m"] {
        assert_eq!(refusal(&fleet.post(path, &json!({})).await).0, 405, "{path}");
    }
    let (status, body) = fleet.get(fleet.url(COMPLETIONS)).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["error"]["message"]), (405, &json!("method not allowed")));
    is_well(&fleet).await;
}

async fn connect(fleet: &TestFleet) -> TcpStream {
    TcpStream::connect(fleet.app.data_address()).await.unwrap()
}

/// What the gateway says until it closes the connection.
async fn until_closed(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let all = timeout(Duration::from_secs(5), stream.read_to_end(&mut text)).await.expect("it closes the connection");
    all.unwrap_or_default();
    String::from_utf8(text).unwrap()
}

/// Refused before a byte of the body is read.
#[tokio::test]
async fn a_body_over_the_limit_is_413_by_its_length_alone() {
    let fleet = fleet().engines(1).config("limits: {body_bytes: 1KiB}").start().await;
    let mut stream = connect(&fleet).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1073741824\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let text = until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{text}");
    let body: Value = serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(body["error"]["message"], "the request body is larger than 1024 bytes");
    assert!(text.contains("\r\nconnection: close\r\n"), "{text}");
    let fits = format!("{{\"model\":\"m\",\"max_tokens\":1,\"prompt\":\"{}\"}}", "x".repeat(900));
    assert_eq!(fleet.post_bytes(COMPLETIONS, fits.into_bytes()).await.status, 200);
    is_well(&fleet).await;
}

/// What is refused before its body was read ends its connection only if not all of it has come, and then says so.
#[tokio::test]
async fn a_refusal_says_whether_the_connection_goes_on() {
    let fleet = fleet().engines(1).start().await;
    let mut stream = connect(&fleet).await;
    let whole = "POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nabcde";
    for _ in 0..2 {
        let answer = crate::raw::ask(&mut stream, whole).await.unwrap();
        assert_eq!((answer.status, answer.head.contains("connection: close")), (404, false), "{answer:?}");
    }
    let half = "POST /nope HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\nabcde";
    stream.write_all(half.as_bytes()).await.unwrap();
    let text = until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 404 ") && text.contains("\r\nconnection: close\r\n"), "{text}");
    is_well(&fleet).await;
}

/// R13: the read stops, and with it the client's writing.
#[tokio::test]
async fn a_body_over_the_limit_is_413_in_chunks_too_and_the_read_stops() {
    let fleet = fleet().engines(1).config("limits: {body_bytes: 1MiB}").start().await;
    let (mut reader, mut writer) = connect(&fleet).await.into_split();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    writer.write_all(head.as_bytes()).await.unwrap();
    let piece = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    let writing = async {
        let mut written: usize = 0;
        while writer.write_all(&piece).await.is_ok() {
            written += piece.len();
            assert!(written < 1 << 30, "the gateway reads on and on");
        }
        written
    };
    let mut text = Vec::new();
    let reading = async { reader.read_to_end(&mut text).await.unwrap_or_default() };
    let (written, _) = timeout(Duration::from_secs(10), async { tokio::join!(writing, reading) }).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{text}");
    assert!(written < 64 << 20, "{written} bytes were taken");
    is_well(&fleet).await;
}

#[tokio::test]
async fn a_head_over_the_limit_is_431() {
    let fleet = fleet().engines(1).config("limits: {header_bytes: 16KiB, headers: 20}").start().await;
    let many: String = (0..30).map(|number| format!("x-{number}: 1\r\n")).collect();
    for lines in [format!("x-long: {}\r\n", "x".repeat(40_000)), many] {
        let mut stream = connect(&fleet).await;
        let head = format!("GET /v1/models HTTP/1.1\r\nhost: x\r\n{lines}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let text = until_closed(&mut stream).await;
        assert!(text.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{text:?}");
    }
    is_well(&fleet).await;
}

/// R12: a client that is slow on purpose gets no more than `timeouts.header_read`, and nobody waits for it.
#[tokio::test]
async fn half_open_connections_are_closed() {
    let fleet = fleet().engines(1).config("timeouts: {header_read: 300ms, body_read: 300ms}").start().await;
    let mut silent = connect(&fleet).await;
    let mut half_a_head = connect(&fleet).await;
    half_a_head.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-").await.unwrap();
    let mut half_a_body = connect(&fleet).await;
    half_a_body.write_all(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{").await.unwrap();
    let start = Instant::now();
    is_well(&fleet).await;
    assert_eq!(until_closed(&mut silent).await, "");
    until_closed(&mut half_a_head).await;
    let text = until_closed(&mut half_a_body).await;
    assert!(text.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    is_well(&fleet).await;
}

/// A client that breaks off in its body is nobody's failure but its own.
#[tokio::test]
async fn a_body_that_breaks_off_or_is_framed_badly_costs_no_worker_anything() {
    let fleet = fleet().engines(1).start().await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = connect(&fleet).await;
    stream.write_all((head.to_owned() + "zz\r\n").as_bytes()).await.unwrap();
    let text = until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text:?}");
    let mut stream = connect(&fleet).await;
    stream.write_all((head.to_owned() + "5\r\n{\"mo").as_bytes()).await.unwrap();
    drop(stream);
    is_well(&fleet).await;
    assert!(fleet.metric("warmpath_worker_up", "engine-1").await > 0.5);
    assert!(!fleet.admin("/metrics").await.1.contains("warmpath_retries_total{"));
}

/// Requests that make no sense, beside some that do.
#[tokio::test]
async fn sense_and_nonsense_side_by_side() {
    let fleet = fleet().start().await;
    let nonsense = async {
        for _ in 0..100 {
            assert_eq!(fleet.post_bytes(COMPLETIONS, b"{\"prompt\": [[[".to_vec()).await.status, 400);
        }
    };
    let sense = async {
        for _ in 0..100 {
            assert_eq!(fleet.complete(json!([1, 2, 3, 4, 5])).await.status, 200);
        }
    };
    tokio::join!(nonsense, sense);
    assert!((fleet.metric("warmpath_requests_total", "outcome=\"ok\"").await - 100.0).abs() < 1e-9);
    assert!((fleet.metric("warmpath_requests_total", "outcome=\"bad_request\"").await - 100.0).abs() < 1e-9);
}
