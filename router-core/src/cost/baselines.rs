//! The policies that every claim is measured against: they do not look at caches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Told, Unit, push_each};
use crate::observe::{Event, Learn, Observation};
use crate::shape::Shape;

/// The next slot after the last one used. Two placements that race may take one slot.
#[derive(Debug)]
pub struct RoundRobin {
    last: AtomicU32,
}

impl Default for RoundRobin {
    fn default() -> Self {
        Self { last: AtomicU32::new(u32::from(u16::MAX)) }
    }
}

impl CostFunction for RoundRobin {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        costs.extend(steps(self.last(), candidates).map(Cost));
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        for (at, steps) in steps(self.last(), candidates).enumerate() {
            tell(at, Term::adds("steps", Unit::Steps, steps));
        }
    }

    /// From one slot, whichever others use meanwhile.
    fn score_aloud(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
        choose: &mut dyn FnMut(&mut [Cost]) -> Told,
        tell: &mut dyn FnMut(usize, Term),
    ) -> Result<(), NoChoice> {
        let (first, last) = (costs.len(), self.last());
        costs.extend(steps(last, candidates).map(Cost));
        let told = choose(&mut costs[first..]);
        for (at, steps) in steps(last, candidates).enumerate().filter(|(at, _)| told.takes(*at)) {
            tell(at, Term::adds("steps", Unit::Steps, steps));
        }
        Ok(())
    }

    /// More than a whole round.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        SLOTS
    }
}

/// As many slots as there can be.
const SLOTS: f64 = 65_536.0;

impl RoundRobin {
    fn last(&self) -> u32 {
        self.last.load(Ordering::Relaxed)
    }
}

/// How many of these, which are in the order of their slots, come before each one, counted round from the `last` slot used.
fn steps(last: u32, candidates: &[Candidate]) -> impl Iterator<Item = f64> {
    let first = candidates.partition_point(|candidate| u32::from(candidate.slot.0) <= last);
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (all, behind) = (count(candidates.len()), count(candidates.len() - first));
    (behind..all).chain(0..behind).map(f64::from)
}

impl Learn for RoundRobin {
    fn observe(&self, observation: &Observation) {
        if matches!(observation.event, Event::Placed { .. }) {
            self.last.store(u32::from(observation.slot.0), Ordering::Relaxed);
        }
    }
}

/// Fewest requests in flight. Under `power_of_two` the same cost, for two workers drawn at random.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastRequests;

impl CostFunction for LeastRequests {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        push_each(candidates, costs, |candidate| f64::from(candidate.requests));
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        for (at, candidate) in candidates.iter().enumerate() {
            tell(at, Term::adds("requests", Unit::Requests, f64::from(candidate.requests)));
        }
    }

    /// One request.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        1.0
    }
}

/// All the same: the tie rule draws.
#[derive(Clone, Copy, Debug, Default)]
pub struct Random;

impl CostFunction for Random {
    fn score(
        &self,
        _now: Instant,
        _shape: &Shape,
        candidates: &[Candidate],
        costs: &mut Vec<Cost>,
    ) -> Result<(), NoChoice> {
        costs.extend(candidates.iter().map(|_| Cost(0.0)));
        Ok(())
    }

    /// There is nothing to tell.
    fn explain(&self, _now: Instant, _shape: &Shape, _candidates: &[Candidate], _tell: &mut dyn FnMut(usize, Term)) {}

    /// Anything decides.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        1.0
    }
}
