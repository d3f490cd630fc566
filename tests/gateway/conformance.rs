//! Requests with every field that OpenAI's clients and engines' own can send, and some that nobody knows: what reaches the
//! worker is what was sent, to the byte.

use crate::fleet::fleet;
use crate::scripted::{Scripted, good_stream};

/// Every field of the schemas (the test with OpenAI's SDK holds them complete), engines' own, unknown ones at any depth,
/// unknown keys twice, odd spacing, escapes, and numbers that no machine number holds.
const COMPLETION: &str = include_str!("../data/requests/completions.json");
const CHAT: &str = include_str!("../data/requests/chat.json");

const PATHS: [(&str, &str); 2] = [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)];

/// `text` with `new` in the place of `old`, which is there exactly once.
fn with(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old}");
    text.replace(old, new)
}

/// The request with other options of its stream, or none.
fn variants(text: &str) -> Vec<String> {
    let at = text.find("\"stream_options\"").unwrap();
    let end = at + text[at..].find('}').unwrap() + 1;
    let (before, options, after) = (&text[..at], &text[at..end], &text[end..]);
    let none = before.trim_end().trim_end_matches(',').to_owned() + after;
    let mut bodies = vec![text.to_owned(), none];
    for other in ["null", "{}", "{ \"include_usage\":true, \"x\":[]}", "{\"include_usage\" : false}"] {
        let key = &options[..options.find(':').unwrap()];
        bodies.push(format!("{before}{key}: {other}{after}"));
    }
    let stream = if text.contains("\"stream\" : true") { "\"stream\" : true" } else { "\"stream\":true" };
    bodies.extend(["false", "null"].map(|off| with(text, stream, &format!("\"stream\":{off}"))));
    bodies
}

#[tokio::test]
async fn a_body_reaches_the_worker_as_it_came() {
    let worker = Scripted::start(good_stream()).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    for (path, text) in PATHS {
        for body in variants(text) {
            let answer = fleet.post_bytes(path, body.clone().into_bytes()).await;
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            let seen = worker.seen().pop().unwrap();
            assert!(seen.head.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{}", seen.head);
            assert_eq!(String::from_utf8(seen.body).unwrap(), body);
        }
    }
    assert_eq!(worker.seen().len(), 16);
}

#[tokio::test]
async fn with_usage_always_a_stream_has_exactly_the_wish_beside_it() {
    let worker = Scripted::start(good_stream()).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("usage: always").start().await;
    for (path, text) in PATHS {
        let [with_options, without, null, empty, asks, refuses, whole, whole_too] = &variants(text)[..] else {
            panic!()
        };
        let key = if text.contains("\"stream_options\" :") { "\"stream_options\" : " } else { "\"stream_options\":" };
        let key_of_variant =
            format!("{}: ", key.trim_end_matches([':', ' ']).to_owned() + if key.ends_with(": ") { " " } else { "" });
        for (body, expected) in [
            (
                with_options,
                with(
                    with_options,
                    &format!("{key}{{ \"include_obf"),
                    &format!("{key}{{\"include_usage\":true, \"include_obf"),
                ),
            ),
            (without, without.replacen('{', "{\"stream_options\":{\"include_usage\":true},", 1)),
            (
                null,
                with(null, &format!("{key_of_variant}null"), &format!("{key_of_variant}{{\"include_usage\":true}}")),
            ),
            (
                empty,
                with(empty, &format!("{key_of_variant}{{}}"), &format!("{key_of_variant}{{\"include_usage\":true}}")),
            ),
            (asks, asks.clone()),
            (refuses, with(refuses, "\"include_usage\" : false", "\"include_usage\" : true")),
            (whole, whole.clone()),
            (whole_too, whole_too.clone()),
        ] {
            let answer = fleet.post_bytes(path, body.clone().into_bytes()).await;
            assert_eq!(answer.status, 200, "{body}: {answer:?}");
            let seen = worker.seen().pop().unwrap();
            assert_eq!(seen.header("content-length"), [expected.len().to_string()]);
            assert_eq!(String::from_utf8(seen.body).unwrap(), expected);
        }
    }
}
