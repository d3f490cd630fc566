//! One model's tokenizer as requests see it: loaded in the background, with long texts off the async threads.

use std::num::NonZeroU32;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Instant, SystemTime};

use bytes::Bytes;
use tokio::sync::SetOnce;
use warmpath_core::blocks::Root;

use super::bytes as byte_tokens;
use super::hf::{self, LoadError, TokenizerFiles};
use super::model::given_ids;
use super::remote::{Engine, RemoteTokenizer};
use super::shared::TokenizeShared;
use super::work::{Begun, Tally, Workplace};
use super::{ModelTokenizer, Prompts, Reason};
use crate::config::{Model, TokenizerSource};
use crate::error::chain;
use crate::openai::{ChatView, Dialect, Endpoint, Input, Prompt, Raw, RequestView};
use crate::telemetry::metrics::TokenizerFigures;

/// Bytes of a body whose ids are made on the async thread, where ids are asked for: 1 ms with the slowest tokenizer.
const INLINE_IDS_MAX: usize = 4 << 10;

/// Bytes that a message, or one of several prompts, counts as when it is decided where they are worked on.
const MESSAGE_WEIGHT: usize = 512;

/// The same of a value in what templates are told beside: an empty list costs as much as a line of text.
const VALUE_WEIGHT: usize = 32;

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

/// A tokenizer that is loaded, or will be.
pub(super) type Loading = SetOnce<Loaded>;

/// A model's tokenizer: absent, loading, ready or failed. Never an obstacle: whatever it cannot tell is
/// [`Prompts::Unknown`].
pub struct TokenizerHandle {
    local: Option<Arc<Loading>>,
    remote: Option<RemoteTokenizer>,
    shared: Arc<TokenizeShared>,
    tally: Arc<Tally>,
    gives_ids: AtomicBool,
}

impl TokenizerHandle {
    /// No tokenizer of our own.
    pub fn absent(shared: Arc<TokenizeShared>) -> Self {
        let tally = Arc::new(Tally::new(Instant::now()));
        Self { local: None, remote: None, shared, tally, gives_ids: AtomicBool::new(false) }
    }

    /// The tokenizer that the configuration names for a model, which begins to load where no other model has it; absent where
    /// it names none of our own.
    ///
    /// # Panics
    /// As [`TokenizerHandle::load`] does.
    pub fn configured(model: &Model, shared: Arc<TokenizeShared>, check_every: Option<NonZeroU32>) -> Self {
        match &model.tokenizer {
            None | Some(TokenizerSource::Remote) => Self::absent(shared),
            Some(TokenizerSource::Bytes) => Self::ready(byte_tokens::model(), shared),
            Some(TokenizerSource::File(file)) => {
                let files = TokenizerFiles {
                    tokenizer: file.clone(),
                    chat_template: model.chat_template.clone(),
                    chat_template_kwargs: model.chat_template_kwargs.clone(),
                    model_tokens_max: None,
                    check_every,
                };
                let of_files = files.clone();
                let local = shared.loads.of(&files, || begin(move || hf::load(&of_files)));
                Self { local: Some(local), ..Self::absent(shared) }
            }
        }
    }

    /// A tokenizer that is there already.
    pub fn ready(tokenizer: ModelTokenizer, shared: Arc<TokenizeShared>) -> Self {
        let local = Arc::new(SetOnce::new_with(Some(Ok(Arc::new(tokenizer)))));
        Self { local: Some(local), ..Self::absent(shared) }
    }

    /// Starts to load a tokenizer on a blocking thread, for example by [`hf::load`](super::hf::load). The thread ends with
    /// the load; nobody has to wait for it.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn load<F>(loader: F, shared: Arc<TokenizeShared>) -> Self
    where
        F: FnOnce() -> Result<ModelTokenizer, LoadError> + Send + 'static,
    {
        Self { local: Some(begin(loader)), ..Self::absent(shared) }
    }

    /// Also asks an engine's `/tokenize` for ids that cannot be told here.
    pub fn with_remote(mut self, remote: RemoteTokenizer) -> Self {
        self.remote = Some(remote);
        self
    }

    /// Whether engines are asked for what cannot be told here.
    pub fn asks_engines(&self) -> bool {
        self.remote.is_some()
    }

