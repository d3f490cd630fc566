//! How often prompts come back that have the same in common with others.

use crate::ids::SequenceHash;
use crate::recent::Recent;

/// Forks that are remembered, about: what is asked for again and again stays among them, turns of conversations pass.
const FORKS_MAX: usize = 65_536;

/// How often somebody came, by the block at which prompts part from what is held, and when that counted last. Who comes while
/// the one before could still be computed comes with it, and counts once: what comes at once is done before it is
/// worth another copy. Times are in ms.
#[derive(Debug)]
pub(super) struct Returns(Recent<u32>);

impl Default for Returns {
    fn default() -> Self {
        Self(Recent::new(FORKS_MAX, 0))
    }
}

impl Returns {
    /// Somebody came, whose prompt takes `cold` to compute.
    pub(super) fn add(&mut self, now: f64, fork: SequenceHash, cold: f64) {
        let times = match self.0.get(fork.0) {
            Some((met, _)) if now - met < cold => return,
            Some((_, times)) => times.saturating_add(1),
            None => 1,
        };
        self.0.meet(fork.0, now, times);
    }

    /// How often somebody came before one who comes now.
    pub(super) fn before(&self, now: f64, fork: SequenceHash, cold: f64) -> f64 {
        self.0.get(fork.0).map_or(0.0, |(met, times)| f64::from(if now - met < cold { times - 1 } else { times }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_at_once_counts_once() {
        let mut returns = Returns::default();
        let fork = SequenceHash(7);
        let mut before = Vec::new();
        for now in [0.0, 10.0, 99.0, 100.0, 150.0, 500.0] {
            before.push(returns.before(now, fork, 100.0));
            returns.add(now, fork, 100.0);
        }
        assert_eq!(before, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0]);
        assert_eq!([returns.before(600.0, fork, 100.0), returns.before(600.0, SequenceHash(8), 100.0)], [3.0, 0.0]);
    }
}
