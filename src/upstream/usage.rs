//! What an engine says that a request has cost.

use serde::Deserialize;
use warmpath_core::observe::Usage;
use warmpath_core::units::Tokens;

use crate::openai::{DEPTH_MAX, scan};

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
/// `prompt_tokens_details` out, or sends null for it, does not say; a null inside it means none.
pub fn read(json: &[u8]) -> Usage {
    let Some(counts) = counts(json) else { return Usage::default() };
    Usage {
        prompt: counts.prompt_tokens.map(Tokens),
        completion: counts.completion_tokens.map(Tokens),
        cached: counts.prompt_tokens_details.map(|details| Tokens(details.cached_tokens.unwrap_or(0))),
    }
}

fn counts(json: &[u8]) -> Option<Counts> {
    let mut usage = None;
    let scanned = scan::members(json, DEPTH_MAX, |name, scanner| {
        let value = scanner.value()?;
        if name == "usage" && usage.replace(value).is_some() {
            return None;
        }
        Some(())
    });
    match scanned {
        Some(()) => serde_json::from_str::<Option<Counts>>(usage?.get()).ok()?,
        // Whatever is odd about it is judged by one parser.
        None => serde_json::from_slice::<Answer>(json).ok()?.usage,
    }
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
    }

    #[test]
    fn what_is_missing_is_unknown_and_a_null_inside_the_details_is_none() {
        assert_eq!(read(br#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#).cached, None);
        assert_eq!(read(br#"{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}"#).cached, Some(Tokens(0)));
        assert_eq!(read(br#"{"usage":null}"#), Usage::default());
        assert_eq!(read(b"no json"), Usage::default());
    }
}
