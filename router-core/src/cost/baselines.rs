//! The policies that every claim is measured against: they do not look at caches.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::{Candidate, Cost, CostFunction, NoChoice, Term, Unit};
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
        let last = self.last.load(Ordering::Relaxed);
        costs.extend(candidates.iter().map(|candidate| Cost(steps(last, candidate))));
        Ok(())
    }

    fn explain(&self, _now: Instant, _shape: &Shape, candidates: &[Candidate], tell: &mut dyn FnMut(usize, Term)) {
        let last = self.last.load(Ordering::Relaxed);
        for (at, candidate) in candidates.iter().enumerate() {
            tell(at, Term::adds("steps", Unit::Steps, steps(last, candidate)));
        }
    }

    /// More than a whole round.
    fn prompt_worth(&self, _shape: &Shape, _candidate: &Candidate) -> f64 {
        SLOTS
    }
}

/// As many slots as there can be.
const SLOTS: f64 = 65_536.0;

/// How far round the candidate is from the last slot used.
fn steps(last: u32, candidate: &Candidate) -> f64 {
    f64::from(u32::from(candidate.slot.0).wrapping_sub(last).wrapping_sub(1) % (u32::from(u16::MAX) + 1))
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
        costs.extend(candidates.iter().map(|candidate| Cost(f64::from(candidate.requests))));
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
