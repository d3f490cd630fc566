//! How long requests stay on a worker, and when those will have gone that are there.

use std::collections::VecDeque;

use super::OFF_MAX;
use super::mean::Mean;
use crate::real::smaller;

/// The time from when requests are sent to their ends, in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stays {
    ms: Mean,
    squares: Mean,
    /// The same as the first without what was believed.
    seen: Mean,
    turnover: Turnover,
}

/// How long those stay who are there, by how many of them go: all of their time over those who have gone (Little's law). Where a
/// fleet fills, who has ended was there for less than those will be who are there.
#[derive(Clone, Copy, Debug)]
struct Turnover {
    here: f64,
    /// Since when so many are there.
    since: f64,
    /// How long all of them were there together, old time counting less.
    stayed: f64,
    gone: f64,
    /// Of whom at most it is.
    most: f64,
    /// As how many the next counts who leaves.
    leaving: f64,
}

/// Those in flight on one worker: when they were sent, ascending.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Guests(VecDeque<f64>);

impl Stays {
    /// Nobody ended yet; `ms` is believed as much as so many `samples`, and that stays are unlike. A sample weighs `least` at least.
    pub(super) fn believed(ms: f64, samples: f64, least: f64) -> Self {
        let (stayed, gone, most) = (ms * samples, samples, 1.0 / least);
        let turnover = Turnover { here: 0.0, since: 0.0, stayed, gone, most, leaving: 1.0 };
        let [ms, squares] = [ms, 2.0 * ms * ms].map(|value| Mean::believed(value, samples, least));
        Self { ms, squares, seen: Mean::new(least), turnover }
    }

    /// From now on so many are there.
    pub(super) fn pass(&mut self, now: f64, here: usize) {
        self.turnover.pass(now, here);
    }

    /// One ended, after so long.
    pub(super) fn add(&mut self, ms: f64) {
        self.seen.add_at_most(ms, OFF_MAX);
        let ms = ms.min(OFF_MAX * self.ms.get());
        self.ms.add(ms);
        self.squares.add(ms * ms);
        self.turnover.go(1.0);
    }

    /// The next who leaves was there for so long: where that is less than others stay, it makes as much less room for those who
    /// wait, and many who leave at once make none.
    pub(super) fn leaves_after(&mut self, ms: f64) {
        let mean = self.ms.get();
        self.turnover.leaving = if ms < mean { ms / mean } else { 1.0 };
    }

    /// One left before it ended, which tells nothing of how long others stay who do not, but makes room like them.
    pub(super) fn leave(&mut self) {
        let share = std::mem::replace(&mut self.turnover.leaving, 1.0);
        self.turnover.go(share);
    }

    /// None where nobody ended.
    pub(super) fn learned(&self) -> Option<f64> {
        self.ms.learned()
    }

    /// What is the longest that can be believed of a stay, where one of so many ms was the longest: a dozen usual ones, as
    /// everywhere. One that takes far longer is no reason to expect the same of others.
    pub(super) fn longest(&self, ms: f64) -> f64 {
        smaller(ms, OFF_MAX * self.seen.get())
    }

    /// ms until a `share` of these has gone, if they come and go evenly: then all of them have once in the time for which those
    /// stay who are there. As far as stays are alike, not before the last of the eldest such share has been there as long as
    /// others stayed: those who came together go together. They are alike by `1 − Var[s]/E[s]²` of stays `s`, since where these
    /// are as unlike as those of an exponential distribution, how long one was there says nothing of when it goes. The sum was
    /// measured to be better than the later of both.
    pub(super) fn until_gone(&self, guests: &Guests, share: f64, now: f64) -> f64 {
        let (mean, evenly) = (self.ms.get(), self.until_gone_evenly(share, now));
        let Some(sent) = guests.last_of(share).filter(|_| mean > 0.0) else { return evenly };
        let alike = (2.0 - self.squares.get() / (mean * mean)).clamp(0.0, 1.0);
        evenly + alike * (sent + mean - now).max(0.0)
    }

