//! The four forms of `prompt`: a text, a list of texts, token ids, a list of token-id lists.

use std::borrow::Cow;

use super::{BadRequest, Raw, field};

/// What `/v1/completions` is to go on from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt<'a> {
    /// One text or several.
    Texts(Vec<Cow<'a, str>>),
    /// One list of token ids or several, none of them empty.
    Ids(Vec<Vec<u32>>),
    /// `prompt_embeds`: vectors instead of tokens.
    Embeddings,
    /// Not read: how many prompts there are, and tokens in all, where they are told as ids.
    Unread {
        /// Prompts.
        prompts: usize,
        /// Tokens.
        tokens: Option<usize>,
    },
}

impl<'a> Prompt<'a> {
    pub(super) fn read(
        prompt: Option<Raw<'a>>,
        embeddings: Option<Raw<'_>>,
        items_max: usize,
    ) -> Result<Self, BadRequest> {
        if embeddings.is_some_and(|embeddings| embeddings.get() != "[]") {
            return Ok(Self::Embeddings);
        }
        let raw = prompt.ok_or_else(|| refuse("you must provide a `prompt`"))?;
        let json = raw.get();
        let inner = json.strip_prefix('[').map(str::trim_ascii_start);
        match (json.as_bytes().first(), inner.and_then(|inner| inner.as_bytes().first())) {
            (Some(b'"'), _) => {
                let text = field::text("prompt", Some(raw))?.unwrap_or_default();
                if text.is_empty() {
                    return Err(refuse("`prompt` must not be empty"));
                }
                Ok(Self::Texts(vec![text]))
            }
            (_, Some(b']')) => Err(refuse("`prompt` must not be empty")),
            (_, Some(b'"')) => {
                let texts: Vec<field::Text<'a>> = field::list("prompt", items_max, "a text", raw)?;
                Ok(Self::Texts(texts.into_iter().map(|text| text.0).collect()))
            }
            (_, Some(b'-' | b'0'..=b'9')) => {
                let ids: Vec<field::TokenId> = field::list("prompt", usize::MAX, ID, raw)?;
                Ok(Self::Ids(vec![ids.into_iter().map(|id| id.0).collect()]))
            }
            (_, Some(b'[')) => {
                let lists: Vec<field::TokenIds> = field::list("prompt", items_max, IDS, raw)?;
                let lists: Vec<Vec<u32>> = lists.into_iter().map(|list| list.0).collect();
                match lists.iter().position(Vec::is_empty) {
                    Some(at) => Err(refuse(format!("`prompt[{at}]` must not be empty"))),
                    None => Ok(Self::Ids(lists)),
                }
            }
            _ => Err(refuse("`prompt` must be a text, a list of texts, token ids, or a list of token id lists")),
        }
    }
}

impl Prompt<'static> {
    /// The same without a look at texts and ids, which are for the engine to judge. Counts commas: O(bytes), 10 GB/s.
    pub(super) fn count(
        prompt: Option<Raw<'_>>,
        embeddings: Option<Raw<'_>>,
        items_max: usize,
    ) -> Result<Self, BadRequest> {
        let json = prompt.map_or("", Raw::get);
        let inner = json.strip_prefix('[').map_or("", str::trim_ascii_start);
        let items = || memchr::memchr_iter(b',', json.as_bytes()).count() + 1;
        match (json.as_bytes().first(), inner.as_bytes().first()) {
            _ if embeddings.is_some() => {}
            (Some(b'"'), _) if json.len() > 2 => return Ok(Self::Unread { prompts: 1, tokens: None }),
            (_, Some(b'-' | b'0'..=b'9')) => return Ok(Self::Unread { prompts: 1, tokens: Some(items()) }),
            (_, Some(b'[')) => {
                let prompts = memchr::memchr_iter(b'[', inner.as_bytes()).count();
                if prompts <= items_max {
                    return Ok(Self::Unread { prompts, tokens: Some(items()) });
                }
            }
            _ => {}
        }
        // Few come so, or are refused.
        Ok(match Prompt::read(prompt, embeddings, items_max)? {
            Prompt::Texts(texts) => Self::Unread { prompts: texts.len(), tokens: None },
            Prompt::Ids(lists) => Self::Unread { prompts: lists.len(), tokens: None },
            Prompt::Embeddings | Prompt::Unread { .. } => Self::Unread { prompts: 1, tokens: None },
        })
    }
}

const ID: &str = "a token id, from 0 to 4294967295";
const IDS: &str = "a list of token ids, each from 0 to 4294967295";

