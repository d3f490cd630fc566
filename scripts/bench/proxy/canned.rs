//! What the worker answers, and therefore what every client must get: a function of the request, so that a byte that is
//! lost, changed or mixed up on the way in or out is seen.

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The field by which a client tells the worker how to answer. Proxies pass it on like any other.
pub(crate) const FIELD: &str = "x-bench";

/// A stream's events, and the time between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Events, the last of which is `[DONE]`.
    pub(crate) events: u32,
    /// Milliseconds from one to the next.
    pub(crate) interval_ms: u32,
}

/// How to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Order {
    /// What `usage` says.
    pub(crate) prompt_tokens: u32,
    pub(crate) cached_tokens: u32,
    /// A stream, or else one piece of JSON.
    pub(crate) stream: Option<Pace>,
}

impl Order {
    /// The value of [`FIELD`].
    pub(crate) fn write(&self, head: &mut String) {
        let Pace { events, interval_ms } = self.stream.unwrap_or(Pace { events: 0, interval_ms: 0 });
        let _ = write!(head, "{},{},{events},{interval_ms}", self.prompt_tokens, self.cached_tokens);
    }

    /// Reads the value of [`FIELD`].
    pub(crate) fn read(value: &[u8]) -> Option<Self> {
        let mut numbers = std::str::from_utf8(value).ok()?.split(',').map(str::parse);
        let mut next = || numbers.next()?.ok();
        let (prompt_tokens, cached_tokens, events, interval_ms) = (next()?, next()?, next()?, next()?);
        let stream = (events > 0).then_some(Pace { events, interval_ms });
        Some(Self { prompt_tokens, cached_tokens, stream })
    }
}

/// The sum that names a request's body.
pub(crate) fn digest(body: &[u8]) -> u64 {
    xxh3_64(body)
}

/// The whole answer, about 360 bytes.
pub(crate) fn answer(digest: u64, order: &Order, out: &mut String) {
    let Order { prompt_tokens, cached_tokens, .. } = order;
    let _ =
        write!(out, r#"{{"id":"cmpl-{digest:016x}","object":"text_completion","created":1767225600,"model":"bench","#);
    out.push_str(
        r#""choices":[{"index":0,"text":" and so the answer goes on for sixteen tokens, none of which matters here.","#,
    );
    let _ = write!(
        out,
        r#""logprobs":null,"finish_reason":"length"}}],"usage":{{"prompt_tokens":{prompt_tokens},"completion_tokens":16,"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{cached_tokens}}}}}}}"#,
        prompt_tokens + 16
    );
}

/// Event `number` of a stream of `events`, about 180 bytes.
pub(crate) fn event(digest: u64, number: u32, events: u32, out: &mut String) {
    if number + 1 == events {
        out.push_str("data: [DONE]\n\n");
        return;
    }
    let _ = write!(
        out,
        "data: {{\"id\":\"cmpl-{digest:016x}\",\"object\":\"text_completion\",\"created\":1767225600,\"model\":\"bench\",\"choices\":[{{\"index\":0,\"text\":\" t{number:05}\",\"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_as_it_was_written() {
        for stream in [None, Some(Pace { events: 51, interval_ms: 10 })] {
            let order = Order { prompt_tokens: 2048, cached_tokens: 2032, stream };
            let mut text = String::new();
            order.write(&mut text);
            assert_eq!(Order::read(text.as_bytes()), Some(order));
        }
        assert_eq!(Order::read(b"1,2,3"), None);
    }

    #[test]
    fn answers_are_what_engines_send() {
        let (mut text, order) = (String::new(), Order { prompt_tokens: 10, cached_tokens: 4, stream: None });
        answer(255, &order, &mut text);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (value["id"].as_str(), &value["usage"]["total_tokens"]),
            (Some("cmpl-00000000000000ff"), &26.into())
        );
        let mut events = String::new();
        (0..3).for_each(|number| event(255, number, 3, &mut events));
        assert_eq!(events.matches("data: ").count(), 3);
        assert!(events.ends_with("data: [DONE]\n\n"));
    }
}
