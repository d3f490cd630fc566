//! A request's token ids, exactly as the engine will see them, or the reason why they cannot be had.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Semaphore;
use warmpath_core::ids::TokenId;

use crate::openai::{ChatInput, Input, RequestView};
use chat::ChatTemplate;
use remote::Remote;

pub mod bytes;
pub mod chat;
pub mod hf;
pub mod remote;

/// Texts up to this many bytes are encoded where they are; longer ones on a thread of their own.
const INLINE_MAX: usize = 4096;

/// Long texts that are encoded at once; a machine's cores are for requests, not for one hostile text.
const ENCODERS: usize = 4;

/// How long a request waits for such a place; then it is routed by load.
const PATIENCE: Duration = Duration::from_millis(250);

/// Turns a text into token ids. O(text).
pub trait Tokenizer: Send + Sync {
    /// The ids of `text`, with the special tokens that the model puts around a prompt where `special` is set.
    ///
    /// # Errors
    /// In words, when the text cannot be encoded.
    fn encode(&self, text: &str, special: bool) -> Result<Vec<TokenId>, String>;
}

/// Token ids, or why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// One list for each prompt.
    Ids(Vec<Vec<TokenId>>),
    /// The request is routed by load.
    Unknown(Reason),
}

impl Prompts {
    /// Whether what the engine reports as cached can be compared with what was promised: one prompt, its ids known.
    pub fn is_comparable(&self) -> bool {
        matches!(self, Prompts::Ids(prompts) if prompts.len() == 1)
    }
}

/// Why a request's token ids cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The model has no tokenizer here.
    NoTokenizer,
    /// The tokenizer is still being loaded.
    Loading,
    /// The tokenizer could not be loaded.
    Broken,
    /// Images, sounds or other media stand in the prompt.
    Media,
    /// The model has no chat template, or the request brings its own.
    Template,
    /// The template reads something that the request does not give, or refuses it.
    TemplateError,
    /// Truncation to a length that only the engine knows.
    Truncation,
    /// Too many long prompts at once.
    Busy,
    /// The text cannot be encoded.
    Text,
    /// The engine's `/tokenize` did not answer as it should.
    Remote,
}

impl Reason {
    /// The label of `untokenized_total`.
    pub fn label(self) -> &'static str {
        match self {
            Reason::NoTokenizer => "no_tokenizer",
            Reason::Loading => "loading",
            Reason::Broken => "broken",
            Reason::Media => "media",
            Reason::Template => "template",
            Reason::TemplateError => "template_error",
            Reason::Truncation => "truncation",
            Reason::Busy => "busy",
            Reason::Text => "text",
            Reason::Remote => "remote",
        }
    }
}

/// How one model's prompts become token ids. Cheap to clone.
#[derive(Clone)]
pub struct ModelTokenizer {
    source: Source,
    encoders: Arc<Semaphore>,
}

#[derive(Clone)]
enum Source {
    None,
    Local(Arc<OnceLock<Option<Loaded>>>),
    Remote(Arc<Remote>),
}

/// A tokenizer with its model's chat template.
#[derive(Clone)]
pub struct Loaded {
    /// The tokenizer.
    pub tokenizer: Arc<dyn Tokenizer>,
    /// The template; some models have none.
    pub template: Option<Arc<ChatTemplate>>,
}

impl ModelTokenizer {
    fn of(source: Source) -> Self {
        Self { source, encoders: Arc::new(Semaphore::new(ENCODERS)) }
    }

    /// No tokenizer: only token ids in the request are known.
    pub fn none() -> Self {
        Self::of(Source::None)
    }

    /// A token for each byte, and a plain template.
    pub fn bytes() -> Self {
        Self::ready(bytes::loaded())
    }

    /// The engine's own `/tokenize`.
    pub fn remote(engines: Vec<String>) -> Self {
        Self::of(Source::Remote(Arc::new(Remote::new(engines))))
    }

    /// A tokenizer that is here already.
    pub fn ready(loaded: Loaded) -> Self {
        Self::of(Source::Local(Arc::new(OnceLock::from(Some(loaded)))))
    }

    /// A `tokenizer.json`, loaded by a thread of its own; until it is there requests are routed by load.
    pub fn load_in_background(file: &Path, template: Option<&Path>) -> Self {
        let place = Arc::new(OnceLock::new());
        let (to, file, template) = (Arc::clone(&place), file.to_owned(), template.map(Path::to_owned));
        let load = move || {
            let loaded = hf::load(&file, template.as_deref());
            if let Err(error) = &loaded {
                tracing::error!(file = %file.display(), error, "tokenizer cannot be loaded; its model is routed by load");
            }
            // Nobody else sets it.
            let _ = to.set(loaded.ok());
        };
        if let Err(error) = std::thread::Builder::new().name("tokenizer-load".to_owned()).spawn(load) {
            tracing::error!(%error, "no thread for loading a tokenizer");
        }
        Self::of(Source::Local(place))
    }

    /// A `tokenizer.json`, now.
    ///
    /// # Errors
    /// In words, when it cannot be loaded.
    pub fn load_file(file: &Path) -> Result<Self, String> {
        Ok(Self::ready(hf::load(file, None)?))
    }

