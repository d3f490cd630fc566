//! The few fields of an OpenAI-compatible request that routing reads. The body itself is forwarded untouched.
//!
//! The view borrows from the body. It looks at the top level only, decodes what it names and skips the rest: fields that
//! are unknown here are the engine's business. It is strict where two readers could disagree about a body: a routed key
//! that occurs twice is an error (Python takes the last one, other parsers the first), and so are trailing bytes.
//! `null` counts as absent everywhere, since OpenAI's clients send it.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::error::GatewayError;

mod dialect;
mod field;
mod fields;
mod lax;
mod nesting;
mod opening;
mod prompt;
mod raw;
pub(crate) mod scan;

pub use dialect::Dialect;
use fields::{Fields, Reading};
pub use opening::opening;
pub use prompt::Prompt;
pub use raw::Raw;

/// Levels of arrays and objects that a body may nest.
pub const DEPTH_MAX: usize = 64;
/// Answers to one request (`n`) that are reckoned with: for more than OpenAI's own it is for the engine to say.
pub const CHOICES_MAX: u32 = 128;

/// A request that is refused because of its body. Costs no worker anything.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    /// What is wrong, for the client.
    pub message: String,
    /// The field that is wrong: `param` of OpenAI's error object.
    pub param: Option<&'static str>,
}

impl BadRequest {
    /// A fault of the body as a whole.
    fn body(message: impl Into<String>) -> Self {
        Self { message: short(message.into()), param: None }
    }

    /// A fault of one field.
    fn field(param: &'static str, message: impl Into<String>) -> Self {
        Self { message: short(message.into()), param: Some(param) }
    }
}

impl From<BadRequest> for GatewayError {
    fn from(BadRequest { message, param }: BadRequest) -> Self {
        Self::bad_request(message, param)
    }
}

/// The longest message, in bytes: what a client sent may be quoted, but not sent back.
const MESSAGE_MAX: usize = 400;

fn short(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MESSAGE_MAX));
    message
}

/// Which of the two generating routes a body came in on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `/v1/completions`
    Completions,
    /// `/v1/chat/completions`
    Chat,
}

/// What routing reads of a request.
#[derive(Debug)]
pub struct RequestView<'a> {
    /// The model, its alias, or a LoRA adapter: the gateway resolves it. Engines that serve one model do not ask.
    pub model: Option<Cow<'a, str>>,
    /// The LoRA adapter, as SGLang may be told it beside the model.
    pub lora_path: Option<Cow<'a, str>>,
    /// What the model is to go on from.
    pub input: Input<'a>,
    /// Whether the tokenizer adds its special tokens; by default for completions, not for chats.
    pub add_special_tokens: bool,
    /// How much of an overlong prompt is kept.
    pub truncation: Option<Truncation>,
    /// Part of the namespace, see [`RequestView::salt`]; an empty one is none.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Another part of it, for some engines.
    pub extra_key: Option<Cow<'a, str>>,
    /// By whose rules it is read.
    pub dialect: Dialect,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether a stream ends with a chunk of usage.
    pub include_usage: bool,
    /// Answers asked for, from 1 to [`CHOICES_MAX`].
    pub n: u32,
    /// Tokens that an answer may have; `None` leaves it to the engine.
    pub max_tokens: Option<u32>,
    /// Lower is served earlier, as in vLLM; 0 if not given.
    pub priority: i64,
    /// The end user, as the client names it.
    pub user: Option<Cow<'a, str>>,
    /// What the client says that its requests have in common.
    pub prompt_cache_key: Option<Cow<'a, str>>,
    /// Whether it asks how likely the prompt's own tokens are: engines compute all of them then, whatever they have cached.
    pub scores_prompt: bool,
}

/// What a request asks the model to go on from.
#[derive(Debug)]
pub enum Input<'a> {
    /// Of `/v1/completions`.
    Completion(Prompt<'a>),
    /// Of `/v1/chat/completions`.
    Chat(ChatView<'a>),
}

/// The fields of a chat that its template reads.
#[derive(Clone, Debug)]
pub struct ChatView<'a> {
    /// The messages, at least one, each a JSON object.
    pub messages: Vec<Raw<'a>>,
    /// A JSON array.
    pub tools: Option<Raw<'a>>,
    /// Whether the model may or must call one of them; engines differ in what its template is told then.
    pub tool_choice: Option<Raw<'a>>,
    /// A JSON array.
    pub documents: Option<Raw<'a>>,
    /// A template of the client's own; engines refuse it unless they are told to trust it.
    pub chat_template: Option<Raw<'a>>,
    /// A JSON object of variables for the template.
    pub chat_template_kwargs: Option<Raw<'a>>,
    /// Whether the template opens the assistant's turn; by default it does.
    pub add_generation_prompt: bool,
    /// Whether the last message is left open, to be continued.
    pub continue_final_message: bool,
    /// A variable of the template, and the switch of `enable_thinking`.
    pub reasoning_effort: Option<Cow<'a, str>>,
}

