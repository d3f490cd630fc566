//! The `logit` policy: cached share of the prompt against use and queue.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Candidate, Cost, CostFunction, NoChoice, Standing, Term, Unit, Weight, push_each, ratio, serving};
use crate::shape::Shape;

/// Weights of the `logit` policy. Defaults and formula: Dynamo 0.1's example router.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogitWeights {
    /// Weight of the share of the prompt that is cached.
    pub hit: Weight,
    /// Weight of the share of the KV cache that is in use.
    pub usage: Weight,
    /// Weight of the waiting requests, relative to the most that any worker has.
    pub waiting: Weight,
}

impl Default for LogitWeights {
    fn default() -> Self {
        Self { hit: Weight::constant(2.0), usage: Weight::constant(1.0), waiting: Weight::constant(1.0) }
    }
}

/// `−(2·hit − cache_usage − waiting/max_waiting)`: the highest logit is the lowest cost (R-011…R-015).
#[derive(Clone, Copy, Debug, Default)]
pub struct Logit(pub LogitWeights);

impl Logit {
    /// What use, queue and hit make of a candidate's cost, for a fleet of these.
    fn terms(&self, shape: &Shape, candidates: &[Candidate]) -> impl Fn(&Candidate) -> [f64; 3] {
        let most_waiting = serving(candidates).map(|candidate| candidate.waiting).max().unwrap_or(0);
        let (LogitWeights { hit, usage, waiting }, prompt) = (self.0, shape.prompt.0);
        move |candidate| {
            [
                usage.get() * candidate.kv_load(),
                waiting.get() * ratio(candidate.waiting, most_waiting),
                -(hit.get() * ratio(candidate.cached_tokens.0, prompt)),
            ]
        }
    }
}

impl CostFunction for Logit {
    fn score(
        &self,
        _now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let terms = self.terms(shape, candidates);
        let mut says_something = false;
        push_each(candidates, costs, |candidate| {
            let [usage, waiting, hit] = terms(candidate);
            let cost = usage + waiting + hit;
            says_something |= cost != 0.0 && candidate.standing != Standing::Out;
            cost
        });
        if says_something { Ok(()) } else { Err(NoChoice::AllZero) }
    }

    fn explain(&self, _now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let terms = self.terms(shape, candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            for (name, value) in ["usage", "waiting", "hit"].into_iter().zip(terms(candidate)) {
                tell(at, Term::adds(name, Unit::Share, value));
            }
        }
    }

    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        self.0.hit.get()
    }
}

#[cfg(test)]
mod tests {
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;

    fn costs(candidates: &[Candidate]) -> Result<Vec<Cost>, NoChoice> {
        let mut costs = Vec::new();
        Logit::default().score(origin(), &shape(256), candidates, &mut costs)?;
        Ok(costs)
    }

    fn world(slot: u16, score: u32, usage_percent: u32, waiting: u32) -> Candidate {
        Candidate { waiting, ..candidate(slot, (usage_percent, 100), (0, 16), score) }
    }

    #[test]
    fn r011_golden() {
        let fleet = [world(0, 4, 20, 0), world(1, 8, 90, 4), world(2, 0, 0, 2)];
        assert_costs(&costs(&fleet).unwrap(), &[-0.3, 0.9, 0.5]);
    }

    #[test]
    fn r012_r013_a_worker_without_metrics_has_twice_its_hit() {
        assert_costs(&costs(&[world(0, 8, 0, 0), world(1, 0, 10, 0)]).unwrap(), &[-1.0, 0.1]);
    }

    #[test]
    fn who_is_out_has_no_say() {
        let out = Candidate { standing: Standing::Out, ..world(2, 0, 50, 8) };
        assert_eq!(costs(&[world(0, 0, 0, 0), world(1, 0, 0, 0), out]), Err(NoChoice::AllZero));
        assert_costs(&costs(&[world(0, 0, 0, 4), world(1, 0, 0, 2), out]).unwrap()[..2], &[1.0, 0.5]);
    }

    #[test]
    fn r014_all_zero_is_no_choice() {
        assert_eq!(costs(&[world(0, 0, 0, 0), world(1, 0, 0, 0)]), Err(NoChoice::AllZero));
    }
}