    /// The same of whom nothing is known.
    pub(super) fn until_gone_evenly(&self, share: f64, now: f64) -> f64 {
        share * self.turnover.ms(now)
    }
}

impl Turnover {
    fn pass(&mut self, now: f64, here: usize) {
        self.stayed = self.stayed_by(now);
        self.since = now;
        self.here = f64::from(u32::try_from(here).unwrap_or(u32::MAX));
    }

    /// One went, or one who counts as so much of one.
    fn go(&mut self, one: f64) {
        self.gone += one;
        let keep = (self.most / self.gone).min(1.0);
        self.gone *= keep;
        self.stayed *= keep;
    }

    fn ms(&self, now: f64) -> f64 {
        self.stayed_by(now) / self.gone
    }

    fn stayed_by(&self, now: f64) -> f64 {
        self.stayed + self.here * (now - self.since).max(0.0)
    }
}

impl Guests {
    /// O(1) for who is the last.
    pub(super) fn come(&mut self, sent: f64) {
        let at = if self.0.back().is_none_or(|last| *last <= sent) { self.0.len() } else { self.before(sent) };
        self.0.insert(at, sent);
    }

    /// O(its distance from the nearer end).
    pub(super) fn go(&mut self, sent: f64) {
        let at = self.before(sent);
        if self.0.get(at) == Some(&sent) {
            self.0.remove(at);
        }
    }

    fn before(&self, sent: f64) -> usize {
        self.0.partition_point(|other| *other < sent)
    }

