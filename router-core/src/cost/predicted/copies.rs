//! What others have of a copy of what prompts have in common: see [`Predicted`](super::Predicted).

use crate::cost::{Among, Candidate, ratio};
use crate::rates::Returning;
use crate::real::{larger, smaller};
use crate::units::Blocks;

/// Of what a request costs at one worker, the time to its own first token, in ms: as in [`Toll`](super::Toll).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct First<N = f64> {
    pub(super) wait: N,
    pub(super) own: N,
}

impl First {
    #[inline]
    fn ms(self) -> f64 {
        self.wait + self.own
    }
}

/// What others would have of one more holder of a part of what prompts have in common.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// What those who come one by one would wait less together, in ms.
    spared: f64,
    /// What those who come at once next would wait less for each other there, in ms.
    apart: f64,
}

/// What copies bring to those who come back: to whom of them, and beside whom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    wish: Wish,
    /// The longest match, and its holder that would answer soonest.
    most: Blocks,
    home: First,
    /// What others come for.
    blocks: Blocks,
}

impl Copies {
    /// `more` is what each of those who come back would take from others at home.
    pub(super) fn of(returning: Returning, home: Home<'_>, more: impl FnOnce(&Candidate) -> f64) -> Self {
        let Returning { times, missed, pairs, blocks, holders } = returning;
        let apart = if pairs > 0.0 { pairs * more(home.candidate) * spread(holders) } else { 0.0 };
        Self { wish: Wish { spared: times * missed, apart }, most: home.held, home: home.first, blocks }
    }

    /// What a copy at a candidate costs, where others wish for a share of what it holds less than home. Those who come one by
    /// one gain no more by it than what that share takes longer, and nothing where this one would not wait less itself: who has
    /// to wait anyhow copies at the least expense. Those of the next burst wait less for each other.
    #[inline]
    pub(super) fn cost(&self, candidate: &Candidate, first: First) -> f64 {
        let Self { wish, most, home, blocks } = self;
        let held = candidate.overlap.total();
        let spared = if first.wait < home.wait { wish.spared } else { 0.0 };
        if held >= *most || (spared <= 0.0 && wish.apart <= 0.0) {
            return 0.0;
        }
        let share = ratio(blocks.0.saturating_sub(held.0), most.0 - held.0).min(1.0);
        let takes = share * larger(first.own - home.own, 0.0);
        -(smaller(spared, takes) + smaller(wish.apart, APART_MAX * takes))
    }
}

/// How many more of those who come at once go to different holders if there is one more: of two, one waits for the other where
/// both go to the same.
fn spread(holders: u32) -> f64 {
    let holders = f64::from(holders.max(1));
    1.0 / holders - 1.0 / (holders + 1.0)
}

/// The longest match among those that can be chosen, and its holder that would answer soonest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home<'a> {
    candidate: &'a Candidate,
    held: Blocks,
    first: First,
}

impl<'a> Home<'a> {
    /// None where nobody can be chosen.
    pub(super) fn among(candidates: &'a [Candidate], firsts: &[First]) -> Option<Self> {
        let mut home: Option<Self> = None;
        for (candidate, first) in candidates.iter().zip(firsts) {
            let (held, first) = (candidate.overlap.total(), *first);
            let is_better = |home: &Self| held > home.held || (held == home.held && first.ms() < home.first.ms());
            if Among::OpenAndFull.takes(candidate.standing) && home.as_ref().is_none_or(is_better) {
                home = Some(Self { candidate, held, first });
            }
        }
        home
    }
}

/// How many times what a copy takes it may bring to those who come at once. On trees of thought once and three times were
/// measured to be worse.
const APART_MAX: f64 = 2.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::small_worlds::candidate;

    /// A world in which nothing decodes and nobody waits, as far as candidates tell.
    fn idle(slot: u16, overlap: u32) -> Candidate {
        candidate(slot, (0, 1000), (0, 16), overlap)
    }

    #[test]
    fn a_copy_brings_what_others_wait_less_and_no_more_than_it_takes() {
        let first = |wait, own| First { wait, own };
        let (home, other) = (first(30.0, 20.0), first(10.0, 70.0));
        // For 50 ms more now.
        let copied = |other, spared, share| brought(Wish { spared, apart: 0.0 }, share, (home, other));
        let copies = [0.0, 20.0, 40.0, 60.0, 2_000.0].map(|spared| copied(other, spared, 1.0));
        assert_eq!(copies, [0.0, 20.0, 40.0, 50.0, 50.0]);
        // Many come for half of it.
        assert_eq!(copied(other, 180.0, 0.5), 25.0);
        // Who would wait as long there copies nothing for others; where it is faster nothing has to be paid for.
        let others = [first(30.0, 70.0), first(40.0, 70.0), first(10.0, 15.0)];
        assert_eq!(others.map(|other| copied(other, 180.0, 1.0)), [0.0; 3]);
    }

    /// What a copy of this share of what is held at home brings where nothing is.
    fn brought(wish: Wish, share: f64, (home, other): (First, First)) -> f64 {
        let blocks = if share < 1.0 { Blocks(6) } else { Blocks(12) };
        assert!((share - ratio(blocks.0, 12)).abs() < 1e-12);
        -Copies { wish, most: Blocks(12), home, blocks }.cost(&idle(0, 0), other)
    }

    #[test]
    fn a_copy_brings_to_a_burst_what_its_requests_wait_less_for_each_other() {
        let close = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-9, "{value}, not {expected}");
        // All pairs wait at one holder, half of them at two, a third at three.
        [(0, 0.5), (1, 0.5), (2, 1.0 / 6.0)].into_iter().for_each(|(holders, spared)| close(spread(holders), spared));
        // Nobody waits, and yet a copy is worth its while, up to twice what it takes.
        let first = |own| First { wait: 0.0, own };
        let copied = |apart, share| brought(Wish { spared: 20.0, apart }, share, (first(20.0), first(70.0)));
        close(copied(30.0, 1.0), 30.0);
        close(copied(1e3, 1.0), 100.0);
        close(copied(1e3, 0.5), 50.0);
    }

    #[test]
    fn who_holds_less_is_told_what_a_burst_to_come_has_of_a_copy() {
        let fleet = [idle(0, 12), idle(1, 0), idle(2, 12)];
        let firsts = fleet.map(|it| First { wait: 0.0, own: 100.0 - f64::from(it.overlap.total().0) });
        let copied = |pairs| {
            let returning = Returning { pairs, blocks: Blocks(12), holders: 2, ..Returning::default() };
            let copies = Copies::of(returning, Home::among(&fleet, &firsts).unwrap(), |_| 4.0);
            [0, 1, 2].map(|at| copies.cost(&fleet[at], firsts[at]))
        };
        // 6 pairs of 4 ms, a sixth of which is spared by a third holder; of many, twice what the copy takes.
        assert_eq!(copied(0.0), [0.0; 3]);
        assert!((copied(6.0)[1] + 4.0).abs() < 1e-9, "{:?}", copied(6.0));
        assert_eq!(copied(1e6), [0.0, -24.0, 0.0]);
    }
}
