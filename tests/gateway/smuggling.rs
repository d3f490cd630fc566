//! R14: heads and bodies that two servers might read differently. Whatever the client framed a request with, the worker
//! gets exactly one, framed anew, or none.

use crate::fleet::fleet;
use crate::raw::{connect, exchange, until_closed};
use crate::scripted::{Scripted, until, whole};

const BODY: &str = r#"{"model":"m","prompt":[1]}"#;

/// What is wrong or odd, and the bytes that are sent.
type Case = (&'static str, String);

fn case(name: &'static str, fields: &str, body: &str) -> Case {
    let head = "POST /v1/completions HTTP/1.1\r\nHost: router\r\nConnection: close\r\n";
    (name, format!("{head}{fields}\r\n{body}"))
}

fn with_length(name: &'static str, fields: &str) -> Case {
    case(name, &format!("Content-Length: {}\r\n{fields}", BODY.len()), BODY)
}

/// A head that is written in full.
fn head(name: &'static str, line: &str, fields: &str) -> Case {
    (name, format!("{line}\r\n{fields}Content-Length: {}\r\n\r\n{BODY}", BODY.len()))
}

fn chunks(end: &str) -> String {
    let (first, second) = BODY.split_at(10);
    format!("a\r\n{first}\r\n{:x}\r\n{second}\r\n{end}", second.len())
}

const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";

/// Taken, and how they differ from a plain request.
fn taken() -> Vec<Case> {
    let length = BODY.len();
    vec![
        with_length("a plain one", ""),
        case("chunks", CHUNKED, &chunks("0\r\n\r\n")),
        case("chunks in capitals", "Transfer-Encoding: CHUNKED\r\n", &chunks("0\r\n\r\n")),
        case("chunks with extensions", CHUNKED, &format!("{length:x};a=\"b\"\r\n{BODY}\r\n0;c\r\n\r\n")),
        case("a chunk's size with zeros", CHUNKED, &format!("0000{length:x}\r\n{BODY}\r\n0\r\n\r\n")),
        case("chunks with a trailer", CHUNKED, &chunks("0\r\nX-Tenant-Id: forged\r\nContent-Length: 3\r\n\r\n")),
        case("a length beside chunks", &format!("Content-Length: 3\r\n{CHUNKED}"), &chunks("0\r\n\r\n")),
        case("chunks beside a length", &format!("{CHUNKED}Content-Length: 3\r\n"), &chunks("0\r\n\r\n")),
        case(
            "a request behind the chunks",
            &format!("Content-Length: 3\r\n{CHUNKED}"),
            &(chunks("0\r\n\r\n") + "GET /v1/models HTTP/1.1\r\nHost: router\r\n\r\n"),
        ),
        with_length("a length twice", &format!("Content-Length: {length}\r\n")),
        ("an empty line first", "\r\n".to_owned() + &with_length("", "").1),
        head("HTTP/1.0 without a host", "POST /v1/completions HTTP/1.0", ""),
        head(
            "a target with its host",
            "POST http://router/v1/completions HTTP/1.1",
            "Host: router\r\nConnection: close\r\n",
        ),
        head(
            "the same in capitals",
            "POST http://ROUTER/v1/completions HTTP/1.1",
            "Host: router\r\nConnection: close\r\n",
        ),
        with_length(
            "fields of this connection only",
            "Keep-Alive: 9\r\nTE: trailers\r\nTrailer: X-T\r\nUpgrade: h2c\r\n\
            HTTP2-Settings: AA\r\nProxy-Authorization: x\r\nProxy-Authenticate: x\r\nProxy-Connection: close\r\n\
            Connection: X-Hop, HTTP2-Settings\r\nX-Hop: 1\r\n",
        ),
        with_length(
            "names that are ours",
            "X-Tenant-Id: forged\r\nX-Warmpath-Worker: forged\r\nX-Warmpath-New: forged\r\n\
            X-Data-Parallel-Rank: 7\r\n",
        ),
        with_length("an expectation", "Expect: 100-continue\r\n"),
    ]
}

/// Refused with this status, in words.
fn refused() -> Vec<(u16, Case)> {
    let bad = |case| (400, case);
    let closed = "Connection: close\r\n";
    let host = "Host: router\r\nConnection: close\r\n";
    let mut cases = vec![
        bad(case("two lengths", "Content-Length: 2\r\nContent-Length: 3\r\n", "{}x")),
        bad(case("a list of lengths", "Content-Length: 2, 2\r\n", "{}")),
        bad(case("a length with a sign", "Content-Length: +2\r\n", "{}")),
        bad(case("a negative length", "Content-Length: -1\r\n", "{}")),
        bad(case("a length in hexadecimal", "Content-Length: 0x2\r\n", "{}")),
        bad(case("an enormous length", "Content-Length: 99999999999999999999999\r\n", "{}")),
        bad(case("no length in it", "Content-Length: \r\n", "{}")),
        bad(case("an unknown encoding", "Transfer-Encoding: xchunked\r\n", &chunks("0\r\n\r\n"))),
        bad(case("a coding beneath the chunks", "Transfer-Encoding: gzip, chunked\r\n", &chunks("0\r\n\r\n"))),
        bad(case("chunks that come first", "Transfer-Encoding: chunked, identity\r\n", &chunks("0\r\n\r\n"))),
        bad(case("another encoding behind", &format!("{CHUNKED}Transfer-Encoding: gzip\r\n"), &chunks("0\r\n\r\n"))),
        bad(head("chunks in HTTP/1.0", "POST /v1/completions HTTP/1.0", CHUNKED)),
        bad(with_length("a space before a colon", "X-A : 1\r\n")),
        bad(with_length("a length with a space", "Content-Length : 3\r\n")),
        bad(with_length("a field on two lines", "X-A: 1\r\n 2\r\n")),
        bad(with_length("a field that begins with a space", " X-A: 1\r\n")),
        bad(with_length("a CR alone", "X-A: 1\rX-B: 2\r\n")),
        bad(with_length("a NUL", "X-A: 1\0\r\n")),
        bad(("lines that end in LF", with_length("", "").1.replace("\r\n", "\n"))),
        bad(with_length("one line that ends in LF", "X-A: 1\nX-B: 2\r\n")),
        bad(with_length("a line without a colon", "X-A\r\n")),
        bad(with_length("a field without a name", ": 1\r\n")),
        bad(case("a chunk's size that is none", CHUNKED, "zz\r\n")),
        bad(case("a chunk's size that ends in LF", CHUNKED, "2\n{}\r\n0\r\n\r\n")),
        bad(case("a chunk's size with a sign", CHUNKED, "+2\r\n{}\r\n0\r\n\r\n")),
        bad(case("a chunk's size beyond all", CHUNKED, "ffffffffffffffffff\r\n{}\r\n0\r\n\r\n")),
        bad(case("a chunk that is longer", CHUNKED, "2\r\n{}xx\r\n0\r\n\r\n")),
        bad(case("a chunk's extension without end", CHUNKED, &format!("2;{}", "x".repeat(100_000)))),
        bad(head("no host", "POST /v1/completions HTTP/1.1", closed)),
        bad(head("two hosts", "POST /v1/completions HTTP/1.1", &format!("{host}Host: router\r\n"))),
        bad(head("a host with a path", "POST /v1/completions HTTP/1.1", "Host: router/x\r\nConnection: close\r\n")),
        bad(head("another host in the target", "POST http://other/v1/completions HTTP/1.1", host)),
        bad(head("a name and password in the target", "POST http://u:p@router/v1/completions HTTP/1.1", host)),
        bad(head("a target that is only a host", "POST router:80 HTTP/1.1", host)),
        bad(head("a target with a space", "POST /v1/comple tions HTTP/1.1", host)),
        bad(head("a target with a fragment", "POST /v1/completions#x HTTP/1.1", host)),
        bad(head("a method that is none", "PO\u{1}ST /v1/completions HTTP/1.1", host)),
        bad(head("another version", "POST /v1/completions HTTP/1.2", host)),
        bad(head("a version of another protocol", "POST /v1/completions HTTP/2.0", host)),
        (405, head("a tunnel", "CONNECT router:80 HTTP/1.1", "Host: router:80\r\n")),
        (431, with_length("101 fields", &(0..98).map(|n| format!("X-{n}: 1\r\n")).collect::<String>())),
        (431, with_length("a large head", &format!("X-A: {}\r\n", "x".repeat(70_000)))),
        (431, with_length("a very large head", &format!("X-A: {}\r\n", "x".repeat(600_000)))),
    ];
    for (name, len) in [("a long target", 9_000), ("a longer target", 70_000)] {
        let line = format!("POST /v1/completions?{} HTTP/1.1", "x".repeat(len));
        cases.push((414, head(name, &line, host)));
    }
    cases
}

/// Fields that a worker may see.
const PASSED: [&str; 4] = ["host", "content-length", "x-request-id", "traceparent"];

#[tokio::test]
async fn what_is_taken_reaches_the_worker_once_and_framed_anew() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    for (number, (name, bytes)) in (1..).zip(taken()) {
        let mut answer = exchange(fleet.app.data_address(), bytes.as_bytes()).await;
        if answer.as_ref().is_some_and(|answer| answer.status == 100) {
            let rest = answer.as_ref().unwrap().body.clone();
            assert!(rest.starts_with("HTTP/1.1 200 OK\r\n"), "{}: {rest}", name);
            answer.as_mut().unwrap().status = 200;
        }
        let answer = answer.unwrap_or_else(|| panic!("{} is answered", name));
        assert_eq!(answer.status, 200, "{}: {answer:?}", name);
        let seen = worker.seen();
        assert_eq!(seen.len(), number, "{}", name);
        let seen = seen.last().unwrap();
        assert!(seen.head.starts_with("POST /v1/completions HTTP/1.1\r\n"), "{}: {}", name, seen.head);
        let names = seen.head.lines().skip(1).filter_map(|line| Some(line.split_once(':')?.0.to_lowercase()));
        let strange: Vec<String> = names.filter(|name| !PASSED.contains(&name.as_str())).collect();
        assert_eq!(strange, Vec::<String>::new(), "{}", name);
        assert_eq!(seen.header("content-length"), [BODY.len().to_string().as_str()], "{}", name);
        assert_eq!(seen.header("host"), [worker.address.to_string().as_str()], "{}", name);
        assert_eq!(String::from_utf8_lossy(&seen.body), BODY, "{}", name);
    }
    assert_eq!(fleet.app.in_flight(), 0);
}