/// `truncate_prompt_tokens` and `truncation_side`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// Tokens to keep; `None` stands for −1, as many as the model takes.
    pub keep: Option<u64>,
    /// Which end is kept. Engines keep the last tokens unless they are told otherwise.
    pub side: Side,
}

/// The end of a prompt that truncation cuts off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// As vLLM does by default: keeps the last tokens.
    Default,
    /// Asked for by name: keeps the last tokens.
    Left,
    /// Keeps the first tokens.
    Right,
}

#[derive(Deserialize)]
struct StreamOptions<'a> {
    #[serde(borrow)]
    include_usage: Option<Raw<'a>>,
}

impl<'a> RequestView<'a> {
    /// Reads the view of a body in one pass; copies only texts that have escapes. `items_max` bounds the messages of a chat and the prompts of a completion.
    ///
    /// # Errors
    /// [`BadRequest`] if the body is no JSON object, nests deeper than [`DEPTH_MAX`], has a routed key twice, or one of
    /// them has a value that no engine would take.
    pub fn parse(endpoint: Endpoint, body: &'a [u8], items_max: usize) -> Result<Self, BadRequest> {
        Self::read(endpoint, body, items_max, Reading::Whole)
    }

    /// The same for those who need no prompt but its size: [`Prompt::Unread`].
    ///
    /// # Errors
    /// Those of [`RequestView::parse`], but that texts and ids are not judged.
    pub fn sketch(endpoint: Endpoint, body: &'a [u8], items_max: usize) -> Result<Self, BadRequest> {
        Self::read(endpoint, body, items_max, Reading::Size)
    }

    fn read(endpoint: Endpoint, body: &'a [u8], items_max: usize, reading: Reading) -> Result<Self, BadRequest> {
        let body = without_mark(body);
        if let Some(mut fields) = Fields::scan(body, items_max, reading) {
            return Self::from_fields(endpoint, &mut fields, items_max, reading);
        }
        nests_within_reason(body)?;
        let begin = body.trim_ascii_start().first();
        let no_object = || BadRequest::body("the body must be a JSON object");
        // A derived reader would take a list of the fields' values as well.
        if begin == Some(&b'[') {
            return Err(no_object());
        }
        let mut fields: Fields<'a> = serde_json::from_slice(body).map_err(|error| match begin {
            Some(b'{') => malformed(error),
            // It would name a type of ours.
            _ if error.is_data() => no_object(),
            _ => malformed(error),
        })?;
        Self::from_fields(endpoint, &mut fields, items_max, reading)
    }

    fn from_fields(
        endpoint: Endpoint,
        fields: &mut Fields<'a>,
        items_max: usize,
        reading: Reading,
    ) -> Result<Self, BadRequest> {
        // Engines take an empty name for none.
        let model = field::text("model", fields.model)?.filter(|model| !model.is_empty());
        // Some engines take an empty one for none, others refuse it: that is for them to say.
        let cache_salt = field::text("cache_salt", fields.cache_salt)?.filter(|salt| !salt.is_empty());
        let stream_options = field::shaped("stream_options", b'{', fields.stream_options)?;
        let stream_options: Option<StreamOptions<'_>> =
            field::value("stream_options", "an object with the boolean `include_usage`", stream_options)?;
        let include_usage = stream_options.and_then(|options| options.include_usage);
        let max_tokens = field::count("max_tokens", fields.max_tokens)?;
        let max_completion_tokens = field::count("max_completion_tokens", fields.max_completion_tokens)?;
        let (input, max_tokens) = match endpoint {
            Endpoint::Completions => {
                let (prompt, embeddings) = (fields.prompt, fields.prompt_embeds);
                let prompt = match (fields.ids.take(), reading) {
                    (Some(ids), _) if embeddings.is_none() => ids,
                    (_, Reading::Whole) => Prompt::read(prompt, embeddings, items_max)?,
                    (_, Reading::Size) => Prompt::count(prompt, embeddings, items_max)?,
                };
                (Input::Completion(prompt), max_tokens)
            }
            Endpoint::Chat => (Input::Chat(ChatView::read(fields, items_max)?), max_completion_tokens.or(max_tokens)),
        };
        Ok(Self {
            model,
            // Other engines do not read it, whatever it is.
            lora_path: field::text("lora_path", fields.lora_path).unwrap_or_default(),
            input,
            add_special_tokens: field::flag("add_special_tokens", fields.add_special_tokens)?
                .unwrap_or(endpoint == Endpoint::Completions),
            truncation: truncation(fields)?,
            cache_salt,
            // Others do not read it, whatever it is.
            extra_key: field::text("extra_key", fields.extra_key).unwrap_or_default(),
            dialect: Dialect::default(),
            stream: field::flag("stream", fields.stream)?.unwrap_or(false),
            include_usage: field::flag("stream_options.include_usage", include_usage)?.unwrap_or(false),
            n: choices(fields.n)?,
            max_tokens,
            priority: field::integer("priority", fields.priority)?.unwrap_or(0),
            user: field::text("user", fields.user)?,
            // Engines do not read it: whatever else it is, it is no key.
            prompt_cache_key: field::text("prompt_cache_key", fields.prompt_cache_key).unwrap_or_default(),
            scores_prompt: scores_prompt(endpoint, fields),
        })
    }
}

