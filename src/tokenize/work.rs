//! One request on its way to the hashes of its blocks; it can be put down and taken up again on another thread.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use warmpath_core::blocks::Root;

use super::chain::{Chain, Hashed, Place, Progress, Seam};
use super::chat::{Filling, Joint, Remembered, Rendered};
use super::model::{Frame, texts};
use super::shared::TokenizeShared;
use super::{ModelTokenizer, Prompts, Reason};
use crate::openai::{ChatView, Input, RequestView};
use crate::telemetry::hit_rate::HitRate;

/// Everything that a model's requests are worked on with.
#[derive(Clone)]
pub(super) struct Workplace {
    pub(super) tokenizer: Arc<ModelTokenizer>,
    pub(super) shared: Arc<TokenizeShared>,
    pub(super) tally: Arc<Tally>,
}

/// Bytes of text by what became of them.
pub(super) struct Tally {
    /// Of requests that were known as a whole.
    pub(super) repeated: AtomicU64,
    /// Of parts that were known.
    pub(super) found: AtomicU64,
    /// Of parts that were encoded.
    pub(super) encoded: AtomicU64,
    /// The share of the first two, over five minutes.
    pub(super) recent: HitRate,
}

impl Tally {
    pub(super) fn new(now: Instant) -> Self {
        let zero = AtomicU64::default;
        Self { repeated: zero(), found: zero(), encoded: zero(), recent: HitRate::new(now) }
    }

    fn add(&self, known: &AtomicU64, known_bytes: usize, encoded: usize) {
        let count = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
        known.fetch_add(count(known_bytes), Ordering::Relaxed);
        self.encoded.fetch_add(count(encoded), Ordering::Relaxed);
        let small = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        self.recent.add(Instant::now(), small(known_bytes.saturating_add(encoded)), small(known_bytes));
    }
}

/// What a request comes to at once, or the work that is left.
pub(super) enum Begun<'a> {
    Done(Prompts),
    Left(Box<Work<'a>>),
}

/// How many messages may be new in a conversation that goes on, before the last one: an answer, a few results of tools.
const JOINTS_TRIED: usize = 8;

/// Texts of which the first are done.
pub(super) struct Work<'a> {
    texts: Vec<Cow<'a, str>>,
    done: Vec<Arc<Hashed>>,
    current: Option<Progress>,
    /// The name under which the whole request is kept, a chat.
    request: Option<u128>,
    /// What its text is made of, where its form is known, and how much of it is known and was left out.
    filling: Option<Filling>,
    left_out: usize,
    /// Where the chat can be taken up. Others can go on from the last of them, unless that is known.
    joints: Vec<Joint>,
    /// The last place before the last joint.
    place: Option<Place>,
    special: bool,
    root: Root,
}

