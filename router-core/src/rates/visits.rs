//! How often requests come to a worker, and what coming there saves them.

use super::arrivals::{Arrivals, per_ms_by};
use super::mean::Mean;
use super::reading::Flow;
use crate::real::Number;

/// Visits of which the means are: enough to tell a conversation that goes on there from chance, few enough to forget it
/// soon after it has ended.
const VISITS: f64 = 16.0;

/// What is known of those who come to a worker. Times are in ms.
#[derive(Debug)]
pub(super) struct Visits {
    arrivals: Arrivals,
    saved: Mean,
}

impl Default for Visits {
    fn default() -> Self {
        Self { arrivals: Arrivals::new(1.0 / VISITS), saved: Mean::new(1.0 / VISITS) }
    }
}

impl Visits {
    /// The worker is there from now on. It is believed that somebody came with it: to whom nobody has come yet may many come,
    /// as long as it has not been there for long, and who comes first says little of how often others will.
    pub(super) fn begin(&mut self, now: f64) {
        self.arrivals.begin(now);
    }

    /// Somebody came, to whom what the worker holds saves so many ms of computing.
    pub(super) fn add(&mut self, now: f64, saved: f64) {
        self.arrivals.add(now);
        self.saved.add(saved);
    }

    /// What [`flow`] is told of them.
    pub(super) fn numbers(&self) -> [f64; 4] {
        let [at_once, between, last] = self.arrivals.numbers();
        [at_once, between, last, self.saved.get()]
    }
}

/// As many as came, or fewer where nobody has come for longer than usual.
#[inline(always)]
pub(super) fn flow<N: Number>([at_once, between, last, saved]: [N; 4], now: f64) -> Flow<N> {
    Flow { per_ms: per_ms_by([at_once, between, last], now), saved }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(visits: &Visits, now: f64) -> Flow {
        flow(visits.numbers(), now)
    }

    #[test]
    fn who_stays_away_comes_less_often() {
        let mut visits = Visits::default();
        assert_eq!([seen(&visits, 5.0).per_ms, seen(&visits, 5.0).saved], [0.0, 0.0]);
        [(100.0, 0.0), (150.0, 40.0), (200.0, 20.0)].into_iter().for_each(|(now, saved)| visits.add(now, saved));
        assert_eq!(
            [seen(&visits, 200.0).per_ms, seen(&visits, 250.0).per_ms, seen(&visits, 400.0).per_ms],
            [0.02, 0.02, 0.005]
        );
        assert_eq!(seen(&visits, 0.0).saved, 20.0);
    }

    #[test]
    fn to_whom_nobody_has_come_yet_fewer_come_the_longer_it_is_there() {
        let mut visits = Visits::default();
        visits.begin(1_000.0);
        assert_eq!([1_100.0, 3_000.0].map(|now| seen(&visits, now).per_ms), [0.01, 0.000_5]);
        // Who comes first says as much of how often others will.
        visits.add(3_000.0, 40.0);
        assert_eq!((seen(&visits, 3_001.0).per_ms, seen(&visits, 0.0).saved), (0.000_5, 40.0));
    }

    #[test]
    fn what_ended_is_forgotten_within_a_few_dozen_visits() {
        let mut visits = Visits::default();
        (0..100).for_each(|at| visits.add(f64::from(at), 1_000.0));
        (0..48).for_each(|at| visits.add(100.0 + 100.0 * f64::from(at), 0.0));
        assert!(
            (seen(&visits, 4_800.0).per_ms * 100.0 - 1.0).abs() < 0.1 && seen(&visits, 0.0).saved < 50.0,
            "{}",
            seen(&visits, 0.0).saved
        );
    }
}
