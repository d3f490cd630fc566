//! The `approx_lru` policy: the prefix that a worker was sent before, against its queue and its cache's use.

use std::num::NonZeroU32;
use std::time::Instant;

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Unit, Weight, push_each, serving};
use crate::shape::Shape;

/// Weights of the `approx_lru` policy. Defaults: the endpoint picker of the Gateway API inference extension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LruWeights {
    /// Weight of the share of the prompt's blocks that the worker was sent before.
    pub prefix: Weight,
    /// Weight of the queue.
    pub queue: Weight,
    /// Weight of the share of the KV cache that is in use.
    pub usage: Weight,
    /// Waiting requests more than the least that count as a full queue, at least.
    pub queue_span: NonZeroU32,
}

impl Default for LruWeights {
    fn default() -> Self {
        Self {
            prefix: Weight::constant(3.0),
            queue: Weight::constant(2.0),
            usage: Weight::constant(2.0),
            queue_span: NonZeroU32::new(8).expect("8 is not 0"),
        }
    }
}

/// `queue·(waiting − least)/max(most − least, queue_span) + usage·kv_load − prefix·matched/blocks`.
///
/// The endpoint picker takes the highest of `3·matched/blocks + 2·(most − waiting)/(most − least) + 2·(1 − kv_usage)`,
/// with the second term 2 where all queues are equal. Without its constants that is the same with a `queue_span` of 1,
/// at which a single waiting request is a full swing; the span keeps small differences small.
#[derive(Clone, Copy, Debug, Default)]
pub struct ApproxLru(pub LruWeights);

impl ApproxLru {
    /// What queue, use and prefix make of a candidate's cost, for a fleet of these.
    fn terms(&self, candidates: &[Candidate]) -> impl Fn(&Candidate) -> [f64; 3] {
        let serving = serving(candidates);
        let (least, most) = serving.fold((u32::MAX, 0), |(least, most), candidate| {
            (least.min(candidate.waiting), most.max(candidate.waiting))
        });
        let LruWeights { prefix, queue, usage, queue_span } = self.0;
        let span = f64::from(most.saturating_sub(least).max(queue_span.get()));
        move |candidate| {
            let waiting = f64::from(candidate.waiting.saturating_sub(least)) / span;
            let known = candidate.known.share();
            [queue.get() * waiting, usage.get() * candidate.kv_load(), -(prefix.get() * known)]
        }
    }
}

impl CostFunction for ApproxLru {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let terms = self.terms(candidates);
        push_each(candidates, costs, |candidate| {
            let [queue, usage, prefix] = terms(candidate);
            queue + usage + prefix
        });
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let terms = self.terms(candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            for (name, value) in ["queue", "usage", "prefix"].into_iter().zip(terms(candidate)) {
                tell(at, Term::adds(name, Unit::Share, value));
            }
        }
    }

    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        self.0.prefix.get()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Standing;
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;
    use crate::history::Known;
    use crate::units::Units;

    /// A worker that was sent `matched` of 4 blocks, with `waiting` requests and `used` of 100 blocks in use.
    fn worker(slot: u16, matched: u32, waiting: u32, used: u32) -> Candidate {
        let known = Known { matched: Units(matched), asked: Units(4), size: Units(0) };
        Candidate { waiting, known, ..candidate(slot, (used, 100), (0, 256), 0) }
    }

    fn costs(weights: LruWeights, fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        ApproxLru(weights).score(origin(), &shape(64), fleet, &mut costs).unwrap();
        costs
    }

    #[test]
    fn prefix_queue_and_usage_add_up() {
        let fleet = [worker(0, 4, 10, 50), worker(1, 1, 5, 10), worker(2, 0, 0, 0)];
        assert_costs(&costs(LruWeights::default(), &fleet), &[2.0 + 1.0 - 3.0, 1.0 + 0.2 - 0.75, 0.0]);
    }

    /// The endpoint picker's scores of these are 3 + 0 + 2·0.5 = 4, 0.75 + 2·0.5 + 2·0.9 = 3.55 and 0 + 2 + 2 = 4.
    #[test]
    fn with_a_span_of_one_costs_are_the_endpoint_pickers_scores() {
        let fleet = [worker(0, 4, 2, 50), worker(1, 1, 1, 10), worker(2, 0, 0, 0)];
        let weights = LruWeights { queue_span: NonZeroU32::MIN, ..LruWeights::default() };
        assert_costs(&costs(weights, &fleet), &[4.0 - 4.0, 4.0 - 3.55, 4.0 - 4.0]);
    }

    #[test]
    fn one_waiting_request_is_no_full_swing() {
        let fleet = [worker(0, 1, 1, 0), worker(1, 0, 0, 0)];
        assert_costs(&costs(LruWeights::default(), &fleet), &[0.25 - 0.75, 0.0]);
    }

    #[test]
    fn a_worker_that_is_out_stretches_nothing() {
        let out = Candidate { standing: Standing::Out, ..worker(0, 0, 1000, 0) };
        assert_costs(&costs(LruWeights::default(), &[out, worker(1, 0, 8, 0), worker(2, 0, 0, 0)])[1..], &[2.0, 0.0]);
    }
}
