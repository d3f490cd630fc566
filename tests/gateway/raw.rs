//! A client that writes bytes of its own choice and reads what comes back.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything here may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// An answer as it came.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl RawAnswer {
    /// The message of an error object of OpenAI's shape, which nothing else is.
    pub(crate) fn refusal(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let error = body["error"].as_object().unwrap_or_else(|| panic!("{self:?}"));
        let keys: Vec<&String> = error.keys().collect();
        assert_eq!(
            (keys, body.as_object().unwrap().len()),
            (vec![&"message".to_owned(), &"type".to_owned(), &"param".to_owned(), &"code".to_owned()], 1)
        );
        assert!(self.head.to_lowercase().contains("\r\ncontent-type: application/json\r\n"), "{self:?}");
        assert!(self.head.to_lowercase().contains("\r\nx-request-id: "), "{self:?}");
        error["message"].as_str().unwrap().to_owned()
    }
}

pub(crate) async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Everything until the other side closes, and whether it did so properly.
pub(crate) async fn until_closed(stream: &mut (impl AsyncRead + Unpin)) -> (String, bool) {
    let mut bytes = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("the connection is closed");
    (String::from_utf8(bytes).unwrap(), read.is_ok())
}

/// Writes `bytes` on a new connection and reads one answer; none where it is closed without one.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<RawAnswer> {
    let mut stream = connect(address).await;
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    answer(&mut stream).await
}

/// Reads one answer, with a length or in chunks; none where there is none.
pub(crate) async fn answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<RawAnswer> {
    timeout(PATIENCE, read_answer(stream)).await.expect("there is an answer, or the connection is closed")
}

async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<RawAnswer> {
    let mut bytes = Vec::new();
    let end = loop {
        match bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            Some(at) => break at + 4,
            None if matches!(stream.read_buf(&mut bytes).await, Ok(0) | Err(_)) => return None,
            None => {}
        }
    };
    let body = bytes.split_off(end);
    let head = String::from_utf8(bytes).unwrap();
    let status = head[9..12].parse().unwrap();
    let lower = head.to_lowercase();
    let length = lower.split("\r\ncontent-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = body;
    let is_whole = |body: &[u8]| match length {
        Some(length) => body.len() >= length.parse::<usize>().unwrap(),
        None => body.ends_with(b"0\r\n\r\n"),
    };
    while !is_whole(&body) {
        if matches!(stream.read_buf(&mut body).await, Ok(0) | Err(_)) {
            break;
        }
    }
    Some(RawAnswer { status, head, body: String::from_utf8(body).unwrap() })
}

/// Sends a request on a connection that is kept, and reads its answer.
pub(crate) async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> Option<RawAnswer> {
    stream.write_all(request.as_bytes()).await.ok()?;
    answer(stream).await
}

/// A completion whose prompt is token ids.
pub(crate) fn completion(more: &str) -> String {
    post(&format!("{{\"model\":\"m\",\"prompt\":[1,2],\"max_tokens\":2{more}}}"))
}

/// A POST of `body` to completions.
pub(crate) fn post(body: &str) -> String {
    format!("POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// What lists the models, the cheapest of all.
pub(crate) const MODELS: &str = "GET /v1/models HTTP/1.1\r\nhost: router\r\n\r\n";

/// A streamed completion.
pub(crate) fn streamed_text() -> String {
    post("{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true}")
}
