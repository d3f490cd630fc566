//! Looks at a stream of server-sent events as it passes: events, usage, errors, the end. Copies nothing but a line that
//! a frame cuts in two.

use std::sync::LazyLock;

use memchr::memchr2_iter;
use memchr::memmem::Finder;
use serde::Deserialize;
use serde_json::Value;
use warmpath_core::retry::Failure;

/// The longest line that is put together from several frames; a longer one passes unread.
pub(super) const LINE_MAX: usize = 256 * 1024;

/// What an event has that tells usage.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\":"));

/// What every error object has somewhere.
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"error\""));

/// What a stream may begin with.
pub(super) const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A scanner without I/O. Frames may cut the stream anywhere; lines end as in the standard (WHATWG HTML, 9.2.5): with CR,
/// LF or both.
#[derive(Debug, Default)]
pub struct SseScanner {
    partial: Vec<u8>,
    overlong: bool,
    /// The last byte was a CR: an LF after it belongs to it.
    after_cr: bool,
    /// Whether a line has ended.
    begun: bool,
    /// Whether the event under way is named `error`.
    named_error: bool,
    seen: Seen,
}

/// What has passed so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Events that carry data, the final `[DONE]` not counted.
    pub events: u32,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// Whether the blank line came that makes an event of it.
    pub closed: bool,
    /// The first event that was an error.
    pub error: Option<ErrorEvent>,
    /// The last payload that bore a usage object.
    pub usage: Option<Vec<u8>>,
}

/// An error that an engine tells in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorEvent {
    /// The status that it stands for, where it names one.
    pub code: Option<u16>,
    /// Whether the stream began with it: nothing was generated.
    pub is_first: bool,
}

impl ErrorEvent {
    /// How the worker failed; none where the request is to blame, and no engine would serve it: 400 to 499 but 429.
    pub fn failure(self) -> Option<Failure> {
        match self.code {
            Some(429) => Some(Failure::TooManyRequests),
            Some(400..500) => None,
            _ => Some(Failure::Unavailable),
        }
    }
}

impl SseScanner {
    /// Looks at the next frame. Returns how many of its bytes there are up to the end of the last line that ends in it.
    pub fn scan(&mut self, frame: &[u8]) -> usize {
        let mut start = 0;
        for end in memchr2_iter(b'\n', b'\r', frame) {
            let rest = &frame[start..end];
            start = end + 1;
            let follows_cr = std::mem::replace(&mut self.after_cr, frame[end] == b'\r');
            if follows_cr && frame[end] == b'\n' && rest.is_empty() {
                continue;
            }
            self.end_line(rest);
        }
        let rest = &frame[start..];
        self.after_cr &= rest.is_empty();
        if self.overlong || self.partial.len() + rest.len() > LINE_MAX {
            self.overlong = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(rest);
        }
        start
    }

    /// The stream is over: a last line needs no end. Returns what is missing that would make an event of its `[DONE]`;
    /// none where that has not come.
    pub fn finish(&mut self) -> Option<&'static str> {
        let is_cut = !self.partial.is_empty();
        if is_cut {
            self.end_line(&[]);
        }
        self.seen.done.then_some(match (self.seen.closed, is_cut) {
            (true, _) => "",
            (false, false) => "\n",
            (false, true) => "\n\n",
        })
    }

    /// What has passed so far.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    fn end_line(&mut self, rest: &[u8]) {
        if std::mem::take(&mut self.overlong) {
            return;
        }
        if self.partial.is_empty() {
            return self.line(rest);
        }
        let mut line = std::mem::take(&mut self.partial);
        line.extend_from_slice(rest);
        self.line(&line);
        line.clear();
        self.partial = line;
    }

    fn line(&mut self, line: &[u8]) {
        let mark = if std::mem::replace(&mut self.begun, true) { None } else { line.strip_prefix(BYTE_ORDER_MARK) };
        let line = mark.unwrap_or(line);
        if line.is_empty() {
            self.named_error = false;
            self.seen.closed |= self.seen.done;
        } else if let Some(payload) = line.strip_prefix(b"data:") {
            self.seen.payload(payload.trim_ascii(), self.named_error);
        } else if let Some(name) = line.strip_prefix(b"event:") {
            self.named_error = name.trim_ascii() == b"error";
        }
    }
}