#[tokio::test]
async fn what_is_ambiguous_is_refused_in_words_and_reaches_nobody() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut messages = std::collections::BTreeMap::new();
    let cases = refused();
    assert!(cases.len() >= 30);
    for (status, (name, bytes)) in &cases {
        let answer = exchange(fleet.app.data_address(), bytes.as_bytes()).await;
        let answer = answer.unwrap_or_else(|| panic!("{} is answered", name));
        assert_eq!(answer.status, *status, "{}: {answer:?}", name);
        *messages.entry(answer.refusal()).or_insert(0) += 1;
        assert_eq!(worker.seen().len(), 0, "{}", name);
    }
    let expected = [
        ("`Host` is not valid", 1),
        ("`Transfer-Encoding` may be `chunked` and nothing else", 1),
        ("a line of the request's head ends in LF alone, not in CRLF", 2),
        ("method not allowed", 1),
        ("the request body could not be read", 6),
        ("the request has more than one `Host`", 1),
        ("the request has no `Host`", 1),
        ("the request's head has more than 65536 bytes or 100 fields", 3),
        ("the request's head is not valid HTTP/1.1", 24),
        ("the request's target and its `Host` differ", 1),
        ("the request's target is longer than 8192 bytes", 2),
        ("the request's target is not valid", 2),
    ];
    let messages: Vec<(&str, i32)> = messages.iter().map(|(message, count)| (message.as_str(), *count)).collect();
    assert_eq!(messages, expected);
    // None of it is the worker's fault, and all of it is counted.
    let (_, metrics) = fleet.admin("/metrics").await;
    assert!(!metrics.contains("warmpath_retries_total{"));
    let counted = fleet.metric("warmpath_requests_total", "outcome=\"bad_request\"").await;
    assert!((counted - f64::from(u32::try_from(cases.len()).unwrap())).abs() < 1e-9, "{counted}");
    assert!(fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5);
}