    /// When the youngest of the eldest `share` was sent; of all where it is more.
    fn last_of(&self, share: f64) -> Option<f64> {
        let count = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        #[expect(clippy::as_conversions, reason = "a share of a count, which is not below 0")]
        let rank = (share * f64::from(count)).ceil() as usize;
        self.0.get(rank.clamp(1, self.0.len().max(1)) - 1).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guests(sent: &[f64]) -> Guests {
        let mut guests = Guests::default();
        sent.iter().for_each(|at| guests.come(*at));
        guests
    }

    /// One after the other was there so long, until now.
    fn stays(each: &[f64], now: f64) -> Stays {
        let mut stays = Stays::believed(100.0, 2.0, 0.005);
        let mut at = now - 400.0 * each.iter().sum::<f64>();
        for ms in std::iter::repeat_n(each, 400).flatten() {
            stays.pass(at, 1);
            at += ms;
            stays.pass(at, 0);
            stays.add(*ms);
        }
        stays
    }

    fn near(ms: f64, expected: f64) {
        assert!((ms - expected).abs() < 15.0, "{ms} {expected}");
    }

    #[test]
    fn those_who_came_together_go_together_if_they_stay_equally_long() {
        let alike = stays(&[1_000.0], 0.0);
        let until = |sent: &[f64], share, now| alike.until_gone(&guests(sent), share, now);
        near(until(&[5_000.0; 8], 0.5, 5_000.0), 1_000.0 + 500.0);
        near(until(&[5_000.0; 8], 0.5, 5_700.0), 300.0 + 500.0);
        // Two are about to go; a third will when those do that came last.
        let mixed = [5_000.0, 5_000.0, 5_900.0, 5_900.0];
        [(0.5, 50.0 + 500.0), (0.51, 950.0 + 510.0)]
            .into_iter()
            .for_each(|(share, ms)| near(until(&mixed, share, 5_950.0), ms));
        // Who is overdue goes soon; who waits for more than there are waits for those who come next, too.
        near(until(&[5_000.0], 0.1, 9_000.0), 100.0);
        near(until(&[5_000.0; 4], 1.5, 5_000.0), 1_000.0 + 1_500.0);
        near(until(&[], 0.5, 5_000.0), 500.0);
    }

    #[test]
    fn where_stays_are_unlike_nobody_knows_who_goes() {
        // Standard deviations of a half, and of more than the whole, of a mean of about 1 000.
        let until = |each: &[f64]| stays(each, 0.0).until_gone(&guests(&[0.0; 8]), 0.25, 0.0);
        near(until(&[500.0, 1_500.0]), 0.75 * 1_000.0 + 250.0);
        near(until(&[10.0, 10.0, 10.0, 4_000.0]), 0.25 * 1_007.5);
    }

    #[test]
    fn where_nobody_goes_it_takes_longer_and_longer() {
        let mut filling = Stays::believed(100.0, 2.0, 0.005);
        assert_eq!(filling.until_gone_evenly(0.5, 0.0), 50.0);
        filling.pass(0.0, 10);
        // Ten for 10 s, and two who are believed to have been there for 100 ms.
        assert_eq!(filling.until_gone_evenly(0.5, 10_000.0), 0.5 * 100_200.0 / 2.0);
        // The first who goes was there for 10 s: the others were, too.
        filling.pass(10_000.0, 9);
        filling.add(10_000.0);
        assert_eq!(filling.until_gone_evenly(0.3, 10_000.0), 0.3 * 100_200.0 / 3.0);
        // Where ten are always there, of whom one goes every 100 ms, each stays for 1 s.
        for at in 1..1_000 {
            filling.pass(10_000.0 + f64::from(at) * 100.0, 10);
            filling.add(1_000.0);
        }
        near(filling.until_gone_evenly(1.0, 109_900.0), 1_000.0);
    }

    #[test]
    fn those_who_leave_make_room_too() {
        let mut stays = stays(&[1_000.0], 0.0);
        // Ten are always there; of five who go in 500 ms one ends.
        for at in 0..2_000 {
            stays.pass(f64::from(at) * 100.0, 10);
            if at % 5 == 0 { stays.add(1_000.0) } else { stays.leave() }
        }
        near(stays.until_gone_evenly(1.0, 200_000.0), 1_000.0);
    }

    #[test]
    fn those_who_leave_at_once_make_no_room() {
        let mut stays = stays(&[1_000.0], 0.0);
        // Ten are always there, and one of them ends every 100 ms; between two of these five come and leave after 2 ms each.
        for at in 0..1_000 {
            let now = f64::from(at) * 100.0;
            for flood in 0..5 {
                let now = now + f64::from(flood) * 20.0;
                stays.pass(now, 11);
                stays.pass(now + 2.0, 10);
                stays.leaves_after(2.0);
                stays.leave();
            }
            stays.add(1_000.0);
        }
        near(stays.until_gone_evenly(1.0, 99_990.0), 1_000.0);
    }

    #[test]
    fn one_long_stay_is_no_longest_of_others() {
        let mut stays = Stays::believed(10_000.0, 2.0, 0.005);
        (0..40).for_each(|_| stays.add(100.0));
        stays.add(8_000.0);
        // As sixteen usual ones: 40·100 and 1 600, of 41.
        assert!((stays.longest(8_000.0) - 16.0 * 5_600.0 / 41.0).abs() < 1e-6, "{}", stays.longest(8_000.0));
        assert_eq!([stays.longest(150.0), stays.longest(0.0)], [150.0, 0.0]);
        // Where many are that long, it is what they take.
        (0..100).for_each(|_| stays.add(8_000.0));
        assert_eq!(stays.longest(8_000.0), 8_000.0);
    }

    #[test]
    fn who_has_gone_is_forgotten() {
        let mut some = guests(&[10.0, 30.0, 20.0, 20.0]);
        assert_eq!(some, guests(&[10.0, 20.0, 20.0, 30.0]));
        [20.0, 10.0, 15.0, 20.0].into_iter().for_each(|sent| some.go(sent));
        assert_eq!((some.last_of(0.1), some.last_of(1.0)), (Some(30.0), Some(30.0)));
        some.go(30.0);
        assert_eq!((some.last_of(0.5), some), (None, Guests::default()));
    }
}