impl Workplace {
    /// Looks whether the request is known, and renders it if not.
    ///
    /// # Errors
    /// The [`Reason`] why its ids cannot be told.
    pub(super) fn begin<'a>(
        &self,
        view: &'a RequestView<'_>,
        root: &Root,
        now: SystemTime,
    ) -> Result<Begun<'a>, Reason> {
        let special = view.add_special_tokens;
        let work = |texts, request| Work {
            texts,
            done: Vec::new(),
            current: None,
            request,
            filling: None,
            left_out: 0,
            joints: Vec::new(),
            place: None,
            special,
            root: *root,
        };
        let chat = match &view.input {
            Input::Completion(prompt) => return Ok(Begun::Left(Box::new(work(texts(prompt)?, None)))),
            Input::Chat(chat) => chat,
        };
        let template = self.tokenizer.template.as_ref().ok_or(Reason::NoTemplate)?;
        if chat.chat_template.is_some() {
            return Err(Reason::RequestTemplate);
        }
        let spans = self.spans(chat);
        let variables = self.variables_key(chat, now);
        let request = self.request_key(&spans, variables, self.text_key(root, special));
        if let Some(known) = self.repeated(request) {
            return Ok(Begun::Done(known));
        }
        let TokenizeShared { keys, messages, skeletons, .. } = &*self.shared;
        let remembered = Remembered { messages, keys, spans: &spans, skeletons, variables };
        Ok(Begun::Left(Box::new(match template.render(chat, now, Some(&remembered))? {
            Rendered::Whole(text) => work(vec![Cow::Owned(text)], Some(request)),
            Rendered::Filled(filling, joints) => {
                Work { filling: Some(filling), joints, ..work(Vec::new(), Some(request)) }
            }
        })))
    }

    /// What the request comes to, if it is a chat that is known as a whole. O(bytes), 20 GB/s.
    pub(super) fn known(&self, view: &RequestView<'_>, root: &Root, now: SystemTime) -> Option<Prompts> {
        let Input::Chat(chat) = &view.input else { return None };
        let below = self.text_key(root, view.add_special_tokens);
        let key = || self.request_key(&self.spans(chat), self.variables_key(chat, now), below);
        chat.chat_template.is_none().then(key).and_then(|request| self.repeated(request))
    }

    fn repeated(&self, request: u128) -> Option<Prompts> {
        let known = self.shared.requests.get(request)?;
        self.tally.add(&self.tally.repeated, known.bytes, 0);
        Some(Prompts::Hashed(vec![known]))
    }

    /// The names of a chat's messages, as the client wrote them.
    fn spans(&self, chat: &ChatView<'_>) -> Vec<u128> {
        chat.messages.iter().map(|message| self.shared.keys.of(message.get().as_bytes())).collect()
    }

    /// Names all that the ids of a text depend on beside the text.
    fn text_key(&self, root: &Root, special: bool) -> u128 {
        let keys = &self.shared.keys;
        let place = keys.join(self.tokenizer.name(), u128::from(root.sequence.0));
        keys.join(place, u128::from(special))
    }

    /// Names all that a chat tells its template beside messages.
    fn variables_key(&self, chat: &ChatView<'_>, now: SystemTime) -> u128 {
        let keys = &self.shared.keys;
        // A template may print the date.
        let days = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
        let flags = u128::from(chat.add_generation_prompt) | u128::from(chat.continue_final_message) << 1;
        let raw = [chat.tools, chat.documents, chat.chat_template_kwargs].map(|raw| raw.map(|raw| raw.get()));
        let texts = raw.into_iter().chain([chat.reasoning_effort.as_deref()]);
        // An absent field and an empty one differ: no text's name is 0.
        let names = texts.map(|text| text.map_or(0, |text| keys.of(text.as_bytes())));
        [flags, u128::from(days)].into_iter().chain(names).fold(0, |before, next| keys.join(before, next))
    }

    /// Names all that the blocks of a chat depend on. `below` is the name of the rest.
    fn request_key(&self, spans: &[u128], variables: u128, below: u128) -> u128 {
        let all = [variables].into_iter().chain(spans.iter().copied());
        all.fold(below, |before, next| self.shared.keys.join(before, next))
    }
}