/// A kept connection is no way around what its first request is asked for.
#[tokio::test]
async fn of_a_later_request_too_no_line_may_end_in_lf_alone() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    let body = BODY.replace(',', ",\n\n");
    let good = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for number in 1..=3 {
        tokio::io::AsyncWriteExt::write_all(&mut stream, good.as_bytes()).await.unwrap();
        until("it is answered", || worker.seen().len() == number).await;
        let mut answer = [0; 4096];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut answer).await.unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
    let bad = good.replace("Host: r\r\n", "Host: r\n");
    tokio::io::AsyncWriteExt::write_all(&mut stream, bad.as_bytes()).await.unwrap();
    let (text, _) = until_closed(&mut stream).await;
    assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
    assert_eq!((text.matches("HTTP/1.1 ").count(), worker.seen().len()), (1, 3));
}

/// Nor may one of a request that comes in one piece with another: it reaches nobody, and what was right before it is answered.
#[tokio::test]
async fn of_a_request_behind_another_too_no_line_may_end_in_lf_alone() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let good = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
    let in_chunks = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\n{CHUNKED}\r\n{}", chunks("0\r\n\r\n"));
    let nowhere = "POST /nope HTTP/1.1\r\nHost: r\r\nContent-Length: 5\r\n\r\nabcde";
    let bad = good.replace("Host: r\r\n", "Host: r\n");
    for (first, statuses) in [
        (crate::raw::MODELS, vec!["200", "400"]),
        (&good, vec!["200", "400"]),
        (nowhere, vec!["404", "400"]),
        (&in_chunks, vec!["200", "400"]),
    ] {
        let before = worker.seen().len();
        let mut stream = connect(fleet.app.data_address()).await;
        let all = [first, &bad, &good].concat();
        tokio::io::AsyncWriteExt::write_all(&mut stream, all.as_bytes()).await.unwrap();
        let (text, _) = until_closed(&mut stream).await;
        let seen: Vec<&str> = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
        assert_eq!(seen, statuses, "{text}");
        let last = text.rsplit("HTTP/1.1 ").next().unwrap();
        assert!(last.contains("\r\nconnection: close\r\n"), "{text}");
        let reached = worker.seen().len() - before;
        assert_eq!(reached, usize::from(first == good || first == in_chunks), "{text}");
    }
}

