//! The `blocks` policy: blocks to be computed and blocks in use, in one sum.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Unit, Weight, push_each, ratio, serving};
use crate::shape::Shape;

/// Weights of the `blocks` policy. Defaults and formula: Dynamo 1.x's scheduler. What cached blocks are worth by tier is
/// said once for all policies, in [`TierWeights`](super::TierWeights).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BlocksWeights {
    /// What a block to be computed weighs beside one in use.
    pub prefill_load_scale: Weight,
    /// What a request in flight weighs besides its blocks.
    pub active_request_weight: Weight,
    /// How fast blocks on the device lose their credit with the prefill queued before the request.
    pub overlap_decay: Weight,
    /// Blocks: at 0 the cheapest is taken; at T costs that differ by T are `e` times as likely, one as the other.
    pub temperature: Weight,
}

impl Default for BlocksWeights {
    fn default() -> Self {
        Self {
            prefill_load_scale: Weight::constant(1.0),
            active_request_weight: Weight::constant(0.0),
            overlap_decay: Weight::constant(0.0),
            temperature: Weight::constant(0.0),
        }
    }
}

/// `scale·max(0, (queued + prompt)/B − credit) + decode_blocks + active_request_weight·requests` in blocks, lowest wins
///
///
/// `queued` are the uncached tokens in flight without a first token; `decode_blocks` the distinct blocks in flight and
/// those that this request adds. `credit` is what is cached, by tier and trust; its part on the device is multiplied by
/// `1/(1 + d·(queued − least queued)/prompt)`, which is 1 for `d = overlap_decay = 0`.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockSum(pub BlocksWeights);

impl BlockSum {
    /// The three terms of a candidate, for a fleet of these.
    fn terms(&self, shape: &Shape, candidates: &[Candidate]) -> impl Fn(&Candidate) -> [f64; 3] {
        let BlocksWeights { prefill_load_scale, active_request_weight, overlap_decay, .. } = self.0;
        // Nothing decays at the defaults: then nobody asks.
        let decays = overlap_decay.get() > 0.0;
        let least = decays.then(|| serving(candidates).map(|candidate| candidate.prefill_tokens).min());
        let least = least.flatten().unwrap_or_default();
        let (prompt, per_token) = (shape.prompt, 1.0 / f64::from(shape.block_size.get()));
        move |candidate| {
            let queued = candidate.prefill_tokens;
            let decay = if decays {
                1.0 / (1.0 + overlap_decay.get() * ratio(queued.saturating_sub(least).0, prompt.0))
            } else {
                1.0
            };
            let credit = f64::from(candidate.cached_tokens.0) - f64::from(candidate.cached_on_device.0) * (1.0 - decay);
            let prefill = (f64::from(queued.0) + f64::from(prompt.0) - credit).max(0.0) * per_token;
            let decode = f64::from(candidate.active_blocks.0) + f64::from(candidate.added_blocks.0);
            let requests = active_request_weight.get() * f64::from(candidate.requests);
            [prefill_load_scale.get() * prefill, decode, requests]
        }
    }
}

impl CostFunction for BlockSum {
    fn score(
        &self,
        _now: Instant,
        shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        let terms = self.terms(shape, candidates);
        push_each(candidates, costs, |candidate| {
            let [prefill, decode, requests] = terms(candidate);
            prefill + decode + requests
        });
        Ok(())
    }

    fn explain(&self, _now: Instant, shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let terms = self.terms(shape, candidates);
        for (at, candidate) in candidates.iter().enumerate() {
            for (name, value) in ["prefill", "decode", "requests"].into_iter().zip(terms(candidate)) {
                tell(at, Term::adds(name, Unit::Blocks, value));
            }
        }
    }

    fn prompt_worth(&self, shape: &Shape, _candidate: &Candidate) -> f64 {
        self.0.prefill_load_scale.get() * ratio(shape.prompt.0, shape.block_size.get())
    }
}

#[cfg(test)]
mod tests {
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;
    use crate::units::{Blocks, Tokens};

    fn costs(weights: BlocksWeights, fleet: &[Candidate]) -> Vec<Cost> {
        let mut costs = Vec::new();
        BlockSum(weights).score(origin(), &shape(256), fleet, &mut costs).unwrap();
        costs
    }

    /// A worker with `queued` tokens before the first token and `active` blocks, that holds `overlap` of 16 blocks.
    fn worker(slot: u16, overlap: u32, queued: u32, active: u32) -> Candidate {
        let base = candidate(slot, (active, 1000), (2, 16), overlap);
        Candidate { prefill_tokens: Tokens(queued), added_blocks: Blocks(16 - overlap), ..base }
    }

    /// (0 + 256)/16 − 12 + 20 + 4; (320 + 256)/16 − 0 + 0 + 16; (8 + 256)/16 − 15 + 3 + 1.
    #[test]
    fn r181_golden_at_the_defaults() {
        let fleet = [worker(0, 12, 0, 20), worker(1, 0, 320, 0), worker(2, 15, 8, 3)];
        assert_costs(&costs(BlocksWeights::default(), &fleet), &[28.0, 52.0, 5.5]);
    }

    /// Ten times the prefill, half a block for each of two requests.
    #[test]
    fn r181_golden_with_weights() {
        let weights = BlocksWeights {
            prefill_load_scale: Weight::constant(10.0),
            active_request_weight: Weight::constant(0.5),
            ..BlocksWeights::default()
        };
        let fleet = [worker(0, 12, 0, 20), worker(1, 0, 320, 0)];
        assert_costs(&costs(weights, &fleet), &[40.0 + 24.0 + 1.0, 360.0 + 16.0 + 1.0]);
    }

    /// d = 1: the second one has a whole prompt more before it, so its device blocks count half: 512/16 − 12/2 = 26. What
    /// lies on the host keeps its credit of 6 blocks: 32 − (12 − 6)/2 − 6 = 23.
    #[test]
    fn r181_credit_on_the_device_decays_with_the_queue_before_it() {
        let weights = BlocksWeights { overlap_decay: Weight::constant(1.0), ..BlocksWeights::default() };
        let on_host = Candidate { cached_on_device: Tokens(96), ..worker(2, 12, 256, 0) };
        let fleet = [worker(0, 12, 0, 0), worker(1, 12, 256, 0), on_host];
        assert_costs(&costs(weights, &fleet), &[4.0 + 4.0, 26.0 + 4.0, 23.0 + 4.0]);
    }

    #[test]
    fn credit_beyond_the_prompt_and_an_empty_prompt_cost_no_less_than_nothing() {
        let fleet = [worker(0, 16, 0, 0)];
        let mut costs = Vec::new();
        BlockSum::default().score(origin(), &shape(0), &fleet, &mut costs).unwrap();
        assert_costs(&costs, &[0.0]);
    }
}