impl RequestView<'_> {
    /// Prompts in the request.
    pub fn prompt_count(&self) -> usize {
        match &self.input {
            Input::Completion(Prompt::Texts(texts)) => texts.len(),
            Input::Completion(Prompt::Ids(lists)) => lists.len(),
            Input::Completion(Prompt::Unread { prompts, .. }) => *prompts,
            Input::Completion(Prompt::Embeddings) | Input::Chat(_) => 1,
        }
    }
}

impl<'a> ChatView<'a> {
    fn read(fields: &mut Fields<'a>, items_max: usize) -> Result<Self, BadRequest> {
        let apart = fields.apart.take();
        Ok(Self {
            messages: messages(fields.messages, apart, items_max)?,
            tools: field::shaped("tools", b'[', fields.tools)?,
            tool_choice: fields.tool_choice,
            documents: field::shaped("documents", b'[', fields.documents)?,
            chat_template: fields.chat_template,
            chat_template_kwargs: field::shaped("chat_template_kwargs", b'{', fields.chat_template_kwargs)?,
            add_generation_prompt: field::flag("add_generation_prompt", fields.add_generation_prompt)?.unwrap_or(true),
            continue_final_message: field::flag("continue_final_message", fields.continue_final_message)?
                .unwrap_or(false),
            reasoning_effort: field::text("reasoning_effort", fields.reasoning_effort)?,
        })
    }
}

fn messages<'a>(
    raw: Option<Raw<'a>>,
    apart: Option<Vec<Raw<'a>>>,
    items_max: usize,
) -> Result<Vec<Raw<'a>>, BadRequest> {
    let raw = field::shaped("messages", b'[', raw)?
        .ok_or_else(|| BadRequest::field("messages", "you must provide `messages`"))?;
    let messages: Vec<Raw<'a>> = apart.map_or_else(|| field::list("messages", items_max, "a message", raw), Ok)?;
    if messages.is_empty() {
        return Err(BadRequest::field("messages", "`messages` must have at least one message"));
    }
    if let Some(at) = messages.iter().position(|message| !message.get().starts_with('{')) {
        return Err(BadRequest::field("messages", format!("`messages[{at}]` must be an object")));
    }
    Ok(messages)
}

fn truncation(fields: &Fields<'_>) -> Result<Option<Truncation>, BadRequest> {
    let keep = field::integer("truncate_prompt_tokens", fields.truncate_prompt_tokens)?;
    let side = match field::text("truncation_side", fields.truncation_side)?.as_deref() {
        None => Side::Default,
        Some("left") => Side::Left,
        Some("right") => Side::Right,
        Some(_) => return Err(BadRequest::field("truncation_side", "`truncation_side` must be `left` or `right`")),
    };
    match keep {
        None => Ok(None),
        Some(-1) => Ok(Some(Truncation { keep: None, side })),
        Some(keep) => match u64::try_from(keep) {
            Ok(keep) => Ok(Some(Truncation { keep: Some(keep), side })),
            Err(_) => {
                let message = format!("`truncate_prompt_tokens` must be at least -1, got {keep}");
                Err(BadRequest::field("truncate_prompt_tokens", message))
            }
        },
    }
}

