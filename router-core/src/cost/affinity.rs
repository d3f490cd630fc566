//! The `affinity` policy: among the workers that hold nearly all of the prompt, the one with the least to compute.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{BEHIND, Candidate, Cost, CostFunction, NoChoice, Share, Term, Unit, open, push_each, ratio};
use crate::shape::Shape;
use crate::units::Tokens;

/// Thresholds of the `affinity` policy. Defaults and rule: llm-d's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AffinityRule {
    /// The share of a prompt that a worker must hold to be *warm*.
    pub match_min: Share,
    /// Uncached tokens in flight that the least loaded warm worker may have more than the least loaded cold one.
    pub release_tokens: u32,
}

impl Default for AffinityRule {
    /// 286 704 = 15 928 tokens a second × 18 s.
    fn default() -> Self {
        Self { match_min: Share::constant(0.8), release_tokens: 286_704 }
    }
}

/// Keeps the workers with `cached/prompt ≥ match_min`, if any, and takes the one with the least uncached tokens in flight
/// . Among all workers, if the least loaded warm one has more than `release_tokens` more than the least loaded cold
/// one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Affinity(pub AffinityRule);

impl Affinity {
    /// What the rule adds to a candidate's cost, for a fleet of these.
    fn rule(&self, shape: &Shape, candidates: &[Candidate]) -> impl Fn(&Candidate) -> f64 {
        let (match_min, prompt) = (self.0.match_min.get(), shape.prompt.0);
        let is_warm = move |candidate: &Candidate| ratio(candidate.cached_tokens.0, prompt) >= match_min;
        let [cold, warm] = open(candidates).fold([None; 2], |mut least: [Option<Tokens>; 2], candidate| {
            let least_of_these = &mut least[usize::from(is_warm(candidate))];
            let queued = candidate.prefill_tokens;
            *least_of_these = Some(least_of_these.map_or(queued, |least| least.min(queued)));
            least
        });
        let holds = match (warm, cold) {
            (Some(warm), Some(cold)) => warm.saturating_sub(cold) <= Tokens(self.0.release_tokens),
            (warm, _) => warm.is_some(),
        };
        move |candidate| if holds && !is_warm(candidate) { BEHIND } else { 0.0 }
    }
}

impl CostFunction for Affinity {
    fn score(
        &self,
        _now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let rule = self.rule(shape, candidates);
        push_each(candidates, costs, |candidate| f64::from(candidate.prefill_tokens.0) + rule(candidate));
        Ok(())
    }

    fn explain(&self, _now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let rule = self.rule(shape, candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            tell(at, Term::adds("queued", Unit::Tokens, f64::from(candidate.prefill_tokens.0)));
            tell(at, Term::adds("cold", Unit::Rule, rule(candidate)));
        }
    }

    fn rule(&self) -> Option<f64> {
        Some(BEHIND)
    }

    fn prompt_worth(&self, shape: &Shape, _candidate: &Candidate) -> f64 {
        f64::from(shape.prompt.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Standing;
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;

    fn costs(fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        Affinity::default().score(origin(), &shape(256), fleet, &mut costs).unwrap();
        costs
    }

    fn worker(slot: u16, cached: u32, queued: u32) -> Candidate {
        let base = candidate(slot, (0, 1000), (0, 16), 0);
        Candidate { cached_tokens: Tokens(cached), prefill_tokens: Tokens(queued), ..base }
    }

    /// 205 of 256 tokens are 0.8008, 204 are 0.797.
    #[test]
    fn r183_who_holds_four_fifths_is_kept_and_the_least_loaded_of_them_wins() {
        let fleet = [worker(0, 205, 900), worker(1, 204, 0), worker(2, 256, 700)];
        assert_costs(&costs(&fleet), &[900.0, BEHIND, 700.0]);
        assert_costs(&costs(&[worker(0, 204, 900), worker(1, 0, 0)]), &[900.0, 0.0]);
    }

    #[test]
    fn r183_affinity_is_released_strictly_above_the_gap() {
        let release = AffinityRule::default().release_tokens;
        assert_eq!(release, 15_928 * 18);
        let fleet = |gap| [worker(0, 256, 10 + gap), worker(1, 0, 10), worker(2, 0, 5_000_000)];
        assert_costs(&costs(&fleet(release)), &[286_714.0, 10.0 + BEHIND, 5_000_000.0 + BEHIND]);
        assert_costs(&costs(&fleet(release + 1)), &[286_715.0, 10.0, 5_000_000.0]);
    }

    #[test]
    fn only_those_that_can_be_chosen_are_compared() {
        let mut fleet = [worker(0, 256, 0), worker(1, 0, 7), worker(2, 0, 9)];
        fleet[0].standing = Standing::Full;
        assert_costs(&costs(&fleet)[1..], &[7.0, 9.0]);
    }
}
