//! What an answer may end with that must be cut because the router stops.

use bytes::Bytes;
use http::{HeaderMap, header};

use super::front::Answered;
use super::refusal;

/// The type of a stream of server-sent events, whatever follows it.
const EVENTS: &[u8] = b"text/event-stream";

/// What ends a stream of OpenAI's.
const DONE: &[u8; 6] = b"[DONE]";

/// Whether an error of OpenAI's may end an answer. Copies nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goodbye {
    /// Whether its client can read one.
    takes_errors: bool,
    /// The last that it has been sent but for white space.
    tail: [u8; DONE.len()],
}

impl Goodbye {
    /// Nothing of the answer has passed yet.
    pub(super) fn of(answered: &Answered) -> Self {
        let takes_errors = answered.takes_errors && is_plain_stream(answered.response.headers());
        Self { takes_errors, tail: [0; DONE.len()] }
    }

    /// More of the answer has passed.
    pub(super) fn passed(&mut self, data: &[u8]) {
        if self.takes_errors {
            let data = data.trim_ascii_end();
            let end = data.last_chunk().map_or(data, |end: &[u8; DONE.len()]| end);
            self.tail.rotate_left(end.len());
            self.tail[DONE.len() - end.len()..].copy_from_slice(end);
        }
    }

    /// The event with which the answer is cut: none where it is no stream of events that all can read, where it is another
    /// API's, or where its end has been told.
    pub(super) fn event(&self) -> Option<Bytes> {
        (self.takes_errors && self.tail != *DONE).then(|| refusal::last_event().into())
    }
}

/// Whether an answer is a stream of server-sent events that nobody has compressed.
fn is_plain_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.as_bytes().get(..EVENTS.len()));
    let coding = headers.get(header::CONTENT_ENCODING);
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(EVENTS))
        && coding.is_none_or(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::Response;

    use super::*;

    fn goodbye(takes_errors: bool, headers: &[(&str, &str)]) -> Goodbye {
        let mut response = Response::new(Body::empty());
        for (name, value) in headers {
            response.headers_mut().insert(name.parse::<http::HeaderName>().unwrap(), value.parse().unwrap());
        }
        Goodbye::of(&Answered { response, until: None, takes_errors })
    }

    #[test]
    fn only_a_stream_of_events_that_its_client_can_read_ends_with_one() {
        let stream = ("content-type", "Text/Event-Stream; charset=utf-8");
        assert!(goodbye(true, &[stream]).event().is_some());
        assert!(goodbye(true, &[stream, ("content-encoding", "Identity")]).event().is_some());
        assert!(goodbye(true, &[stream, ("content-encoding", "gzip")]).event().is_none());
        assert!(goodbye(true, &[("content-type", "application/json")]).event().is_none());
        assert!(goodbye(true, &[]).event().is_none());
        assert!(goodbye(false, &[stream]).event().is_none());
    }

    #[test]
    fn nothing_follows_the_end_of_a_stream_wherever_it_is_cut() {
        const STREAM: &str = "data: {\"x\":1}\n\ndata: [DONE]\n\n";
        let after = |pieces: &[&[u8]]| {
            let mut goodbye = goodbye(true, &[("content-type", "text/event-stream")]);
            pieces.iter().for_each(|piece| goodbye.passed(piece));
            goodbye.event().is_some()
        };
        let stream = STREAM.as_bytes();
        for cut in 0..=stream.len() {
            let (begin, rest) = stream.split_at(cut);
            assert!(!after(&[begin, rest]), "{cut}");
            assert_eq!(after(&[begin]), cut < STREAM.len() - 2, "{cut}");
        }
        assert!(!after(&stream.chunks(1).collect::<Vec<_>>()));
        assert!(after(&[stream, b"data: more\n\n"]));
    }
}
