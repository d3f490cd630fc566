//! The few fields of a request that routing reads. The body itself goes on untouched.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use warmpath_core::ids::TokenId;

/// The most sequences of one prompt.
const N_MAX: u32 = 128;

/// Which API a request uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
}

/// What is wrong with a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestFault {
    /// What, and how to mend it.
    pub message: String,
    /// The field.
    pub param: Option<&'static str>,
}

/// A request, as far as routing goes; borrows from the body.
#[derive(Debug)]
pub struct RequestView<'a> {
    /// The model asked for.
    pub model: Option<Cow<'a, str>>,
    /// What is to be answered.
    pub input: Input<'a>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether the stream ends with its usage.
    pub include_usage: bool,
    /// Sequences for each prompt.
    pub n: u32,
    /// Tokens of each sequence at most.
    pub max_tokens: Option<u32>,
    /// As vLLM's: the lower, the sooner.
    pub priority: i32,
    /// Keeps this request's prefixes apart from those of other salts.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Whether the tokenizer adds its special tokens; the API's default differs by endpoint.
    pub add_special_tokens: Option<bool>,
    /// Keep only the last so many tokens; −1 is as many as the engine takes.
    pub truncate_prompt_tokens: Option<i64>,
}

/// What is to be answered.
#[derive(Debug)]
pub enum Input<'a> {
    /// Texts.
    Texts(Vec<Cow<'a, str>>),
    /// Token ids.
    Ids(Vec<Vec<TokenId>>),
    /// A conversation.
    Chat(ChatInput<'a>),
}

/// A conversation, and what its template may want to know. Parsed only if a template is rendered.
#[derive(Debug)]
pub struct ChatInput<'a> {
    /// The messages.
    pub messages: &'a RawValue,
    /// The tools.
    pub tools: Option<&'a RawValue>,
    /// Documents to answer from.
    pub documents: Option<&'a RawValue>,
    /// A template of the client's own.
    pub chat_template: Option<&'a RawValue>,
    /// Further variables of the template.
    pub chat_template_kwargs: Option<&'a RawValue>,
    /// Whether the template opens the answer.
    pub add_generation_prompt: bool,
    /// Whether the answer continues the last message.
    pub continue_final_message: bool,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<&'a RawValue>,
    #[serde(borrow)]
    tools: Option<&'a RawValue>,
    #[serde(borrow)]
    documents: Option<&'a RawValue>,
    #[serde(borrow)]
    chat_template: Option<&'a RawValue>,
    #[serde(borrow)]
    chat_template_kwargs: Option<&'a RawValue>,
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    add_special_tokens: Option<bool>,
    truncate_prompt_tokens: Option<i64>,
    #[serde(borrow)]
    cache_salt: Option<Cow<'a, str>>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<u32>,
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    priority: Option<i32>,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

fn fault(param: &'static str, message: impl Into<String>) -> RequestFault {
    RequestFault { message: message.into(), param: Some(param) }
}

impl<'a> RequestView<'a> {
    /// Reads a body. A field that stands twice is refused: readers disagree which of the two counts. O(body).
    ///
    /// # Errors
    /// With the field at fault, and the line and column where there is no field.
    pub fn parse(endpoint: Endpoint, body: &'a [u8], items_max: usize) -> Result<Self, RequestFault> {
        if body.trim_ascii_start().starts_with(b"[") {
            return Err(RequestFault { message: "the body must be a JSON object".to_owned(), param: None });
        }
        let wire: Wire<'a> = serde_json::from_slice(body).map_err(|error| RequestFault {
            message: format!("the body is not a valid request: {error}"),
            param: None,
        })?;
        let n = wire.n.unwrap_or(1);
        if !(1..=N_MAX).contains(&n) {
            return Err(fault("n", format!("`n` must be from 1 to {N_MAX}, got {n}")));
        }
        let input = match endpoint {
            Endpoint::Completions => {
                let prompt = wire.prompt.ok_or_else(|| fault("prompt", "`prompt` is missing"))?;
                read_prompt(prompt.get(), items_max)?
            }
            Endpoint::Chat => Input::Chat(read_chat(&wire, items_max)?),
        };
        Ok(Self {
            model: wire.model,
            input,
            stream: wire.stream.unwrap_or(false),
            include_usage: wire.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
            n,
            max_tokens: wire.max_completion_tokens.or(wire.max_tokens),
            priority: wire.priority.unwrap_or(0),
            cache_salt: wire.cache_salt,
            add_special_tokens: wire.add_special_tokens,
            truncate_prompt_tokens: wire.truncate_prompt_tokens,
        })
    }

    /// Prompts in the request.
    pub fn prompt_count(&self) -> usize {
        match &self.input {
            Input::Texts(texts) => texts.len(),
            Input::Ids(lists) => lists.len(),
            Input::Chat(_) => 1,
        }
    }
}

