//! What a request costs at one worker: see [`Predicted`](super::Predicted).

use super::First;
use super::worth::{BUSIEST, Worth};
use crate::cost::{Cost, Term, Unit};
use crate::rates::{Outlook, Regulars};
use crate::real::{Number, smaller};

/// What a request costs at one worker, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Toll<N = f64> {
    /// Until the engine comes to it.
    pub(super) wait: N,
    /// To compute it.
    pub(super) own: N,
    /// What those lose who arrive meanwhile.
    pub(super) later: N,
    /// What those lose who come next, where it takes the time of who would have some soonest.
    pub(super) last: N,
    /// What those lose who come for what it holds.
    pub(super) regulars: N,
    /// What those lose who decode there.
    pub(super) stalls: N,
    /// What those lose who are computed in the same step.
    pub(super) step: N,
    /// What those lose who wait for room behind it.
    pub(super) behind: N,
    /// By what it breaks a promise that its class was given.
    pub(super) late: N,
    /// What others will gain who come for the same, if it is copied there; not above 0.
    pub(super) copy: N,
}

/// How many times as many may come to a worker as came last. One that hardly anybody goes to would look, by its equal share
/// of arrivals, as if many would be held up there, and stay idle beside busy ones for that.
const GROWTH_MAX: f64 = 8.0;

/// How many ms all others lose at most by one that all who decode somewhere lose: as many come who have to wait for room before
/// a fleet has caught up that is as full as is believed at most.
const STALLS_MAX: f64 = 1.0 / (1.0 - BUSIEST);

impl<N: Number> Toll<N> {
    /// `decoding` are the streams that decode there when it is computed.
    #[inline(always)]
    pub(super) fn of(
        Outlook { wait, own, more, step }: Outlook<N>,
        decoding: N,
        regulars: Regulars<N>,
        worth: Worth,
    ) -> Self {
        let during = wait + own / N::all(2.0);
        let coming = smaller(N::all(worth.arrivals), N::all(GROWTH_MAX) * regulars.per_ms());
        Self {
            wait,
            own,
            later: more * N::all(worth.busy) * coming * during,
            regulars: regulars.lose(more) * during,
            stalls: smaller(more * N::all(worth.stall) * decoding, more * N::all(STALLS_MAX)),
            step,
            ..Self::default()
        }
    }

    /// The time to its own first token.
    #[inline(always)]
    pub(super) fn first(&self) -> First<N> {
        First { wait: self.wait, own: self.own }
    }

    /// What it costs there, whoever stands beside it.
    #[inline(always)]
    fn alone(&self) -> N {
        let Self { wait, own, later, regulars, stalls, step, behind, late, .. } = *self;
        wait + own + later + regulars + stalls + step + behind + late
    }

    /// Writes that, and the time to its first token, to the next places.
    #[inline(always)]
    pub(super) fn tell<'a>(&self, places: &mut impl Iterator<Item = (&'a mut Cost, &'a mut First)>) {
        let (alone, First { wait, own }) = (self.alone(), self.first());
        let each = alone.numbers().iter().zip(wait.numbers()).zip(own.numbers());
        for (((alone, wait), own), (cost, first)) in each.zip(places) {
            (cost.0, *first) = (*alone, First { wait: *wait, own: *own });
        }
    }
}

impl Toll {
    pub(super) fn terms(&self) -> [Term; 10] {
        let Self { wait, own, later, last, regulars, stalls, step, behind, late, copy } = *self;
        let ms = |name, ms| Term::adds(name, Unit::Milliseconds, ms);
        [
            ms("wait", wait),
            ms("own", own),
            ms("later", later),
            ms("last", last),
            ms("regulars", regulars),
            ms("stalls", stalls),
            ms("step", step),
            ms("behind", behind),
            ms("late", late),
            ms("copy", copy),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::Flow;
    use crate::real::Four;

    impl Toll<Four> {
        /// That of one of the four.
        pub(in super::super) fn one(&self, at: usize) -> Toll {
            let Self { wait, own, later, last, regulars, stalls, step, behind, late, copy } = self;
            let one = |number: &Four| number.numbers()[at];
            Toll {
                wait: one(wait),
                own: one(own),
                later: one(later),
                last: one(last),
                regulars: one(regulars),
                stalls: one(stalls),
                step: one(step),
                behind: one(behind),
                late: one(late),
                copy: one(copy),
            }
        }
    }

    #[test]
    fn the_formula_by_hand() {
        let worth = Worth { busy: 0.5, arrivals: 0.01, stall: 0.05 };
        // 0.01 arrivals a ms in the 100 ms before it and, as they lose half, 25 of those that it takes are 1.25, each of which
        // loses 40, and half of them go elsewhere; six streams lose 40 at a twentieth each.
        // Of sessions four go on in that time, each of which would rather lose the 30 ms that coming here saves; two others come,
        // whom that saves 20.
        let [sessions, others] = [Flow { per_ms: 0.032, saved: 30.0 }, Flow { per_ms: 0.016, saved: 20.0 }];
        let regulars = Regulars { sessions, others };
        let toll = Toll::of(Outlook { wait: 100.0, own: 50.0, more: 40.0, step: 8.0 }, 6.0, regulars, worth);
        let lost = Toll { later: 25.0, regulars: 160.0, stalls: 12.0, step: 8.0, ..Toll::default() };
        assert_eq!(toll, Toll { wait: 100.0, own: 50.0, ..lost });
        assert!((toll.alone() - 355.0).abs() < 1e-12);
        // However many decode, those who wait for room are some twenty.
        let crowded = Toll::of(Outlook { more: 40.0, ..Outlook::default() }, 1e6, regulars, worth);
        assert!((crowded.stalls - 800.0).abs() < 1e-9);
        // The same work ahead of it costs nobody else anything.
        let alone = Toll::of(Outlook { wait: 100.0, ..Outlook::default() }, 6.0, regulars, worth);
        assert!((alone.alone() - 100.0).abs() < 1e-12);
    }

    #[test]
    fn who_goes_nowhere_makes_nobody_wait_there() {
        let worth = Worth { busy: 1.0, arrivals: 0.01, stall: 0.0 };
        let later = |per_ms| {
            let outlook = Outlook { own: 100.0, more: 80.0, ..Outlook::default() };
            Toll::of(outlook, 0.0, Regulars { others: Flow { per_ms, saved: 0.0 }, ..Regulars::default() }, worth).later
        };
        // An equal share of what arrives is 40 ms, whether a fifth as many came there last or more.
        let expected = [(0.0, 0.0), (0.000_625, 20.0), (0.002, 40.0), (0.01, 40.0), (0.04, 40.0)];
        for (per_ms, ms) in expected {
            assert!((later(per_ms) - ms).abs() < 1e-9, "{per_ms}: {}", later(per_ms));
        }
    }
}
