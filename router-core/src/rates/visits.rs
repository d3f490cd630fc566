//! How often requests come to a worker, and what coming there saves them.

use super::arrivals::Arrivals;
use super::mean::Mean;

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

    /// Requests in a ms: as many as came, or fewer where nobody has come for longer than usual.
    pub(super) fn per_ms(&self, now: f64) -> f64 {
        self.arrivals.per_ms_by(now)
    }

    /// ms that coming here saved each, on average.
    pub(super) fn saved(&self) -> f64 {
        self.saved.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_stays_away_comes_less_often() {
        let mut visits = Visits::default();
        assert_eq!([visits.per_ms(5.0), visits.saved()], [0.0, 0.0]);
        [(100.0, 0.0), (150.0, 40.0), (200.0, 20.0)].into_iter().for_each(|(now, saved)| visits.add(now, saved));
        assert_eq!([visits.per_ms(200.0), visits.per_ms(250.0), visits.per_ms(400.0)], [0.02, 0.02, 0.005]);
        assert_eq!(visits.saved(), 20.0);
    }

    #[test]
    fn to_whom_nobody_has_come_yet_fewer_come_the_longer_it_is_there() {
        let mut visits = Visits::default();
        visits.begin(1_000.0);
        assert_eq!([1_100.0, 3_000.0].map(|now| visits.per_ms(now)), [0.01, 0.000_5]);
        // Who comes first says as much of how often others will.
        visits.add(3_000.0, 40.0);
        assert_eq!((visits.per_ms(3_001.0), visits.saved()), (0.000_5, 40.0));
    }

    #[test]
    fn what_ended_is_forgotten_within_a_few_dozen_visits() {
        let mut visits = Visits::default();
        (0..100).for_each(|at| visits.add(f64::from(at), 1_000.0));
        (0..48).for_each(|at| visits.add(100.0 + 100.0 * f64::from(at), 0.0));
        assert!((visits.per_ms(4_800.0) * 100.0 - 1.0).abs() < 0.1 && visits.saved() < 50.0, "{}", visits.saved());
    }
}
