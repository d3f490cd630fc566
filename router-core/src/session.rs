//! Where each session's last request went.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::cost::Weight;
use crate::ids::Slot;
use crate::observe::{Event, Learn, Observation};
use crate::recent::{Recent, mixed};
use crate::shape::AffinityKey;

/// Parts with a lock each.
const PARTS: usize = 16;

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

/// The last worker of each session. Of fixed size once sessions come, see [`Recent`]. All that is remembered comes through
/// [`Learn`].
///
/// A request that nobody has read may be no turn of a conversation, and have left nothing in a cache: it begins a session that
/// is not known, since clients may send no other, and keeps one that is, but leaves it where it is.
#[derive(Debug)]
pub struct Sessions {
    rule: SessionRule,
    first: OnceLock<Instant>,
    /// Slots by session, with the time of the last request in seconds from the first observation.
    parts: Vec<Mutex<Option<Recent<Slot>>>>,
}

impl Sessions {
    /// No session is known yet.
    pub fn new(rule: SessionRule) -> Self {
        Self { rule, first: OnceLock::new(), parts: std::iter::repeat_with(Mutex::default).take(PARTS).collect() }
    }

    /// What the last worker of a session is worth.
    pub fn weight(&self) -> f64 {
        self.rule.weight.get()
    }

    /// The last worker of this session, if it is remembered.
    pub fn last(&self, now: Instant, key: AffinityKey) -> Option<Slot> {
        let (met, slot) = self.part(key).as_ref()?.get(key.0)?;
        (self.seconds(now) - met < self.rule.ttl.as_secs_f64()).then_some(slot)
    }

    /// The worker's cache is gone: no session has anything there. O(sessions).
    pub fn forget(&self, slot: Slot) {
        for part in &self.parts {
            if let Some(part) = &mut *part.lock().unwrap_or_else(PoisonError::into_inner) {
                part.forget(|last| last == slot);
            }
        }
    }

    fn seconds(&self, now: Instant) -> f64 {
        self.first.get().map_or(0.0, |first| now.saturating_duration_since(*first).as_secs_f64())
    }

    fn part(&self, key: AffinityKey) -> MutexGuard<'_, Option<Recent<Slot>>> {
        let part = usize::try_from(mixed(key.0) >> 60).unwrap_or(0);
        self.parts[part].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Learn for Sessions {
    fn observe(&self, observation: &Observation) {
        if let Event::Placed { shape, .. } = observation.event
            && let Some(key) = shape.affinity
        {
            self.first.get_or_init(|| observation.at);
            let home = if shape.unread { self.last(observation.at, key) } else { None };
            let mut part = self.part(key);
            // A part has the room of all the sessions that it may have: what no session comes to has none.
            let part = part.get_or_insert_with(|| Recent::new(self.rule.sessions_max.div_ceil(PARTS), Slot(0)));
            part.meet(key.0, self.seconds(observation.at), home.unwrap_or(observation.slot));
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

    #[test]
    fn where_no_session_comes_nothing_is_kept_ready() {
        let (sessions, now) = (sessions(100_000), origin());
        placed(&sessions, now, None, 9);
        sessions.forget(Slot(9));
        let made = || sessions.parts.iter().filter(|part| part.lock().unwrap().is_some()).count();
        assert_eq!((sessions.last(now, AffinityKey(7)), made()), (None, 0));
        placed(&sessions, now, Some(7), 3);
        assert_eq!((sessions.last(now, AffinityKey(7)), made()), (Some(Slot(3)), 1));
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
    fn what_nobody_has_read_begins_a_session_and_keeps_it_but_does_not_move_it() {
        let (sessions, now) = (sessions(1000), origin());
        let minute = |minutes: u64| now + Duration::from_secs(60 * minutes);
        let last = |at| sessions.last(at, AffinityKey(7)).map(|slot| slot.0);
        let unread = |at, slot| {
            let shape = Shape::of(Tokens(9), BlockSize::new(4).unwrap());
            let shape = Shape { affinity: Some(AffinityKey(7)), unread: true, ..shape };
            let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(9) };
            sessions.observe(&Observation { at, request: RequestKey(1), slot: Slot(slot), event });
        };
        unread(now, 3);
        unread(minute(20), 5);
        assert_eq!([last(minute(20)), last(minute(49)), last(minute(50))], [Some(3), Some(3), None]);
        placed(&sessions, minute(49), Some(7), 4);
        unread(minute(50), 5);
        assert_eq!(last(minute(51)), Some(4));
        sessions.forget(Slot(4));
        unread(minute(52), 5);
        assert_eq!(last(minute(52)), Some(5));
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
        let (sessions, now) = (sessions(512), origin());
        for key in 0..100_000_u64 {
            placed(&sessions, now + Duration::from_millis(key), Some(key), 1);
        }
        let known =
            |range: std::ops::Range<u64>| range.filter(|key| sessions.last(now, AffinityKey(*key)).is_some()).count();
        assert_eq!(known(0..90_000), 0);
        assert!(known(0..100_000) <= 512);
        assert_eq!(known(99_900..100_000), 100);
    }
}
