//! What sending a request to a worker costs: the vocabulary of all policies.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::history::Known;
use crate::ids::Slot;
use crate::overlap::TierBlocks;
use crate::shape::Shape;
use crate::units::{Blocks, Tokens};

pub mod affinity;
pub mod aibrix;
pub mod approx_lru;
pub mod approx_tree;
pub mod baselines;
pub mod blocks;
pub mod chwbl;
pub mod kv;
pub mod logit;
pub mod preble;
pub mod predicted;
pub mod product;
pub mod terms;
pub mod tiers;
pub mod weight;
pub use terms::{Needs, Term, Unit};
pub use tiers::TierWeights;
pub use weight::{Share, Weight};

/// What a candidate costs. Lower is better; comparable within one call only.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cost(pub f64);

/// Whether a candidate can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has room.
    Open,
    /// Its slots or its blocks are all taken: what it is sent waits there.
    Full,
    /// It came back lately, or asked for a pause, and is given no more for now.
    HeldBack,
    /// It is unhealthy or draining, or has failed this request before.
    Out,
}

/// Among whom a policy chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Among {
    /// Those that have room.
    #[default]
    Open,
    /// Full ones, too: its costs say how long a request waits there for room.
    OpenAndFull,
}

impl Among {
    /// Whether a candidate of this standing is one of them.
    #[inline]
    pub fn takes(self, standing: Standing) -> bool {
        standing == Standing::Open || (self == Self::OpenAndFull && standing == Standing::Full)
    }
}

/// A target as a cost function sees it: what it holds of this prompt, and its load. A value: nothing can change while
/// the function looks.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Which target.
    pub slot: Slot,
    /// Whether it can be chosen.
    pub standing: Standing,
    /// Whether `total_blocks` is only the most that was ever seen in use, of any candidate: nothing is full by it.
    pub total_is_learned: bool,
    /// Leading blocks that its view promises, over all prompts, capped at what an engine can reuse. As it is: what it is
    /// worth stands in `cached_tokens` and `new_tokens`.
    pub overlap: TierBlocks,
    /// Prompt tokens that it need not compute: the promise, weighted by tier and by how far it is believed.
    pub cached_tokens: Tokens,
    /// Of `cached_tokens`, those on the device.
    pub cached_on_device: Tokens,
    /// What is promised below the device, as far as it is believed, whatever its tiers are worth.
    pub cached_below: Tokens,
    /// Prompt tokens that it would have to compute: all others.
    pub new_tokens: Tokens,
    /// Blocks of the requests in flight on it; this and the other loads are the router's own account, and what the engine
    /// says that it has beyond it.
    pub active_blocks: Blocks,
    /// Blocks that this request would add to them; 0 where the policy does not ask for it in its [`Needs`].
    pub added_blocks: Blocks,
    /// Blocks of its KV cache.
    pub total_blocks: Blocks,
    /// Sequences in flight on it.
    pub active_slots: u32,
    /// Sequences that it runs at once.
    pub total_slots: u32,
    /// Those of them that it is given for now: fewer while it comes back, none while it rests.
    pub given_slots: u32,
    /// Requests in flight on it.
    pub requests: u32,
    /// Requests beyond its slots, or without a first token yet.
    pub waiting: u32,
    /// Uncached prompt tokens that it has still to compute.
    pub prefill_tokens: Tokens,
    /// What it was sent before, where the policy keeps a history; else nothing.
    pub known: Known,
}

impl Candidate {
    /// Tokens of a prompt of so many that it would have to compute, by what of its promises is believed, whatever its tiers
    /// are worth. What it was sent may count for more than what it promises.
    pub fn to_compute(&self, prompt: Tokens) -> Tokens {
        let missing = prompt.saturating_sub(self.cached_on_device).saturating_sub(self.cached_below);
        missing.min(self.new_tokens)
    }

    /// Share of the KV cache that requests in flight take; 0 where the cache's size is unknown.
    pub fn kv_load(&self) -> f64 {
        ratio(self.active_blocks.0, self.total_blocks.0)
    }

    /// Share of the slots that are taken.
    pub fn slot_load(&self) -> f64 {
        ratio(self.active_slots, self.total_slots)
    }

    /// The larger of both shares, where only the slots count that it is given for now. One division, as every candidate of
    /// every request is asked.
    pub fn fullness(&self) -> f64 {
        let across = |part: u32, whole: u32| u64::from(part) * u64::from(whole);
        let blocks = across(self.active_blocks.0, self.given_slots);
        let slots = across(self.active_slots, self.total_blocks.0);
        if self.total_blocks.0 > 0 && (blocks > slots || self.given_slots == 0) {
            self.kv_load()
        } else {
            ratio(self.active_slots, self.given_slots)
        }
    }
}

