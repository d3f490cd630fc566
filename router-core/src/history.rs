//! What workers were sent: all that a policy goes by where engines do not tell what their caches hold.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::ids::{SequenceHash, Slot};
use crate::shape::Prompt;
use crate::units::Units;

/// What a history knows of one worker and one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Leading units of the request that the worker was sent before, over all its prompts.
    pub matched: Units,
    /// Units of the request. The same for every worker.
    pub asked: Units,
    /// Units that the worker was sent and that are not forgotten yet, over all requests.
    pub size: Units,
}

impl Known {
    /// The share of the request that the worker was sent before; 0 for an empty request.
    pub fn share(&self) -> f64 {
        // Nothing is known of most of a fleet: nothing has to be divided.
        if self.matched.0 == 0 || self.asked.0 == 0 { 0.0 } else { f64::from(self.matched.0) / f64::from(self.asked.0) }
    }
}

/// The prompts of one request, as a history sees them.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    prompts: &'a [Prompt<'a>],
    hashes: &'a [SequenceHash],
}

impl<'a> Asked<'a> {
    /// `hashes` are the full blocks of all `prompts`, one prompt after the other.
    pub fn new(prompts: &'a [Prompt<'a>], hashes: &'a [SequenceHash]) -> Self {
        Self { prompts, hashes }
    }

    /// Each prompt with its full blocks.
    pub fn each(self) -> impl Iterator<Item = (&'a Prompt<'a>, &'a [SequenceHash])> {
        let mut rest = self.hashes;
        self.prompts.iter().map(move |prompt| {
            let (own, others) = rest.split_at(prompt.full_blocks().min(rest.len()));
            rest = others;
            (prompt, own)
        })
    }
}

/// How much a history remembers of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Units now.
    pub units: u64,
    /// Units before the last sweep that found too many.
    pub before_eviction: u64,
    /// Units after it.
    pub after_eviction: u64,
    /// Units that were evicted since the worker was last forgotten.
    pub evicted: u64,
}

/// A memory of what each worker was sent. What it counts in is its own business: tokens, characters or blocks.
///
/// 1. `recall` changes nothing: asking twice is as good as asking once.
/// 2. It is an imitation of the engines' caches. Where it errs, that costs speed, never correctness.
/// 3. It is bounded for each worker, whatever it is told.
/// 4. Once `forget` returns, nothing that was learned of the worker before is recalled.
pub trait History: Send + Sync {
    /// Sets what is known of each slot below `known.len()`.
    fn recall(&self, asked: Asked<'_>, known: &mut [Known]);

    /// Takes note that the request goes to `slot`, whose cache will hold its prompts.
    fn learn(&self, now: Instant, slot: Slot, asked: Asked<'_>);

    /// The worker's cache is gone: it failed, left or restarted.
    fn forget(&self, slot: Slot);

    /// How much is remembered of the worker.
    fn measure(&self, slot: Slot) -> Measured;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::{DEFAULT_ROOT_SEED, Root};
    use crate::namespace::Namespace;
    use crate::units::{BlockSize, Tokens};

    #[test]
    fn each_prompt_comes_with_its_own_blocks() {
        let root = Root::new(&Namespace::plain("m", BlockSize::new(2).unwrap()), DEFAULT_ROOT_SEED);
        let hashes = [10, 11, 12].map(SequenceHash);
        let told = Prompt::hashed(root, &hashes[..2], Tokens(5));
        let prompts = [told, Prompt::of(root, &[6]), Prompt::of(root, &[7, 8])];
        let blocks: Vec<_> = Asked::new(&prompts, &hashes).each().map(|(_, blocks)| blocks).collect();
        assert_eq!(blocks, [&hashes[..2], &[], &hashes[2..]]);
    }

    #[test]
    fn an_empty_request_was_never_sent_before() {
        assert!(Known::default().share().abs() < f64::EPSILON);
        let half = Known { matched: Units(5), asked: Units(10), size: Units(7) };
        assert!((half.share() - 0.5).abs() < f64::EPSILON);
    }
}