/// A body in chunks keeps its connection, however it is cut, if nothing comes behind it.
#[tokio::test]
async fn a_connection_is_kept_after_a_body_in_chunks() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\n{CHUNKED}\r\n");
    for cut in [0, 1, 5, 20] {
        let request = head.clone() + &chunks("0\r\n\r\n");
        let (begin, end) = request.split_at(request.len() - cut);
        for piece in [begin, end] {
            tokio::io::AsyncWriteExt::write_all(&mut stream, piece.as_bytes()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        let answer = crate::raw::answer(&mut stream).await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.head.contains("connection: close"), "{answer:?}");
    }
    assert_eq!(worker.seen().len(), 4);
}

/// Whoever sends a second request behind the first gets both answers, in order; one that is ambiguous ends it.
#[tokio::test]
async fn requests_behind_each_other_are_told_apart() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    let plain = format!("POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len());
    let bad = "POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}";
    let all = [plain.as_str(), &plain, bad, &plain].concat();
    tokio::io::AsyncWriteExt::write_all(&mut stream, all.as_bytes()).await.unwrap();
    let (text, _) = until_closed(&mut stream).await;
    let statuses: Vec<&str> = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["200", "200", "400"], "{text}");
    assert!(text.ends_with("\"param\":null,\"code\":null}}"), "{text}");
    assert_eq!(worker.seen().len(), 2);
}

/// The length beside chunks does not count, and nothing behind such a request is read as another one.
#[tokio::test]
async fn after_a_length_beside_chunks_the_connection_ends() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n{}\
         POST /v1/completions HTTP/1.1\r\nHost: r\r\nContent-Length: {}\r\n\r\n{BODY}",
        chunks("0\r\n\r\n"),
        BODY.len()
    );
    tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
    let (text, _) = until_closed(&mut stream).await;
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
    assert_eq!(worker.seen().len(), 1);
}
