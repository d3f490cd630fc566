//! How much may still be kept.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A number of things that is never exceeded, whoever takes at once. Nothing else depends on when a change of the number
/// is seen, so its order does not matter.
pub(crate) struct Room {
    taken: AtomicUsize,
    max: usize,
}

impl Room {
    /// Room for `max` things.
    pub(crate) fn new(max: usize) -> Self {
        Self { taken: AtomicUsize::new(0), max }
    }

    /// Takes as many as there are, at most `wanted`; returns how many.
    pub(crate) fn take(&self, wanted: usize) -> usize {
        let mut granted = 0;
        let grant = |taken: usize| {
            granted = wanted.min(self.max - taken);
            Some(taken + granted)
        };
        // It never refuses, so either way `granted` is what was taken last.
        let _ = self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grant);
        granted
    }

    /// Gives back what was taken.
    pub(crate) fn give(&self, number: usize) {
        self.taken.fetch_sub(number, Ordering::Relaxed);
    }

    /// How many are taken.
    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// How many there are at most.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// How many may be taken.
    pub(crate) fn left(&self) -> usize {
        self.max - self.taken()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_there_is_however_many_take() {
        let room = Room::new(1000);
        let takes = || (0..100).map(|_| room.take(7)).sum::<usize>();
        let taken: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(takes)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((taken, room.taken(), room.left(), room.take(1)), (1000, 1000, 0, 0));
        room.give(3);
        assert_eq!((room.left(), room.take(9)), (3, 3));
    }
}
