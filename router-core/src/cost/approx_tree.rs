//! The `approx_tree` policy: to the worker that was sent most of the prompt before, while the fleet is balanced.

use std::time::Instant;

use super::{BEHIND, Candidate, Cost, CostFunction, NoChoice, Share, Term, Unit, Weight, open, push_each, serving};
use crate::shape::Shape;

/// Thresholds of the `approx_tree` policy. Defaults and rule: SGLang's router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TreeRule {
    /// The share of a prompt above which it follows its prefix.
    pub cache_threshold: Share,
    /// The fleet is imbalanced only if the most and the least requests in flight differ by more than this …
    pub balance_abs_threshold: u32,
    /// … and the most are more than the least, multiplied by this.
    pub balance_rel_threshold: Weight,
}

impl Default for TreeRule {
    fn default() -> Self {
        Self {
            cache_threshold: Share::constant(0.5),
            balance_abs_threshold: 32,
            balance_rel_threshold: Weight::constant(1.0001),
        }
    }
}

/// SGLang's cache-aware rule (R-041…R-043). The cost is the number of requests in flight, so that the shortest queue wins
/// among equals; while the fleet is balanced, those that the rule does not name cost more than any queue.
///
/// Who can be chosen is named, so full workers never are; they do count in the balance.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApproxTree(pub TreeRule);

impl ApproxTree {
    fn is_imbalanced(&self, candidates: &[Candidate]) -> bool {
        let serving = serving(candidates);
        let loads = serving.map(|candidate| candidate.requests);
        let most = loads.clone().max().unwrap_or(0);
        let least = loads.min().unwrap_or(0);
        most - least > self.0.balance_abs_threshold
            && f64::from(most) > self.0.balance_rel_threshold.get() * f64::from(least)
    }
}

impl ApproxTree {
    /// What the rule adds to a candidate's cost, for a fleet of these.
    fn rule(&self, candidates: &[Candidate]) -> impl Fn(&Candidate) -> f64 {
        self.rule_of(candidates).0
    }

    /// The same, and whether it is by what they have of the prompt.
    fn rule_of(&self, candidates: &[Candidate]) -> (impl Fn(&Candidate) -> f64, bool) {
        let known = || open(candidates).map(|candidate| candidate.known);
        let most_matched = known().max_by_key(|known| known.matched).unwrap_or_default();
        let smallest = known().map(|known| known.size).min().unwrap_or_default();
        let imbalanced = self.is_imbalanced(candidates);
        let follows = most_matched.share() > self.0.cache_threshold.get();
        let rule = move |candidate: &Candidate| {
            let named = if imbalanced {
                true
            } else if follows {
                candidate.known.matched == most_matched.matched
            } else {
                candidate.known.size == smallest
            };
            if named { 0.0 } else { BEHIND }
        };
        (rule, follows)
    }
}

impl CostFunction for ApproxTree {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let rule = self.rule(candidates);
        push_each(candidates, costs, |candidate| f64::from(candidate.requests) + rule(candidate));
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let rule = self.rule(candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            tell(at, Term::adds("requests", Unit::Requests, f64::from(candidate.requests)));
            tell(at, Term::adds("not named", Unit::Rule, rule(candidate)));
        }
    }

    fn rule(&self) -> Option<f64> {
        Some(BEHIND)
    }

    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        f64::from(self.0.balance_abs_threshold.max(1))
    }

    /// Where nobody has enough of a prompt, any is as good as the smallest, and whoever keeps its session is.
    fn excused(&self, candidates: &[Candidate], at: usize) -> f64 {
        let (rule, follows) = self.rule_of(candidates);
        if follows { 0.0 } else { rule(&candidates[at]) }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::super::small_worlds::{candidate, origin, shape};
    use super::super::{Among, Standing};
    use super::*;
    use crate::history::Known;
    use crate::pick::Pick;
    use crate::units::Units;

    /// A worker with `requests` in flight that was sent `matched` of 10 units, and `size` in all.
    fn worker(slot: u16, requests: u32, matched: u32, size: u32) -> Candidate {
        let known = Known { matched: Units(matched), asked: Units(10), size: Units(size) };
        Candidate { requests, known, ..candidate(slot, (0, 1000), (0, 1000), 0) }
    }

    fn chosen(fleet: &[Candidate]) -> Option<usize> {
        let mut costs = Vec::new();
        ApproxTree::default().score(origin(), &shape(10), fleet, &mut costs).unwrap();
        Pick::CheapestLowestSlot.choose(Among::Open, fleet, &costs, &mut StdRng::seed_from_u64(1))
    }

    ///
    #[test]
    fn r043_the_defaults_are_those_of_sglangs_router() {
        let rule = TreeRule::default();
        assert_eq!((rule.cache_threshold.get(), rule.balance_abs_threshold), (0.5, 32));
        assert_eq!(rule.balance_rel_threshold.get(), 1.0001);
    }

    #[test]
    fn r041_a_fleet_is_imbalanced_only_beyond_both_thresholds() {
        for (loads, imbalanced) in [((32, 0), false), ((33, 0), true), ((100, 68), false), ((101, 68), true)] {
            let fleet = [worker(0, loads.0, 10, 10), worker(1, loads.1, 0, 0)];
            assert_eq!(ApproxTree::default().is_imbalanced(&fleet), imbalanced, "{loads:?}");
            // The first one holds the whole prompt, so only the imbalance can lead away from it.
            assert_eq!(chosen(&fleet), Some(usize::from(imbalanced)), "{loads:?}");
        }
        // Beyond the absolute threshold alone: 400 033 is less than 1.0001 times 400 000.
        let fleet = [worker(0, 400_033, 10, 10), worker(1, 400_000, 0, 0)];
        assert_eq!(chosen(&fleet), Some(0));
    }

    #[test]
    fn r042_a_prompt_follows_its_prefix_strictly_above_the_threshold() {
        assert_eq!(chosen(&[worker(0, 0, 0, 5), worker(1, 9, 6, 100)]), Some(1));
        assert_eq!(chosen(&[worker(0, 0, 0, 5), worker(1, 0, 5, 100)]), Some(0));
        assert_eq!(chosen(&[worker(0, 0, 5, 100), worker(1, 30, 0, 99)]), Some(1));
    }

    #[test]
    fn equals_go_to_the_shortest_queue_and_then_to_the_lowest_slot() {
        assert_eq!(chosen(&[worker(0, 2, 6, 10), worker(1, 1, 6, 10)]), Some(1));
        assert_eq!(chosen(&[worker(0, 1, 6, 10), worker(1, 1, 6, 10)]), Some(0));
        assert_eq!(chosen(&[worker(0, 2, 0, 10), worker(1, 1, 0, 10)]), Some(1));
        assert_eq!(chosen(&[worker(0, 0, 0, 0), worker(1, 0, 0, 0)]), Some(0));
    }

    #[test]
    fn the_best_match_is_sought_among_those_that_can_be_chosen() {
        let full = Candidate { standing: Standing::Full, ..worker(0, 10, 10, 10) };
        assert_eq!(chosen(&[full, worker(1, 5, 0, 50), worker(2, 9, 6, 80)]), Some(2));
        // A worker that is out counts in nothing, not even in the balance.
        let out = Candidate { standing: Standing::Out, ..worker(0, 1000, 10, 0) };
        assert_eq!(chosen(&[out, worker(1, 5, 0, 50), worker(2, 9, 6, 80)]), Some(2));
    }
}
