//! How often prompts come back that have the same in common with others.

use super::bursts::{Bursts, Place};
use super::survival::Survival;
use crate::ids::SequenceHash;
use crate::recent::Recent;
use crate::shape::Fork;
use crate::units::Blocks;

/// Forks that are remembered, about: what is asked for again and again stays among them, turns of conversations pass.
const FORKS_MAX: usize = 65_536;

/// Blocks before a fork among which the one before it is looked for: a thought or an answer of a thousand tokens in the
/// smallest blocks that engines use by themselves.
const TRUNK_BLOCKS: usize = 64;

/// Those who part at the same place or right behind it within so many ms of the first came at once: what one client sends
/// together is hardly further apart.
const BURST_MS: f64 = 20.0;

/// How often somebody came, by the block at which prompts part from what is held. Times are in ms.
#[derive(Debug, Default)]
pub(super) struct Returns {
    /// Made when the first one comes: 4 MB, for each policy of each model that may have no requests at all.
    forks: Option<Recent<Parted>>,
    bursts: Bursts,
    survival: Survival,
}

/// Those who parted at one block.
#[derive(Clone, Copy, Debug)]
struct Parted {
    /// Who comes while the one before could still be computed comes with it, and counts once: what comes at once is done
    /// before it is worth another copy.
    times: u32,
    /// When that counted last.
    counted: f64,
    /// ms that all who came missed together for lack of one more holder.
    missed: f64,
    /// When the last burst began, of those who parted here or at a fork right behind it, and how many more than its first came
    /// in it.
    burst: f64,
    more: u32,
    /// How many such bursts began, and behind how many forks this one is; as far as these fit.
    bursts: u8,
    generation: u8,
    /// How many held it when the last who came had been placed.
    holders: u32,
}

/// Nobody parted there so far.
const NOBODY: Parted = Parted {
    times: 0,
    counted: f64::NEG_INFINITY,
    missed: 0.0,
    burst: f64::NEG_INFINITY,
    more: 0,
    bursts: 0,
    generation: 0,
    holders: 0,
};

impl Returns {
    /// Somebody came, whose prompt takes `cold` to compute, and parts from others at `fork`, behind `trunk`. It went to where
    /// `held` blocks of it are, and `missed` so many ms for lack of one more holder.
    pub(super) fn add(
        &mut self,
        now: f64,
        (fork, trunk): (Fork, Option<Fork>),
        cold: f64,
        (held, missed): (Blocks, impl FnOnce() -> f64),
    ) {
        let mut parted = self.behind(trunk, fork);
        if parted.counts(now, cold) {
            self.survival.add(parted.holders, fork.holders);
            parted = parted.counting(now);
        }
        parted.missed += missed();
        let holders = fork.holders.saturating_add(u32::from(held < fork.blocks));
        self.came(now, fork, Parted { holders, ..parted });
        if let Some(trunk) = trunk {
            self.came(now, trunk, self.parted(trunk));
        }
    }

    fn came(&mut self, now: f64, at: Fork, before: Parted) {
        let parted = before.in_burst(now);
        self.bursts.add(parted.place(), parted.more);
        self.forks.get_or_insert_with(|| Recent::new(FORKS_MAX, NOBODY)).meet(at.block.0, now, parted);
    }

    /// How often a copy will be there for somebody who parts there, if one who comes now makes it: as often as others parted
    /// there before, and as far as it stays. To be found so often beside the other holders, it has to stay while as many come
    /// for each of them.
    pub(super) fn ahead(&self, now: f64, fork: Fork, cold: f64) -> f64 {
        let times = self.before(now, fork, cold);
        times * self.survival.share().powf(times * (f64::from(fork.holders) + 1.0))
    }

    /// ms that each who counted missed on average for lack of one more holder, with those who came at once with it.
    pub(super) fn missed(&self, fork: Fork) -> f64 {
        let parted = self.parted(fork);
        if parted.times == 0 { 0.0 } else { parted.missed / f64::from(parted.times) }
    }

    /// How often somebody parted there before one who comes now.
    fn before(&self, now: f64, fork: Fork, cold: f64) -> f64 {
        let parted = self.parted(fork);
        f64::from(if parted.counts(now, cold) { parted.times } else { parted.times - 1 })
    }