/// As vLLM decides it: a chat that is echoed has 0 for `top_logprobs`, a completion nothing for `logprobs`. Whether it is
/// all well-formed is for the engine to say.
fn scores_prompt(endpoint: Endpoint, fields: &Fields<'_>) -> bool {
    let echoed = || field::flag("echo", fields.echo).ok().flatten().unwrap_or(false);
    let echo_scores = endpoint == Endpoint::Chat || fields.logprobs.is_some();
    fields.prompt_logprobs.is_some() || fields.prompt_logprob_token_ids.is_some() || echo_scores && echoed()
}

fn choices(raw: Option<Raw<'_>>) -> Result<u32, BadRequest> {
    match field::integer("n", raw)?.unwrap_or(1) {
        n if n < 1 => Err(BadRequest::field("n", format!("`n` must be at least 1, got {n}"))),
        n => Ok(u32::try_from(n).map_or(CHOICES_MAX, |n| n.min(CHOICES_MAX))),
    }
}

/// A JSON text without the byte-order mark that may precede it, as Python's reader takes it.
pub fn without_mark(json: &[u8]) -> &[u8] {
    json.strip_prefix("\u{feff}".as_bytes()).unwrap_or(json)
}

/// Judges how deep a JSON text nests.
///
/// # Errors
/// Deeper than [`DEPTH_MAX`].
pub fn nests_within_reason(json: &[u8]) -> Result<(), BadRequest> {
    if nesting::exceeds(json, DEPTH_MAX) {
        return Err(BadRequest::body(format!("the body is nested deeper than {DEPTH_MAX} levels")));
    }
    Ok(())
}

/// Judges how many `messages` there are, whatever they are made of. What is no list has none.
///
/// # Errors
/// More than `items_max`.
pub fn has_few_messages(messages: Raw<'_>, items_max: usize) -> Result<(), BadRequest> {
    if messages.get().starts_with('[') {
        field::list::<IgnoredAny>("messages", items_max, "a message", messages)?;
    }
    Ok(())
}

