//! What may go wrong with events on their way, on purpose: for tests of whoever listens.

use std::collections::VecDeque;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// How far a batch may fall behind.
const WINDOW: usize = 8;

/// How often what goes wrong. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EventFaults {
    /// Share of batches that are lost.
    pub drop: f64,
    /// Share of batches that come twice.
    pub duplicate: f64,
    /// Share of batches that come later, behind up to eight others.
    pub reorder: f64,
    /// How long all batches are on their way.
    pub delay: Duration,
}

/// A way on which things go wrong, the same ones for the same seed.
#[derive(Debug)]
pub struct FaultyWay<T> {
    faults: EventFaults,
    rng: StdRng,
    /// Batches that have fallen behind, with how many others they still wait for.
    behind: VecDeque<(usize, T)>,
}

impl<T: Clone> FaultyWay<T> {
    /// A way with these faults.
    pub fn new(faults: EventFaults, seed: u64) -> Self {
        Self { faults, rng: StdRng::seed_from_u64(seed), behind: VecDeque::new() }
    }

    /// Other faults from now on. What has fallen behind stays so.
    pub fn set(&mut self, faults: EventFaults) {
        self.faults = faults;
    }

    /// How long batches are on their way.
    pub fn delay(&self) -> Duration {
        self.faults.delay
    }

    /// Forgets what has fallen behind.
    pub fn clear(&mut self) {
        self.behind.clear();
    }

    /// Takes a batch, and hands out what arrives now.
    pub fn pass(&mut self, batch: T, mut arrives: impl FnMut(T)) {
        let copies = match (self.happens(self.faults.drop), self.happens(self.faults.duplicate)) {
            (true, _) => 0,
            (false, twice) => 1 + usize::from(twice),
        };
        for _ in 0..copies {
            if self.behind.len() < WINDOW && self.happens(self.faults.reorder) {
                self.behind.push_back((self.rng.random_range(1..=WINDOW), batch.clone()));
            } else {
                arrives(batch.clone());
            }
        }
        for (waits, _) in &mut self.behind {
            *waits -= 1;
        }
        while let Some(at) = self.behind.iter().position(|(waits, _)| *waits == 0) {
            self.behind.remove(at).into_iter().for_each(|(_, batch)| arrives(batch));
        }
    }

    fn happens(&mut self, share: f64) -> bool {
        share > 0.0 && self.rng.random_bool(share.min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(faults: EventFaults, count: u32) -> Vec<u32> {
        let (mut way, mut arrived) = (FaultyWay::new(faults, 7), Vec::new());
        for batch in 0..count {
            way.pass(batch, |batch| arrived.push(batch));
        }
        arrived
    }

    #[test]
    fn without_faults_all_arrives_as_it_was_sent() {
        assert_eq!(passed(EventFaults::default(), 100), (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn all_may_be_lost_and_all_may_come_twice() {
        assert_eq!(passed(EventFaults { drop: 1.0, ..EventFaults::default() }, 100), Vec::<u32>::new());
        let twice = passed(EventFaults { duplicate: 1.0, ..EventFaults::default() }, 3);
        assert_eq!(twice, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn what_falls_behind_comes_within_the_window() {
        let arrived = passed(EventFaults { reorder: 0.3, ..EventFaults::default() }, 1000);
        let mut latest = 0;
        let mut late = 0;
        for batch in &arrived {
            latest = latest.max(*batch);
            late += u32::from(*batch < latest);
            assert!(latest - batch <= 8, "{batch} came after {latest}");
        }
        assert!(late > 100 && arrived.len() >= 992, "{late} {}", arrived.len());
    }

    #[test]
    fn shares_are_shares() {
        let arrived = passed(EventFaults { drop: 0.1, duplicate: 0.1, ..EventFaults::default() }, 10_000).len();
        assert!((9_500..10_500).contains(&arrived), "{arrived}");
    }
}
