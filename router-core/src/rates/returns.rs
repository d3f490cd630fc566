//! How often prompts come back that have the same in common with others.

use crate::ids::SequenceHash;
use crate::recent::Recent;
use crate::shape::Fork;

/// Forks that are remembered, about: what is asked for again and again stays among them, turns of conversations pass.
const FORKS_MAX: usize = 65_536;

/// Blocks before a fork among which the one before it is looked for: a thought or an answer of a thousand tokens in the
/// smallest blocks that engines use by themselves.
const TRUNK_BLOCKS: usize = 64;

/// Those who part at the same place or right behind it within so many ms of the first came at once: what one client sends
/// together is hardly further apart.
const BURST_MS: f64 = 20.0;

/// How often somebody came, by the block at which prompts part from what is held. Times are in ms.
#[derive(Debug)]
pub(super) struct Returns(Recent<Parted>);

/// Those who parted at one block.
#[derive(Clone, Copy, Debug)]
struct Parted {
    /// Who comes while the one before could still be computed comes with it, and counts once: what comes at once is done
    /// before it is worth another copy.
    times: u32,
    /// When that counted last.
    counted: f64,
    /// When the last burst began, of those who parted here or at a fork right behind it, how many more than its first came in
    /// it, and in all before.
    burst: f64,
    more: u32,
    more_before: u32,
}

/// Nobody parted there so far.
const NOBODY: Parted =
    Parted { times: 0, counted: f64::NEG_INFINITY, burst: f64::NEG_INFINITY, more: 0, more_before: 0 };

impl Default for Returns {
    fn default() -> Self {
        Self(Recent::new(FORKS_MAX, NOBODY))
    }
}

impl Returns {
    /// Somebody came, whose prompt takes `cold` to compute, and parts from others at `fork`, behind `trunk`.
    pub(super) fn add(&mut self, now: f64, fork: Fork, trunk: Option<Fork>, cold: f64) {
        let parted = self.parted(fork).counting(now, cold).in_burst(now);
        self.0.meet(fork.block.0, now, parted);
        if let Some(trunk) = trunk {
            let parted = self.parted(trunk).in_burst(now);
            self.0.meet(trunk.block.0, now, parted);
        }
    }

    /// How often somebody parted there before one who comes now.
    pub(super) fn before(&self, now: f64, fork: Fork, cold: f64) -> f64 {
        let Parted { times, counted, .. } = self.parted(fork);
        f64::from(if now - counted < cold { times - 1 } else { times })
    }

    /// How many came there or right behind it at once with others, in bursts before this one.
    pub(super) fn at_once(&self, now: f64, trunk: Fork) -> f64 {
        let Parted { burst, more, more_before, .. } = self.parted(trunk);
        f64::from(if now - burst < BURST_MS { more_before } else { more_before.saturating_add(more) })
    }

    /// The fork before the end of `path`, where others parted: its place in it.
    pub(super) fn trunk(&self, path: &[SequenceHash]) -> Option<usize> {
        let end = path.len().checked_sub(1)?;
        let from = end.saturating_sub(TRUNK_BLOCKS);
        (from..end).rev().find(|at| self.0.get(path[*at].0).is_some())
    }

    fn parted(&self, fork: Fork) -> Parted {
        self.0.get(fork.block.0).map_or(NOBODY, |(_, parted)| parted)
    }
}

impl Parted {
    fn counting(self, now: f64, cold: f64) -> Self {
        if now - self.counted < cold {
            return self;
        }
        Self { times: self.times.saturating_add(1), counted: now, ..self }
    }

    fn in_burst(self, now: f64) -> Self {
        if now - self.burst < BURST_MS {
            return Self { more: self.more.saturating_add(1), ..self };
        }
        Self { burst: now, more: 0, more_before: self.more_before.saturating_add(self.more), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Blocks;

    fn fork(block: u64) -> Fork {
        Fork { block: SequenceHash(block), blocks: Blocks(4) }
    }

    #[test]
    fn who_comes_at_once_counts_once() {
        let mut returns = Returns::default();
        let mut before = Vec::new();
        for now in [0.0, 10.0, 99.0, 100.0, 150.0, 500.0] {
            before.push(returns.before(now, fork(7), 100.0));
            returns.add(now, fork(7), None, 100.0);
        }
        assert_eq!(before, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]);
        assert_eq!([returns.before(600.0, fork(7), 100.0), returns.before(600.0, fork(8), 100.0)], [3.0, 0.0]);
    }

    #[test]
    fn of_a_burst_all_but_the_first_tell_of_bursts_to_come() {
        let mut returns = Returns::default();
        // Three thoughts of one question at once; then three of each of these, and nobody waits for those in the same burst.
        (0..3).for_each(|_| returns.add(0.0, fork(1), None, 100.0));
        assert_eq!([returns.at_once(0.0, fork(1)), returns.at_once(19.0, fork(1))], [0.0; 2]);
        let mut told = Vec::new();
        for thought in [10, 10, 10, 11, 11, 11, 12, 12, 12] {
            told.push(returns.at_once(1_000.0, fork(1)));
            returns.add(1_000.0, fork(thought), Some(fork(1)), 100.0);
        }
        assert_eq!(told, [2.0; 9]);
        assert_eq!([1, 10, 11, 13].map(|at| returns.at_once(2_000.0, fork(at))), [10.0, 2.0, 2.0, 0.0]);
        // They parted behind it, not there.
        assert_eq!(returns.before(2_000.0, fork(1), 100.0), 1.0);
    }

    #[test]
    fn who_comes_one_by_one_tells_of_no_bursts() {
        let mut returns = Returns::default();
        (0..10_u32).for_each(|turn| returns.add(f64::from(turn) * 100.0, fork(1), Some(fork(2)), 10.0));
        assert_eq!([1, 2].map(|at| returns.at_once(5_000.0, fork(at))), [0.0; 2]);
    }

    #[test]
    fn the_trunk_is_the_nearest_fork_before_the_end() {
        let mut returns = Returns::default();
        [3, 90, 100].into_iter().for_each(|block| returns.add(0.0, fork(block), None, 100.0));
        let path: Vec<_> = (0..=100).map(SequenceHash).collect();
        let trunk = |blocks: usize| returns.trunk(&path[..blocks]);
        assert_eq!(
            [0, 1, 4, 5, 68, 69, 91, 92, 101].map(trunk),
            [None, None, None, Some(3), Some(3), None, None, Some(90), Some(90)]
        );
    }
}
