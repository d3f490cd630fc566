//! A model's tokenizer with its chat template: everything that is needed to turn requests into ids.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::checked::LiveCheck;
use super::course::Course;
use super::cuts::Cuts;
use super::{ChatTemplate, Reason, TokenizeError, Tokenizer};
use crate::openai::{Input, Prompt, RequestView, Side, Truncation};

/// A model's tokenizer with its chat template.
pub struct ModelTokenizer {
    tokenizer: Arc<dyn Tokenizer>,
    pub(super) template: Option<ChatTemplate>,
    pub(super) model_tokens_max: Option<u32>,
    cuts: Cuts,
    frame: OnceLock<Option<Frame>>,
    number: u64,
    pub(super) course: Arc<Course>,
    pub(super) live: Option<LiveCheck>,
}

/// The ids that special tokens put in front of a text and behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) before: Vec<u32>,
    pub(super) behind: Vec<u32>,
}

/// Tells tokenizers apart, so that they may share what is kept.
static NUMBERS: AtomicU64 = AtomicU64::new(0);

impl ModelTokenizer {
    /// A tokenizer; without a template it serves completions only. Its texts are not cut.
    pub fn new(tokenizer: impl Tokenizer + 'static, template: Option<ChatTemplate>) -> Self {
        Self {
            tokenizer: Arc::new(tokenizer),
            template,
            model_tokens_max: None,
            cuts: Cuts::none(),
            frame: OnceLock::new(),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            course: Arc::default(),
            live: None,
        }
    }

    /// The longest prompt with its answer that the model takes (vLLM's `max_model_len`). Only truncation to "as much as
    /// the model takes" needs it.
    pub fn with_model_tokens_max(mut self, tokens: Option<u32>) -> Self {
        self.model_tokens_max = tokens;
        self
    }

    /// Cuts texts where it is safe, and goes the way that comparisons leave open.
    pub(super) fn with_course(self, cuts: Cuts, course: Arc<Course>, live: Option<LiveCheck>) -> Self {
        Self { cuts, course, live, ..self }
    }

    /// The ids of the request's prompts. Blocks for as long as rendering and encoding take. Ids that the request itself
    /// brings are moved out of the view.
    ///
    /// `now` is what a template sees that prints the date.
    ///
    /// # Errors
    /// The [`Reason`] why they cannot be told.
    pub fn ids(&self, view: &mut RequestView<'_>, now: SystemTime) -> Result<Vec<Vec<u32>>, Reason> {
        if let Some(given) = given_ids(view, self.model_tokens_max) {
            return given;
        }
        match &view.input {
            Input::Completion(Prompt::Texts(texts)) => texts.iter().map(|text| self.encode(text, view)).collect(),
            Input::Completion(_) => Err(Reason::Embeddings),
            Input::Chat(chat) => {
                let template = self.template.as_ref().ok_or(Reason::NoTemplate)?;
                Ok(vec![self.encode(&template.render(chat, now, None)?.text(), view)?])
            }
        }
    }

    fn encode(&self, text: &str, view: &RequestView<'_>) -> Result<Vec<u32>, Reason> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 8);
        self.tokenizer.encode(text, view.add_special_tokens, &mut ids).map_err(|_| Reason::TokenizerError)?;
        let Some(truncation) = view.truncation else { return Ok(ids) };
        let cut = truncation.side == Side::Default && truncation.keep.is_some_and(|keep| keep < length(&ids));
        if cut && view.add_special_tokens && self.frame().is_none_or(|frame| *frame != Frame::default()) {
            // Hugging Face then keeps the special tokens and fewer of the others.
            return Err(Reason::Truncation);
        }
        truncate(&mut ids, truncation, self.model_tokens_max, view.max_tokens)?;
        Ok(ids)
    }

    /// What special tokens add, if that is the same for every text. The first call encodes three short texts.
    pub(super) fn frame(&self) -> Option<&Frame> {
        self.frame.get_or_init(|| Frame::of(&*self.tokenizer)).as_ref()
    }

    /// Ids of a whole text with its special tokens, appended to `ids`.
    pub(super) fn encode_whole(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        self.tokenizer.encode(text, true, ids)
    }

    /// Ids of a part of a text, appended to `ids`.
    pub(super) fn encode_part(&self, part: &str, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        self.tokenizer.encode(part, false, ids)
    }

    /// The end of the part of `text` that begins at `from`, of about `bytes_min` bytes.
    pub(super) fn part_end(&self, text: &str, from: usize, bytes_min: usize) -> usize {
        if self.course.whole() { text.len() } else { self.cuts.next(text, from, bytes_min) }
    }

    /// Names this tokenizer as it is now: whatever was made by another, or by this one before it changed its course, has
    /// another name.
    pub(super) fn name(&self) -> u128 {
        u128::from(self.number) << 64 | u128::from(self.course.generation())
    }
}

impl Frame {
    fn of(tokenizer: &dyn Tokenizer) -> Option<Self> {
        let encoded = |text: &str, special: bool| {
            let mut ids = Vec::new();
            tokenizer.encode(text, special, &mut ids).ok().map(|()| ids)
        };
        let around = |text: &str| {
            let (framed, plain) = (encoded(text, true)?, encoded(text, false)?);
            let at = (0..=framed.len().checked_sub(plain.len())?).find(|at| framed[*at..].starts_with(&plain))?;
            Some(Self { before: framed[..at].to_vec(), behind: framed[at + plain.len()..].to_vec() })
        };
        let frame = around("a")?;
        let alone = [&frame.before[..], &frame.behind[..]].concat();
        (around("Hello, world!")? == frame && encoded("", true)? == alone).then_some(frame)
    }
}

