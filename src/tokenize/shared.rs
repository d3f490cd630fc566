//! What the tokenizers of one gateway share: threads, and the memory for what was tokenised before.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use super::byte_cache::ByteCache;
use super::chain::{Hashed, Part, Seam};
use super::chat::{Parsed, Skeleton};
use super::handle::Loading;
use super::hf::TokenizerFiles;
use super::keys::Keys;
use super::pool::Pool;

/// Bounds of the work that tokenizing may take.
#[derive(Clone, Copy, Debug)]
pub struct TokenizeLimits {
    /// Memory for parts, requests and messages that were seen before, together.
    pub cache_bytes: usize,
    /// Bytes of a part of a text: it ends at the next safe place behind them. Shorter parts cost more look-ups, longer ones
    /// more tokens a second time where a text goes on behind the last part of what was seen before.
    pub part_min: usize,
    /// Requests whose bodies are longer than this, half a kilobyte a message or prompt added, are worked on in the pool. So
    /// many bytes of messages that were never seen take 0.8 ms to render, others half of it.
    pub inline_body_max: usize,
    /// The longest part that is encoded on the async thread that serves the request, and how long it goes on with parts.
    /// What is left then is encoded in the pool; moving it there costs some 20 µs.
    pub inline_part_max: usize,
    /// See `inline_part_max`.
    pub inline_time_max: Duration,
    /// Larger bodies than this are not tokenized.
    pub body_bytes_max: usize,
    /// How many requests are worked on in the pool at once.
    pub jobs_max: usize,
    /// How many wait for that; the next one is not tokenized.
    pub waiting_max: usize,
    /// How long a request waits for its turn and the work together.
    pub wait_max: Duration,
}

impl Default for TokenizeLimits {
    /// 64 MiB of memory; parts of 4 KiB; 640 KiB, 16 KiB and 0.5 ms inline; 4 MiB at most (a million tokens of natural text); two jobs,
    /// 64 waiting, 250 ms.
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            part_min: 4 << 10,
            inline_body_max: 640 << 10,
            inline_part_max: 16 << 10,
            inline_time_max: Duration::from_micros(500),
            body_bytes_max: 4 << 20,
            jobs_max: 2,
            waiting_max: 64,
            wait_max: Duration::from_millis(250),
        }
    }
}

/// What the tokenizers of one gateway share.
pub struct TokenizeShared {
    pub(super) limits: TokenizeLimits,
    pub(super) pool: Pool,
    pub(super) keys: Keys,
    pub(super) parts: ByteCache<Part>,
    pub(super) requests: ByteCache<Hashed>,
    pub(super) seams: ByteCache<Seam>,
    pub(super) messages: ByteCache<Parsed>,
    pub(super) skeletons: ByteCache<Skeleton>,
    pub(super) loads: Loads<Loading>,
}

/// Tokenizers that were loaded or are being loaded, by their files: models that name the same ones have one between them,
/// which is 100 MB.
#[derive(Debug)]
pub(super) struct Loads<T>(Mutex<Vec<(TokenizerFiles, Weak<T>)>>);

impl<T> Default for Loads<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Loads<T> {
    /// That of these files, for as long as anybody has it.
    pub(super) fn of(&self, files: &TokenizerFiles, load: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut loads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loads.retain(|(_, load)| load.strong_count() > 0);
        let known = loads.iter().find(|(known, _)| known == files).and_then(|(_, load)| load.upgrade());
        known.unwrap_or_else(|| {
            let load = load();
            loads.push((files.clone(), Arc::downgrade(&load)));
            load
        })
    }
}

impl TokenizeShared {
    /// Nothing seen yet. A parsed message takes about four times the memory of the blocks that its text makes, so messages
    /// get as much as parts.
    pub fn new(limits: TokenizeLimits) -> Self {
        let eighth = limits.cache_bytes / 8;
        Self {
            limits,
            pool: Pool::new(limits.jobs_max, limits.waiting_max, limits.wait_max),
            keys: Keys::new(),
            parts: ByteCache::new(eighth * 3),
            requests: ByteCache::new(eighth),
            seams: ByteCache::new(eighth / 4 * 3),
            messages: ByteCache::new(eighth * 3),
            skeletons: ByteCache::new(eighth / 4),
            loads: Loads::default(),
        }
    }

    /// Memory in use. Takes every lock in turn.
    pub fn cache_bytes(&self) -> usize {
        let chats = self.messages.bytes() + self.skeletons.bytes() + self.seams.bytes();
        self.parts.bytes() + self.requests.bytes() + chats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_files_are_loaded_once_while_anybody_has_them() {
        let files = |name: &str| TokenizerFiles {
            tokenizer: name.into(),
            chat_template: None,
            chat_template_kwargs: None,
            model_tokens_max: None,
            check_every: None,
        };
        let (loads, mut loaded) = (Loads::default(), 0);
        let mut of = |files: &TokenizerFiles| {
            loads.of(files, || {
                loaded += 1;
                Arc::new(loaded)
            })
        };
        let (a, b) = (files("a"), files("b"));
        let by_template = TokenizerFiles { chat_template: Some("t".into()), ..files("a") };
        let had = [&a, &b, &a, &by_template, &b, &by_template].map(&mut of);
        assert_eq!(had.each_ref().map(|load| **load), [1, 2, 1, 3, 2, 3]);
        drop(had);
        assert_eq!(*of(&a), 4);
    }
}
