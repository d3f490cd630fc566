//! How often requests come, where several may come at once.

use std::time::Instant;

use super::mean::Mean;
use super::{ONE_STEP_MS, Rates};
use crate::ids::RequestKey;
use crate::real::{Number, larger};

/// A gap counts as so many usual ones at most: a quiet night is no rate of the morning.
const PAUSE_MAX: f64 = 100.0;

/// A rate by those who came last. Who comes within a millisecond of another comes with it, as the samples of one question do:
/// a burst is one event, whose size and whose distance from the last count, or it would look as if requests kept coming like
/// that. Its distance counts once it is over. Times are in ms.
#[derive(Debug)]
pub(super) struct Arrivals {
    /// When the last burst began, and how many have come with it; before the first, never.
    last: (f64, f64),
    between: Mean,
    size: Mean,
    /// The same before the last burst, until that was taken back.
    before: Option<((f64, f64), Mean, Mean)>,
    /// How many come at once, as far as the last burst tells: noted, as every request asks every worker.
    at_once: f64,
}

impl Arrivals {
    /// Nobody came. A burst weighs `least` at least.
    pub(super) fn new(least: f64) -> Self {
        let mean = Mean::new(least);
        Self { last: (f64::NEG_INFINITY, 0.0), between: mean, size: mean, before: None, at_once: 1.0 }
    }

    /// Somebody is believed to have come now, if nobody came before: who has come since is told from who has not yet.
    pub(super) fn begin(&mut self, now: f64) {
        if self.last.0 == f64::NEG_INFINITY {
            self.burst(now);
        }
    }

    /// Somebody came.
    pub(super) fn add(&mut self, now: f64) {
        let (began, size) = self.last;
        if now - began < ONE_STEP_MS {
            self.last.1 += 1.0;
            self.at_once = larger(self.size.leaning_to(self.last.1), 1.0);
            return;
        }
        self.before = Some((self.last, self.between, self.size));
        if began > f64::NEG_INFINITY {
            self.between.add_at_most(now - began, PAUSE_MAX);
            self.size.add(size);
        }
        self.burst(now);
    }

    fn burst(&mut self, now: f64) {
        self.last = (now, 1.0);
        self.at_once = larger(self.size.leaning_to(1.0), 1.0);
    }

    /// Somebody came then who does not count: nothing was done for it. Where others have come since, there were as many fewer
    /// in the same time.
    pub(super) fn take_back(&mut self, came: f64) {
        let (began, size) = self.last;
        if came < began || (size <= 1.0 && self.before.is_none()) {
            self.between.without(1.0 / larger(self.size.get(), 1.0));
        } else if size > 1.0 {
            self.last.1 -= 1.0;
        } else if let Some((last, between, size)) = self.before.take() {
            (self.last, self.between, self.size) = (last, between, size);
        }
        self.at_once = larger(self.size.leaning_to(self.last.1), 1.0);
    }

    /// Requests in a ms; 0 before a second burst.
    pub(super) fn per_ms(&self) -> f64 {
        per(larger(self.size.get(), 1.0), self.between.get())
    }

    /// What [`per_ms_by`] is told of them.
    pub(super) fn numbers(&self) -> [f64; 3] {
        [self.at_once, self.between.get(), self.last.0]
    }
}

impl Rates {
    /// A request that is in flight is about to fail, and not by its worker's fault: its client has left, or it is of no use to
    /// any engine. Hundreds of these in a second are no traffic that comes for answers, and none of them makes room for others.
    pub fn withdraw(&self, at: Instant, key: RequestKey) {
        let mut state = self.state();
        let now = state.ms(at);
        let Some((sent, heard)) = state.flights.get(&key).map(|flight| (flight.sent, flight.heard)) else { return };
        state.end_to_end.leaves_after(now - sent);
        if !heard {
            state.arrivals.take_back(sent);
        }
    }
}

/// Requests in a ms at this moment: fewer where nobody has come for longer than usual, more while more than usual come at once.
#[inline(always)]
pub(super) fn per_ms_by<N: Number>([at_once, between, last]: [N; 3], now: f64) -> N {
    per(at_once, larger(between, N::all(now) - last))
}

