//! What waits to be used again: the last first, and nothing for too long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// A bounded stack whose entries age.
#[derive(Debug)]
pub(super) struct Idle<T> {
    /// Oldest first.
    kept: VecDeque<(Instant, T)>,
    max: usize,
    limit: Duration,
}

impl<T> Idle<T> {
    /// Nothing yet. Holds at most `max` entries, each for less than `limit`.
    pub(super) fn new(max: usize, limit: Duration) -> Self {
        Self { kept: VecDeque::new(), max, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// The entry that was put last. If it is too old, so are all others, and all go.
    pub(super) fn take(&mut self, now: Instant) -> Option<T> {
        let (since, entry) = self.kept.pop_back()?;
        if self.is_over(since, now) {
            self.kept.clear();
            return None;
        }
        Some(entry)
    }

    /// Keeps an entry; the oldest one goes where there are too many.
    pub(super) fn put(&mut self, now: Instant, entry: T) {
        if self.kept.len() >= self.max {
            self.kept.pop_front();
        }
        self.kept.push_back((now, entry));
    }

    /// Lets go of what is too old, and returns it. O(that).
    pub(super) fn sweep(&mut self, now: Instant) -> Vec<(Instant, T)> {
        let over = self.kept.iter().take_while(|(since, _)| self.is_over(*since, now)).count();
        let gone = self.kept.drain(..over).collect();
        if self.kept.is_empty() {
            self.kept.shrink_to_fit();
        }
        gone
    }

    fn is_over(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(4);

    fn kept(ages_s: &[u64]) -> (Idle<u64>, Instant) {
        let start = Instant::now();
        let mut idle = Idle::new(3, LIMIT);
        for at in ages_s {
            idle.put(start + Duration::from_secs(*at), *at);
        }
        (idle, start)
    }

    #[test]
    fn the_last_is_taken_first() {
        let (mut idle, start) = kept(&[0, 1, 2]);
        let now = start + Duration::from_secs(2);
        let taken: Vec<u64> = std::iter::from_fn(|| idle.take(now)).collect();
        assert_eq!(taken, [2, 1, 0]);
    }

    #[test]
    fn where_the_last_is_too_old_all_are() {
        let (mut idle, start) = kept(&[0, 1]);
        assert_eq!((idle.take(start + Duration::from_secs(5)), idle.len()), (None, 0));
        let (mut idle, start) = kept(&[0, 1]);
        assert_eq!(idle.take(start + Duration::from_millis(4_999)), Some(1));
    }

    #[test]
    fn sweeping_lets_go_of_what_is_too_old_only() {
        let (mut idle, start) = kept(&[0, 1, 2]);
        let gone = idle.sweep(start + Duration::from_millis(5_500));
        assert_eq!(gone.iter().map(|(_, at)| *at).collect::<Vec<_>>(), [0, 1]);
        assert_eq!((idle.len(), idle.take(start + Duration::from_millis(5_500))), (1, Some(2)));
    }

    #[test]
    fn of_too_many_the_oldest_goes() {
        let (mut idle, start) = kept(&[0, 1, 2, 3]);
        let taken: Vec<u64> = std::iter::from_fn(|| idle.take(start)).collect();
        assert_eq!(taken, [3, 2, 1]);
    }
}