    /// The state in words, where it is not as it should be.
    pub fn complaint(&self) -> Option<&'static str> {
        match &self.source {
            Source::Local(place) => match place.get() {
                None => Some("is still being loaded"),
                Some(None) => Some("could not be loaded"),
                Some(Some(_)) => None,
            },
            Source::None | Source::Remote(_) => None,
        }
    }

    /// The request's token ids. Long texts are encoded off the async threads, a few at a time.
    pub async fn prompts(&self, view: &RequestView<'_>) -> Prompts {
        match self.ids(view).await {
            Ok(prompts) => truncated(prompts, view.truncate_prompt_tokens),
            Err(reason) => Prompts::Unknown(reason),
        }
    }

    async fn ids(&self, view: &RequestView<'_>) -> Result<Vec<Vec<TokenId>>, Reason> {
        if let Input::Ids(ids) = &view.input {
            return Ok(ids.clone());
        }
        let loaded = match &self.source {
            Source::None => return Err(Reason::NoTokenizer),
            Source::Remote(remote) => return remote.prompts(view).await,
            Source::Local(place) => place.get().ok_or(Reason::Loading)?.as_ref().ok_or(Reason::Broken)?,
        };
        match &view.input {
            Input::Ids(ids) => Ok(ids.clone()),
            Input::Texts(texts) => {
                let special = view.add_special_tokens.unwrap_or(true);
                let mut prompts = Vec::with_capacity(texts.len());
                for text in texts {
                    prompts.push(self.encode(loaded, text, special).await?);
                }
                Ok(prompts)
            }
            Input::Chat(chat) => {
                let text = render(loaded, chat)?;
                let special = view.add_special_tokens.unwrap_or(false);
                Ok(vec![self.encode(loaded, &text, special).await?])
            }
        }
    }

    async fn encode(&self, loaded: &Loaded, text: &str, special: bool) -> Result<Vec<TokenId>, Reason> {
        if text.len() <= INLINE_MAX {
            return loaded.tokenizer.encode(text, special).map_err(|_| Reason::Text);
        }
        let place = tokio::time::timeout(PATIENCE, Arc::clone(&self.encoders).acquire_owned()).await;
        let Ok(Ok(place)) = place else { return Err(Reason::Busy) };
        let (tokenizer, text) = (Arc::clone(&loaded.tokenizer), text.to_owned());
        let encoding = tokio::task::spawn_blocking(move || {
            let ids = tokenizer.encode(&text, special);
            drop(place);
            ids
        });
        encoding.await.map_err(|_| Reason::Text)?.map_err(|_| Reason::Text)
    }
}

fn render(loaded: &Loaded, chat: &ChatInput<'_>) -> Result<String, Reason> {
    // Engines refuse a client's own template unless they were told to trust it.
    if chat.chat_template.is_some() {
        return Err(Reason::Template);
    }
    loaded.template.as_ref().ok_or(Reason::Template)?.render(chat)
}

/// Keeps the last so many tokens, as vLLM does.
fn truncated(mut prompts: Vec<Vec<TokenId>>, keep: Option<i64>) -> Prompts {
    let Some(keep) = keep else { return Prompts::Ids(prompts) };
    let Ok(keep) = usize::try_from(keep) else { return Prompts::Unknown(Reason::Truncation) };
    for prompt in &mut prompts {
        prompt.drain(..prompt.len().saturating_sub(keep));
    }
    Prompts::Ids(prompts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Endpoint;

    async fn prompts(tokenizer: ModelTokenizer, endpoint: Endpoint, body: &str) -> Prompts {
        let view = RequestView::parse(endpoint, body.as_bytes(), 100).unwrap();
        tokenizer.prompts(&view).await
    }

    #[tokio::test]
    async fn token_ids_need_no_tokenizer_and_text_does() {
        let ids = prompts(ModelTokenizer::none(), Endpoint::Completions, r#"{"prompt": [5, 6]}"#).await;
        assert_eq!(ids, Prompts::Ids(vec![vec![5, 6]]));
        let text = prompts(ModelTokenizer::none(), Endpoint::Completions, r#"{"prompt": "x"}"#).await;
        assert_eq!(text, Prompts::Unknown(Reason::NoTokenizer));
    }

    #[tokio::test]
    async fn long_text_gives_the_same_as_short_text() {
        let long = "a".repeat(INLINE_MAX + 1);
        let body = format!(r#"{{"prompt": ["ab", "{long}"]}}"#);
        let Prompts::Ids(ids) = prompts(ModelTokenizer::bytes(), Endpoint::Completions, &body).await else { panic!() };
        assert_eq!((ids[0].as_slice(), ids[1].len()), ([97, 98].as_slice(), INLINE_MAX + 1));
    }

    #[tokio::test]
    async fn truncation_keeps_the_end() {
        let cut = |keep| format!(r#"{{"prompt": "abcd", "truncate_prompt_tokens": {keep}}}"#);
        let of = async |keep| prompts(ModelTokenizer::bytes(), Endpoint::Completions, &cut(keep)).await;
        assert_eq!(of(2).await, Prompts::Ids(vec![vec![99, 100]]));
        assert_eq!(of(9).await, Prompts::Ids(vec![vec![97, 98, 99, 100]]));
        assert_eq!(of(-1).await, Prompts::Unknown(Reason::Truncation));
    }

    #[tokio::test]
    async fn a_clients_own_template_is_not_guessed_at() {
        let body = r#"{"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ 1 }}"}"#;
        assert_eq!(prompts(ModelTokenizer::bytes(), Endpoint::Chat, body).await, Prompts::Unknown(Reason::Template));
    }
}
