//! The `aibrix` policy: the longest match among the workers that are not busier than usual.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{
    BEHIND, Candidate, Cost, CostFunction, NoChoice, Term, Unit, Weight, mean_and_deviation, open, push_each, serving,
};
use crate::shape::Shape;

/// Threshold of the `aibrix` policy. Default and rule: AIBrix's prefix-cache router.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AibrixRule {
    /// Standard deviations above the mean of the requests in flight from which on a worker is too busy.
    pub deviations: Weight,
}

impl Default for AibrixRule {
    fn default() -> Self {
        Self { deviations: Weight::constant(1.0) }
    }
}

/// Of the workers with `requests ≤ mean + deviations·std` those with the longest match; of these the one with the fewest
/// requests. Mean and deviation are over all that serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Aibrix(pub AibrixRule);

impl Aibrix {
    /// What being too busy and what a shorter match adds to a candidate's cost, for a fleet of these.
    fn rules(&self, candidates: &[Candidate]) -> impl Fn(&Candidate) -> [f64; 2] {
        let serving = serving(candidates);
        let (mean, deviation) = mean_and_deviation(serving.map(|candidate| f64::from(candidate.requests)));
        let limit = mean + self.0.deviations.get() * deviation;
        let is_busy = move |candidate: &Candidate| f64::from(candidate.requests) > limit;
        let calm = open(candidates).filter(|candidate| !is_busy(candidate));
        let longest = calm.map(|candidate| candidate.cached_tokens).max().unwrap_or_default();
        move |candidate| {
            let busy = if is_busy(candidate) { 2.0 * BEHIND } else { 0.0 };
            [busy, if candidate.cached_tokens < longest { BEHIND } else { 0.0 }]
        }
    }
}

impl CostFunction for Aibrix {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let rules = self.rules(candidates);
        push_each(candidates, costs, |candidate| {
            let [busy, shorter] = rules(candidate);
            f64::from(candidate.requests) + busy + shorter
        });
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let rules = self.rules(candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            let [busy, shorter] = rules(candidate);
            tell(at, Term::adds("requests", Unit::Requests, f64::from(candidate.requests)));
            tell(at, Term::adds("busy", Unit::Rule, busy));
            tell(at, Term::adds("shorter match", Unit::Rule, shorter));
        }
    }

    fn rule(&self) -> Option<f64> {
        Some(BEHIND)
    }

    /// One request: among equal matches nothing else counts.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::super::Standing;
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;

    fn worker(slot: u16, requests: u32, overlap: u32) -> Candidate {
        candidate(slot, (0, 1000), (requests, 1000), overlap)
    }

    fn costs(fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        Aibrix::default().score(origin(), &shape(256), fleet, &mut costs).unwrap();
        costs
    }

    /// 2, 4, 4, 4, 5, 5, 7, 9: mean 5, deviation 2, so that 7 is the most a worker may have.
    #[test]
    fn r186_golden() {
        let requests = [2, 4, 4, 4, 5, 5, 7, 9];
        let overlaps = [0, 3, 8, 8, 8, 1, 8, 16];
        let fleet: Vec<_> = (0..8_u16)
            .zip(requests.into_iter().zip(overlaps))
            .map(|(slot, (requests, overlap))| worker(slot, requests, overlap))
            .collect();
        let shorter = BEHIND;
        let expected = [2.0 + shorter, 4.0 + shorter, 4.0, 4.0, 5.0, 5.0 + shorter, 7.0, 9.0 + 2.0 * BEHIND];
        assert_costs(&costs(&fleet), &expected);
    }

    #[test]
    fn where_nobody_holds_anything_the_fewest_requests_win() {
        assert_costs(&costs(&[worker(0, 3, 0), worker(1, 3, 0), worker(2, 3, 0)]), &[3.0; 3]);
    }

    #[test]
    fn who_is_full_is_no_longest_match_but_counts_in_the_mean() {
        let full = Candidate { standing: Standing::Full, ..worker(0, 4, 16) };
        assert_costs(&costs(&[full, worker(1, 4, 2), worker(2, 4, 0)])[1..], &[4.0, 4.0 + BEHIND]);
    }
}
