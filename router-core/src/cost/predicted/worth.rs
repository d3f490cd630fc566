//! What a ms is worth that others lose by a request: see [`Predicted`](super::Predicted).

use crate::cost::{Candidate, serving};
use crate::rates::Reading;

/// What a ms is worth that others lose by a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Worth {
    /// Of what makes those wait who come later, as far as they cannot avoid it.
    pub(super) busy: f64,
    /// How many would arrive at each worker in a ms, if all had equally many.
    pub(super) arrivals: f64,
    /// For each stream that decodes.
    pub(super) stall: f64,
}

/// How busy or full a fleet is at most: beyond, what is estimated is too rough to tell how much more others lose.
pub(super) const BUSIEST: f64 = 0.95;

impl Worth {
    pub(super) fn now(reading: &Reading<'_>, candidates: &[Candidate]) -> Self {
        let (mut workers, mut computing, mut fullness) = (0_u32, 0_u32, 0.0);
        let all_stream = reading.all_stream();
        for candidate in serving(candidates) {
            let Candidate { slot, waiting, .. } = *candidate;
            let is_computing =
                if all_stream { waiting > 0 } else { f64::from(waiting) > reading.of_workers(slot).seen().unheard() };
            workers += 1;
            computing += u32::from(is_computing);
            fullness += known_fullness(candidate);
        }
        let (workers, computing) = (f64::from(workers.max(1)), f64::from(computing));
        let arrivals = reading.arrivals() / workers;
        let usually = (arrivals * reading.mean_request_ms()).min(BUSIEST);
        let full = usually.max(fullness / workers).min(BUSIEST);
        let now = ((computing + 1.0) / (workers + 1.0)).min(BUSIEST);
        let busy = queue(usually, workers).max(queue(now, workers).min(1.0 / (1.0 - usually)));
        Self { busy, arrivals, stall: odds(full) * reading.first_share() / 2.0 }
    }
}

/// `share / (1 − share)`.
fn odds(share: f64) -> f64 {
    share / (1.0 - share)
}

/// How many times as long as a request takes one waits before so many workers, each of which computes for this share of the
/// time, if there were one of them for each: `ρ^(√(2(k + 1)) − 1)/(1 − ρ)` (H. Sakasegawa, An approximation formula
/// `L_q ≃ αρ^β/(1 − ρ)`, Ann. Inst. Statist. Math. 29, 1977). Of one it is `ρ/(1 − ρ)`.
pub(super) fn queue(share: f64, workers: f64) -> f64 {
    share.powf((2.0 * (workers + 1.0)).sqrt() - 1.0) / (1.0 - share)
}

/// How full it is by what is known: a cache of which only the most that was in use is known is full by no count.
fn known_fullness(candidate: &Candidate) -> f64 {
    if candidate.total_is_learned { candidate.slot_load() } else { candidate.fullness() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_workers_has_time_for_longer() {
        let off = |value: f64, exact: f64| (value / exact - 1.0).abs();
        // Of one it is exact. Of more M/M/k has C(k, ρ)/(1 − ρ), where Erlang's C is 0.7111, 0.4092 and 0.5913.
        assert!([(0.5, 1.0), (0.8, 4.0)].iter().all(|(share, exact)| off(queue(*share, 1.0), *exact) < 1e-12));
        let many = [(0.8, 2.0, 0.7111 / 0.2), (0.8, 10.0, 0.4092 / 0.2), (0.9, 16.0, 0.5913 / 0.1)];
        for (share, workers, exact) in many {
            assert!(off(queue(share, workers), exact) < 0.08, "{workers}: {}, not {exact}", queue(share, workers));
        }
    }
}
