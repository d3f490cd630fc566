//! One model's tokenizer as requests see it: loaded in the background, with long texts off the async threads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::{Semaphore, SetOnce};
use tokio::time::timeout;

use super::hf::LoadError;
use super::remote::RemoteTokenizer;
use super::{ModelTokenizer, Prompts, Reason, given_ids};
use crate::link::Link;
use crate::openai::{Endpoint, Input, RequestView};

/// Bounds of the work that tokenizing may take.
#[derive(Clone, Copy, Debug)]
pub struct TokenizeLimits {
    /// Bodies of up to this many bytes are tokenized on the async thread that serves the request: with 0.25 µs a byte,
    /// moving them costs more.
    pub inline_bytes_max: usize,
    /// Larger bodies than this are not tokenized.
    pub body_bytes_max: usize,
    /// How many longer bodies are tokenized at once.
    pub jobs_max: usize,
    /// How long a request waits for its turn.
    pub wait_max: Duration,
}

impl Default for TokenizeLimits {
    /// 4 KiB inline, 4 MiB at most (a million tokens of natural text), two jobs, 100 ms.
    fn default() -> Self {
        Self { inline_bytes_max: 4 << 10, body_bytes_max: 4 << 20, jobs_max: 2, wait_max: Duration::from_millis(100) }
    }
}

/// Whether a tokenizer can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenizerState {
    /// None is configured.
    Absent,
    /// It is being loaded.
    Loading,
    /// It can be used.
    Ready,
    /// It could not be loaded, and why.
    Failed(String),
}

type Loaded = Result<Arc<ModelTokenizer>, String>;

/// A model's tokenizer: absent, loading, ready or failed. Never an obstacle: whatever it cannot tell is
/// [`Prompts::Unknown`].
pub struct TokenizerHandle {
    local: Option<Arc<SetOnce<Loaded>>>,
    remote: Option<RemoteTokenizer>,
    jobs: Arc<Semaphore>,
    limits: TokenizeLimits,
}

impl TokenizerHandle {
    /// No tokenizer of our own.
    pub fn absent(limits: TokenizeLimits) -> Self {
        Self { local: None, remote: None, jobs: Arc::new(Semaphore::new(limits.jobs_max)), limits }
    }

    /// A tokenizer that is there already.
    pub fn ready(tokenizer: ModelTokenizer, limits: TokenizeLimits) -> Self {
        let local = Arc::new(SetOnce::new_with(Some(Ok(Arc::new(tokenizer)))));
        Self { local: Some(local), ..Self::absent(limits) }
    }

    /// Starts to load a tokenizer on a blocking thread, for example by [`hf::load`](super::hf::load). The thread ends with
    /// the load; nobody has to wait for it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn load<F>(loader: F, limits: TokenizeLimits) -> Self
    where
        F: FnOnce() -> Result<ModelTokenizer, LoadError> + Send + 'static,
    {
        let local = Arc::new(SetOnce::new());
        let settle = Arc::clone(&local);
        tokio::task::spawn_blocking(move || {
            // A library's panic must not leave the state at `Loading` for ever.
            let loaded: Loaded = match catch_unwind(AssertUnwindSafe(loader)) {
                Ok(Ok(tokenizer)) => Ok(Arc::new(tokenizer)),
                Ok(Err(error)) => Err(chain(&error)),
                Err(_) => Err("the loader panicked".to_owned()),
            };
            // Cannot fail: only this thread sets it.
            let _ = settle.set(loaded);
        });
        Self { local: Some(local), ..Self::absent(limits) }
    }

    /// Also asks an engine's `/tokenize` for ids that cannot be told here.
    pub fn with_remote(mut self, remote: RemoteTokenizer) -> Self {
        self.remote = Some(remote);
        self
    }

    /// The engines that can be asked are these now.
    pub fn set_engines(&self, engines: impl Iterator<Item = Arc<Link>>) {
        if let Some(remote) = &self.remote {
            remote.set_engines(engines);
        }
    }

