//! How much of their prompts a worker's cache held: as the router promised, and as the engine reports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use warmpath_core::observe::Usage;
use warmpath_core::units::Tokens;

use super::worker::Worker;

/// Whether an engine tells cached tokens at all.
#[derive(Debug, Default)]
pub(super) struct Telling(AtomicBool);

impl Telling {
    /// Cached tokens of an answer that told its usage; none where the engine does not tell them. One that does may leave out
    /// a 0 (SGLang, and vLLM up to 0.20): from one that has told some, silence means none.
    fn cached(&self, told: Option<Tokens>) -> Option<Tokens> {
        if told.is_some() {
            self.0.store(true, Ordering::Relaxed);
        }
        told.or_else(|| self.0.load(Ordering::Relaxed).then_some(Tokens(0)))
    }
}

impl Worker {
    /// An answer began: of its prompts' tokens so many were promised to be cached.
    pub fn promised(&self, now: Instant, prompt: Tokens, cached: Tokens) {
        self.metrics.prompt_tokens.increment(u64::from(prompt.0));
        self.metrics.cached_predicted.increment(u64::from(cached.0));
        if self.tells_events {
            self.hit_rate.add(now, prompt.0, cached.0);
        }
    }

    /// What its engine means by what it told.
    pub fn meant(&self, told: Usage) -> Usage {
        let cached = told.prompt.and_then(|_| self.telling.cached(told.cached));
        Usage { cached: cached.or(told.cached), ..told }
    }

    /// An answer ended, which told this, see [`Self::meant`].
    pub fn reported(&self, usage: Usage) {
        if let (Some(prompt), Some(cached)) = (usage.prompt, usage.cached) {
            self.metrics.prompt_reported.increment(u64::from(prompt.0));
            self.metrics.cached_reported.increment(u64::from(cached.0));
        }
    }

    /// The same of an answer of which nothing was promised.
    pub fn unpromised(&self, now: Instant, usage: Usage) {
        self.metrics.prompt_tokens.increment(usage.prompt.map_or(0, |prompt| u64::from(prompt.0)));
        self.stand_in(now, usage);
    }

    /// What is reported stands in for what could not be promised.
    pub fn stand_in(&self, now: Instant, usage: Usage) {
        if let (Some(prompt), Some(cached)) = (usage.prompt, usage.cached) {
            self.hit_rate.add(now, prompt.0, cached.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_means_none_only_of_an_engine_that_has_told_some() {
        let telling = Telling::default();
        assert_eq!(telling.cached(None), None);
        assert_eq!(telling.cached(Some(Tokens(16))), Some(Tokens(16)));
        assert_eq!(telling.cached(None), Some(Tokens(0)));
    }
}
