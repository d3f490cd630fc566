//! The `preble` policy: to the longest match where it pays, else to where the least was sent lately.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{BEHIND, Candidate, Cost, CostFunction, NoChoice, Standing, Term, Told, Unit, Weight, push_each};
use crate::ids::{RequestKey, Roll};
use crate::observe::{Enrol, Enrolled, Event, Learn, Observation, Occupants};
use crate::shape::Shape;
use crate::units::Tokens;
use window::Window;

mod window;

/// Weights of the `preble` policy. Defaults and rule: Preble's E2 scheduler. Its time for a prefill is a profile of one
/// model on one GPU; here it is a rate, by default 10 000 tokens a second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PrebleWeights {
    /// Milliseconds to compute a token of a prompt.
    pub prefill_ms: Weight,
    /// Milliseconds between two tokens of an answer, before any was seen.
    pub gap_ms: Weight,
    /// Tokens of an answer where the request does not bound them.
    pub output_tokens: u32,
    /// The dearest worker is spared when it is this many times as dear as the cheapest.
    pub imbalance: Weight,
}

impl Default for PrebleWeights {
    fn default() -> Self {
        Self {
            prefill_ms: Weight::constant(0.1),
            gap_ms: Weight::constant(150.0),
            output_tokens: 45,
            imbalance: Weight::constant(1.5),
        }
    }
}

/// What a candidate that is not named costs more: above any sum of milliseconds.
const NOT_NAMED: f64 = BEHIND * BEHIND;

/// Requests in flight whose gaps are measured.
const FLYING_MAX: usize = 65_536;

/// Tokens of an answer that count at most: how many a client allows is no promise that they come, and one that allows millions
/// would be all that its worker is known for.
const OUTPUT_MAX: u32 = 4_096;

/// Sequences of a request that count at most: as many as OpenAI decodes of one prompt. Engines refuse what is far beyond, but it
/// would count for three minutes.
const SEQUENCES_MAX: u32 = 128;

/// `cost(w) = Σ (uncached tokens·prefill_ms + output·gap(w))` over the requests that were sent to `w` in the last 180 s
/// (in whole seconds), `gap(w)` the median of its last 200 requests' mean gaps. If the longest match is more than half of
/// the prompt, the cheapest of those that have it; else, or where that is the dearest of all and `imbalance` times as
/// dear as the cheapest, the cheapest of all.
#[derive(Debug, Default)]
pub struct Preble {
    weights: PrebleWeights,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    first: Option<Instant>,
    /// By slot.
    windows: Vec<Window>,
    occupants: Occupants,
    flying: HashMap<RequestKey, Flying, foldhash::fast::RandomState>,
}

/// An answer under way.
#[derive(Clone, Copy, Debug)]
struct Flying {
    began: Instant,
    last: Instant,
    tokens: u32,
}

impl State {
    /// Whole seconds since the first observation.
    fn second(&self, now: Instant) -> u64 {
        self.first.map_or(0, |first| now.saturating_duration_since(first).as_secs())
    }

    /// Milliseconds of prefill and of decoding that were sent to the candidate in the window that ends with this second.
    #[inline]
    fn load(&mut self, second: u64, candidate: &Candidate, weights: &PrebleWeights) -> (f64, f64) {
        let Some(window) = self.windows.get_mut(candidate.slot.index()) else { return (0.0, 0.0) };
        let (tokens, output) = window.sums(second);
        (tokens * weights.prefill_ms.get(), output * window.gap().unwrap_or(weights.gap_ms.get()))
    }
}

