//! What those lose who come next, where a request takes the time of who would have some soonest: see
//! [`Predicted`](super::Predicted).

use super::First;
use crate::cost::{Among, Candidate};
use crate::real::{larger, smaller};

/// Who has time soonest of those that can be chosen, and how soon another has. Times are in ms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Soonest {
    /// Its place; of none before somebody was considered.
    at: usize,
    first: First,
    /// Until another has time.
    other: f64,
    /// The least that any has to compute.
    least: f64,
}

impl Default for Soonest {
    fn default() -> Self {
        let first = First { wait: f64::INFINITY, own: f64::INFINITY };
        Self { at: usize::MAX, first, other: f64::INFINITY, least: f64::INFINITY }
    }
}

impl Soonest {
    pub(super) fn among(candidates: &[Candidate], firsts: &[First]) -> Self {
        let mut soonest = Self::default();
        let each = candidates.iter().zip(firsts).enumerate();
        each.for_each(|(at, (candidate, first))| soonest.consider(at, candidate, *first));
        soonest
    }

    #[inline(always)]
    fn consider(&mut self, at: usize, candidate: &Candidate, first: First) {
        if !Among::OpenAndFull.takes(candidate.standing) {
            return;
        }
        self.other = smaller(self.other, larger(self.first.wait, first.wait));
        self.least = smaller(self.least, first.own);
        if first.wait < self.first.wait {
            (self.at, self.first) = (at, first);
        }
    }

    /// The place at which others lose by a request, and how many ms, where so many `newcomers` come in a ms
    /// ([`Reading::newcomers`](crate::rates::Reading::newcomers)).
    ///
    /// Who comes after `u` ms waits `f − u` if `f` is how soon somebody has time, so `ν` of them in a ms wait `ν·f²/2` together
    /// until then. `f` grows only where the request goes to who has time soonest: up to when another has, or this one again.
    /// That counts by the share of `own` that is more than it would take elsewhere: what has to be computed anyway takes the
    /// time of somebody.
    pub(super) fn lost(&self, newcomers: f64) -> Option<(usize, f64)> {
        let Self { at, first: First { wait, own }, other, least } = *self;
        if at == usize::MAX || own <= 0.0 {
            return None;
        }
        let then = smaller(other, wait + own);
        Some((at, newcomers * (then * then - wait * wait) / 2.0 * (1.0 - least / own)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Standing;
    use crate::cost::small_worlds::candidate;

    fn lost(fleet: &[(Standing, f64, f64)]) -> Option<(usize, f64)> {
        let each = fleet.iter().map(|&(standing, wait, own)| {
            (Candidate { standing, ..candidate(0, (0, 1000), (0, 16), 0) }, First { wait, own })
        });
        let (candidates, firsts): (Vec<_>, Vec<_>) = each.unzip();
        Soonest::among(&candidates, &firsts).lost(0.01)
    }

    #[test]
    fn who_takes_the_last_that_has_time_lets_those_wait_who_come_next() {
        let open = |wait, own| (Standing::Open, wait, own);
        // The holder is busy for 60 ms; elsewhere 100 ms are computed, of which 75 could be had there. 0.01 a ms that wait 60,
        // 59, … are 18 ms.
        assert_eq!(lost(&[open(60.0, 25.0), open(0.0, 100.0)]), Some((1, 18.0 * 0.75)));
        assert_eq!(lost(&[open(0.0, 100.0), open(60.0, 25.0)]), Some((0, 18.0 * 0.75)));
        // This one has time again before others have.
        assert_eq!(lost(&[open(300.0, 25.0), open(0.0, 100.0)]), Some((1, 50.0 * 0.75)));
        // Another has time, too; by then it is the other that those who come next go to.
        assert_eq!(lost(&[open(60.0, 25.0), open(0.0, 100.0), open(0.0, 100.0)]).map(|(_, ms)| ms), Some(0.0));
        assert_eq!(lost(&[open(60.0, 25.0), open(40.0, 100.0)]), Some((1, 0.01 * (3600.0 - 1600.0) / 2.0 * 0.75)));
        // What has to be computed anyway.
        assert_eq!(lost(&[open(60.0, 100.0), open(0.0, 100.0)]), Some((1, 0.0)));
        assert_eq!(lost(&[open(0.0, 0.0), open(60.0, 0.0)]), None);
    }

    #[test]
    fn nobody_goes_to_who_is_given_nothing() {
        let out = |standing| [(Standing::Open, 60.0, 25.0), (standing, 10.0, 25.0), (Standing::Full, 0.0, 100.0)];
        assert_eq!(lost(&out(Standing::Out)), Some((2, 18.0 * 0.75)));
        assert_eq!(lost(&out(Standing::HeldBack)), Some((2, 18.0 * 0.75)));
        assert_eq!(lost(&out(Standing::Open)), Some((2, 0.5 * 0.75)));
        assert_eq!(lost(&[]), None);
    }
}