/// `part / whole`; 0 for a whole of 0.
pub(crate) fn ratio(part: u32, whole: u32) -> f64 {
    if whole == 0 { 0.0 } else { f64::from(part) / f64::from(whole) }
}

/// A sum as a real number: exact up to 2^53.
pub(crate) fn real(sum: u64) -> f64 {
    #[expect(
        clippy::as_conversions,
        reason = "there is no other conversion, and the last bits of such sums mean nothing"
    )]
    let real = sum as f64;
    real
}

/// A policy declines: the fallback policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoChoice {
    /// Every candidate scores zero, so that the scores say nothing.
    AllZero,
}

/// Of whom the terms are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Of all.
    All,
    /// Of the one that was chosen, and the one that would have been the next, by their places.
    Two([Option<usize>; 2]),
}

impl Told {
    /// Whether the one at place `at` is among them.
    pub fn takes(self, at: usize) -> bool {
        match self {
            Told::All => true,
            Told::Two(places) => places.contains(&Some(at)),
        }
    }

    /// Their places among `len`, ascending. O(1) for two.
    pub fn each(self, len: usize, each: impl FnMut(usize)) {
        match self {
            Told::All => (0..len).for_each(each),
            Told::Two(mut places) => {
                places.sort_unstable();
                places.into_iter().flatten().filter(|at| *at < len).for_each(each);
            }
        }
    }
}

/// Gives every candidate a cost. Lower is better, within one call only; an implementation states its formula and source.
pub trait CostFunction: Send + Sync {
    /// Pushes one cost for each candidate, in order; for full ones too, since formulas average over the fleet. Pure in
    /// its arguments and in what the policy has observed.
    ///
    /// # Errors
    /// [`NoChoice`] when the policy has no opinion.
    fn score(
        &self,
        now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice>;

    /// [`score`](Self::score), and [`explain`](Self::explain) of the places that `choose` takes by the costs, of one moment:
    /// what a policy that learns goes by is another thing a moment later. Where it has learned under a lock, `choose` is called
    /// while that is held.
    ///
    /// # Errors
    /// As [`score`](Self::score).
    fn score_aloud(
        &self,
        now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
        choose: &mut dyn FnMut(&mut [Cost]) -> Told,
        tell: &mut dyn FnMut(usize, Term),
    ) -> Result<(), NoChoice> {
        let first = costs.len();
        self.score(now, shape, candidates, costs)?;
        let told = choose(&mut costs[first..]);
        self.explain(now, shape, candidates, &mut |at, term| {
            if told.takes(at) {
                tell(at, term);
            }
        });
        Ok(())
    }

    /// Tells every term of every candidate's cost, with the candidate's place: combined by [`terms::combined`] they are
    /// what `score` says of the same arguments, but for rounding. For people: only explanations ask.
    fn explain(&self, now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term));

    /// What it would be worth, in this policy's unit, if `candidate` had all of the prompt and has nothing of it now: the
    /// scale on which preferences from outside, as for a session's last worker, are weighed. A policy that does not look at
    /// caches names what makes a difference to it.
    fn prompt_worth(&self, shape: &Shape, candidate: &Candidate) -> f64;

    /// The same for the candidate at place `at` of these, where that depends on how the others are.
    fn prompt_worth_among(&self, shape: &Shape, candidates: &[Candidate], at: usize) -> f64 {
        self.prompt_worth(shape, &candidates[at])
    }

    /// What a rule of this policy adds to the cost of those whom it does not name, at least: a difference near that says how the
    /// rule went, not how much. None where there is no rule.
    fn rule(&self) -> Option<f64> {
        None
    }

    /// What a rule adds to the cost of the candidate at place `at` that it does not add to a session's last worker; nothing,
    /// unless it names somebody only because it has to name one.
    fn excused(&self, _candidates: &[Candidate], _at: usize) -> f64 {
        0.0
    }
}

/// Pushes what `cost` says of each candidate, in their order.
#[inline(always)] // Every policy has its own, asked of every worker for every request.
pub(crate) fn push_each(candidates: &[Candidate], costs: &mut Vec<Cost>, mut cost: impl FnMut(&Candidate) -> f64) {
    let first = costs.len();
    costs.resize(first + candidates.len(), Cost(0.0));
    costs[first..].iter_mut().zip(candidates).for_each(|(to, candidate)| to.0 = cost(candidate));
}