impl Preble {
    /// Nothing was sent anywhere yet.
    pub fn new(weights: PrebleWeights) -> Self {
        Self { weights, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock still guards whole data.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pushes the costs. Returns how much of the prompt a candidate must have to be named.
    fn price(
        &self,
        (state, second): (&mut State, u64),
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Tokens {
        let first = costs.len();
        push_each(candidates, costs, |candidate| {
            let (prefill, decode) = state.load(second, candidate, &self.weights);
            prefill + decode
        });
        let costs = &mut costs[first..];
        let mut prices = Prices::default();
        costs.iter().zip(candidates).for_each(|(cost, candidate)| prices.add(candidate, cost.0));
        let match_min = prices.match_min(shape, self.weights.imbalance.get());
        if match_min > Tokens(0) {
            costs.iter_mut().zip(candidates).for_each(|(cost, candidate)| cost.0 += rule(match_min, candidate));
        }
        match_min
    }

    /// Tells the terms of the candidate at one place.
    fn tell(
        &self,
        (state, second): (&mut State, u64),
        (at, candidate): (usize, &Candidate),
        match_min: Tokens,
        tell: &mut dyn FnMut(usize, Term),
    ) {
        let (prefill, decode) = state.load(second, candidate, &self.weights);
        tell(at, Term::adds("prefill", Unit::Milliseconds, prefill));
        tell(at, Term::adds("decode", Unit::Milliseconds, decode));
        tell(at, Term::adds("not named", Unit::Rule, rule(match_min, candidate)));
    }
}

/// What the rule looks at, of those that serve.
#[derive(Clone, Copy, Debug)]
struct Prices {
    /// The longest match of those that have room, and the cheapest that has it.
    longest: Tokens,
    holder: f64,
    cheapest: f64,
    dearest: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self { longest: Tokens(0), holder: f64::INFINITY, cheapest: f64::INFINITY, dearest: 0.0 }
    }
}

impl Prices {
    #[inline]
    fn add(&mut self, candidate: &Candidate, cost: f64) {
        if candidate.standing == Standing::Out {
            return;
        }
        self.cheapest = if cost < self.cheapest { cost } else { self.cheapest };
        self.dearest = if cost > self.dearest { cost } else { self.dearest };
        if candidate.standing == Standing::Open && candidate.cached_tokens >= self.longest {
            let is_first = candidate.cached_tokens > self.longest;
            self.longest = candidate.cached_tokens;
            self.holder = if is_first { cost } else { self.holder.min(cost) };
        }
    }

    /// How much of the prompt a candidate must have to be named.
    fn match_min(self, shape: &Shape, imbalance: f64) -> Tokens {
        let Self { longest, holder, cheapest, dearest } = self;
        if longest <= shape.prompt.saturating_sub(longest) {
            return Tokens(0);
        }
        let spared = holder >= dearest && dearest > cheapest && dearest >= imbalance * cheapest;
        if spared { Tokens(0) } else { longest }
    }
}

fn rule(match_min: Tokens, candidate: &Candidate) -> f64 {
    if candidate.cached_tokens < match_min { NOT_NAMED } else { 0.0 }
}

impl CostFunction for Preble {
    fn score(
        &self,
        now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let mut state = self.state();
        let second = state.second(now);
        self.price((&mut state, second), shape, candidates, costs);
        Ok(())
    }

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
        let mut state = self.state();
        let second = state.second(now);
        let match_min = self.price((&mut state, second), shape, candidates, costs);
        let told = choose(&mut costs[first..]);
        told.each(candidates.len(), |at| self.tell((&mut state, second), (at, &candidates[at]), match_min, tell));
        Ok(())
    }

    fn explain(&self, now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let mut state = self.state();
        let second = state.second(now);
        let match_min = self.price((&mut state, second), shape, candidates, &mut Vec::new());
        candidates.iter().enumerate().for_each(|at| self.tell((&mut state, second), at, match_min, tell));
    }

    fn rule(&self) -> Option<f64> {
        Some(NOT_NAMED)
    }

    /// All that one request costs: the sums are over many, and the rule for holders looks at no sums.
    fn prompt_worth(&self, shape: &Shape, _candidate: &Candidate) -> f64 {
        let answer = f64::from(self.weights.output_tokens) * self.weights.gap_ms.get();
        f64::from(shape.prompt.0) * self.weights.prefill_ms.get() + answer
    }
}

impl Learn for Preble {
    fn observe(&self, observation: &Observation) {
        let Observation { at, request, slot, event } = *observation;
        let mut state = self.state();
        match event {
            Event::Placed { shape, new_tokens, .. } => {
                state.first.get_or_insert(at);
                let second = state.second(at);
                if state.windows.len() <= slot.index() {
                    state.windows.resize_with(slot.index() + 1, Window::default);
                }
                let output =
                    shape.expected_output.map_or(self.weights.output_tokens, |output| output.0.min(OUTPUT_MAX));
                let output = u64::from(output) * u64::from(shape.sequences.min(SEQUENCES_MAX));
                state.windows[slot.index()].add(second, u64::from(new_tokens.0), output);
            }
            Event::FirstToken if state.flying.len() < FLYING_MAX => {
                state.flying.insert(request, Flying { began: at, last: at, tokens: 0 });
            }
            Event::FirstToken => {}
            Event::Progress { tokens } => {
                if let Some(flying) = state.flying.get_mut(&request) {
                    flying.last = at;
                    flying.tokens = flying.tokens.saturating_add(tokens.0);
                }
            }
            Event::Finished { .. } => {
                let flown = state.flying.remove(&request);
                let gap = flown.and_then(Flying::gap_ms);
                let prior = self.weights.gap_ms.get();
                if let (Some(gap), Some(window)) = (gap, state.windows.get_mut(slot.index())) {
                    window.add_gap(prior, gap);
                }
            }
            Event::Failed { .. } => {
                state.flying.remove(&request);
            }
        }
    }
}

impl Enrol for Preble {
    /// A slot that was given to another worker was sent nothing yet.
    fn enrol(&self, roll: Roll, targets: &mut dyn Iterator<Item = Enrolled<'_>>) {
        let State { windows, occupants, .. } = &mut *self.state();
        occupants.renew(roll, targets, |slot| {
            if let Some(window) = windows.get_mut(slot.index()) {
                *window = Window::default();
            }
        });
    }
}

impl Flying {
    /// The mean gap between its tokens; none for an answer that came at once.
    fn gap_ms(self) -> Option<f64> {
        let gaps = self.tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        let millis = self.last.saturating_duration_since(self.began).as_secs_f64() * 1e3;
        (millis > 0.0).then(|| millis / f64::from(gaps))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;
    use crate::ids::{Rank, Slot, WorkerId};
    use crate::observe::{Side, Usage};
    use crate::overlap::TierBlocks;

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn place(preble: &Preble, at: Instant, slot: u16, new_tokens: u32) {
        let (shape, new_tokens) = (shape(256), Tokens(new_tokens));
        let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens };
        preble.observe(&Observation { at, request: RequestKey(u64::from(slot)), slot: Slot(slot), event });
    }

