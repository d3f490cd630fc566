//! The `kv` policy: load deviation, missing prefill and queue depth in one sum.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{
    Candidate, Cost, CostFunction, NoChoice, Share, Standing, Term, Unit, Weight, mean_and_deviation, push_each, ratio,
    serving,
};
use crate::shape::Shape;

/// Weights of the `kv` policy. Defaults and formula: Dynamo 0.1's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvWeights {
    /// Weight of the load deviation while the fleet is balanced; missing prefill weighs `1 − alpha`.
    pub alpha: Share,
    /// The same while it is not.
    pub alpha_imbalanced: Share,
    /// Weight of the share of occupied slots.
    pub gamma: Weight,
    /// The fleet counts as imbalanced when the loads' deviation exceeds this share of their average.
    pub imbalance: Weight,
}

impl Default for KvWeights {
    fn default() -> Self {
        Self {
            alpha: Share::constant(0.3),
            alpha_imbalanced: Share::constant(0.7),
            gamma: Weight::constant(0.1),
            imbalance: Weight::constant(0.1),
        }
    }
}

/// `α·(kv_load − avg) + (1−α)·new_tokens/isl + γ·active_slots/total_slots`, lowest wins (R-017…R-028).
///
/// The average is the same for all, so it never changes who wins; the deviation only switches α.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kv(pub KvWeights);

impl Kv {
    fn alpha(&self, (average, deviation): (f64, f64)) -> f64 {
        let imbalanced = deviation > self.0.imbalance.get() * average;
        if imbalanced { self.0.alpha_imbalanced } else { self.0.alpha }.get()
    }

    /// The three terms of a candidate with this load, in a fleet whose loads have this average and deviation.
    fn terms(&self, shape: &Shape, (average, deviation): (f64, f64)) -> impl Fn(f64, &Candidate) -> [f64; 3] {
        let alpha = self.alpha((average, deviation));
        let (gamma, prompt) = (self.0.gamma.get(), shape.prompt.0);
        move |load, candidate| {
            let missing = ratio(candidate.new_tokens.0, prompt);
            [alpha * (load - average), (1.0 - alpha) * missing, gamma * candidate.slot_load()]
        }
    }
}

impl CostFunction for Kv {
    fn score(
        &self,
        _now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        // Each load is asked for three times: it waits where the cost will stand.
        let first = costs.len();
        push_each(candidates, costs, Candidate::kv_load);
        let loads = costs[first..].iter().zip(candidates).filter(|(_, candidate)| candidate.standing != Standing::Out);
        let terms = self.terms(shape, mean_and_deviation(loads.map(|(load, _)| load.0)));
        for (cost, candidate) in costs[first..].iter_mut().zip(candidates) {
            let [load, missing, slots] = terms(cost.0, candidate);
            cost.0 = load + missing + slots;
        }
        Ok(())
    }