impl Seen {
    fn payload(&mut self, payload: &[u8], named_error: bool) {
        if payload == b"[DONE]" {
            self.done = true;
            return;
        }
        self.events += 1;
        let is_first = self.events == 1;
        // Text may hold the word: only where a stream begins with it is all of the object read.
        let told = if is_first { first_error(payload) } else { is_error(payload).then(|| Told::read(payload)) };
        if named_error || told.is_some() {
            let code = told.unwrap_or_else(|| Told::read(payload)).code();
            self.error.get_or_insert(ErrorEvent { code, is_first });
        } else if USAGE.find(payload).is_some_and(|at| !rest_is_null(&payload[at + 8..])) {
            self.usage = Some(payload.to_vec());
        }
    }
}

/// An error as engines tell it: an object or a text under `error`, or one that says of itself that it is an error.
#[derive(Debug, Default, Deserialize)]
struct Told {
    error: Option<Value>,
    object: Option<Value>,
    r#type: Option<Value>,
    code: Option<Value>,
    status: Option<Value>,
    status_code: Option<Value>,
}

impl Told {
    fn read(payload: &[u8]) -> Self {
        serde_json::from_slice(payload).unwrap_or_default()
    }

    fn is_error(&self) -> bool {
        let says_so = |what: &Option<Value>| what.as_ref().is_some_and(|what| what == "error");
        // What has no error may say so by `false` or something empty.
        let is_told = match &self.error {
            Some(Value::Object(error)) => !error.is_empty(),
            Some(Value::String(error)) => !error.is_empty(),
            _ => false,
        };
        is_told || says_so(&self.object) || says_so(&self.r#type)
    }

    /// The status that it stands for: a number, be it in a text, or else what its kind says.
    fn code(&self) -> Option<u16> {
        let inner = |key| self.error.as_ref().and_then(|error| error.get(key));
        let inner_numbers = ["code", "status", "status_code"].map(inner);
        let outer_numbers = [&self.code, &self.status, &self.status_code].map(Option::as_ref);
        let mut numbers = inner_numbers.into_iter().chain(outer_numbers).flatten();
        let mut kinds = [inner("code"), inner("type"), self.code.as_ref(), self.r#type.as_ref()].into_iter().flatten();
        numbers.find_map(status).or_else(|| kinds.find_map(|kind| status_of(kind.as_str()?)))
    }
}

/// The status that a value names. Numbers that are none are the engine's own.
fn status(value: &Value) -> Option<u16> {
    let number = value.as_f64().or_else(|| value.as_str()?.parse().ok())?;
    (100..600).find(|status| f64::from(*status) == number)
}

/// The status of a kind of error that tells of the request: by OpenAI's and Anthropic's names, vLLM's and SGLang's.
fn status_of(kind: &str) -> Option<u16> {
    match kind {
        "invalid_request_error" | "context_length_exceeded" | "BadRequestError" | "BadRequest" | "Bad Request" => {
            Some(400)
        }
        "authentication_error" | "AuthenticationError" => Some(401),
        "permission_error" | "PermissionDeniedError" => Some(403),
        "not_found_error" | "model_not_found" | "NotFoundError" => Some(404),
        "request_too_large" => Some(413),
        "UnprocessableEntityError" => Some(422),
        "rate_limit_error" | "rate_limit_exceeded" | "RateLimitError" => Some(429),
        _ => None,
    }
}

/// The error that a stream begins with.
fn first_error(payload: &[u8]) -> Option<Told> {
    ERROR.find(payload)?;
    Some(Told::read(payload)).filter(Told::is_error)
}

/// Whether a payload is an error object: its first key is `error`, and its value an object or a text with something in it.
fn is_error(payload: &[u8]) -> bool {
    let key = payload.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let value = key.and_then(|key| key.strip_prefix(b"\"error\"")).map(<[u8]>::trim_ascii_start);
    let value = value.and_then(|value| value.strip_prefix(b":")).map_or(&[][..], <[u8]>::trim_ascii_start);
    match value.split_first() {
        Some((b'{', inside)) => !inside.trim_ascii_start().starts_with(b"}"),
        Some((b'"', inside)) => !inside.starts_with(b"\""),
        _ => false,
    }
}

fn rest_is_null(value: &[u8]) -> bool {
    value.trim_ascii_start().starts_with(b"null")
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": a comment\r\n\r\ndata: {\"choices\":[{\"text\":\"é\"}],\"usage\":null}\r\n\r\n\
        data:{\"choices\":[],\"usage\":{\"prompt_tokens\":3}}\n\ndata: [DONE]\n\n";

    fn expected() -> Seen {
        let usage = Some(b"{\"choices\":[],\"usage\":{\"prompt_tokens\":3}}".to_vec());
        Seen { events: 2, done: true, closed: true, usage, ..Seen::default() }
    }

    #[test]
    fn every_cut_of_a_stream_gives_the_same() {
        let bytes = STREAM.as_bytes();
        for cut in 0..=bytes.len() {
            let mut scanner = SseScanner::default();
            scanner.scan(&bytes[..cut]);
            scanner.scan(&bytes[cut..]);
            assert_eq!(*scanner.seen(), expected(), "cut at {cut}");
        }
        assert_eq!(*by_bytes(STREAM).0.seen(), expected());
    }

    /// Scans the stream byte by byte; where lines end, in bytes from the beginning.
    fn by_bytes(stream: &str) -> (SseScanner, Vec<usize>) {
        let mut scanner = SseScanner::default();
        let ends = (1..=stream.len()).filter(|end| scanner.scan(&stream.as_bytes()[end - 1..*end]) == 1).collect();
        (scanner, ends)
    }

    #[test]
    fn it_is_told_where_the_last_line_ends() {
        assert_eq!(by_bytes(": c\ndata: a\r\n\r\rdata").1, [4, 12, 13, 14, 15]);
        let bytes = STREAM.as_bytes();
        for cut in 1..bytes.len() {
            let mut scanner = SseScanner::default();
            let last = bytes[..cut].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')).map_or(0, |at| at + 1);
            assert_eq!([scanner.scan(&bytes[..cut]), scanner.scan(&bytes[cut..])], [last, bytes.len() - cut], "{cut}");
        }
    }

    #[test]
    fn an_error_event_is_seen_and_one_that_tells_nothing_is_none() {
        let mut scanner = SseScanner::default();
        for _ in 0..2 {
            for nothing in ["null", "false", "0", "true", "\"\"", "{}", "{ }", "[]"] {
                scanner.scan(format!("data: {{\"error\": {nothing}, \"choices\": [{{}}]}}\n\n").as_bytes());
                assert_eq!(scanner.seen().error, None, "{nothing}");
                let mut first = SseScanner::default();
                first.scan(format!("data: {{\"choices\": [{{}}], \"error\": {nothing}}}\n\n").as_bytes());
                assert_eq!(first.seen().error, None, "{nothing}");
            }
        }
        scanner.scan(b"data: { \"error\" : {\"message\": \"no\"}}\n\n");
        assert_eq!(scanner.seen().error, Some(ErrorEvent { code: None, is_first: false }));
        assert!(!scanner.seen().done);
    }

    #[test]
    fn an_error_at_the_beginning_is_seen_however_engines_tell_it() {
        let error = |stream: &str| {
            let mut scanner = SseScanner::default();
            scanner.scan(stream.as_bytes());
            scanner.seen().error
        };
        let first = |code| Some(ErrorEvent { code, is_first: true });
        assert_eq!(error(": ping\n\ndata: {\"error\":{\"message\":\"\"}}\n\ndata: {}\n\n"), first(None));
        assert_eq!(error("data: {\"error\":{\"message\":\"too long\",\"code\":400}}\n\n"), first(Some(400)));
        assert_eq!(error("data: {\"id\":1,\"error\":{\"code\":\"x\"}}\n\n"), first(None));
        assert_eq!(error("data: {\"object\":\"error\",\"code\":404}\n\n"), first(Some(404)));
        assert_eq!(error("event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"x\"}}\n\n"), first(None));
        assert_eq!(error("event: error\ndata: out of memory\n\n"), first(None));
        assert_eq!(error("\u{feff}data: {\"error\":{\"code\":503}}\n\n"), first(Some(503)));
        for (told, code) in [
            (r#"{"error":{"code":"400"}}"#, Some(400)),
            (r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded"}}"#, Some(400)),
            (r#"{"type":"error","error":{"type":"rate_limit_error"}}"#, Some(429)),
            (r#"{"object":"error","type":"BadRequestError","code":null}"#, Some(400)),
            (r#"{"error":{"type":"invalid_request_error","code":503}}"#, Some(503)),
            (r#"{"type":"error","error":{"type":"overloaded_error"}}"#, None),
            (r#"{"error":{"code":"-1"}}"#, None),
            (r#"{"error":"out of memory"}"#, None),
            (r#"{"error":{"code":400.0}}"#, Some(400)),
            (r#"{"error":{"status":400}}"#, Some(400)),
            (r#"{"error":{"code":null,"status_code":"422"}}"#, Some(422)),
            (r#"{"error":"too long","status":400}"#, Some(400)),
            (r#"{"error":{"code":"x"},"code":404}"#, Some(404)),
            (r#"{"error":{"code":40001,"type":"BadRequestError"}}"#, Some(400)),
            (r#"{"error":{"code":1e99,"status":400.5}}"#, None),
            (r#"{"error":{"type":"x","code":"context_length_exceeded"}}"#, Some(400)),
            (r#"{"error":{"type":"context_length_exceeded"}}"#, Some(400)),
            (r#"{"error":{"type":"UnprocessableEntityError","code":null}}"#, Some(422)),
            (r#"{"error":{"type":"InternalServerError","code":500}}"#, Some(500)),
        ] {
            assert_eq!(error(&format!("data: {told}\n\n")), first(code), "{told}");
        }
        assert_eq!(error("data: {\"choices\":[{\"text\":\"\\\"error\\\": no\"}]}\n\n"), None);
        assert_eq!(error("event: error\n\ndata: {\"choices\":[]}\n\n"), None);
    }

    #[test]
    fn only_what_a_request_is_to_blame_for_is_a_refusal() {
        let failure = |code| ErrorEvent { code, is_first: true }.failure();
        assert_eq!([Some(400), Some(422), Some(499)].map(failure), [None; 3]);
        assert_eq!([None, Some(200), Some(500), Some(503)].map(failure), [Some(Failure::Unavailable); 4]);
        assert_eq!(failure(Some(429)), Some(Failure::TooManyRequests));
    }

    #[test]
    fn lines_end_with_cr_as_well_and_the_last_one_with_nothing() {
        for bare in ["\r", "\n", "\r\n"] {
            let stream = STREAM.replace("\r\n", "\n").replace('\n', bare);
            assert_eq!(*by_bytes(&stream).0.seen(), expected(), "{bare:?}");
        }
        let mut scanner = SseScanner::default();
        scanner.scan(b"data: {}\r\n\r\ndata: [DONE]");
        assert!(!scanner.seen().done);
        assert_eq!(scanner.finish(), Some("\n\n"));
        assert!(scanner.seen().done && !scanner.seen().closed);
    }

    #[test]
    fn an_endless_line_is_bounded_and_the_next_line_is_read_again() {
        let mut scanner = SseScanner::default();
        for _ in 0..10 {
            scanner.scan(&[b'x'; 100_000]);
            assert!(scanner.partial.len() <= LINE_MAX);
        }
        scanner.scan(b"\ndata: [DONE]\n");
        assert!(scanner.seen().done && !scanner.seen().closed);
        scanner.scan(b"\r\n");
        assert!(scanner.seen().closed);
    }
}