    /// Whether the tokenizer of our own can be used.
    pub fn state(&self) -> TokenizerState {
        match self.local.as_ref().map(|local| local.get()) {
            None => TokenizerState::Absent,
            Some(None) => TokenizerState::Loading,
            Some(Some(Ok(_))) => TokenizerState::Ready,
            Some(Some(Err(reason))) => TokenizerState::Failed(reason.clone()),
        }
    }

    /// Waits until the tokenizer is loaded or has failed, and tells which.
    pub async fn settled(&self) -> TokenizerState {
        if let Some(local) = &self.local {
            local.wait().await;
        }
        self.state()
    }

    /// The ids of a request's prompts. `body` is what `view` was parsed from: longer texts are tokenized on another thread,
    /// which reads the body again, since the view borrows.
    ///
    /// Ids that the request itself brings are moved out of the view. Waits at most `wait_max` for a turn.
    pub async fn prompts(&self, body: &Bytes, view: &mut RequestView<'_>) -> Prompts {
        let known = self.local_prompts(body, view).await;
        match (&self.remote, known) {
            (Some(remote), Prompts::Unknown(reason)) if reason.engine_may_know() => remote.prompts(view).await,
            (_, known) => known,
        }
    }

    async fn local_prompts(&self, body: &Bytes, view: &mut RequestView<'_>) -> Prompts {
        let tokenizer = match self.local.as_ref().map(|local| local.get()) {
            Some(Some(Ok(tokenizer))) => tokenizer,
            other => {
                let reason = match other {
                    None => Reason::NoTokenizer,
                    Some(None) => Reason::Loading,
                    Some(Some(_)) => Reason::LoadFailed,
                };
                return given_ids(view, None).unwrap_or(Prompts::Unknown(reason));
            }
        };
        if body.len() <= self.limits.inline_bytes_max {
            return tokenizer.prompts(view, SystemTime::now());
        }
        if let Some(prompts) = given_ids(view, tokenizer.model_tokens_max) {
            return prompts;
        }
        if body.len() > self.limits.body_bytes_max {
            return Prompts::Unknown(Reason::TooLong);
        }
        self.elsewhere(Arc::clone(tokenizer), body.clone(), endpoint(view)).await
    }

    /// Runs one long request on a blocking thread. The permit goes with the job, not with the request: a client that hangs
    /// up does not make room for another job before this one has ended.
    async fn elsewhere(&self, tokenizer: Arc<ModelTokenizer>, body: Bytes, endpoint: Endpoint) -> Prompts {
        let turn = timeout(self.limits.wait_max, Arc::clone(&self.jobs).acquire_owned()).await;
        let Ok(Ok(permit)) = turn else { return Prompts::Unknown(Reason::TokenizerBusy) };
        let job = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            // It was within its bounds before.
            match RequestView::parse(endpoint, &body, usize::MAX) {
                Ok(mut view) => tokenizer.prompts(&mut view, SystemTime::now()),
                Err(_) => Prompts::Unknown(Reason::TokenizerError),
            }
        });
        job.await.unwrap_or(Prompts::Unknown(Reason::TokenizerError))
    }
}

fn endpoint(view: &RequestView<'_>) -> Endpoint {
    match view.input {
        Input::Completion(_) => Endpoint::Completions,
        Input::Chat(_) => Endpoint::Chat,
    }
}