fn refuse(message: impl Into<String>) -> BadRequest {
    BadRequest::field("prompt", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Prompt<'static>, String> {
        let raw: Raw<'_> = serde_json::from_str(json.to_owned().leak()).unwrap();
        Prompt::read(Some(raw), None, 100).map_err(|error| {
            assert_eq!(error.param, Some("prompt"));
            error.message
        })
    }

    #[test]
    fn the_four_forms_are_told_apart() {
        assert_eq!(read(r#""a""#), Ok(Prompt::Texts(vec!["a".into()])));
        assert_eq!(read(r#"[ "a","" ]"#), Ok(Prompt::Texts(vec!["a".into(), "".into()])));
        assert_eq!(read("[ 0, 4294967295 ]"), Ok(Prompt::Ids(vec![vec![0, u32::MAX]])));
        assert_eq!(read("[[1,2],[3]]"), Ok(Prompt::Ids(vec![vec![1, 2], vec![3]])));
        // As pydantic takes integers.
        assert_eq!(read("[1.0,2,-0.0,3e2]"), Ok(Prompt::Ids(vec![vec![1, 2, 0, 300]])));
        assert_eq!(read("[[1.0],[2]]"), Ok(Prompt::Ids(vec![vec![1], vec![2]])));
    }

    #[test]
    fn what_is_not_read_is_counted() {
        let count = |json: &str| {
            let raw: Raw<'_> = serde_json::from_str(json.to_owned().leak()).unwrap();
            match Prompt::count(Some(raw), None, 3) {
                Ok(Prompt::Unread { prompts, tokens }) => Ok((prompts, tokens)),
                other => Err(other.unwrap_err().message),
            }
        };
        for (json, expected) in [
            (r#""a, b""#, (1, None)),
            (r#"["a,","b"]"#, (2, None)),
            ("[7]", (1, Some(1))),
            ("[ 7, 8,9 ]", (1, Some(3))),
            ("[[1,2], [3]]", (2, Some(3))),
            ("[1,-1]", (1, Some(2))),
        ] {
            assert_eq!(count(json), Ok(expected), "{json}");
        }
        let many = Err("`prompt` may have at most 3 elements".to_owned());
        assert_eq!((count("[[1],[1],[1],[1]]"), count(r#"["a","a","a","a"]"#)), (many.clone(), many));
        for json in [r#""""#, "[]", "true", "[null]"] {
            assert!(count(json).is_err(), "{json}");
        }
    }

    #[test]
    fn embeddings_take_precedence_over_a_prompt() {
        let raw: Raw<'_> = serde_json::from_str(r#""AAAA""#).unwrap();
        assert_eq!(Prompt::read(None, Some(raw), 100), Ok(Prompt::Embeddings));
        let none: Raw<'_> = serde_json::from_str("[]").unwrap();
        assert_eq!(Prompt::read(None, Some(none), 100).unwrap_err().message, "you must provide a `prompt`");
    }

    #[test]
    fn what_is_no_prompt_is_refused_with_its_reason() {
        let cases = [
            (r#""""#, "`prompt` must not be empty"),
            ("[]", "`prompt` must not be empty"),
            ("[ ]", "`prompt` must not be empty"),
            ("[[]]", "`prompt[0]` must not be empty"),
            ("[[1],[]]", "`prompt[1]` must not be empty"),
            ("[1,-1]", "`prompt` has a bad element 1: expected a token id, from 0 to 4294967295"),
            ("[-1]", "`prompt` has a bad element 0: expected a token id, from 0 to 4294967295"),
            ("[1,2.5]", "`prompt` has a bad element 1: expected a token id, from 0 to 4294967295"),
            ("[4294967296]", "`prompt` has a bad element 0: expected a token id, from 0 to 4294967295"),
            ("[4294967296.0]", "`prompt` has a bad element 0: expected a token id, from 0 to 4294967295"),
            (r#"[1,"a"]"#, "`prompt` has a bad element 1: expected a token id, from 0 to 4294967295"),
            (r#"[[1],["a"]]"#, "`prompt` has a bad element 1: expected a list of token ids, each from 0 to 4294967295"),
            (r#"["a",1]"#, "`prompt` has a bad element 1: expected a text"),
            ("[[1],2]", "`prompt` has a bad element 1: expected a list of token ids, each from 0 to 4294967295"),
            ("[[[1]]]", "`prompt` has a bad element 0: expected a list of token ids, each from 0 to 4294967295"),
            ("true", "`prompt` must be a text, a list of texts, token ids, or a list of token id lists"),
            (r#""\ud83d""#, "`prompt` has half of a surrogate pair"),
            ("[null]", "`prompt` must be a text, a list of texts, token ids, or a list of token id lists"),
        ];
        for (json, message) in cases {
            assert_eq!(read(json), Err(message.to_owned()), "{json}");
        }
        // Whatever stands there is not sent back.
        let long = "\u{7f}".repeat(1 << 20);
        for json in [format!("[1,\"{long}\"]"), format!("[[1],\"{long}\"]"), format!("[[1,\"{long}\"]]")] {
            assert!(read(&json).unwrap_err().len() < 100);
        }
        let many = format!("[{}\"x\"]", "\"x\",".repeat(100));
        assert_eq!(read(&many), Err("`prompt` may have at most 100 elements".to_owned()));
    }
}