/// The texts of a completion, as far as it has any.
pub(super) fn texts<'a>(prompt: &'a Prompt<'_>) -> Result<Vec<Cow<'a, str>>, Reason> {
    match prompt {
        Prompt::Texts(texts) => Ok(texts.iter().map(|text| Cow::Borrowed(text.as_ref())).collect()),
        Prompt::Ids(_) | Prompt::Embeddings | Prompt::Unread { .. } => Err(Reason::Embeddings),
    }
}

/// The ids that the request brings itself, moved out of the view; they need no tokenizer.
pub(super) fn given_ids(
    view: &mut RequestView<'_>,
    model_tokens_max: Option<u32>,
) -> Option<Result<Vec<Vec<u32>>, Reason>> {
    let Input::Completion(Prompt::Ids(lists)) = &mut view.input else { return None };
    let mut lists = std::mem::take(lists);
    if let Some(truncation) = view.truncation {
        for ids in &mut lists {
            if let Err(reason) = truncate(ids, truncation, model_tokens_max, view.max_tokens) {
                return Some(Err(reason));
            }
        }
    }
    Some(Ok(lists))
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
    use super::super::bytes::{self, BytesTokenizer};
    use super::*;
    use crate::openai::Endpoint;

    type Ids = Result<Vec<Vec<u32>>, Reason>;

    fn prompts(tokenizer: &ModelTokenizer, endpoint: Endpoint, body: &str) -> Ids {
        let mut view = RequestView::parse(endpoint, body.as_bytes(), 4096).unwrap();
        tokenizer.ids(&mut view, SystemTime::UNIX_EPOCH)
    }

    fn completion(fields: &str) -> Ids {
        let tokenizer = bytes::model().with_model_tokens_max(Some(8));
        prompts(&tokenizer, Endpoint::Completions, &format!(r#"{{"model":"m",{fields}}}"#))
    }

    #[test]
    fn each_form_of_prompt_becomes_ids() {
        assert_eq!(completion(r#""prompt":"ab""#), Ok(vec![vec![97, 98]]));
        assert_eq!(completion(r#""prompt":["a","b"]"#), Ok(vec![vec![97], vec![98]]));
        assert_eq!(completion(r#""prompt":[5,6]"#), Ok(vec![vec![5, 6]]));
        assert_eq!(completion(r#""prompt":[[5],[6]]"#), Ok(vec![vec![5], vec![6]]));
        assert_eq!(completion(r#""prompt_embeds":"AA==""#), Err(Reason::Embeddings));
    }

    #[test]
    fn truncation_keeps_the_last_tokens_unless_the_first_are_asked_for() {
        let cut = |fields: &str| completion(&format!(r#""prompt":[1,2,3],{fields}"#));
        assert_eq!(cut(r#""truncate_prompt_tokens":2"#), Ok(vec![vec![2, 3]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":2,"truncation_side":"right""#), Ok(vec![vec![1, 2]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":3"#), Ok(vec![vec![1, 2, 3]]));
        assert_eq!(cut(r#""truncate_prompt_tokens":0"#), Err(Reason::Truncation));
        assert_eq!(completion(r#""prompt":"abc","truncate_prompt_tokens":1"#), Ok(vec![vec![99]]));
    }

    #[test]
    fn truncation_to_the_models_length_is_known_only_for_prompts_that_fit_with_their_answer() {
        let cut = |fields: &str| completion(&format!(r#""prompt":[1,2,3],"truncate_prompt_tokens":-1,{fields}"#));
        assert_eq!(cut(r#""max_tokens":5"#), Ok(vec![vec![1, 2, 3]]));
        assert_eq!(cut(r#""max_tokens":6"#), Err(Reason::Truncation));
        let unlimited = bytes::model();
        let body = r#"{"model":"m","prompt":[1],"truncate_prompt_tokens":-1}"#;
        assert_eq!(prompts(&unlimited, Endpoint::Completions, body), Err(Reason::Truncation));
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
        assert_eq!(run(Endpoint::Completions, r#""prompt":"a""#), Ok(vec![vec![1000, 97]]));
        assert_eq!(run(Endpoint::Completions, r#""prompt":"a","add_special_tokens":false"#), Ok(vec![vec![97]]));
        assert_eq!(run(Endpoint::Chat, chat), Ok(vec![vec![97]]));
        let special = format!(r#"{chat},"add_special_tokens":true"#);
        assert_eq!(run(Endpoint::Chat, &special), Ok(vec![vec![1000, 97]]));
        assert_eq!(run(Endpoint::Completions, r#""prompt":"abc","truncate_prompt_tokens":2"#), Err(Reason::Truncation));
        assert_eq!(
            run(Endpoint::Completions, r#""prompt":"abc","truncate_prompt_tokens":2,"truncation_side":"left""#),
            Ok(vec![vec![98, 99]])
        );
    }

    #[test]
    fn a_chat_without_a_template_is_unknown() {
        let tokenizer = ModelTokenizer::new(BytesTokenizer, None);
        let body = r#"{"model":"m","messages":[{"role":"user","content":"a"}]}"#;
        assert_eq!(prompts(&tokenizer, Endpoint::Chat, body), Err(Reason::NoTemplate));
    }

    #[test]
    fn what_special_tokens_add_is_known_if_it_is_always_the_same() {
        assert_eq!(Frame::of(&WithBos), Some(Frame { before: vec![1000], behind: vec![] }));
        assert_eq!(Frame::of(&BytesTokenizer), Some(Frame::default()));
    }
}