/// An error with its causes, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::sync::{Mutex, PoisonError};

    use super::super::bytes::{self, BytesTokenizer};
    use super::super::{TokenizeError, Tokenizer};
    use super::*;

    async fn ask(handle: &TokenizerHandle, prompt: &str) -> Prompts {
        let body = Bytes::from(format!(r#"{{"model":"m","prompt":{prompt}}}"#));
        let mut view = RequestView::parse(Endpoint::Completions, &body, 4096).unwrap();
        handle.prompts(&body, &mut view).await
    }

    #[tokio::test]
    async fn without_a_tokenizer_only_given_ids_are_known() {
        let handle = TokenizerHandle::absent(TokenizeLimits::default());
        assert_eq!(handle.settled().await, TokenizerState::Absent);
        assert_eq!(ask(&handle, "[7]").await, Prompts::Ids(vec![vec![7]]));
        assert_eq!(ask(&handle, r#""a""#).await, Prompts::Unknown(Reason::NoTokenizer));
    }

    #[tokio::test]
    async fn requests_are_unknown_until_the_tokenizer_is_loaded() {
        let (start, wait) = sync_channel::<()>(0);
        let loader = move || {
            wait.recv().expect("the test sends");
            Ok(bytes::model())
        };
        let handle = TokenizerHandle::load(loader, TokenizeLimits::default());
        assert_eq!(handle.state(), TokenizerState::Loading);
        assert_eq!(ask(&handle, r#""a""#).await, Prompts::Unknown(Reason::Loading));
        assert_eq!(ask(&handle, "[7]").await, Prompts::Ids(vec![vec![7]]));
        start.send(()).unwrap();
        assert_eq!(handle.settled().await, TokenizerState::Ready);
        assert_eq!(ask(&handle, r#""a""#).await, Prompts::Ids(vec![vec![97]]));
    }

    #[tokio::test]
    async fn a_failed_load_is_told_with_its_cause_and_a_panic_counts_as_one() {
        let missing = || Err(LoadError::TooLarge { path: PathBuf::from("t.json"), limit: 3 });
        let handle = TokenizerHandle::load(missing, TokenizeLimits::default());
        assert_eq!(handle.settled().await, TokenizerState::Failed("`t.json` has more than 3 bytes".to_owned()));
        assert_eq!(ask(&handle, r#""a""#).await, Prompts::Unknown(Reason::LoadFailed));
        let handle = TokenizerHandle::load(|| panic!("broken"), TokenizeLimits::default());
        assert_eq!(handle.settled().await, TokenizerState::Failed("the loader panicked".to_owned()));
    }

    #[tokio::test]
    async fn long_bodies_are_tokenized_elsewhere_and_the_longest_not_at_all() {
        let limits = TokenizeLimits { inline_bytes_max: 40, body_bytes_max: 100, ..TokenizeLimits::default() };
        let handle = TokenizerHandle::ready(bytes::model(), limits);
        let long = format!(r#""{}""#, "a".repeat(50));
        assert_eq!(ask(&handle, &long).await, Prompts::Ids(vec![vec![97; 50]]));
        let longest = format!(r#""{}""#, "a".repeat(100));
        assert_eq!(ask(&handle, &longest).await, Prompts::Unknown(Reason::TooLong));
        let ids = format!("[{}1]", "1,".repeat(99));
        assert_eq!(ask(&handle, &ids).await, Prompts::Ids(vec![vec![1; 100]]));
    }

    /// Says when it has begun, and waits until it may go on.
    struct Gated {
        begun: SyncSender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Tokenizer for Gated {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            self.begun.send(()).expect("the test listens");
            self.go_on.lock().unwrap_or_else(PoisonError::into_inner).recv().expect("the test sends");
            BytesTokenizer.encode(text, special, ids)
        }
    }

    #[tokio::test]
    async fn when_all_jobs_are_taken_the_wait_for_a_turn_is_bounded() {
        let (begun, has_begun) = sync_channel(1);
        let (go, go_on) = sync_channel(1);
        let gated = ModelTokenizer::new(Gated { begun, go_on: Mutex::new(go_on) }, None);
        let limits = TokenizeLimits {
            inline_bytes_max: 0,
            jobs_max: 1,
            wait_max: Duration::from_millis(5),
            ..TokenizeLimits::default()
        };
        let handle = TokenizerHandle::ready(gated, limits);
        let first = ask(&handle, r#""first""#);
        let second = async {
            tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
            let answer = ask(&handle, r#""second""#).await;
            go.send(()).unwrap();
            answer
        };
        let (first, second) = tokio::join!(first, second);
        assert_eq!(first, Prompts::Ids(vec![b"first".map(u32::from).to_vec()]));
        assert_eq!(second, Prompts::Unknown(Reason::TokenizerBusy));
    }
}