    /// The engines that can be asked are these now.
    pub fn set_engines<E: Engine + 'static>(&self, engines: impl Iterator<Item = Arc<E>>) {
        if let Some(remote) = &self.remote {
            remote.set_engines(engines);
        }
    }

    /// Tells ids and never hashes, for placing by a policy that reads ids. Nothing is kept then: fast tokenizers are
    /// faster than what keeping ids would cost.
    pub fn giving_ids(self, gives_ids: bool) -> Self {
        self.set_giving_ids(gives_ids);
        self
    }

    /// The same for prompts to come.
    pub fn set_giving_ids(&self, gives_ids: bool) {
        self.gives_ids.store(gives_ids, Ordering::Relaxed);
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

    /// What placing needs of a request's prompts: the hashes of their blocks below `root`, or ids where the request brings
    /// them or nothing else can be had. `body` is what `view` was parsed from: long chats are rendered on another thread,
    /// which reads the body again, since the view borrows.
    ///
    /// Ids that the request itself brings are moved out of the view. Waits at most `wait_max` for other threads.
    pub async fn prompts(&self, body: &Bytes, view: &mut RequestView<'_>, root: &Root) -> Prompts {
        if self.gives_ids.load(Ordering::Relaxed) {
            return self.ids(body, view).await.into();
        }
        let known = self.local_prompts(body, view, root).await;
        match (&self.remote, known) {
            (Some(remote), Err(reason)) if reason.engine_may_know() => remote.ids(view).await.into(),
            (_, known) => known.unwrap_or_else(Prompts::Unknown),
        }
    }

    /// The ids of a request's prompts, under the same conditions.
    ///
    /// # Errors
    /// The [`Reason`] why they cannot be told.
    pub async fn ids(&self, body: &Bytes, view: &mut RequestView<'_>) -> Result<Vec<Vec<u32>>, Reason> {
        let known = self.local_ids(body, view).await;
        match (&self.remote, known) {
            (Some(remote), Err(reason)) if reason.engine_may_know() => remote.ids(view).await,
            (_, known) => known,
        }
    }

    /// What there is to measure at this moment.
    pub fn figures(&self, now: Instant) -> TokenizerFigures {
        let count = |bytes: &std::sync::atomic::AtomicU64| bytes.load(Ordering::Relaxed);
        let course = self.loaded().ok().map(|tokenizer| &tokenizer.course);
        TokenizerFigures {
            repeated_bytes: count(&self.tally.repeated),
            found_bytes: count(&self.tally.found),
            encoded_bytes: count(&self.tally.encoded),
            known_share: self.tally.recent.read(now),
            cache_bytes: self.shared.cache_bytes(),
            comparisons: course.map(|course| course.comparisons()).unwrap_or_default(),
            fast: course.map(|course| !course.reference_only()),
            cuts: course.map(|course| !course.whole()),
        }
    }

    fn loaded(&self) -> Result<&Arc<ModelTokenizer>, Reason> {
        match self.local.as_ref().map(|local| local.get()) {
            Some(Some(Ok(tokenizer))) => Ok(tokenizer),
            None => Err(Reason::NoTokenizer),
            Some(None) => Err(Reason::Loading),
            Some(Some(Err(_))) => Err(Reason::LoadFailed),
        }
    }

    /// The tokenizer, for a body that is worth it; or the ids that the request brings.
    fn start(&self, body: &Bytes, view: &mut RequestView<'_>) -> Result<Start<'_>, Reason> {
        let loaded = self.loaded();
        let tokens_max = loaded.as_ref().ok().and_then(|tokenizer| tokenizer.model_tokens_max);
        if let Some(given) = given_ids(view, tokens_max) {
            return given.map(Start::Given);
        }
        let tokenizer = loaded?;
        if !view.is_rendered_alike() {
            return Err(Reason::EngineRules);
        }
        if body.len() > self.shared.limits.body_bytes_max { Err(Reason::TooLong) } else { Ok(Start::With(tokenizer)) }
    }

    async fn local_ids(&self, body: &Bytes, view: &mut RequestView<'_>) -> Result<Vec<Vec<u32>>, Reason> {
        let tokenizer = match self.start(body, view)? {
            Start::Given(ids) => return Ok(ids),
            Start::With(tokenizer) => tokenizer,
        };
        if body.len() <= INLINE_IDS_MAX {
            return tokenizer.ids(view, SystemTime::now());
        }
        let (tokenizer, body, read) = (Arc::clone(tokenizer), body.clone(), Read::of(view));
        let job = move |_: &dyn Fn() -> bool| tokenizer.ids(&mut read.again(&body)?, SystemTime::now());
        self.shared.pool.run(job).await?
    }

    async fn local_prompts(&self, body: &Bytes, view: &mut RequestView<'_>, root: &Root) -> Result<Prompts, Reason> {
        if view.truncation.is_some() {
            return self.local_ids(body, view).await.map(Prompts::Ids);
        }
        let tokenizer = match self.start(body, view)? {
            Start::Given(ids) => return Ok(Prompts::Ids(ids)),
            Start::With(tokenizer) => Arc::clone(tokenizer),
        };
        let at = Workplace { tokenizer, shared: Arc::clone(&self.shared), tally: Arc::clone(&self.tally) };
        if self.is_long(body, view) {
            if let Some(known) = at.known(view, root, SystemTime::now()) {
                return Ok(known);
            }
            let (root, body, read) = (*root, body.clone(), Read::of(view));
            let job = move |awaited: &dyn Fn() -> bool| {
                at.begin(&read.again(&body)?, &root, SystemTime::now())?.finish(&at, awaited)
            };
            return self.shared.pool.run(job).await?;
        }
        let mut work = match at.begin(view, root, SystemTime::now())? {
            Begun::Done(prompts) => return Ok(prompts),
            Begun::Left(work) => work,
        };
        let (start, limits) = (Instant::now(), self.shared.limits);
        let mut here = |bytes: usize| bytes <= limits.inline_part_max && start.elapsed() < limits.inline_time_max;
        if let Some(prompts) = work.go(&at, &mut here)? {
            return Ok(prompts);
        }
        let work = Begun::Left(work.into_owned());
        self.shared.pool.run(move |awaited: &dyn Fn() -> bool| work.finish(&at, awaited)).await?
    }

    /// Whether rendering, or the search for parts, takes too long for an async thread.
    fn is_long(&self, body: &Bytes, view: &RequestView<'_>) -> bool {
        let (pieces, values) = match &view.input {
            Input::Chat(chat) => (chat.messages.len(), values(chat)),
            Input::Completion(Prompt::Texts(texts)) => (texts.len(), 0),
            Input::Completion(_) => (0, 0),
        };
        let weight = pieces * MESSAGE_WEIGHT + values * VALUE_WEIGHT;
        body.len().saturating_add(weight) > self.shared.limits.inline_body_max
    }
}

/// About how many values templates are told of beside the texts of messages.
fn values(chat: &ChatView<'_>) -> usize {
    let told = [chat.tools, chat.documents, chat.chat_template_kwargs].into_iter().flatten();
    let of_fields: usize = told.map(|raw| memchr::memchr3_iter(b'[', b'{', b',', raw.get().as_bytes()).count()).sum();
    // Arguments of calls are JSON within JSON; a text has few of these.
    let nested = |raw: &Raw<'_>| memchr::memchr2_iter(b'[', b'{', raw.get().as_bytes()).count();
    of_fields + chat.messages.iter().map(nested).sum::<usize>()
}

/// Begins to load.
fn begin(loader: impl FnOnce() -> Result<ModelTokenizer, LoadError> + Send + 'static) -> Arc<Loading> {
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
    local
}

/// What a request is begun with.
enum Start<'a> {
    Given(Vec<Vec<u32>>),
    With(&'a Arc<ModelTokenizer>),
}

/// How a body was read that was within its bounds.
#[derive(Clone, Copy)]
struct Read {
    endpoint: Endpoint,
    dialect: Dialect,
}

impl Read {
    fn of(view: &RequestView<'_>) -> Self {
        let endpoint = match view.input {
            Input::Completion(_) => Endpoint::Completions,
            Input::Chat(_) => Endpoint::Chat,
        };
        Self { endpoint, dialect: view.dialect }
    }

    /// The same view of it.
    fn again(self, body: &[u8]) -> Result<RequestView<'_>, Reason> {
        let view = RequestView::parse(self.endpoint, body, usize::MAX);
        let mut view = view.map_err(|_| Reason::TokenizerError)?;
        view.read_as(self.dialect);
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use warmpath_core::blocks::{DEFAULT_ROOT_SEED, hash_blocks};
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::BlockSize;

    use super::super::bytes::{self, BytesTokenizer};
    use super::super::{Hashed, TokenizeError, TokenizeLimits, Tokenizer};
    use super::*;

    fn shared(limits: TokenizeLimits) -> Arc<TokenizeShared> {
        Arc::new(TokenizeShared::new(limits))
    }

    fn root() -> Root {
        Root::new(&Namespace::plain("m", BlockSize::new(4).unwrap()), DEFAULT_ROOT_SEED)
    }

    /// What a text of these bytes comes to.
    fn hashed(text: &[u8]) -> Prompts {
        let ids: Vec<u32> = text.iter().copied().map(u32::from).collect();
        let mut blocks = Vec::new();
        hash_blocks(&root(), &ids, &[], &mut blocks);
        let tokens = u32::try_from(ids.len()).unwrap();
        Prompts::Hashed(vec![Arc::new(Hashed { blocks, tokens, bytes: text.len() })])
    }

    async fn ask(handle: &TokenizerHandle, prompt: &str) -> Prompts {
        let body = Bytes::from(format!(r#"{{"model":"m","prompt":{prompt}}}"#));
        let mut view = RequestView::parse(Endpoint::Completions, &body, 4096).unwrap();
        handle.prompts(&body, &mut view, &root()).await
    }

    async fn chat(handle: &TokenizerHandle, content: &str) -> Prompts {
        let body = Bytes::from(format!(r#"{{"model":"m","messages":[{{"role":"user","content":"{content}"}}]}}"#));
        let mut view = RequestView::parse(Endpoint::Chat, &body, 4096).unwrap();
        handle.prompts(&body, &mut view, &root()).await
    }

    #[tokio::test]
    async fn without_a_tokenizer_only_given_ids_are_known() {
        let handle = TokenizerHandle::absent(shared(TokenizeLimits::default()));
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
        let handle = TokenizerHandle::load(loader, shared(TokenizeLimits::default()));
        assert_eq!(handle.state(), TokenizerState::Loading);
        assert_eq!(ask(&handle, r#""abcde""#).await, Prompts::Unknown(Reason::Loading));
        assert_eq!(ask(&handle, "[7]").await, Prompts::Ids(vec![vec![7]]));
        start.send(()).unwrap();
        assert_eq!(handle.settled().await, TokenizerState::Ready);
        assert_eq!(ask(&handle, r#""abcde""#).await, hashed(b"abcde"));
    }

    #[tokio::test]
    async fn a_failed_load_is_told_with_its_cause_and_a_panic_counts_as_one() {
        let missing = || Err(LoadError::TooLarge { path: PathBuf::from("t.json"), limit: 3 });
        let handle = TokenizerHandle::load(missing, shared(TokenizeLimits::default()));
        assert_eq!(handle.settled().await, TokenizerState::Failed("`t.json` has more than 3 bytes".to_owned()));
        assert_eq!(ask(&handle, r#""a""#).await, Prompts::Unknown(Reason::LoadFailed));
        let handle = TokenizerHandle::load(|| panic!("broken"), shared(TokenizeLimits::default()));
        assert_eq!(handle.settled().await, TokenizerState::Failed("the loader panicked".to_owned()));
    }

    /// Tells the thread that it works on.
    struct Where(Mutex<Vec<std::thread::ThreadId>>);

    impl Tokenizer for Where {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            self.0.lock().unwrap().push(std::thread::current().id());
            BytesTokenizer.encode(text, special, ids)
        }
    }

    #[tokio::test]
    async fn what_would_stall_the_others_is_done_elsewhere_and_the_longest_not_at_all() {
        let place = Arc::new(Where(Mutex::default()));
        let template = super::super::ChatTemplate::new(bytes::CHAT_TEMPLATE).unwrap();
        let tokenizer = ModelTokenizer::new(Arc::clone(&place), Some(template));
        tokenizer.frame();
        let limits = TokenizeLimits {
            inline_part_max: 50,
            inline_body_max: 2000,
            inline_time_max: Duration::from_secs(60),
            body_bytes_max: 2000,
            ..TokenizeLimits::default()
        };
        let handle = TokenizerHandle::ready(tokenizer, shared(limits));
        let here = std::thread::current().id();
        let was_here = || place.0.lock().unwrap().drain(..).all(|thread| thread == here);
        let quoted = |len: usize| format!(r#""{}""#, "a".repeat(len));
        was_here();
        assert_eq!(ask(&handle, &quoted(50)).await, hashed(&[b'a'; 50]));
        assert!(was_here());
        assert_eq!(ask(&handle, &quoted(51)).await, hashed(&[b'a'; 51]));
        assert!(!was_here());
        let rendered = |len: usize| {
            format!("<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n", "a".repeat(len)).into_bytes()
        };
        assert_eq!(chat(&handle, &"a".repeat(1600)).await, hashed(&rendered(1600)));
        assert!(!was_here());
        assert_eq!(chat(&handle, &"a".repeat(1600)).await, hashed(&rendered(1600)));
        assert_eq!(handle.figures(Instant::now()).repeated_bytes, u64::try_from(rendered(1600).len()).unwrap());
        assert_eq!(ask(&handle, &quoted(2000)).await, Prompts::Unknown(Reason::TooLong));
        let ids = format!("[{}1]", "1,".repeat(1999));
        assert_eq!(ask(&handle, &ids).await, Prompts::Ids(vec![vec![1; 2000]]));
    }

    #[tokio::test]
    async fn long_completions_and_many_are_worked_on_elsewhere() {
        let place = Arc::new(Where(Mutex::default()));
        let tokenizer = ModelTokenizer::new(Arc::clone(&place), None);
        tokenizer.frame();
        place.0.lock().unwrap().clear();
        let limits = TokenizeLimits {
            inline_part_max: usize::MAX,
            inline_body_max: 2000,
            inline_time_max: Duration::from_secs(60),
            ..TokenizeLimits::default()
        };
        let handle = TokenizerHandle::ready(tokenizer, shared(limits));
        let here = std::thread::current().id();
        let was_here = || place.0.lock().unwrap().drain(..).all(|thread| thread == here);
        ask(&handle, &format!(r#""{}""#, "a".repeat(1400))).await;
        assert!(was_here());
        let long = "a".repeat(2000);
        assert_eq!(ask(&handle, &format!(r#""{long}""#)).await, hashed(long.as_bytes()));
        assert!(!was_here());
        ask(&handle, r#"["a","b","c"]"#).await;
        assert!(was_here());
        ask(&handle, r#"["d","e","f","g"]"#).await;
        assert!(!was_here());
    }

    #[tokio::test]
    async fn an_async_thread_goes_on_only_for_so_long() {
        let place = Arc::new(Where(Mutex::default()));
        let tokenizer = ModelTokenizer::new(Arc::clone(&place), None);
        tokenizer.frame();
        place.0.lock().unwrap().clear();
        let limits = TokenizeLimits { inline_time_max: Duration::ZERO, ..TokenizeLimits::default() };
        let handle = TokenizerHandle::ready(tokenizer, shared(limits));
        assert_eq!(ask(&handle, r#""abcd""#).await, hashed(b"abcd"));
        assert_ne!(place.0.lock().unwrap().as_slice(), [std::thread::current().id()]);
        // What is known is not encoded again.
        assert_eq!(ask(&handle, r#""abcd""#).await, hashed(b"abcd"));
        assert_eq!(place.0.lock().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_policy_that_reads_ids_is_told_them() {
        let handle = TokenizerHandle::ready(bytes::model(), shared(TokenizeLimits::default())).giving_ids(true);
        assert_eq!(ask(&handle, r#""ab""#).await, Prompts::Ids(vec![vec![97, 98]]));
        let long = "b".repeat(INLINE_IDS_MAX);
        assert_eq!(ask(&handle, &format!(r#""{long}""#)).await, Prompts::Ids(vec![vec![98; INLINE_IDS_MAX]]));
    }

    #[tokio::test]
    async fn a_truncated_prompt_is_told_by_its_ids() {
        let handle = TokenizerHandle::ready(bytes::model(), shared(TokenizeLimits::default()));
        let cut = ask(&handle, r#""abc","truncate_prompt_tokens":2"#).await;
        assert_eq!(cut, Prompts::Ids(vec![vec![98, 99]]));
    }

    /// Says when it has begun with a long text, and waits until it may go on.
    struct Gated {
        begun: SyncSender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Tokenizer for Gated {
        fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
            if text.len() > 100 {
                self.begun.send(()).expect("the test listens");
                self.go_on.lock().unwrap_or_else(PoisonError::into_inner).recv().expect("the test sends");
            }
            BytesTokenizer.encode(text, special, ids)
        }
    }

    #[tokio::test]
    async fn while_the_pool_is_full_long_texts_are_routed_by_load_and_short_ones_are_not() {
        let (begun, has_begun) = sync_channel(1);
        let (go, go_on) = sync_channel(1);
        let gated = ModelTokenizer::new(Gated { begun, go_on: Mutex::new(go_on) }, None);
        let limits = TokenizeLimits {
            inline_part_max: 100,
            jobs_max: 1,
            waiting_max: 0,
            wait_max: Duration::from_secs(60),
            ..TokenizeLimits::default()
        };
        let handle = TokenizerHandle::ready(gated, shared(limits));
        let long = |letter: &str| format!(r#""{}""#, letter.repeat(101));
        let (first, second) = (long("a"), long("b"));
        let others = async {
            tokio::task::spawn_blocking(move || has_begun.recv().unwrap()).await.unwrap();
            assert_eq!(ask(&handle, &second).await, Prompts::Unknown(Reason::TokenizerBusy));
            assert_eq!(ask(&handle, r#""short""#).await, hashed(b"short"));
            go.send(()).unwrap();
        };
        let (first, ()) = tokio::join!(ask(&handle, &first), others);
        assert_eq!(first, hashed(&[b'a'; 101]));
    }
}
