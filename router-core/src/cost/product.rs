//! The `product` policy: tokens to be computed times requests in flight.

use std::time::Instant;

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Unit, push_each};
use crate::shape::Shape;

/// `(queued + new_tokens) · (requests + 1)`, lowest wins; LMetric's rule. `queued` are the uncached tokens in
/// flight without a first token. Without weights: neither factor's unit matters to who wins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Product;

fn factors(candidate: &Candidate) -> (f64, f64, f64) {
    let queued = f64::from(candidate.prefill_tokens.0);
    (queued, f64::from(candidate.new_tokens.0), f64::from(candidate.requests) + 1.0)
}

impl CostFunction for Product {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        push_each(candidates, costs, |candidate| {
            let (queued, new, requests) = factors(candidate);
            (queued + new) * requests
        });
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        for (at, candidate) in candidates.iter().enumerate() {
            let (queued, new, requests) = factors(candidate);
            tell(at, Term::adds("queued", Unit::Tokens, queued));
            tell(at, Term::adds("new", Unit::Tokens, new));
            tell(at, Term::multiplies("requests", Unit::Requests, requests));
        }
    }

    fn prompt_worth(&self, shape: &Shape, candidate: &Candidate) -> f64 {
        f64::from(shape.prompt.0) * factors(candidate).2
    }
}

#[cfg(test)]
mod tests {
    use super::super::small_worlds::{assert_costs, candidate, origin, shape};
    use super::*;
    use crate::units::Tokens;

    /// (0 + 256)·1, (0 + 64)·4 and (100 + 16)·3.
    #[test]
    fn r182_golden() {
        let worker = |slot, requests, overlap, queued| Candidate {
            prefill_tokens: Tokens(queued),
            ..candidate(slot, (0, 1000), (requests, 16), overlap)
        };
        let fleet = [worker(0, 0, 0, 0), worker(1, 3, 12, 0), worker(2, 2, 15, 100)];
        let mut costs = Vec::new();
        Product.score(origin(), &shape(256), &fleet, &mut costs).unwrap();
        assert_costs(&costs, &[256.0, 256.0, 348.0]);
    }
}