/// The client's view of a fault that serde found in the body as a whole.
fn malformed(error: serde_json::Error) -> BadRequest {
    match error.classify() {
        serde_json::error::Category::Data => BadRequest::body(format!("the body is not a valid request: {error}")),
        _ => BadRequest::body(format!("the body is not valid JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(body: &str) -> Result<RequestView<'_>, BadRequest> {
        RequestView::parse(Endpoint::Completions, body.as_bytes(), 4096)
    }

    fn chat(body: &str) -> Result<RequestView<'_>, BadRequest> {
        RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096)
    }

    fn fault(result: Result<RequestView<'_>, BadRequest>) -> (Option<&'static str>, String) {
        let error = result.map(|view| panic!("accepted as {view:?}")).unwrap_err();
        (error.param, error.message)
    }

    #[test]
    fn prompts_are_scored_where_their_logprobs_are_asked_for() {
        let completed = |fields: &str| completion(&format!(r#"{{"prompt":"x",{fields}}}"#)).unwrap().scores_prompt;
        let chatted = |fields: &str| {
            let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}],{fields}}}"#);
            chat(&body).unwrap().scores_prompt
        };
        for fields in [r#""prompt_logprobs":0"#, r#""prompt_logprob_token_ids":[[1]]"#, r#""echo":1,"logprobs":0"#] {
            assert!(completed(fields) && chatted(fields), "{fields}");
        }
        assert!(chatted(r#""echo":true"#) && !completed(r#""echo":true"#));
        for fields in [r#""logprobs":1"#, r#""echo":false,"logprobs":1"#, r#""echo":"x""#, r#""prompt_logprobs":null"#]
        {
            assert!(!completed(fields) && !chatted(fields), "{fields}");
        }
    }

    #[test]
    fn a_completion_has_defaults() {
        let view = completion(r#"{"model":"m","prompt":"Hello"}"#).unwrap();
        assert_eq!((view.model.as_deref(), view.n, view.priority), (Some("m"), 1, 0));
        assert!(view.add_special_tokens && !view.stream && !view.include_usage);
        assert_eq!((view.max_tokens, view.truncation, view.cache_salt, view.user), (None, None, None, None));
        assert!(matches!(&view.input, Input::Completion(Prompt::Texts(texts)) if texts[..] == ["Hello"]));
        assert_eq!(completion(r#"{"model":"","prompt":"Hello"}"#).unwrap().model, None);
    }

    #[test]
    fn a_byte_order_mark_before_a_body_is_passed_over() {
        assert_eq!(completion("\u{feff}{\"model\":\"m\",\"prompt\":\"a\"}").unwrap().model.as_deref(), Some("m"));
        assert!(completion("\u{feff}\u{feff}{\"prompt\":\"a\"}").is_err());
    }

    #[test]
    fn a_text_without_escapes_is_borrowed_and_one_with_escapes_is_decoded() {
        let view = completion(r#"{"model":"m","prompt":["plain","a\n\u00e9"]}"#).unwrap();
        let Input::Completion(Prompt::Texts(texts)) = view.input else { panic!() };
        assert!(matches!(texts[0], Cow::Borrowed("plain")));
        assert_eq!(texts[1], "a\né");
    }

    #[test]
    fn every_routed_field_is_read() {
        let view = completion(
            r#"{"model":"m","prompt":[1,2],"add_special_tokens":false,"truncate_prompt_tokens":-1,"cache_salt":"s",
                "stream":true,"stream_options":{"include_usage":true,"other":1},"n":2,"max_tokens":16,"priority":-3,
                "user":"u","temperature":0,"extra":{"prompt":"inner"}}"#,
        )
        .unwrap();
        assert!(!view.add_special_tokens && view.stream && view.include_usage);
        assert_eq!(view.truncation, Some(Truncation { keep: None, side: Side::Default }));
        assert_eq!((view.cache_salt.as_deref(), view.user.as_deref()), (Some("s"), Some("u")));
        assert_eq!((view.n, view.max_tokens, view.priority), (2, Some(16), -3));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_a_view_or_an_error(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = RequestView::parse(Endpoint::Chat, &bytes, 4096);
        }

        #[test]
        fn any_value_of_a_routed_field_gives_a_view_or_an_error(
            key in "prompt|messages|tools|n|model|truncate_prompt_tokens|stream_options|cache_salt|max_tokens",
            value in r#"[-0-9.eE\[\]{}",:a nulltrue]{0,24}"#,
        ) {
            let defaults = [("model", r#""m""#), ("prompt", r#""a""#), ("messages", "[{}]")];
            let others = defaults.iter().filter(|(name, _)| *name != key);
            let others: String = others.map(|(name, value)| format!(r#""{name}":{value},"#)).collect();
            let body = format!(r#"{{{others}"{key}":{value}}}"#);
            let _ = RequestView::parse(Endpoint::Chat, body.as_bytes(), 4096);
            let _ = RequestView::parse(Endpoint::Completions, body.as_bytes(), 4096);
        }
    }

    #[test]
    fn null_counts_as_absent() {
        let view = chat(
            r#"{"model":"m","messages":[{"role":"user","content":"x"}],"tools":null,"n":null,"stream":null,"user":null,
                "stream_options":null,"max_tokens":null,"max_completion_tokens":null,"cache_salt":null,"prompt":null,
                "chat_template":null,"chat_template_kwargs":null,"add_generation_prompt":null,"documents":null,
                "truncate_prompt_tokens":null,"priority":null,"reasoning_effort":null,"add_special_tokens":null}"#,
        )
        .unwrap();
        assert_eq!((view.n, view.stream, view.max_tokens, view.add_special_tokens), (1, false, None, false));
        let Input::Chat(chat) = view.input else { panic!() };
        assert!(chat.add_generation_prompt && !chat.continue_final_message);
        assert!(chat.tools.is_none() && chat.documents.is_none() && chat.chat_template.is_none());
        assert!(chat.chat_template_kwargs.is_none());
    }

    #[test]
    fn values_that_engines_take_count_as_what_they_stand_for() {
        let view = completion(
            r#"{"model":"m","prompt":"x","stream":"True","add_special_tokens":0,"n":"3","max_tokens":16.0,"priority":"-2",
                "stream_options":{"include_usage":"yes"}}"#,
        )
        .unwrap();
        assert!(view.stream && view.include_usage && !view.add_special_tokens);
        assert_eq!((view.n, view.max_tokens, view.priority), (3, Some(16), -2));
        for many in ["129", "4294967296", "1e30"] {
            assert_eq!(completion(&format!(r#"{{"prompt":"x","n":{many}}}"#)).unwrap().n, CHOICES_MAX);
        }
    }

    #[test]
    fn a_chat_prefers_max_completion_tokens() {
        let body = r#"{"model":"m","messages":[{}],"max_tokens":5,"max_completion_tokens":7}"#;
        assert_eq!(chat(body).unwrap().max_tokens, Some(7));
    }

    #[test]
    fn a_routed_key_that_occurs_twice_is_refused_even_when_escaped() {
        for body in [
            r#"{"model":"m","prompt":"a","prompt":"b"}"#,
            r#"{"model":"m","prompt":"a","pro\u006dpt":"b"}"#,
            r#"{"model":"m","prompt":"a","prompt":null}"#,
        ] {
            let (param, message) = fault(completion(body));
            assert_eq!(param, None);
            assert!(message.contains("duplicate field `prompt`"), "{message}");
        }
    }

    #[test]
    fn bytes_after_the_body_and_broken_json_are_refused() {
        for body in [r#"{"model":"m","prompt":"a"} x"#, r#"{"model":"m","prompt":"a""#, "", "\u{feff}"] {
            let (param, message) = fault(completion(body));
            assert_eq!(param, None);
            assert!(message.starts_with("the body is not valid JSON: "), "{message}");
        }
        for value in ["3", "null", "\"x\"", "true"] {
            assert_eq!(fault(completion(value)), (None, "the body must be a JSON object".to_owned()));
        }
        // The fields' values in their order would do for a derived reader.
        for list in ["[]", r#" ["m","a"]"#] {
            assert_eq!(fault(completion(list)), (None, "the body must be a JSON object".to_owned()));
        }
    }

    #[test]
    fn nesting_is_limited() {
        let body = |levels: usize| {
            let (open, close) = ("[".repeat(levels - 1), "]".repeat(levels - 1));
            format!(r#"{{"model":"m","prompt":"[[[","x":{open}{close}}}"#)
        };
        assert!(completion(&body(DEPTH_MAX)).is_ok());
        let deep = body(DEPTH_MAX + 1);
        assert_eq!(fault(completion(&deep)), (None, "the body is nested deeper than 64 levels".to_owned()));
        assert!(completion(&body(1_000_000)).is_err());
    }

    #[test]
    fn wrong_values_name_their_field() {
        let cases = [
            (r#"{"model":3,"prompt":"a"}"#, "model", "`model` must be a string"),
            (r#"{"model":"m","prompt":"a","n":0}"#, "n", "`n` must be at least 1, got 0"),
            (r#"{"model":"m","prompt":"a","n":1.5}"#, "n", "`n` must be an integer"),
            (r#"{"model":"m","prompt":"a","max_tokens":-1}"#, "max_tokens", "`max_tokens` must be at least 0, got -1"),
            (r#"{"model":"m","prompt":"a","stream":"ja"}"#, "stream", "`stream` must be a boolean"),
            (
                r#"{"model":"m","prompt":"a","stream_options":{"include_usage":2}}"#,
                "stream_options.include_usage",
                "`stream_options.include_usage` must be a boolean",
            ),
            (
                r#"{"model":"m","prompt":"a","truncate_prompt_tokens":-2}"#,
                "truncate_prompt_tokens",
                "`truncate_prompt_tokens` must be at least -1, got -2",
            ),
        ];
        for (body, param, message) in cases {
            assert_eq!(fault(completion(body)), (Some(param), message.to_owned()), "{body}");
        }
    }

    #[test]
    fn a_chat_needs_messages_that_are_objects() {
        let cases = [
            (r#"{"model":"m"}"#.to_owned(), "you must provide `messages`"),
            (r#"{"model":"m","messages":[]}"#.to_owned(), "`messages` must have at least one message"),
            (r#"{"model":"m","messages":{}}"#.to_owned(), "`messages` must be an array"),
            (r#"{"model":"m","messages":[{},"x"]}"#.to_owned(), "`messages[1]` must be an object"),
            (
                format!(r#"{{"model":"m","messages":[{}{{}}]}}"#, "{},".repeat(4096)),
                "`messages` may have at most 4096 elements",
            ),
        ];
        for (body, message) in cases {
            assert_eq!(fault(chat(&body)), (Some("messages"), message.to_owned()));
        }
    }
}
