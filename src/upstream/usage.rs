//! What an engine says that a request has cost.

use std::sync::LazyLock;

use memchr::memmem::FinderRev;
use serde::Deserialize;
use warmpath_core::observe::Usage;
use warmpath_core::units::Tokens;

use crate::openai::scan::Scanner;
use crate::openai::{DEPTH_MAX, Raw, scan};

/// The name of what is looked for. Inside a text its quotes would be escaped.
static NAME: LazyLock<FinderRev<'static>> = LazyLock::new(|| FinderRev::new(b"\"usage\""));

#[derive(Deserialize)]
struct Answer {
    usage: Option<Counts>,
}

#[derive(Deserialize)]
struct Counts {
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u32>,
}

/// The usage in an answer, or in the payload of an event; what is missing or odd is unknown. An engine that leaves
/// `prompt_tokens_details` out, or sends null for it, does not say; a null inside it means none. No more can be cached than
/// the prompt has.
pub fn read(json: &[u8]) -> Usage {
    let Some(counts) = counts(json) else { return Usage::default() };
    let cached = counts.prompt_tokens_details.map(|details| details.cached_tokens.unwrap_or(0));
    Usage {
        prompt: counts.prompt_tokens.map(Tokens),
        completion: counts.completion_tokens.map(Tokens),
        cached: cached.map(|cached| Tokens(cached.min(counts.prompt_tokens.unwrap_or(u32::MAX)))),
    }
}

fn counts(json: &[u8]) -> Option<Counts> {
    // It stands near the end. Where what is left of the answer from there on is the rest of an object, it is the answer's own.
    let rest = NAME.rfind(json).map(|at| &json[at..]);
    let near_the_end = rest.and_then(|rest| usage_among(|member| scan::last_members(rest, DEPTH_MAX, member)));
    match near_the_end.or_else(|| usage_among(|member| scan::members(json, DEPTH_MAX, member))) {
        Some(usage) => serde_json::from_str::<Option<Counts>>(usage?.get()).ok()?,
        // Whatever is odd about it is judged by one parser.
        None => serde_json::from_slice::<Answer>(json).ok()?.usage,
    }
}

/// What is told under that name by one of the members that `each` gives; `None` if there are two, or anything is odd.
fn usage_among<'a>(
    each: impl FnOnce(&mut dyn FnMut(&str, &mut Scanner<'a>) -> Option<()>) -> Option<()>,
) -> Option<Option<Raw<'a>>> {
    let mut usage = None;
    each(&mut |name, scanner| {
        let value = scanner.value()?;
        if name == "usage" && usage.replace(value).is_some() {
            return None;
        }
        Some(())
    })?;
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_tokens_are_read_where_they_stand() {
        let json = br#"{"id":"x","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,
            "prompt_tokens_details":{"cached_tokens":4}}}"#;
        let expected = Usage { prompt: Some(Tokens(9)), cached: Some(Tokens(4)), completion: Some(Tokens(2)) };
        assert_eq!(read(json), expected);
        let json =
            br#"{"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":90}}}"#;
        assert_eq!(read(json).cached, Some(Tokens(9)), "more than there is");
    }

    #[test]
    fn only_the_answers_own_usage_counts() {
        let prompt = |json: &str| read(json.as_bytes()).prompt.map(|tokens| tokens.0);
        assert_eq!(prompt(r#"{"x":{"usage":{"prompt_tokens":1}}}"#), None);
        assert_eq!(prompt(r#"{"usage":{"prompt_tokens":2},"x":{"usage":{"prompt_tokens":1}}}"#), Some(2));
        assert_eq!(prompt(r#"{"usage":{"prompt_tokens":2},"x":["usage"]}"#), Some(2));
        assert_eq!(
            prompt(r#"{"text":"\"usage\":{\"prompt_tokens\":1}","usage":{"prompt_tokens":2}, "x":null} "#),
            Some(2)
        );
        assert_eq!(prompt(r#"{"usage":{"prompt_tokens":2},"text":"\"usage\":{}}"}"#), Some(2));
        assert_eq!(prompt(r#"{"usage":{"prompt_tokens":2},"x":1"#), None);
    }

    #[test]
    fn what_is_missing_is_unknown_and_a_null_inside_the_details_is_none() {
        assert_eq!(read(br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#).cached, None);
        assert_eq!(read(br#"{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}"#).cached, Some(Tokens(0)));
        assert_eq!(read(br#"{"usage":null}"#), Usage::default());
        assert_eq!(read(b"no json"), Usage::default());
    }
}
