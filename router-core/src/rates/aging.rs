//! How what was learned of workers comes to count less, with every interval that is seen of the fleet.

use super::worker::Worker;
use crate::ids::Slot;

/// Workers that age with an interval, besides the one that has learned: all of a small fleet, of a large one some in turn, as a
/// few intervals are nothing beside those that are remembered.
const AT_ONCE: usize = 16;

/// Whose turn it is.
#[derive(Debug, Default)]
pub(super) struct Aging {
    /// Intervals so far.
    intervals: u64,
    /// Up to which of them each worker has aged.
    aged: Vec<u64>,
    next: usize,
}

impl Aging {
    /// One more interval, of which the worker at `slot` has learned: `keep` is what is left of what was learned before. O(1).
    pub(super) fn pass(&mut self, workers: &mut [Worker], slot: Slot, keep: f64) {
        // Who is new has learned nothing that could be old.
        self.aged.resize(workers.len().max(self.aged.len()), self.intervals);
        self.intervals += 1;
        self.age(workers, slot.index(), keep);
        for _ in 0..AT_ONCE.min(workers.len()) {
            self.next = if self.next < workers.len() { self.next } else { 0 };
            self.age(workers, self.next, keep);
            self.next += 1;
        }
    }

    fn age(&mut self, workers: &mut [Worker], place: usize, keep: f64) {
        let (Some(worker), Some(aged)) = (workers.get_mut(place), self.aged.get_mut(place)) else { return };
        let intervals = self.intervals.saturating_sub(std::mem::replace(aged, self.intervals));
        if intervals > 0 {
            worker.age(keep.powi(i32::try_from(intervals).unwrap_or(i32::MAX)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: f64 = 0.999;

    /// How slow each of so many seems, once all took three times too long, after so many intervals of the first.
    fn slow(workers: usize, intervals: usize) -> Vec<f64> {
        let mut workers: Vec<Worker> = std::iter::repeat_with(Worker::default).take(workers).collect();
        workers.iter_mut().for_each(|worker| worker.answered(3.0, 10_000.0));
        let mut aging = Aging::default();
        (0..intervals).for_each(|_| aging.pass(&mut workers, Slot(0), KEEP));
        workers.iter().map(|worker| worker.slow).collect()
    }

    fn expected(intervals: i32) -> f64 {
        let mut worker = Worker::default();
        worker.answered(3.0, 10_000.0);
        worker.age(KEEP.powi(intervals));
        worker.slow
    }

    #[test]
    fn in_a_small_fleet_all_age_with_each_interval() {
        for intervals in [1_u16, 2, 500] {
            let expected = expected(i32::from(intervals));
            assert!(slow(AT_ONCE, usize::from(intervals)).iter().all(|slow| (slow / expected - 1.0).abs() < 1e-9));
        }
    }

    #[test]
    fn who_joins_late_forgets_nothing_of_its_first_interval() {
        let mut workers = vec![];
        let mut aging = Aging::default();
        for joined in 1..=3 {
            workers.push(Worker::default());
            (0..10_000).for_each(|_| aging.pass(&mut workers, Slot(0), KEEP));
            workers.push(Worker::default());
            workers[joined * 2 - 1].answered(3.0, 10_000.0);
            aging.pass(&mut workers, Slot(0), KEEP);
            assert_eq!(workers[joined * 2 - 1].slow, expected(1));
        }
    }

    #[test]
    fn in_a_large_fleet_they_do_in_turn_and_the_one_that_learns_at_once() {
        let slow = slow(AT_ONCE * 10, 1_000);
        assert!((slow[0] / expected(1_000) - 1.0).abs() < 1e-9);
        assert!(slow.iter().all(|slow| (expected(1_000)..=expected(990) * (1.0 + 1e-9)).contains(slow)), "{slow:?}");
    }
}