fn read_chat<'a>(wire: &Wire<'a>, items_max: usize) -> Result<ChatInput<'a>, RequestFault> {
    let messages = wire.messages.ok_or_else(|| fault("messages", "`messages` is missing"))?;
    let count = count_items(messages.get()).map_err(|_| fault("messages", "`messages` must be a list of messages"))?;
    if count == 0 {
        return Err(fault("messages", "`messages` is empty"));
    }
    if count > items_max {
        return Err(fault("messages", format!("`messages` has {count} entries; at most {items_max} are taken")));
    }
    let continue_final_message = wire.continue_final_message.unwrap_or(false);
    let add_generation_prompt = wire.add_generation_prompt.unwrap_or(true);
    Ok(ChatInput {
        messages,
        tools: wire.tools,
        documents: wire.documents,
        chat_template: wire.chat_template,
        chat_template_kwargs: wire.chat_template_kwargs,
        add_generation_prompt,
        continue_final_message,
    })
}

/// A message, of which only that it is an object with a role is looked at. A derived reader would take lists as well.
struct Message;

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Message;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a message")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Message, A::Error> {
                let mut has_role = false;
                while let Some((key, IgnoredAny)) = fields.next_entry::<Key, IgnoredAny>()? {
                    has_role |= matches!(key, Key::Role);
                }
                if has_role { Ok(Message) } else { Err(A::Error::missing_field("role")) }
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "lowercase")]
enum Key {
    Role,
    #[serde(other)]
    Other,
}

/// Items of a JSON list, none of them kept.
fn count_items(json: &str) -> Result<usize, serde_json::Error> {
    struct Count;
    impl<'de> Visitor<'de> for Count {
        type Value = usize;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a list of messages")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
            let mut count = 0;
            while items.next_element::<Message>()?.is_some() {
                count += 1;
            }
            Ok(count)
        }
    }
    let mut json = serde_json::Deserializer::from_str(json);
    json.deserialize_seq(Count)
}

/// A text, a list of texts, a list of token ids, or a list of such lists.
fn read_prompt(json: &str, items_max: usize) -> Result<Input<'_>, RequestFault> {
    const FORMS: &str = "`prompt` must be a text, a list of texts, a list of token ids (0 to 4294967295), or a list of \
        such lists";
    let bad = |_| fault("prompt", FORMS);
    let inside = json.strip_prefix('[').map(str::trim_start);
    let input = match inside.map(|inside| inside.as_bytes().first()) {
        None => {
            let mut text = serde_json::Deserializer::from_str(json);
            Input::Texts(vec![Text.deserialize(&mut text).map_err(bad)?])
        }
        Some(Some(b'"')) => {
            let texts: Vec<Borrowed<'_>> = serde_json::from_str(json).map_err(bad)?;
            Input::Texts(texts.into_iter().map(|text| text.0).collect())
        }
        Some(Some(b'[')) => Input::Ids(serde_json::from_str(json).map_err(bad)?),
        Some(_) => Input::Ids(vec![serde_json::from_str(json).map_err(bad)?]),
    };
    let (count, empty) = match &input {
        Input::Texts(texts) => (texts.len(), texts.iter().any(|text| text.is_empty())),
        Input::Ids(lists) => (lists.len(), lists.iter().any(Vec::is_empty)),
        Input::Chat(_) => (1, false),
    };
    if count == 0 || empty {
        return Err(fault("prompt", "`prompt` is empty"));
    }
    if count > items_max {
        return Err(fault("prompt", format!("`prompt` has {count} entries; at most {items_max} are taken")));
    }
    Ok(input)
}

