//! What a ms is worth that others lose by a request: see [`Predicted`](super::Predicted).

use crate::cost::{Candidate, Standing, serving};
use crate::rates::Reading;
use crate::real::{Four, Number, larger};

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
        let workers = f64::from(count(serving(candidates)).max(1));
        let computing = f64::from(computing(reading, candidates));
        let arrivals = reading.arrivals() / workers;
        let usually = (arrivals * reading.mean_request_ms()).min(BUSIEST);
        let full = usually.max(fullness(candidates) / workers).min(BUSIEST);
        let now = ((computing + 1.0) / (workers + 1.0)).min(BUSIEST);
        let busy = queue(usually, workers).max(queue(now, workers).min(1.0 / (1.0 - usually)));
        Self { busy, arrivals, stall: odds(full) * reading.first_share() / 2.0 }
    }
}

fn count<'a>(some: impl Iterator<Item = &'a Candidate>) -> u32 {
    some.fold(0, |count, _| count + 1)
}

/// How many of those that serve compute prompts.
fn computing(reading: &Reading<'_>, candidates: &[Candidate]) -> u32 {
    let serving = serving(candidates);
    if reading.all_stream() {
        return count(serving.filter(|it| it.waiting > 0));
    }
    count(serving.filter(|it| f64::from(it.waiting) > reading.of_workers(it.slot).seen().unheard()))
}

/// How full those that serve are, together.
fn fullness(candidates: &[Candidate]) -> f64 {
    let mut sum = 0.0;
    let (fours, others) = candidates.as_chunks();
    for four in fours {
        known_fullness::<Four>(&four.each_ref()).numbers().iter().for_each(|one| sum += one);
    }
    others.iter().for_each(|other| sum += known_fullness::<f64>(&other));
    sum
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

/// How full it is by what is known, by slots or by blocks: a cache of which only the most that was in use is known is full by no
/// count, and who is out is of no use to anybody.
#[inline(always)]
fn known_fullness<N: Number>(candidates: &N::Each<&Candidate>) -> N {
    let share = |part: N, whole: N| whole.if_positive(part / whole);
    let serves = |it: &Candidate, whole: u32| if it.standing == Standing::Out { 0 } else { whole };
    let blocks = |it: &Candidate| if it.total_is_learned { 0 } else { serves(it, it.total_blocks.0) };
    let slots = N::count(candidates, |it: &Candidate| serves(it, it.total_slots));
    let by_slots = share(N::count(candidates, |it| it.active_slots), slots);
    larger(by_slots, share(N::count(candidates, |it| it.active_blocks.0), N::count(candidates, blocks)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::small_worlds::candidate;
    use crate::units::Blocks;

    #[test]
    fn who_is_fuller_by_slots_or_by_blocks_counts_by_that() {
        let fleet: Vec<_> = [(0, 100, 4, 16), (50, 100, 4, 16), (25, 100, 12, 16), (50, 0, 0, 0), (30, 100, 9, 0)]
            .into_iter()
            .map(|(blocks, all, slots, places)| candidate(0, (blocks, all), (slots, places), 0))
            .collect();
        assert_eq!(fullness(&fleet), 0.25 + 0.5 + 0.75 + 0.3);
        // Each one by itself counts as among four; and what is only learned, or out, counts for nothing.
        let each: f64 = fleet.iter().map(|it| fullness(&[*it])).sum();
        assert_eq!(each, fullness(&fleet));
        let learned = Candidate { total_is_learned: true, total_blocks: Blocks(50), ..fleet[1] };
        let out = Candidate { standing: Standing::Out, ..fleet[2] };
        assert_eq!(
            [fullness(&[learned]), fullness(&[out]), fullness(&[out, fleet[0], learned, out])],
            [0.25, 0.0, 0.5]
        );
    }

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
