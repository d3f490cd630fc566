//! What engines read of a request, where they differ.
//!
//! Chats are rendered as vLLM renders them (0.32). SGLang (`serving_chat.py` and `protocol.py`, 2026) makes the same of a
//! chat without tools that the user ends, and where it does not, nothing is promised of it: its tools have other keys in
//! another order, of which its versions differ, a last message of the assistant becomes one of the user, or is encoded
//! by itself behind the others, and texts in a list are joined by a blank, not by a line's end.

use std::borrow::Cow;

use serde::Deserialize;

use super::{ChatView, Input, Raw, RequestView};

/// Whose rules a request is read by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// vLLM's, and those of all others of whom nothing else is known.
    #[default]
    Vllm,
    /// SGLang's.
    Sglang,
}

impl Dialect {
    /// That of an engine which says that its models are this one's: `owned_by` in `/v1/models`. The simulated one is as vLLM.
    pub fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" | "warmpath" => Some(Self::Vllm),
            "sglang" => Some(Self::Sglang),
            _ => None,
        }
    }
}

impl RequestView<'_> {
    /// It goes to engines that read it so.
    pub fn read_as(&mut self, dialect: Dialect) {
        self.dialect = dialect;
        if dialect == Dialect::Sglang {
            // It has no such fields.
            self.truncation = None;
            self.add_special_tokens = matches!(self.input, Input::Completion(_));
        }
        if let (Dialect::Sglang, Input::Chat(chat)) = (dialect, &mut self.input) {
            // Nor these, and its templates see no documents.
            chat.add_generation_prompt = true;
            chat.documents = None;
            let is_none = chat.tool_choice.is_some_and(|choice| choice.get() == "\"none\"");
            chat.tools = chat.tools.filter(|tools| !is_none && !is_empty(*tools));
        }
    }

    /// What keeps its prefixes apart from those of others, beside the model and its adapter. SGLang joins the two keys.
    pub fn salt(&self) -> Option<Cow<'_, str>> {
        let joined = self.extra_key.as_deref().filter(|key| self.dialect == Dialect::Sglang && !key.is_empty());
        match (self.cache_salt.as_deref(), joined) {
            (Some(salt), Some(key)) => Some(Cow::Owned(salt.to_owned() + key)),
            (salt, key) => salt.or(key).map(Cow::Borrowed),
        }
    }

    /// Whether its engines make the same text of it as is made here.
    pub fn is_rendered_alike(&self) -> bool {
        match (&self.input, self.dialect) {
            (Input::Completion(_), _) | (_, Dialect::Vllm) => true,
            (Input::Chat(chat), Dialect::Sglang) => {
                let is_plain = chat.tools.is_none() && !chat.continue_final_message;
                is_plain && !may_end_with_assistant(chat) && !chat.messages.iter().any(|it| has_several_parts(*it))
            }
        }
    }
}

fn is_empty(list: Raw<'_>) -> bool {
    list.get().strip_prefix('[').is_some_and(|inside| inside.trim_ascii_start().starts_with(']'))
}

/// The members of a message that are read.
#[derive(Deserialize)]
struct Role<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    content: Option<Raw<'a>>,
}

/// Texts in a list, which are joined in another way; what cannot be read is taken for some.
fn has_several_parts(message: Raw<'_>) -> bool {
    let content = match serde_json::from_str::<Content<'_>>(message.get()) {
        Ok(Content { content }) => content,
        Err(_) => return true,
    };
    content.filter(|content| content.get().starts_with('[')).is_some_and(|list| {
        serde_json::from_str::<Vec<serde::de::IgnoredAny>>(list.get()).is_ok_and(|parts| parts.len() > 1)
    })
}

fn may_end_with_assistant(chat: &ChatView<'_>) -> bool {
    let last = chat.messages.last().and_then(|last| serde_json::from_str::<Role<'_>>(last.get()).ok());
    last.is_none_or(|Role { role }| role.eq_ignore_ascii_case("assistant"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Endpoint;

    const TOOLS: &str = r#""tools":[{"type":"function","function":{"name":"f"}}]"#;

    /// As SGLang reads a chat with these fields and this last message: whether it is rendered alike, and has tools.
    fn chat(fields: &str, last: &str) -> (bool, bool) {
        let body = format!(r#"{{"model":"m","messages":[{{"role":"system","content":"s"}},{last}]{fields}}}"#);
        let mut view = RequestView::parse(Endpoint::Chat, body.as_bytes(), 9).unwrap();
        assert!(view.is_rendered_alike(), "vLLM's own rules are followed");
        view.read_as(Dialect::Sglang);
        let Input::Chat(chat) = &view.input else { panic!() };
        assert!(chat.add_generation_prompt);
        (view.is_rendered_alike(), chat.tools.is_some())
    }

    #[test]
    fn tools_that_may_not_be_called_are_none_to_sglang_and_others_are_not_rendered_here() {
        let user = r#"{"role":"user","content":"x"}"#;
        let with = |choice: &str| chat(&format!(",{TOOLS}{choice}"), user);
        assert_eq!(with(r#","tool_choice":"none""#), (true, false));
        for choice in ["", r#","tool_choice":null"#, r#","tool_choice":"auto""#, r#","tool_choice":"required""#] {
            assert_eq!(with(choice), (false, true), "{choice}");
        }
        assert_eq!(with(r#","tool_choice":{"type":"function","function":{"name":"f"}}"#), (false, true));
        assert_eq!(chat(r#","tools":[ ]"#, user), (true, false));
        let parts = |parts: &str| chat("", &format!(r#"{{"role":"user","content":[{parts}]}}"#)).0;
        let text = r#"{"type":"text","text":"x"}"#;
        assert_eq!([parts(text), parts(&format!("{text}, {text}"))], [true, false]);
        assert_eq!(chat(r#","add_generation_prompt":false"#, user), (true, false));
    }

    #[test]
    fn a_chat_that_the_assistant_ends_is_another_one_to_sglang() {
        for last in [r#"{"role":"assistant","content":"x"}"#, r#"{"content":"x","role":"Assistant"}"#, "{}"] {
            assert_eq!(chat("", last), (false, false), "{last}");
        }
        let going_on = r#","continue_final_message":true,"add_generation_prompt":false"#;
        assert_eq!(chat(going_on, r#"{"role":"user","content":"x"}"#), (false, false));
        assert_eq!(chat("", r#"{"role":"tool","content":"x"}"#), (true, false));
    }

    #[test]
    fn an_extra_key_is_part_of_sglangs_salt_and_nothing_to_others() {
        let salt = |fields: &str, dialect| {
            let body = format!(r#"{{"prompt":"x"{fields}}}"#);
            let mut view = RequestView::parse(Endpoint::Completions, body.as_bytes(), 9).unwrap();
            view.read_as(dialect);
            view.salt().map(Cow::into_owned)
        };
        for (fields, sglang, vllm) in [
            ("", None, None),
            (r#","cache_salt":"s""#, Some("s"), Some("s")),
            (r#","extra_key":"k""#, Some("k"), None),
            (r#","cache_salt":"s","extra_key":"k""#, Some("sk"), Some("s")),
            (r#","cache_salt":"","extra_key":"""#, None, None),
            (r#","cache_salt":"","extra_key":"k""#, Some("k"), None),
            (r#","extra_key":["k"]"#, None, None),
        ] {
            assert_eq!(salt(fields, Dialect::Sglang).as_deref(), sglang, "{fields}");
            assert_eq!(salt(fields, Dialect::Vllm).as_deref(), vllm, "{fields}");
        }
    }
}
