//! From a request to the token ids that the engine will see.
//!
//! The ids decide only where a request is sent, never what an engine answers: it tokenizes for itself. So a request whose
//! ids cannot be reproduced is no error. It is [`Prompts::Unknown`], is routed by load and counted by its [`Reason`].
//! The rules followed are those of vLLM 0.32 (its chat renderer and tokenization parameters) and of Hugging Face's
//! `apply_chat_template`, which it calls.

use std::time::SystemTime;

use crate::openai::{Input, Prompt, RequestView, Side, Truncation};

pub mod bytes;
pub mod characters;
pub mod chat;
mod handle;
pub mod hf;
pub mod remote;

pub use chat::ChatTemplate;
pub use handle::{TokenizeLimits, TokenizerHandle, TokenizerState};

/// Turns text into token ids.
pub trait Tokenizer: Send + Sync {
    /// Appends the ids of `text` to `ids`, with the tokenizer's own special tokens (such as a BOS) if `special`. CPU-bound:
    /// up to a second for a hostile megabyte.
    ///
    /// # Errors
    /// [`TokenizeError`] if the tokenizer cannot encode the text; `ids` is then as before.
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError>;
}

/// A text that a tokenizer cannot encode. Says nothing of the text itself, which may be private.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer cannot encode the text")]
pub struct TokenizeError;

/// The token ids of a request's prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// The ids of each prompt, in order, as the engine will see them.
    Ids(Vec<Vec<u32>>),
    /// The ids cannot be told; route by load.
    Unknown(Reason),
}

impl Prompts {
    /// Whether what the engine reports as cached can be compared with what was promised: one prompt, its ids known.
    pub fn is_comparable(&self) -> bool {
        matches!(self, Prompts::Ids(prompts) if prompts.len() == 1)
    }
}

/// Why a request's token ids are unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A message has an image, audio, video, or a part of unknown kind.
    Media,
    /// The prompt is made of vectors.
    Embeddings,
    /// The request brings a template of its own, which engines refuse unless they are told to trust it.
    RequestTemplate,
    /// A variable for the template has the name of a parameter of the engine's renderer.
    TemplateVariables,
    /// The template refuses the conversation, fails, or reads the time of day.
    TemplateError,
    /// The model's tokenizer has no chat template.
    NoTemplate,
    /// No tokenizer is configured for the model.
    NoTokenizer,
    /// The tokenizer is still being loaded.
    Loading,
    /// The tokenizer could not be loaded.
    LoadFailed,
    /// The request is longer than is worth tokenizing.
    TooLong,
    /// Too many long texts are being tokenized already.
    TokenizerBusy,
    /// The tokenizer failed on the text.
    TokenizerError,
    /// The prompt is truncated in a way that differs between engines.
    Truncation,
    /// The engine's `/tokenize` gave no usable answer.
    Remote,
}

impl Reason {
    /// Every reason, for metrics that exist before they first count.
    pub const ALL: [Self; 14] = [
        Self::Media,
        Self::Embeddings,
        Self::RequestTemplate,
        Self::TemplateVariables,
        Self::TemplateError,
        Self::NoTemplate,
        Self::NoTokenizer,
        Self::Loading,
        Self::LoadFailed,
        Self::TooLong,
        Self::TokenizerBusy,
        Self::TokenizerError,
        Self::Truncation,
        Self::Remote,
    ];

    /// The reason as a metric's label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::Embeddings => "prompt_embeds",
            Self::RequestTemplate => "request_template",
            Self::TemplateVariables => "template_variables",
            Self::TemplateError => "template_error",
            Self::NoTemplate => "no_template",
            Self::NoTokenizer => "no_tokenizer",
            Self::Loading => "loading",
            Self::LoadFailed => "load_failed",
            Self::TooLong => "too_long",
            Self::TokenizerBusy => "tokenizer_busy",
            Self::TokenizerError => "tokenizer_error",
            Self::Truncation => "truncation",
            Self::Remote => "remote_failed",
        }
    }

    /// Whether an engine's `/tokenize` may know the ids although we do not.
    fn engine_may_know(self) -> bool {
        matches!(
            self,
            Self::TemplateError
                | Self::NoTemplate
                | Self::NoTokenizer
                | Self::Loading
                | Self::LoadFailed
                | Self::TokenizerBusy
                | Self::TokenizerError
        )
    }
}

/// A model's tokenizer with its chat template: everything that is needed to turn requests into ids.
pub struct ModelTokenizer {
    tokenizer: Box<dyn Tokenizer>,
    template: Option<ChatTemplate>,
    model_tokens_max: Option<u32>,
}