    fn tell(preble: &Preble, at: Instant, slot: u16, event: Event) {
        preble.observe(&Observation { at, request: RequestKey(u64::from(slot)), slot: Slot(slot), event });
    }

    fn worker(slot: u16, overlap: u32) -> Candidate {
        candidate(slot, (0, 1000), (0, 16), overlap)
    }

    fn costs(preble: &Preble, now: Instant, fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        preble.score(now, &shape(256), fleet, &mut costs).unwrap();
        costs
    }

    /// 256 tokens at 0.1 ms and 45 tokens of answer at 150 ms: 25.6 + 6750.
    #[test]
    fn r185_golden_of_the_priors() {
        let (preble, now) = (Preble::default(), origin());
        place(&preble, now, 0, 256);
        place(&preble, now, 1, 56);
        place(&preble, now, 1, 0);
        assert_costs(&costs(&preble, now, &[worker(0, 0), worker(1, 0), worker(2, 0)]), &[6775.6, 13_505.6, 0.0]);
    }

    #[test]
    fn what_a_client_allows_an_answer_counts_as_far_as_answers_go() {
        let (preble, now) = (Preble::default(), origin());
        let allowing = |slot, tokens| {
            let shape = Shape { expected_output: Some(Tokens(tokens)), ..shape(256) };
            let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(0) };
            preble.observe(&Observation { at: now, request: RequestKey(slot), slot: Slot(0), event });
        };
        allowing(1, 2_000);
        assert_costs(&costs(&preble, now, &[worker(0, 0)]), &[300_000.0]);
        allowing(2, u32::MAX);
        assert_costs(&costs(&preble, now, &[worker(0, 0)]), &[300_000.0 + 4_096.0 * 150.0]);
        // However many sequences are asked for.
        let shape = Shape { sequences: u32::MAX, expected_output: Some(Tokens(1)), ..shape(256) };
        let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(0) };
        preble.observe(&Observation { at: now, request: RequestKey(3), slot: Slot(1), event });
        assert_costs(&costs(&preble, now, &[worker(1, 0)]), &[128.0 * 150.0]);
    }

    #[test]
    fn r185_what_was_sent_three_minutes_ago_counts_no_more() {
        let (preble, now) = (Preble::default(), origin());
        place(&preble, now, 0, 1000);
        place(&preble, after(now, 60_000), 0, 10);
        let cost = |ms| costs(&preble, after(now, ms), &[worker(0, 0)])[0].0;
        assert_eq!([cost(179_999), cost(180_000), cost(239_999), cost(240_000)], [13_601.0, 6751.0, 6751.0, 0.0]);
        assert!(cost(9_000_000).abs() < f64::EPSILON);
        place(&preble, after(now, 9_000_000), 0, 20);
        assert_eq!(cost(9_000_000), 6752.0);
    }

    /// The median of the prior of 150 ms, one request of 20 ms and another of 40 ms a token is 40 ms.
    #[test]
    fn r185_decoding_is_reckoned_with_the_median_gap() {
        let (preble, now) = (Preble::default(), origin());
        for gap in [20, 40] {
            place(&preble, now, 0, 0);
            tell(&preble, after(now, 500), 0, Event::FirstToken);
            for token in 0..5 {
                tell(&preble, after(now, 500 + token * gap), 0, Event::Progress { tokens: Tokens(1) });
            }
            tell(&preble, after(now, 5000), 0, Event::Finished { usage: Usage::default() });
        }
        assert_costs(&costs(&preble, now, &[worker(0, 0)]), &[2.0 * 45.0 * 40.0]);
        // Nothing is learned of what fails or comes at once.
        tell(&preble, now, 0, Event::FirstToken);
        tell(&preble, now, 0, Event::Failed { side: Side::Worker });
        tell(&preble, now, 0, Event::Finished { usage: Usage::default() });
        assert!(preble.state().flying.is_empty());
        assert_costs(&costs(&preble, now, &[worker(0, 0)]), &[2.0 * 45.0 * 40.0]);
    }

    /// 9 of 16 blocks are more than half, 8 are not.
    #[test]
    fn r185_a_match_is_followed_only_above_half_of_the_prompt() {
        let (preble, now) = (Preble::default(), origin());
        [0, 0, 0, 1, 1, 2, 2, 2, 2].into_iter().for_each(|slot| place(&preble, now, slot, 0));
        let cost = |requests: f64| 6750.0 * requests;
        let half = [worker(0, 8), worker(1, 0), worker(2, 0)];
        assert_costs(&costs(&preble, now, &half), &[cost(3.0), cost(2.0), cost(4.0)]);
        let followed = costs(&preble, now, &[worker(0, 9), worker(1, 8), worker(2, 9)]);
        assert_eq!((followed[0], followed[2]), (Cost(cost(3.0)), Cost(cost(4.0))));
        assert!(followed[1].0 > 1e18);
    }

    #[test]
    fn a_slot_that_another_worker_has_was_sent_nothing() {
        let (preble, now) = (Preble::default(), origin());
        let enrol = |roll, names: [&str; 2]| {
            let ids = names.map(WorkerId::from);
            let mut targets =
                ids.iter().zip(0..).map(|(worker, slot)| Enrolled { slot: Slot(slot), worker, rank: Rank(0) });
            preble.enrol(Roll(roll), &mut targets);
        };
        enrol(1, ["a", "b"]);
        place(&preble, now, 0, 256);
        place(&preble, now, 1, 256);
        enrol(2, ["a", "c"]);
        assert_costs(&costs(&preble, now, &[worker(0, 0), worker(1, 0)]), &[6775.6, 0.0]);
    }

    /// 3 against 2 is 1.5 times as much; the dearest holder is spared, any other is not.
    #[test]
    fn r185_the_dearest_holder_is_spared_when_it_is_too_dear() {
        let (preble, now) = (Preble::default(), origin());
        [0, 0, 0, 1, 1].into_iter().for_each(|slot| place(&preble, now, slot, 0));
        let spared = costs(&preble, now, &[worker(0, 12), worker(1, 0)]);
        assert_costs(&spared, &[3.0 * 6750.0, 2.0 * 6750.0]);
        [0, 1].into_iter().for_each(|slot| place(&preble, now, slot, 0));
        assert!(costs(&preble, now, &[worker(0, 12), worker(1, 0)])[1].0 > 1e18);
        assert!(costs(&Preble::default(), now, &[worker(0, 12), worker(1, 0)])[1].0 > 1e18);
    }
}
