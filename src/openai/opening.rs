//! How a request begins, for policies that hash its beginning.

use std::borrow::Cow;

use super::raw::Raw;
use serde::Deserialize;
use warmpath_core::shape::Opening;
use xxhash_rust::xxh64::Xxh64;

use super::{ChatView, Input, Prompt, RequestView};

/// The members of a message that are read.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Raw<'a>>,
}

/// A part of a message's content.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
}

/// The xxh64 of the adapter's name and the first `characters` of the first prompt, or of a chat's first message of the
/// user, as KubeAI reckons. None where that is no text. O(characters), and for a chat O(messages up to that one).
pub fn opening(view: &RequestView<'_>, adapter: Option<&str>, characters: usize) -> Option<Opening> {
    let text = match &view.input {
        Input::Completion(Prompt::Texts(texts)) => Cow::Borrowed(texts.first()?.as_ref()),
        Input::Completion(_) => return None,
        Input::Chat(chat) => first_of_user(chat)?,
    };
    let end = text.char_indices().nth(characters).map_or(text.len(), |(at, _)| at);
    let mut hash = Xxh64::new(0);
    hash.update(adapter.unwrap_or_default().as_bytes());
    hash.update(&text.as_bytes()[..end]);
    Some(Opening(hash.digest()))
}

fn first_of_user<'a>(chat: &ChatView<'a>) -> Option<Cow<'a, str>> {
    let mut messages = chat.messages.iter().filter_map(|raw| serde_json::from_str::<Message<'a>>(raw.get()).ok());
    let content = messages.find(|message| message.role.as_deref() == Some("user"))?.content?.get();
    if content.starts_with('"') {
        return serde_json::from_str::<Text<'a>>(content).ok().map(|text| text.0);
    }
    let parts: Vec<Part<'a>> = serde_json::from_str(content).ok()?;
    parts.into_iter().find_map(|part| part.text)
}

/// A text that borrows where it can.
#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh64::xxh64;

    use super::*;
    use crate::openai::Endpoint;

    fn of(endpoint: Endpoint, body: &str, adapter: Option<&str>, characters: usize) -> Option<u64> {
        let view = RequestView::parse(endpoint, body.as_bytes(), 4096).unwrap();
        opening(&view, adapter, characters).map(|opening| opening.0)
    }

    #[test]
    fn the_first_characters_of_the_first_prompt_are_hashed_behind_the_adapter() {
        let of = |body, adapter, characters| of(Endpoint::Completions, body, adapter, characters);
        assert_eq!(of(r#"{"prompt":"héllo"}"#, None, 2), Some(xxh64("hé".as_bytes(), 0)));
        assert_eq!(of(r#"{"prompt":["h\u00e9llo","other"]}"#, Some("ad"), 100), Some(xxh64("adhéllo".as_bytes(), 0)));
        assert_eq!(of(r#"{"prompt":[1,2,3]}"#, None, 100), None);
    }

    #[test]
    fn of_a_chat_it_is_the_first_message_of_the_user() {
        let of = |content: &str| {
            let system = r#"{"role":"system","content":"Be brief."}"#;
            let body = format!(r#"{{"messages":[{system},{{"role":"user","content":{content}}},{{"role":"user"}}]}}"#);
            of(Endpoint::Chat, &body, None, 4)
        };
        assert_eq!(of(r#""Why\u003f!?""#), Some(xxh64(b"Why?", 0)));
        let parts = r#"[{"type":"image_url","image_url":{"url":"x"}},{"type":"text","text":"Why? Because."}]"#;
        assert_eq!(of(parts), Some(xxh64(b"Why?", 0)));
        assert_eq!([of("null"), of("7"), of("[]"), of("[7]")], [None; 4]);
    }
}