impl ModelTokenizer {
    /// A tokenizer; without a template it serves completions only.
    pub fn new(tokenizer: impl Tokenizer + 'static, template: Option<ChatTemplate>) -> Self {
        Self { tokenizer: Box::new(tokenizer), template, model_tokens_max: None }
    }

    /// The longest prompt with its answer that the model takes (vLLM's `max_model_len`). Only truncation to "as much as
    /// the model takes" needs it.
    pub fn with_model_tokens_max(mut self, tokens: Option<u32>) -> Self {
        self.model_tokens_max = tokens;
        self
    }

    /// The ids of the request's prompts. Blocks for as long as rendering and encoding take. Ids that the request itself
    /// brings are moved out of the view.
    ///
    /// `now` is what a template sees that prints the date.
    pub fn prompts(&self, view: &mut RequestView<'_>, now: SystemTime) -> Prompts {
        if let Some(prompts) = given_ids(view, self.model_tokens_max) {
            return prompts;
        }
        match self.encode_all(view, now) {
            Ok(ids) => Prompts::Ids(ids),
            Err(reason) => Prompts::Unknown(reason),
        }
    }

    fn encode_all(&self, view: &RequestView<'_>, now: SystemTime) -> Result<Vec<Vec<u32>>, Reason> {
        match &view.input {
            Input::Completion(Prompt::Texts(texts)) => texts.iter().map(|text| self.encode(text, view)).collect(),
            Input::Completion(_) => Err(Reason::Embeddings),
            Input::Chat(chat) => {
                let template = self.template.as_ref().ok_or(Reason::NoTemplate)?;
                Ok(vec![self.encode(&template.render(chat, now)?, view)?])
            }
        }
    }

    fn encode(&self, text: &str, view: &RequestView<'_>) -> Result<Vec<u32>, Reason> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        self.tokenizer.encode(text, view.add_special_tokens, &mut ids).map_err(|_| Reason::TokenizerError)?;
        let Some(truncation) = view.truncation else { return Ok(ids) };
        let cut = truncation.side == Side::Default && truncation.keep.is_some_and(|keep| keep < length(&ids));
        if cut && view.add_special_tokens && self.adds_special_tokens() {
            // Hugging Face then keeps the special tokens and fewer of the others.
            return Err(Reason::Truncation);
        }
        truncate(&mut ids, truncation, self.model_tokens_max, view.max_tokens)?;
        Ok(ids)
    }

    fn adds_special_tokens(&self) -> bool {
        let mut ids = Vec::new();
        self.tokenizer.encode("", true, &mut ids).is_err() || !ids.is_empty()
    }
}

/// The ids that the request brings itself, moved out of the view; they need no tokenizer.
fn given_ids(view: &mut RequestView<'_>, model_tokens_max: Option<u32>) -> Option<Prompts> {
    let Input::Completion(Prompt::Ids(lists)) = &mut view.input else { return None };
    let mut lists = std::mem::take(lists);
    if let Some(truncation) = view.truncation {
        for ids in &mut lists {
            if let Err(reason) = truncate(ids, truncation, model_tokens_max, view.max_tokens) {
                return Some(Prompts::Unknown(reason));
            }
        }
    }
    Some(Prompts::Ids(lists))
}

/// Cuts a prompt as vLLM does. What −1 leaves for the answer differs between its versions, so with it only prompts that
/// fit together with their answer are known.
fn truncate(
    ids: &mut Vec<u32>,
    truncation: Truncation,
    model_tokens_max: Option<u32>,
    max_tokens: Option<u32>,
) -> Result<(), Reason> {
    let Some(keep) = truncation.keep else {
        let limit = model_tokens_max.ok_or(Reason::Truncation)?;
        let needed = length(ids) + u64::from(max_tokens.unwrap_or(1).max(1));
        return if needed <= u64::from(limit) { Ok(()) } else { Err(Reason::Truncation) };
    };
    if keep == 0 {
        return Err(Reason::Truncation);
    }
    let Some(excess) = length(ids).checked_sub(keep) else { return Ok(()) };
    let excess = usize::try_from(excess).expect("the excess is less than the length, which is a usize");
    match truncation.side {
        Side::Default | Side::Left => drop(ids.drain(..excess)),
        Side::Right => ids.truncate(ids.len() - excess),
    }
    Ok(())
}

