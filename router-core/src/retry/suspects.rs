//! Requests of which workers may have died, so that none goes on to kill a third time.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::ids::Slot;

/// How often workers may break under one request, within the time for which it is remembered.
const BREAKS_MAX: usize = 2;

/// No engine is up again so soon after it died: what breaks on the same worker within this time breaks for one reason.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Requests that are remembered at most. Only those under which a connection broke are.
const REQUESTS_MAX: usize = 4096;

/// Under which requests, by the fingerprints of their bytes, workers' connections broke. Innocent requests that were there
/// when a worker died are among them, until one like them is answered.
#[derive(Debug)]
pub struct Suspects {
    remembered: Duration,
    broke: HashMap<u64, [Option<(Slot, Instant)>; BREAKS_MAX]>,
    /// When to look for what is over; none while nothing is remembered.
    sweep: Option<Instant>,
}

impl Suspects {
    /// Nobody is suspected. A break is remembered for so long; not at all with zero.
    pub fn new(remembered: Duration) -> Self {
        Self { remembered, broke: HashMap::new(), sweep: None }
    }

    /// How many requests are remembered.
    pub fn len(&self) -> usize {
        self.broke.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.broke.is_empty()
    }

    /// A worker's connection, over which this request was `sent`, broke. Requests that were sent before a worker broke go
    /// down with it, however many they are, and those that are sent at once to what is left of it; one that was sent later
    /// breaks it once more. O(1), O(remembered requests) where there are too many.
    pub fn broke(&mut self, (sent, now): (Instant, Instant), request: u64, slot: Slot) {
        if self.remembered.is_zero() {
            return;
        }
        self.sweep.get_or_insert(now + self.remembered);
        if self.broke.len() >= REQUESTS_MAX && !self.broke.contains_key(&request) {
            self.make_room(now);
        }
        let breaks = self.broke.entry(request).or_default();
        if breaks.iter().flatten().any(|(other, at)| *other == slot && sent <= *at + AT_ONCE) {
            return;
        }
        // `None` is less than any time: an empty place goes first, then the oldest.
        if let Some(place) = breaks.iter_mut().min_by_key(|place| place.map(|(_, at)| at)) {
            *place = Some((slot, now));
        }
    }

    /// The request was answered: whoever broke under it did not die of it.
    pub fn answered(&mut self, request: u64) {
        self.broke.remove(&request);
    }

    /// Whether workers broke under the request as often as they may. What is over is forgotten here, within twice the time
    /// for which it matters; O(1), amortised.
    pub fn is_blocked(&mut self, now: Instant, request: u64) -> bool {
        if self.sweep.is_some_and(|at| now >= at) {
            self.forget(now);
            self.sweep = (!self.broke.is_empty()).then(|| now + self.remembered);
        }
        self.broke.get(&request).is_some_and(|breaks| {
            breaks.iter().flatten().filter(|(_, at)| self.is_fresh(*at, now)).count() >= BREAKS_MAX
        })
    }

    fn is_fresh(&self, at: Instant, now: Instant) -> bool {
        now.saturating_duration_since(at) < self.remembered
    }

    /// Forgets what is over.
    fn forget(&mut self, now: Instant) {
        let remembered = self.remembered;
        let is_fresh = |at: Instant| now.saturating_duration_since(at) < remembered;
        self.broke.retain(|_, breaks| last(breaks).is_some_and(is_fresh));
    }

    /// Forgets what is over, else what is oldest.
    fn make_room(&mut self, now: Instant) {
        self.forget(now);
        if self.broke.len() >= REQUESTS_MAX {
            let oldest = self.broke.iter().min_by_key(|(_, breaks)| last(*breaks)).map(|(request, _)| *request);
            oldest.map(|request| self.broke.remove(&request));
        }
    }
}

/// When a worker last broke.
fn last(breaks: &[Option<(Slot, Instant)>]) -> Option<Instant> {
    breaks.iter().flatten().map(|(_, at)| *at).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn start() -> Instant {
        Instant::now()
    }

    fn seconds(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_request_that_broke_two_workers_is_blocked_for_a_minute() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        suspects.broke((at, seconds(at, 1)), 7, Slot(1));
        assert!(!suspects.is_blocked(seconds(at, 1), 7));
        suspects.broke((at, seconds(at, 2)), 7, Slot(2));
        assert!(suspects.is_blocked(seconds(at, 2), 7) && !suspects.is_blocked(seconds(at, 2), 8));
        assert!(suspects.is_blocked(seconds(at, 60), 7));
        assert!(!suspects.is_blocked(seconds(at, 61), 7));
    }

    #[test]
    fn equal_requests_that_go_down_together_count_once_and_one_that_comes_later_again() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        for sent in 0..5 {
            suspects.broke((seconds(at, sent), seconds(at, 5 + sent)), 7, Slot(1));
        }
        assert!(!suspects.is_blocked(seconds(at, 9), 7));
        suspects.broke((seconds(at, 6), seconds(at, 9)), 7, Slot(1));
        assert!(!suspects.is_blocked(seconds(at, 9), 7));
        suspects.broke((seconds(at, 7), seconds(at, 9)), 7, Slot(1));
        assert!(suspects.is_blocked(seconds(at, 9), 7));
    }

    #[test]
    fn two_breaks_further_apart_are_no_suspicion() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        let mut broke = |after: u64, slot| {
            let now = seconds(at, after);
            suspects.broke((now, now), 7, slot);
            suspects.is_blocked(now, 7)
        };
        assert_eq!([broke(0, Slot(1)), broke(60, Slot(2)), broke(61, Slot(3))], [false, false, true]);
    }

    #[test]
    fn an_answer_clears_a_request() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        suspects.broke((at, at), 7, Slot(1));
        suspects.answered(7);
        suspects.broke((at, at), 7, Slot(2));
        assert!(!suspects.is_blocked(at, 7));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        for request in 0..5_000 {
            for slot in 0..2 {
                let now = at + Duration::from_millis(request);
                suspects.broke((now, now), request, Slot(slot));
            }
        }
        assert_eq!(suspects.len(), REQUESTS_MAX);
        let now = seconds(at, 5);
        assert!(!suspects.is_blocked(now, 903) && suspects.is_blocked(now, 904) && suspects.is_blocked(now, 4_999));
        suspects.broke((at, seconds(at, 100)), 9_999, Slot(0));
        assert_eq!(suspects.len(), 1);
    }

    #[test]
    fn what_is_over_is_forgotten_by_whoever_asks_next() {
        let (mut suspects, at) = (Suspects::new(MINUTE), start());
        suspects.broke((at, at), 7, Slot(1));
        suspects.broke((at, seconds(at, 30)), 8, Slot(1));
        assert!(!suspects.is_blocked(seconds(at, 59), 9));
        assert_eq!(suspects.len(), 2);
        assert!(!suspects.is_blocked(seconds(at, 60), 9));
        assert_eq!(suspects.len(), 1);
        assert!(!suspects.is_blocked(seconds(at, 120), 9));
        assert!(suspects.is_empty());
        suspects.broke((at, seconds(at, 200)), 7, Slot(1));
        assert!(!suspects.is_blocked(seconds(at, 260), 9) && suspects.is_empty());
    }

    #[test]
    fn without_memory_nobody_is_suspected() {
        let (mut suspects, at) = (Suspects::new(Duration::ZERO), start());
        suspects.broke((at, at), 7, Slot(1));
        suspects.broke((at, at), 7, Slot(2));
        assert!(!suspects.is_blocked(at, 7) && suspects.is_empty());
    }
}
