//! Where each session's last request went.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cost::Weight;
use crate::ids::Slot;
use crate::observe::{Event, Learn, Observation};
use crate::shape::AffinityKey;

/// Parts with a lock each.
const PARTS: usize = 16;

/// Places in which a key may lie.
const WAYS: usize = 8;

/// How much sessions are kept together, and for how long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SessionRule {
    /// What the last worker of a session is worth to it, as a share of what it would be worth, in the policy's own unit, to
    /// find the whole prompt cached there. At 1 a session follows its worker until that is dearer by a whole prefill.
    pub weight: Weight,
    /// How long after its last request a session is remembered.
    pub ttl: Duration,
    /// Sessions that are remembered, about; those whose last request is the longest ago go first.
    pub sessions_max: usize,
}

/// The last worker of each session. Of fixed size: a key lies in one of eight places, where it takes that of the session
/// that would be forgotten first. All that is remembered comes through [`Learn`].
#[derive(Debug)]
pub struct Sessions {
    rule: SessionRule,
    first: OnceLock<Instant>,
    parts: Vec<Mutex<Vec<[Entry; WAYS]>>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    /// Milliseconds from the first observation; 0 for an empty place.
    until: u64,
    slot: Slot,
}

impl Entry {
    const EMPTY: Entry = Entry { key: 0, until: 0, slot: Slot(0) };
}

impl Sessions {
    /// No session is known yet.
    pub fn new(rule: SessionRule) -> Self {
        let buckets = rule.sessions_max.div_ceil(PARTS * WAYS).max(1);
        let part = || Mutex::new(vec![[Entry::EMPTY; WAYS]; buckets]);
        Self { rule, first: OnceLock::new(), parts: std::iter::repeat_with(part).take(PARTS).collect() }
    }

    /// What the last worker of a session is worth.
    pub fn weight(&self) -> f64 {
        self.rule.weight.get()
    }

    /// The last worker of this session, if it is remembered.
    pub fn last(&self, now: Instant, key: AffinityKey) -> Option<Slot> {
        let now = self.millis(now);
        self.with_bucket(key, |bucket| {
            let entry = bucket.iter().find(|entry| entry.key == key.0 && entry.until > now)?;
            Some(entry.slot)
        })
    }

    /// The worker's cache is gone: no session has anything there. O(sessions).
    pub fn forget(&self, slot: Slot) {
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            for entry in part.iter_mut().flatten().filter(|entry| entry.slot == slot) {
                *entry = Entry::EMPTY;
            }
        }
    }

    fn note(&self, now: Instant, key: AffinityKey, slot: Slot) {
        self.first.get_or_init(|| now);
        let now = self.millis(now);
        let ttl = u64::try_from(self.rule.ttl.as_millis()).unwrap_or(u64::MAX);
        let until = now.saturating_add(ttl).max(1);
        self.with_bucket(key, |bucket| {
            let own = bucket.iter().position(|entry| entry.until > 0 && entry.key == key.0);
            let place = own.or_else(|| (0..WAYS).min_by_key(|place| bucket[*place].until));
            if let Some(place) = place {
                bucket[place] = Entry { key: key.0, until, slot };
            }
        });
    }

    fn millis(&self, now: Instant) -> u64 {
        let since = self.first.get().map_or(Duration::ZERO, |first| now.saturating_duration_since(*first));
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn with_bucket<T>(&self, key: AffinityKey, act: impl FnOnce(&mut [Entry; WAYS]) -> T) -> T {
        // Keys may be anything, even numbers in a row.
        let mixed = key.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let number = |bits: u64| usize::try_from(bits).unwrap_or(0);
        let mut part = self.parts[number(mixed >> 60)].lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = number((mixed >> 16) & 0xffff_ffff) % part.len();
        act(&mut part[bucket])
    }
}

impl Learn for Sessions {
    fn observe(&self, observation: &Observation) {
        if let Event::Placed { shape, .. } = observation.event
            && let Some(key) = shape.affinity
        {
            self.note(observation.at, key, observation.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RequestKey;
    use crate::overlap::TierBlocks;
    use crate::shape::Shape;
    use crate::units::{BlockSize, Tokens};

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn sessions(sessions_max: usize) -> Sessions {
        Sessions::new(SessionRule { weight: Weight::constant(1.0), ttl: Duration::from_secs(1800), sessions_max })
    }

    fn placed(sessions: &Sessions, at: Instant, key: Option<u64>, slot: u16) {
        let shape = Shape { affinity: key.map(AffinityKey), ..Shape::of(Tokens(9), BlockSize::new(4).unwrap()) };
        let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(9) };
        sessions.observe(&Observation { at, request: RequestKey(1), slot: Slot(slot), event });
    }

    /// a turn after twenty minutes still finds its worker.
    #[test]
    fn r129_the_last_worker_of_a_session_is_known_for_half_an_hour() {
        let (sessions, now) = (sessions(1000), origin());
        let minute = |minutes: u64| now + Duration::from_secs(60 * minutes);
        let last = |at| sessions.last(at, AffinityKey(7)).map(|slot| slot.0);
        assert_eq!(last(now), None);
        placed(&sessions, now, Some(7), 3);
        placed(&sessions, now, None, 9);
        assert_eq!(
            [last(now), last(minute(20)), last(minute(29)), last(minute(30))],
            [Some(3), Some(3), Some(3), None]
        );
        placed(&sessions, minute(20), Some(7), 5);
        assert_eq!([last(minute(30)), last(minute(49)), last(minute(50))], [Some(5), Some(5), None]);
        assert_eq!(sessions.last(now, AffinityKey(8)), None);
    }

    #[test]
    fn who_lost_its_cache_is_nobodys_last_worker() {
        let (sessions, now) = (sessions(1000), origin());
        (0..100).for_each(|key| placed(&sessions, now, Some(key), u16::try_from(key % 2).unwrap()));
        sessions.forget(Slot(0));
        let known = (0..100).filter(|key| sessions.last(now, AffinityKey(*key)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), (0..100).filter(|key| key % 2 == 1).collect::<Vec<_>>());
    }

    #[test]
    fn of_too_many_sessions_those_are_forgotten_whose_last_request_is_the_longest_ago() {
        let (sessions, now) = (sessions(PARTS * WAYS * 4), origin());
        for key in 0..100_000_u64 {
            placed(&sessions, now + Duration::from_millis(key), Some(key), 1);
        }
        let known =
            |range: std::ops::Range<u64>| range.filter(|key| sessions.last(now, AffinityKey(*key)).is_some()).count();
        assert_eq!(known(0..90_000), 0);
        assert!(known(0..100_000) <= PARTS * WAYS * 4);
        assert_eq!(known(99_900..100_000), 100);
    }
}