    /// Pairs of those who will come at once with each other, there or right behind it, after the burst with which somebody comes
    /// now.
    pub(super) fn pairs_ahead(&self, now: f64, at: Fork, trunk: Option<Fork>) -> f64 {
        self.bursts.pairs_after(self.behind(trunk, at).in_burst(now).place())
    }

    /// The fork before the end of `path`, where others parted: its place in it.
    pub(super) fn trunk(&self, path: &[SequenceHash]) -> Option<usize> {
        let (forks, end) = (self.forks.as_ref()?, path.len().checked_sub(1)?);
        let from = end.saturating_sub(TRUNK_BLOCKS);
        (from..end).rev().find(|at| forks.get(path[*at].0).is_some())
    }

    /// Who parted there: one generation behind the `trunk`, where nobody did before.
    fn behind(&self, trunk: Option<Fork>, fork: Fork) -> Parted {
        let parted = self.parted(fork);
        let first = || trunk.map_or(0, |trunk| self.parted(trunk).generation.saturating_add(1));
        if parted.bursts == 0 { Parted { generation: first(), ..parted } } else { parted }
    }

    fn parted(&self, fork: Fork) -> Parted {
        let met = self.forks.as_ref().and_then(|forks| forks.get(fork.block.0));
        met.map_or(NOBODY, |(_, parted)| parted)
    }
}

impl Parted {
    /// Whether who comes now counts: the one before is done.
    fn counts(&self, now: f64, cold: f64) -> bool {
        now - self.counted >= cold
    }

    /// With one more who counts.
    fn counting(self, now: f64) -> Self {
        Self { times: self.times.saturating_add(1), counted: now, ..self }
    }

    fn in_burst(self, now: f64) -> Self {
        if now - self.burst < BURST_MS {
            return Self { more: self.more.saturating_add(1), ..self };
        }
        Self { burst: now, more: 0, bursts: self.bursts.saturating_add(1), ..self }
    }

    /// That of its last burst.
    fn place(self) -> Place {
        Place { generation: self.generation, number: self.bursts }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// To a holder of all of it, where nothing was missed.
    fn came() -> (Blocks, fn() -> f64) {
        (Blocks(4), || 0.0)
    }

    fn fork(block: u64) -> Fork {
        Fork { block: SequenceHash(block), blocks: Blocks(4), holders: 1 }
    }

    #[test]
    fn nothing_is_kept_ready_before_somebody_comes() {
        let mut returns = Returns::default();
        let asked = (returns.ahead(0.0, fork(7), 1.0), returns.trunk(&[SequenceHash(7); 9]), returns.missed(fork(7)));
        assert_eq!((asked, returns.forks.is_none()), ((0.0, None, 0.0), true));
        returns.add(0.0, (fork(7), None), 1.0, came());
        assert!(returns.forks.is_some());
    }

    #[test]
    fn who_comes_at_once_counts_once() {
        let mut returns = Returns::default();
        let mut before = Vec::new();
        for now in [0.0, 10.0, 99.0, 100.0, 150.0, 500.0] {
            before.push(returns.before(now, fork(7), 100.0));
            returns.add(now, (fork(7), None), 100.0, came());
        }
        assert_eq!(before, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]);
        assert_eq!([returns.before(600.0, fork(7), 100.0), returns.before(600.0, fork(8), 100.0)], [3.0, 0.0]);
    }

    #[test]
    fn what_followed_the_bursts_of_other_trees_will_follow_those_of_this_one() {
        let mut returns = Returns::default();
        // Of a question three thoughts part, of each of these three more, and none of those.
        let mut tree = |now: f64, question: u64| {
            let thoughts = [1, 2, 3].map(|thought| question + thought);
            thoughts.iter().for_each(|_| returns.add(now, (fork(question), None), 100.0, came()));
            let each = thoughts.iter().flat_map(|thought| [*thought; 3]);
            each.for_each(|thought| returns.add(now + 1_000.0, (fork(thought), Some(fork(question))), 100.0, came()));
        };
        (0..36_u32).for_each(|tree_at| tree(f64::from(tree_at) * 10_000.0, u64::from(tree_at) * 10));
        let now = 1e6;
        let ahead = |at, trunk: Option<u64>| returns.pairs_ahead(now, fork(at), trunk.map(fork));
        // Nine at once after three, of 36 trees and four that are believed to have had nothing; after the thoughts nobody.
        let told = [(1_000, None), (1_001, Some(10)), (10, None)].map(|(at, trunk)| ahead(at, trunk));
        assert_eq!(told, [32.4, 0.0, 0.0]);
    }