/// A text that borrows where it has no escapes, inside a list too.
#[derive(Deserialize)]
#[serde(transparent)]
struct Borrowed<'a>(#[serde(borrow, deserialize_with = "borrow")] Cow<'a, str>);

fn borrow<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Cow<'de, str>, D::Error> {
    Text.deserialize(deserializer)
}

struct Text;

impl<'de> DeserializeSeed<'de> for Text {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Text {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a text")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(body: &str) -> Result<RequestView<'_>, RequestFault> {
        RequestView::parse(Endpoint::Completions, body.as_bytes(), 10)
    }

    #[test]
    fn every_form_of_prompt_is_read() {
        let ids = |body| match completion(body).unwrap().input {
            Input::Ids(ids) => ids,
            other => panic!("{other:?}"),
        };
        assert_eq!(ids(r#"{"prompt": [1, 2]}"#), [[1, 2]]);
        assert_eq!(ids(r#"{"prompt": [[1], [4294967295]]}"#), [[1], [4_294_967_295]]);
        let texts = |body| match completion(body).unwrap().input {
            Input::Texts(texts) => texts,
            other => panic!("{other:?}"),
        };
        assert_eq!(texts(r#"{"prompt": "a\n"}"#), ["a\n"]);
        assert_eq!(texts(r#"{"prompt": [ "a", "b\u00e9"]}"#), ["a", "bé"]);
    }

    #[test]
    fn text_without_escapes_is_not_copied() {
        let view = completion(r#"{"prompt": ["abc"], "model": "m"}"#).unwrap();
        assert!(matches!(&view.input, Input::Texts(texts) if matches!(texts[0], Cow::Borrowed(_))));
    }

    #[test]
    fn bad_prompts_name_their_field() {
        for prompt in [
            "[]",
            "\"\"",
            "[[]]",
            "[1, -2]",
            "[1.5]",
            "[4294967296]",
            "[1, \"a\"]",
            "[\"a\", 1]",
            "3",
            "{}",
            "[[[1]]]",
            "null",
            "[true]",
        ] {
            let body = format!("{{\"prompt\": {prompt}}}");
            assert_eq!(completion(&body).unwrap_err().param, Some("prompt"), "{prompt}");
        }
        assert_eq!(completion("{}").unwrap_err().message, "`prompt` is missing");
    }

    #[test]
    fn a_field_that_stands_twice_is_refused() {
        let error = completion(r#"{"model": "a", "prompt": "x", "model": "b"}"#).unwrap_err();
        assert!(error.message.contains("duplicate field `model`"), "{error}");
    }

    #[test]
    fn bodies_that_are_no_request_are_refused() {
        for body in [
            "",
            "[]",
            r#"["m","x",null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null,null]"#,
            "{",
            "{\"prompt\": \"x\"} trailing",
            "nonsense",
            "{\"prompt\": \"x\", \"n\": 0}",
            "{\"prompt\": \"x\", \"stream\": 3}",
        ] {
            assert!(completion(body).is_err(), "{body}");
        }
    }

    #[test]
    fn nulls_are_as_good_as_absent() {
        let view =
            completion(r#"{"prompt": "x", "n": null, "stream": null, "stream_options": null, "max_tokens": null}"#);
        let view = view.unwrap();
        assert_eq!((view.n, view.stream, view.max_tokens), (1, false, None));
    }

    #[test]
    fn a_chat_needs_messages() {
        let chat = |body: &str| RequestView::parse(Endpoint::Chat, body.as_bytes(), 2).map(|_| ()).unwrap_err();
        assert_eq!(chat("{}").message, "`messages` is missing");
        assert_eq!(chat("{\"messages\": []}").message, "`messages` is empty");
        for bad in ["[1]", "[[]]", "[[\"user\"]]", "[{}]", "{}", "[{\"role\": 1}, null]"] {
            assert_eq!(chat(&format!("{{\"messages\": {bad}}}")).param, Some("messages"), "{bad}");
        }
        let three = r#"{"messages": [{"role": "a"}, {"role": "b"}, {"role": "c"}]}"#;
        assert_eq!(chat(three).message, "`messages` has 3 entries; at most 2 are taken");
    }
}