    fn explain(&self, _now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let terms = self.terms(shape, mean_and_deviation(serving(candidates).map(Candidate::kv_load)));
        for (at, candidate) in candidates.iter().enumerate() {
            for (name, value) in ["load", "missing", "slots"].into_iter().zip(terms(candidate.kv_load(), candidate)) {
                tell(at, Term::adds(name, Unit::Share, value));
            }
        }
    }

    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        1.0 - self.0.alpha.get()
    }

    /// An imbalanced fleet thinks less of caches, and of sessions as much less: else they would stay on the hot spot.
    fn prompt_worth_among(&self, _shape: &Shape, candidates: &[Candidate], _at: usize) -> f64 {
        1.0 - self.alpha(mean_and_deviation(serving(candidates).map(Candidate::kv_load)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;

    fn costs(candidates: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        Kv::default().score(origin(), &shape(256), candidates, &mut costs).unwrap();
        costs
    }

    #[test]
    fn r017_overlap_decides_at_equal_load() {
        let fleet = [0, 8, 16].map(|overlap| candidate(0, (500, 1000), (4, 16), overlap));
        assert_costs(&costs(&fleet), &[0.725, 0.375, 0.025]);
    }

    #[test]
    fn r018_r019_alpha_switches_strictly_above_a_tenth_of_the_average() {
        // No overlap, no slots: with a deviation of 0.03125 ≤ 0.05 α is 0.3, with 0.0625 > 0.05 it is 0.7.
        let balanced = [candidate(0, (17, 32), (0, 16), 0), candidate(1, (15, 32), (0, 16), 0)];
        assert_costs(&costs(&balanced), &[0.709_375, 0.690_625]);
        let imbalanced = [candidate(0, (18, 32), (0, 16), 0), candidate(1, (14, 32), (0, 16), 0)];
        assert_costs(&costs(&imbalanced), &[0.343_75, 0.256_25]);
    }

    #[test]
    fn r020_gamma_is_a_tenth() {
        let fleet = [candidate(0, (1, 2), (8, 16), 16), candidate(1, (1, 2), (0, 16), 8)];
        assert_costs(&costs(&fleet), &[0.05, 0.35]);
    }

    #[test]
    fn r021_a_full_worker_still_counts_in_the_average() {
        let fleet = [
            candidate(0, (1000, 1000), (0, 16), 0),
            candidate(1, (400, 1000), (16, 16), 0),
            candidate(2, (400, 1000), (4, 16), 0),
        ];
        // Loads 1, 0.4, 0.4: average 0.6, imbalanced, α 0.7. Third: 0.7·(−0.2) + 0.3 + 0.025 = 0.185.
        assert_costs(&costs(&fleet)[2..], &[0.185]);
    }

    /// One that is drained serves nobody: that it is idle unbalances nothing.
    #[test]
    fn who_is_out_counts_in_no_average() {
        let pair = [candidate(0, (202, 1000), (4, 16), 0), candidate(1, (202, 1000), (4, 16), 8)];
        let out = Candidate { standing: Standing::Out, ..candidate(2, (0, 1000), (0, 16), 0) };
        let alone = costs(&pair);
        assert_eq!(costs(&[pair[0], pair[1], out])[..2], alone);
        let mut told = Vec::new();
        Kv::default().explain(origin(), &shape(256), &[pair[0], pair[1], out], &mut |at, term| told.push((at, term)));
        let first: f64 = told.iter().filter(|(at, _)| *at == 0).map(|(_, term)| term.value).sum();
        assert!((first - alone[0].0).abs() < 1e-12);
    }

    #[test]
    fn r022_more_overlap_than_prompt_is_no_new_tokens() {
        assert_costs(&costs(&[candidate(0, (1, 2), (0, 16), 20)]), &[0.0]);
    }

    #[test]
    fn r027_a_small_load_gap_still_prefers_the_cache() {
        let fleet = [candidate(0, (600, 1000), (4, 16), 16), candidate(1, (400, 1000), (4, 16), 0)];
        assert_costs(&costs(&fleet), &[0.095, 0.255]);
    }

    #[test]
    fn r028_a_large_load_gap_gives_the_cache_up() {
        let fleet = [candidate(0, (900, 1000), (4, 16), 16), candidate(1, (100, 1000), (4, 16), 0)];
        assert_costs(&costs(&fleet), &[0.305, 0.045]);
    }

    /// raising one input alone never moves the cost in the wrong direction.
    #[test]
    fn r010_each_factor_pushes_in_its_direction() {
        let base = candidate(0, (500, 1000), (4, 16), 8);
        let rival = candidate(1, (500, 1000), (4, 16), 8);
        let edge = |changed: Candidate| costs(&[changed, rival])[0].0 - costs(&[changed, rival])[1].0;
        let even = edge(base);
        assert!(edge(candidate(0, (500, 1000), (4, 16), 9)) < even, "overlap is good");
        assert!(edge(candidate(0, (510, 1000), (4, 16), 8)) > even, "load is bad");
        assert!(edge(candidate(0, (500, 1000), (5, 16), 8)) > even, "a queue is bad");
    }

    #[test]
    fn an_empty_fleet_and_an_empty_prompt_give_no_nan() {
        assert!(costs(&[]).is_empty());
        let mut costs = Vec::new();
        let idle = candidate(0, (0, 1), (0, 16), 0);
        Kv::default().score(origin(), &shape(0), &[idle], &mut costs).unwrap();
        assert_costs(&costs, &[0.0]);
    }
}