    #[test]
    fn who_comes_one_by_one_tells_of_no_bursts() {
        let mut returns = Returns::default();
        (0..10_u32).for_each(|turn| returns.add(f64::from(turn) * 100.0, (fork(1), Some(fork(2))), 10.0, came()));
        assert_eq!([1, 2].map(|at| returns.pairs_ahead(5_000.0, fork(at), None)), [0.0; 2]);
        // They parted at the first, not at the one before it.
        assert_eq!([1, 2].map(|at| returns.before(5_000.0, fork(at), 10.0)), [10.0, 0.0]);
    }

    #[test]
    fn the_trunk_is_the_nearest_fork_before_the_end() {
        let mut returns = Returns::default();
        [3, 90, 100].into_iter().for_each(|block| returns.add(0.0, (fork(block), None), 100.0, came()));
        let path: Vec<_> = (0..=100).map(SequenceHash).collect();
        let trunk = |blocks: usize| returns.trunk(&path[..blocks]);
        assert_eq!(
            [0, 1, 4, 5, 68, 69, 91, 92, 101].map(trunk),
            [None, None, None, Some(3), Some(3), None, None, Some(90), Some(90)]
        );
    }

    #[test]
    fn as_many_will_come_again_as_came() {
        let mut returns = Returns::default();
        let ahead: Vec<_> = (0..=100_u32)
            .map(|at| {
                let now = f64::from(at) * 100.0;
                let ahead = returns.ahead(now, fork(1), 10.0);
                returns.add(now, (fork(1), None), 10.0, came());
                ahead
            })
            .collect();
        assert_eq!([0, 1, 4, 9, 25, 100].map(|before| ahead[before]), [0.0, 1.0, 4.0, 9.0, 25.0, 100.0]);
    }

    #[test]
    fn what_was_missed_is_a_mean_of_those_who_count_with_those_who_came_at_once() {
        let mut returns = Returns::default();
        let mut come = |now, missed| returns.add(now, (fork(1), None), 100.0, (Blocks(4), || missed));
        come(0.0, 30.0);
        come(50.0, 60.0);
        come(100.0, 0.0);
        come(200.0, 15.0);
        assert_eq!([1, 2].map(|at| returns.missed(fork(at))), [35.0, 0.0]);
    }

    #[test]
    fn copies_that_are_gone_before_they_are_asked_for_bring_nothing() {
        // Each who parts there is sent to where it is not, and of two holders one is left when the next comes, or both.
        let ahead = |left: u32| {
            let mut returns = Returns::default();
            let held_by = |holders| Fork { holders, ..fork(1) };
            (0..100_u32)
                .for_each(|at| returns.add(f64::from(at) * 100.0, (held_by(left), None), 10.0, (Blocks(2), || 0.0)));
            (returns.survival.share(), [0, 1, 2].map(|holders| returns.ahead(1e6, held_by(holders), 10.0)))
        };
        let (stays, copies) = ahead(2);
        assert!(stays < 0.52 && copies.iter().all(|times| *times < 1e-20), "{stays} {copies:?}");
        // One that is alone says nothing of copies.
        let (none, alone) = ahead(0);
        assert_eq!((none, alone), (1.0, [100.0; 3]));
    }

    #[test]
    fn who_comes_to_a_holder_makes_no_copy_and_who_comes_at_once_finds_none_gone() {
        let mut returns = Returns::default();
        let two = Fork { holders: 2, ..fork(1) };
        // Both are still there for each of them; then one is not, for two who come at once: it is gone once.
        (0..3_u32).for_each(|at| returns.add(f64::from(at) * 100.0, (two, None), 10.0, came()));
        assert_eq!(returns.survival.share(), 1.0);
        (0..2).for_each(|_| returns.add(300.0, (fork(1), None), 10.0, came()));
        let share = returns.survival.share();
        assert!((share - 2.97 / 3.97).abs() < 0.02, "{share}");
    }
}