fn length(ids: &[u32]) -> u64 {
    u64::try_from(ids.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::bytes::BytesTokenizer;
    use super::*;
    use crate::openai::Endpoint;

    fn prompts(tokenizer: &ModelTokenizer, endpoint: Endpoint, body: &str) -> Prompts {
        let mut view = RequestView::parse(endpoint, body.as_bytes(), 4096).unwrap();
        tokenizer.prompts(&mut view, SystemTime::UNIX_EPOCH)
    }

    fn completion(fields: &str) -> Prompts {
        let tokenizer = bytes::model().with_model_tokens_max(Some(8));
        prompts(&tokenizer, Endpoint::Completions, &format!(r#"{{"model":"m",{fields}}}"#))
    }

    #[test]
    fn each_form_of_prompt_becomes_ids() {
        assert_eq!(completion(r#""prompt":"ab""#), Prompts::Ids(vec![vec![97, 98]]));
        assert_eq!(completion(r#""prompt":["a","b"]"#), Prompts::Ids(vec![vec![97], vec![98]]));
        assert_eq!(completion(r#""prompt":[5,6]"#), Prompts::Ids(vec![vec![5, 6]]));
        assert_eq!(completion(r#""prompt":[[5],[6]]"#), Prompts::Ids(vec![vec![5], vec![6]]));
        assert_eq!(completion(r#""prompt_embeds":"AA==""#), Prompts::Unknown(Reason::Embeddings));
    }

    #[test]
    fn truncation_keeps_the_last_tokens_unless_the_first_are_asked_for() {
        let cut = |fields: &str| completion(&format!(r#""prompt":[1,2,3],{fields}"#));
        assert_eq!(cut(r#""truncate_prompt_tokens":2"#), Prompts::Ids(vec![vec![2, 3]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":2,"truncation_side":"right""#), Prompts::Ids(vec![vec![1, 2]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":3"#), Prompts::Ids(vec![vec![1, 2, 3]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":0"#), Prompts::Unknown(Reason::Truncation));
        assert_eq!(completion(r#""prompt":"abc","truncate_prompt_tokens":1"#), Prompts::Ids(vec![vec![99]]));
    }

    #[test]
    fn truncation_to_the_models_length_is_known_only_for_prompts_that_fit_with_their_answer() {
        let cut = |fields: &str| completion(&format!(r#""prompt":[1,2,3],"truncate_prompt_tokens":-1,{fields}"#));
        assert_eq!(cut(r#""max_tokens":5"#), Prompts::Ids(vec![vec![1, 2, 3]]));
        assert_eq!(cut(r#""max_tokens":6"#), Prompts::Unknown(Reason::Truncation));
        let unlimited = bytes::model();
        let body = r#"{"model":"m","prompt":[1],"truncate_prompt_tokens":-1}"#;
        assert_eq!(prompts(&unlimited, Endpoint::Completions, body), Prompts::Unknown(Reason::Truncation));
    }

    /// Adds a token of its own, as tokenizers with a BOS do.
    struct WithBos;

    impl Tokenizer for WithBos {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            ids.extend(special.then_some(1000));
            BytesTokenizer.encode(text, special, ids)
        }
    }

    #[test]
    fn special_tokens_are_added_to_completions_and_not_to_chats_by_default() {
        let tokenizer = ModelTokenizer::new(WithBos, Some(ChatTemplate::new("{{ messages[0].content }}").unwrap()));
        let run = |endpoint, fields: &str| prompts(&tokenizer, endpoint, &format!(r#"{{"model":"m",{fields}}}"#));
        let chat = r#""messages":[{"role":"user","content":"a"}]"#;
        assert_eq!(run(Endpoint::Completions, r#""prompt":"a""#), Prompts::Ids(vec![vec![1000, 97]]));
        assert_eq!(
            run(Endpoint::Completions, r#""prompt":"a","add_special_tokens":false"#),
            Prompts::Ids(vec![vec![97]])
        );
        assert_eq!(run(Endpoint::Chat, chat), Prompts::Ids(vec![vec![97]]));
        let special = format!(r#"{chat},"add_special_tokens":true"#);
        assert_eq!(run(Endpoint::Chat, &special), Prompts::Ids(vec![vec![1000, 97]]));
        assert_eq!(
            run(Endpoint::Completions, r#""prompt":"abc","truncate_prompt_tokens":2"#),
            Prompts::Unknown(Reason::Truncation)
        );
        assert_eq!(
            run(Endpoint::Completions, r#""prompt":"abc","truncate_prompt_tokens":2,"truncation_side":"left""#),
            Prompts::Ids(vec![vec![98, 99]])
        );
    }

    #[test]
    fn a_chat_without_a_template_is_unknown() {
        let tokenizer = ModelTokenizer::new(BytesTokenizer, None);
        let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
        assert_eq!(prompts(&tokenizer, Endpoint::Chat, body), Prompts::Unknown(Reason::NoTemplate));
    }

    #[test]
    fn labels_are_distinct() {
        let labels: std::collections::HashSet<_> = Reason::ALL.iter().map(|reason| reason.label()).collect();
        assert_eq!(labels.len(), Reason::ALL.len());
    }
}
