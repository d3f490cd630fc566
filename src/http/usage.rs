//! The wish for usage, put into the body of a stream whose client has none (`usage: always`).

use bytes::Bytes;
use memchr::memmem;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::openai::without_mark;

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow, default, deserialize_with = "even_null")]
    stream_options: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow, default, deserialize_with = "even_null")]
    include_usage: Option<&'a RawValue>,
    continuous_usage_stats: Option<bool>,
}

/// Null is a value like any other: it has a place in the body.
fn even_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// `body` with the wish for usage and otherwise as it came, for a streamed request that has no such wish. None where it
/// must stay as it is, since more than one chunk would change. A copy of the body; a pass over it where it may have
/// `stream_options`.
pub(super) fn asking(body: &[u8]) -> Option<Bytes> {
    // Keys may be written with escapes.
    let may_have = memmem::find(body, b"stream_options").is_some() || memmem::find(body, b"\\u").is_some();
    let options =
        if may_have { serde_json::from_slice::<Fields<'_>>(without_mark(body)).ok()?.stream_options } else { None };
    let Some(options) = options else {
        let open = memchr::memchr(b'{', body)?;
        let text: &[u8] = if is_empty(&body[open..]) {
            br#""stream_options":{"include_usage":true}"#
        } else {
            br#""stream_options":{"include_usage":true},"#
        };
        return Some(replaced(body, open + 1, 0, text));
    };
    let at = place(body, options);
    if options.get() == "null" {
        return Some(replaced(body, at, 4, br#"{"include_usage":true}"#));
    }
    let wishes: StreamOptions<'_> = serde_json::from_str(options.get()).ok()?;
    if wishes.continuous_usage_stats == Some(true) {
        return None;
    }
    match wishes.include_usage {
        Some(other) => Some(replaced(body, place(body, other), other.get().len(), b"true")),
        None if is_empty(options.get().as_bytes()) => Some(replaced(body, at + 1, 0, br#""include_usage":true"#)),
        None => Some(replaced(body, at + 1, 0, br#""include_usage":true,"#)),
    }
}

/// Where in `body` a part of it begins.
fn place(body: &[u8], part: &RawValue) -> usize {
    part.get().as_ptr().addr() - body.as_ptr().addr()
}

/// Whether an object has no members.
fn is_empty(object: &[u8]) -> bool {
    object.get(1..).is_some_and(|rest| rest.trim_ascii_start().starts_with(b"}"))
}

fn replaced(body: &[u8], at: usize, len: usize, text: &[u8]) -> Bytes {
    [&body[..at], text, &body[at + len..]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(body: &str) -> Option<String> {
        asking(body.as_bytes()).map(|bytes| String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn the_wish_is_put_where_it_belongs_and_nothing_else_changes() {
        for (body, expected) in [
            (" {\n \"a\" : 1e400}\r\n", " {\"stream_options\":{\"include_usage\":true},\n \"a\" : 1e400}\r\n"),
            ("{ }", r#"{"stream_options":{"include_usage":true} }"#),
            ("\u{feff}{\"stream_options\":null}", "\u{feff}{\"stream_options\":{\"include_usage\":true}}"),
            (r#"{"a":"é\u00e9","b":1}"#, r#"{"stream_options":{"include_usage":true},"a":"é\u00e9","b":1}"#),
            (
                r#"{"a":{"stream_options":{}}}"#,
                r#"{"stream_options":{"include_usage":true},"a":{"stream_options":{}}}"#,
            ),
            (r#"{"a":1,"stream_options" : null }"#, r#"{"a":1,"stream_options" : {"include_usage":true} }"#),
            (r#"{"stream_options":{ }}"#, r#"{"stream_options":{"include_usage":true }}"#),
            (r#"{"stream_options":{ "x":[{}]}}"#, r#"{"stream_options":{"include_usage":true, "x":[{}]}}"#),
            (
                r#"{"stream_options":{"include_usage": false,"x":1}}"#,
                r#"{"stream_options":{"include_usage": true,"x":1}}"#,
            ),
            (
                r#"{"stream":"yes","stream_options":{"include_usage":"no"}}"#,
                r#"{"stream":"yes","stream_options":{"include_usage":true}}"#,
            ),
            (r#"{"stream_options":{"include_usage":null}}"#, r#"{"stream_options":{"include_usage":true}}"#),
            (r#"{"stream\u005foptions":{"x":1}}"#, r#"{"stream\u005foptions":{"include_usage":true,"x":1}}"#),
            (
                r#"{"stream_options":{"continuous_usage_stats":false}}"#,
                r#"{"stream_options":{"include_usage":true,"continuous_usage_stats":false}}"#,
            ),
        ] {
            assert_eq!(asked(body).as_deref(), Some(expected), "{body}");
        }
    }

    #[test]
    fn a_body_stays_as_it_is_where_every_chunk_would_change_or_readers_could_disagree() {
        for body in [
            r#"{"stream_options":{"continuous_usage_stats":true}}"#,
            r#"{"stream_options":{"continuous_usage_stats":"yes"}}"#,
            r#"{"stream_options":{"include_usage":false,"include_usage":false}}"#,
            r#"{"stream_options":{},"stream_options":{}}"#,
            r#"{"stream_options":3}"#,
            "",
        ] {
            assert_eq!(asked(body), None, "{body}");
        }
    }
}