impl Work<'_> {
    /// Goes on until all is done, which gives the prompts, or `may` says no: it is asked before so many bytes are encoded.
    ///
    /// # Errors
    /// [`Reason::TokenizerError`] if a text cannot be encoded.
    pub(super) fn go(&mut self, at: &Workplace, may: &mut dyn FnMut(usize) -> bool) -> Result<Option<Prompts>, Reason> {
        let frame = if self.special { at.tokenizer.frame().cloned() } else { Some(Frame::default()) };
        let Some(frame) = frame else { return self.go_whole(at, may) };
        self.take_up(at);
        while let Some(text) = self.texts.get(self.done.len()) {
            let begin = || {
                let key = at.text_key(&self.root, self.special);
                Progress::begin(key, &self.root, &frame.before, text.len())
            };
            let mut progress = self.current.take().unwrap_or_else(begin);
            let Workplace { tokenizer, shared, .. } = at;
            let chain = Chain { tokenizer, shared, root: &self.root, behind: self.left_out };
            let mut advance = |progress: &mut Progress, until: usize| {
                chain.advance(text, progress, until, may).map_err(|_| Reason::TokenizerError)
            };
            // What is behind the last joint may be something else in the next turn.
            let joint = self.joints.last().map_or(0, |joint| joint.at);
            let before_joint = advance(&mut progress, joint)?;
            if before_joint {
                self.place = self.place.take().or_else(|| progress.place_before(joint));
            }
            if !before_joint || !advance(&mut progress, usize::MAX)? {
                self.current = Some(progress);
                return Ok(None);
            }
            at.tally.add(&at.tally.found, progress.found, progress.encoded);
            let hashed = Arc::new(progress.finish(&self.root, &frame.behind));
            if let Some(live) = &at.tokenizer.live {
                let whole = || self.filling.as_ref().map_or_else(|| text.to_string(), |filling| filling.behind(0));
                live.offer(whole, self.special, &self.root, &hashed);
            }
            self.done.push(hashed);
        }
        if let (Some(request), [hashed]) = (self.request, self.done.as_slice()) {
            at.shared.requests.insert(request, Arc::clone(hashed));
            if let (Some(place), Some(joint)) = (self.place.take(), self.joints.last()) {
                let seam = Seam { place, hashed: Arc::clone(hashed) };
                at.shared.seams.insert(self.seam_key(at, joint), Arc::new(seam));
            }
        }
        Ok(Some(Prompts::Hashed(std::mem::take(&mut self.done))))
    }

    /// Puts the text of a chat of a known form together, from where a known conversation was left that it goes on from.
    fn take_up(&mut self, at: &Workplace) {
        let Some(filling) = self.filling.as_ref().filter(|_| self.texts.is_empty()) else { return };
        let mut tried = self.joints.iter().enumerate().rev().take(JOINTS_TRIED);
        let known = |(number, joint)| Some((number, at.shared.seams.get(self.seam_key(at, joint))?));
        let Some((number, seam)) = tried.find_map(known) else { return self.texts.push(Cow::Owned(filling.behind(0))) };
        // The seam is a little before its joint, where a part ends.
        let before = self.joints.partition_point(|joint| joint.at <= seam.place.at);
        self.left_out = before.checked_sub(1).map_or(0, |last| self.joints[last].at);
        let text = filling.behind(before);
        self.current = Some(Progress::resumed(&seam, &self.root, self.left_out + text.len()));
        self.texts.push(Cow::Owned(text));
        self.joints.drain(..=number);
    }

    fn seam_key(&self, at: &Workplace, joint: &Joint) -> u128 {
        at.shared.keys.join(at.text_key(&self.root, self.special), joint.name)
    }

    /// The same where special tokens may be anywhere: each text as a whole, and nothing is kept.
    fn go_whole(&mut self, at: &Workplace, may: &mut dyn FnMut(usize) -> bool) -> Result<Option<Prompts>, Reason> {
        if let Some(filling) = self.filling.take() {
            self.texts.push(Cow::Owned(filling.behind(0)));
        }
        while let Some(text) = self.texts.get(self.done.len()) {
            if !may(text.len()) {
                return Ok(None);
            }
            let mut ids = Vec::with_capacity(text.len() / 4 + 8);
            at.tokenizer.encode_whole(text, &mut ids).map_err(|_| Reason::TokenizerError)?;
            at.tally.add(&at.tally.found, 0, text.len());
            let hashed = Progress::begin(0, &self.root, &ids, text.len()).finish(&self.root, &[]);
            self.done.push(Arc::new(Hashed { bytes: text.len(), ..hashed }));
        }
        Ok(Some(Prompts::Hashed(std::mem::take(&mut self.done))))
    }

    /// The same work, with texts of its own.
    pub(super) fn into_owned(self) -> Box<Work<'static>> {
        let texts = self.texts.into_iter().map(|text| Cow::Owned(text.into_owned())).collect();
        Box::new(Work { texts, ..self })
    }
}

impl Begun<'_> {
    /// Does all that is left, while somebody waits for it.
    ///
    /// # Errors
    /// Those of [`Work::go`]; [`Reason::TokenizerBusy`] if nobody waits any more.
    pub(super) fn finish(self, at: &Workplace, awaited: &dyn Fn() -> bool) -> Result<Prompts, Reason> {
        match self {
            Begun::Done(prompts) => Ok(prompts),
            Begun::Left(mut work) => work.go(at, &mut |_| awaited())?.ok_or(Reason::TokenizerBusy),
        }
    }
}
