//! What a target was sent counts where its view does not tell what it holds.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::Scratch;
use crate::history::{Asked, History, Known};
use crate::ids::{SequenceHash, Slot};
use crate::shape::Request;
use crate::units::{Blocks, Tokens};
use crate::workers::{Pool, WorkerTable};

/// What was sent to targets whose view does not tell what they hold. Learned and asked only while there are such.
#[derive(Clone, Default)]
pub(super) struct Sent(Option<Arc<dyn History>>);

impl Sent {
    /// Remembers in `history`.
    pub(super) fn new(history: Arc<dyn History>) -> Self {
        Self(Some(history))
    }

    /// Raises what such targets count as cached to half of what they were sent: nothing tells what they evicted.
    pub(super) fn correct(&self, request: &Request<'_>, (workers, pool): (&WorkerTable, &Pool), scratch: &mut Scratch) {
        let Some(history) = &self.0 else { return };
        let falls_back = |slot: Slot| workers.get(slot).is_some_and(|target| target.trust.falls_back());
        if request.prompts.is_empty() || !pool.targets.iter().any(|slot| falls_back(*slot)) {
            return;
        }
        let Scratch { hashes, sent, candidates, .. } = scratch;
        sent.clear();
        sent.resize(workers.slots(), Known::default());
        history.recall(Asked::new(request.prompts, hashes), sent);
        for candidate in candidates.iter_mut().filter(|candidate| falls_back(candidate.slot)) {
            let prompt = candidate.cached_tokens.saturating_add(candidate.new_tokens);
            let known = Blocks(sent[candidate.slot.index()].matched.0).tokens(request.shape.block_size);
            let cached = Tokens(known.min(prompt).0 / 2).max(candidate.cached_tokens);
            candidate.cached_tokens = cached;
            candidate.new_tokens = prompt.saturating_sub(cached);
        }
    }

    pub(super) fn learn(&self, now: Instant, slot: Slot, request: &Request<'_>, hashes: &[SequenceHash]) {
        if let Some(history) = self.0.as_ref().filter(|_| !request.prompts.is_empty()) {
            history.learn(now, slot, Asked::new(request.prompts, hashes));
        }
    }

    pub(super) fn forget(&self, slot: Slot) {
        if let Some(history) = &self.0 {
            history.forget(slot);
        }
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Sent" } else { "Nothing" })
    }
}