#[inline(always)]
fn per<N: Number>(size: N, between: N) -> N {
    between.if_positive(size / between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(arrivals: &Arrivals, now: f64) -> f64 {
        per_ms_by(arrivals.numbers(), now)
    }

    fn after(times: &[f64]) -> Arrivals {
        let mut arrivals = Arrivals::new(0.25);
        times.iter().for_each(|now| arrivals.add(*now));
        arrivals
    }

    #[test]
    fn one_by_one_they_come_as_often_as_the_gaps_say() {
        assert_eq!([after(&[]).per_ms(), by(&after(&[]), 9.0)], [0.0, 0.0]);
        assert_eq!([after(&[100.0]).per_ms(), by(&after(&[100.0]), 150.0)], [0.0, 0.02]);
        let arrivals = after(&[100.0, 150.0, 200.0]);
        assert_eq!([200.0, 250.0, 400.0].map(|now| by(&arrivals, now)), [0.02, 0.02, 0.005]);
        assert_eq!(arrivals.per_ms(), 0.02);
    }

    #[test]
    fn what_comes_at_once_counts_for_one_sample_until_it_is_over() {
        let mut arrivals = after(&[0.0, 100.0, 200.0]);
        assert_eq!(by(&arrivals, 200.0), 0.01);
        (0..8).for_each(|_| arrivals.add(200.0));
        // A quarter of the eight more than usual; of the rate over all time nothing.
        assert_eq!([by(&arrivals, 200.0), arrivals.per_ms()], [0.03, 0.01]);
    }

    #[test]
    fn who_is_believed_to_have_come_with_the_beginning_counts_as_one_who_came() {
        let mut arrivals = Arrivals::new(0.25);
        arrivals.begin(100.0);
        assert_eq!([100.0, 150.0, 300.0].map(|now| by(&arrivals, now)), [0.0, 0.02, 0.005]);
        arrivals.add(300.0);
        // A second beginning is none.
        arrivals.begin(310.0);
        assert_eq!([301.0, 320.0, 500.0].map(|now| by(&arrivals, now)), [0.005; 3]);
    }

    #[test]
    fn a_burst_is_one_event() {
        let mut arrivals = after(&[0.0, 100.0, 100.2, 100.4, 100.9, 200.0]);
        // One and four in 200 ms.
        assert_eq!(arrivals.per_ms(), 0.025);
        // What is under way counts when it is over: two, and as many as came at last.
        (0..7).for_each(|_| arrivals.add(200.5));
        assert_eq!(arrivals.per_ms(), 0.025);
        arrivals.add(300.0);
        assert!((arrivals.per_ms() - 13.0 / 300.0).abs() < 1e-12, "{}", arrivals.per_ms());
    }

    #[test]
    fn who_is_taken_back_never_came() {
        let honest = after(&[0.0, 100.0, 200.0]);
        let mut arrivals = after(&[0.0, 100.0, 200.0]);
        // One by one, and some with one who stays.
        for at in [210.0, 220.0, 230.0] {
            arrivals.add(at);
            arrivals.take_back(at);
        }
        (0..5).for_each(|_| arrivals.add(200.5));
        (0..5).for_each(|_| arrivals.take_back(200.5));
        assert_eq!([200.0, 300.0].map(|now| by(&arrivals, now)), [200.0, 300.0].map(|now| by(&honest, now)));
        assert_eq!(arrivals.per_ms(), honest.per_ms());
    }

    #[test]
    fn who_is_taken_back_later_leaves_the_rate_of_the_others() {
        // One who stays every 100 ms; between them nine, taken back once others have come.
        let mut arrivals = Arrivals::new(0.01);
        for at in 0..4_000 {
            arrivals.add(10.0 * f64::from(at));
            if at > 3 && (at - 3) % 10 != 0 {
                arrivals.take_back(10.0 * f64::from(at - 3));
            }
        }
        let rate = arrivals.per_ms();
        assert!((0.008..0.014).contains(&rate), "{rate}");
        // The only one there was.
        let mut only = after(&[5.0]);
        only.take_back(5.0);
        only.take_back(5.0);
        assert_eq!([only.per_ms(), by(&only, 50.0)], [0.0, 0.0]);
    }

    #[test]
    fn a_quiet_night_is_no_rate_of_the_morning() {
        let mut arrivals = Arrivals::new(0.01);
        (0..1_000).for_each(|at| arrivals.add(10.0 * f64::from(at)));
        arrivals.add(8.0 * 3.6e6);
        let rate = arrivals.per_ms();
        assert!((0.05..0.06).contains(&rate), "{rate}");
    }
}
