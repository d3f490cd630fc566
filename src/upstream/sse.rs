//! Looks at a stream of server-sent events as it passes: events, usage, errors, the end. Copies nothing but a line that
//! a frame cuts in two.

use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;

/// The longest line that is put together from several frames; a longer one passes unread.
const LINE_MAX: usize = 256 * 1024;

/// What an event has that tells usage.
static USAGE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"usage\":"));

/// A scanner without I/O. Frames may cut the stream anywhere.
#[derive(Debug, Default)]
pub struct SseScanner {
    partial: Vec<u8>,
    overlong: bool,
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
    /// Whether an event was an error object.
    pub error: bool,
    /// Whether it was the first event.
    pub began_with_error: bool,
    /// The last payload that bore a usage object.
    pub usage: Option<Vec<u8>>,
}

impl SseScanner {
    /// Looks at the next frame.
    pub fn scan(&mut self, frame: &[u8]) {
        let mut start = 0;
        for end in memchr_iter(b'\n', frame) {
            let rest = &frame[start..end];
            start = end + 1;
            if self.overlong {
                self.overlong = false;
            } else if self.partial.is_empty() {
                self.seen.line(rest);
            } else {
                let mut line = std::mem::take(&mut self.partial);
                line.extend_from_slice(rest);
                self.seen.line(&line);
                line.clear();
                self.partial = line;
            }
        }
        let rest = &frame[start..];
        if self.overlong || self.partial.len() + rest.len() > LINE_MAX {
            self.overlong = true;
            self.partial = Vec::new();
        } else {
            self.partial.extend_from_slice(rest);
        }
    }

    /// What has passed so far.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }
}

impl Seen {
    fn line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        self.closed |= self.done && line.is_empty();
        let Some(payload) = line.strip_prefix(b"data:") else { return };
        let payload = payload.trim_ascii();
        if payload == b"[DONE]" {
            self.done = true;
            return;
        }
        self.events += 1;
        if is_error(payload) {
            self.error = true;
            self.began_with_error |= self.events == 1;
        } else if USAGE.find(payload).is_some_and(|at| !rest_is_null(&payload[at + 8..])) {
            self.usage = Some(payload.to_vec());
        }
    }
}

/// Whether a payload is an error object: its first key is `error`, and its value no null.
fn is_error(payload: &[u8]) -> bool {
    let key = payload.strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
    let value = key.and_then(|key| key.strip_prefix(b"\"error\"")).map(<[u8]>::trim_ascii_start);
    value.and_then(|value| value.strip_prefix(b":")).is_some_and(|value| !rest_is_null(value))
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
        let mut scanner = SseScanner::default();
        bytes.iter().for_each(|byte| scanner.scan(std::slice::from_ref(byte)));
        assert_eq!(*scanner.seen(), expected());
    }

    #[test]
    fn an_error_event_is_seen_and_a_null_error_is_none() {
        let mut scanner = SseScanner::default();
        scanner.scan(b"data: {\"error\": null, \"choices\": []}\n\n");
        assert!(!scanner.seen().error);
        scanner.scan(b"data: { \"error\" : {\"message\": \"no\"}}\n\n");
        assert!(scanner.seen().error && !scanner.seen().done && !scanner.seen().began_with_error);
        let mut scanner = SseScanner::default();
        scanner.scan(b": ping\n\ndata: {\"error\":{}}\n\ndata: {}\n\n");
        assert!(scanner.seen().began_with_error);
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