/// What a candidate that a rule does not name costs more: above every count that it is added to.
pub(crate) const BEHIND: f64 = 4_294_967_296.0;

/// The candidates that serve: full ones, too, and not those that are out.
pub(crate) fn serving(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> + Clone {
    candidates.iter().filter(|candidate| candidate.standing != Standing::Out)
}

/// The candidates that can be chosen.
pub(crate) fn open(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> + Clone {
    candidates.iter().filter(|candidate| candidate.standing == Standing::Open)
}

/// Mean and population standard deviation; zeros for none.
pub(crate) fn mean_and_deviation(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let (count, sum) = values.clone().fold((0.0, 0.0), |(count, sum), value| (count + 1.0, sum + value));
    if count == 0.0 {
        return (0.0, 0.0);
    }
    let mean = sum / count;
    let squares = values.fold(0.0, |squares, value| squares + (value - mean) * (value - mean));
    (mean, (squares / count).sqrt())
}

/// How uneven the fleet's load is: standard deviation over mean of [`Candidate::kv_load`], 0 when idle.
pub fn load_balance_score(loads: impl Iterator<Item = f64> + Clone) -> f64 {
    let (mean, deviation) = mean_and_deviation(loads);
    if mean == 0.0 { 0.0 } else { deviation / mean }
}

#[cfg(test)]
pub(crate) mod small_worlds {
    //! Fleets small enough to compute by hand.
    use super::*;
    use crate::units::BlockSize;

    /// Some instant: only differences matter.
    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    pub(crate) fn origin() -> Instant {
        Instant::now()
    }

    /// A prompt of this many tokens, in blocks of 16.
    pub(crate) fn shape(prompt: u32) -> Shape {
        Shape::of(Tokens(prompt), BlockSize::new(16).unwrap())
    }

    /// A candidate with `(active, total)` blocks and slots, which holds `overlap` blocks of a prompt of 256 tokens.
    pub(crate) fn candidate(slot: u16, blocks: (u32, u32), slots: (u32, u32), overlap: u32) -> Candidate {
        let full = blocks.0 >= blocks.1 || slots.0 >= slots.1;
        Candidate {
            slot: Slot(slot),
            standing: if full { Standing::Full } else { Standing::Open },
            total_is_learned: false,
            overlap: TierBlocks::device(Blocks(overlap)),
            cached_tokens: Tokens(overlap * 16),
            cached_on_device: Tokens(overlap * 16),
            cached_below: Tokens(0),
            new_tokens: crate::overlap::new_tokens(Tokens(256), Tokens(overlap * 16)),
            active_blocks: Blocks(blocks.0),
            added_blocks: Blocks(0),
            total_blocks: Blocks(blocks.1),
            active_slots: slots.0,
            total_slots: slots.1,
            given_slots: slots.1,
            requests: slots.0,
            waiting: 0,
            prefill_tokens: Tokens(0),
            known: Known::default(),
        }
    }

    /// Costs to 1e-12.
    pub(crate) fn assert_costs(costs: &[Cost], expected: &[f64]) {
        assert_eq!(costs.len(), expected.len());
        for (cost, expected) in costs.iter().zip(expected) {
            assert!((cost.0 - expected).abs() < 1e-12, "cost {} is not {expected}", cost.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    ///
    #[test]
    fn the_balance_score_is_deviation_over_mean() {
        assert!((load_balance_score([0.6, 0.4].into_iter()) - 0.2).abs() < 1e-12);
        assert!(load_balance_score([0.5, 0.5].into_iter()).abs() < 1e-12);
        assert!(load_balance_score([0.0, 0.0].into_iter()).abs() < 1e-12);
        assert!(load_balance_score(std::iter::empty()).abs() < 1e-12);
    }

    #[test]
    fn the_fuller_of_blocks_and_slots_counts() {
        let counts = [0, 1, 3, u32::MAX];
        let all = counts.iter().flat_map(|a| counts.map(|b| (*a, b)));
        for (blocks, slots) in all.clone().flat_map(|blocks| all.clone().map(move |slots| (blocks, slots))) {
            let candidate = small_worlds::candidate(0, blocks, slots, 0);
            let expected = candidate.kv_load().max(candidate.slot_load());
            assert!((candidate.fullness() - expected).abs() <= 1e-9 * expected, "{blocks:?} {slots:?}");
        }
    }
}
