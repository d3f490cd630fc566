//! The order of one worker's batches: what to apply, in which order, and what was lost on the way. Nothing here knows a
//! bus, a clock or an index; the task that owns the feed acts on what it says.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Where a batch stands in its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// Its number: 0 for the first of a process, then one more for each. For JSON events their `event_id`. The last
    /// number of all marks the end of a replay; no batch has it.
    pub seq: u64,
    /// Raised by a bridge whenever the engine's process changed; none straight from an engine.
    pub epoch: Option<u64>,
    /// The engine's wall clock, in seconds; none in JSON events.
    pub ts: Option<f64>,
}

/// How far a stream was applied: what a view that is written down needs, so that the stream goes on where it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// The epoch of what was applied, where a bridge tells it.
    pub epoch: Option<u64>,
    /// The number of the batch that comes next.
    pub next: u64,
    /// The latest time stamp that was applied, in seconds of the engine's wall clock. Without an epoch, it is what tells
    /// a restart.
    pub newest: Option<f64>,
}

/// What to do with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Apply,
    /// It is ahead of its time: the path may have reordered.
    Hold,
    /// It was applied or is held already, or its process is gone: drop it.
    Duplicate,
    /// Batches before it are lost, as far as waiting can tell.
    Gap {
        /// Their numbers.
        missing: Range<u64>,
    },
    /// The engine began anew: nothing that it said before holds.
    Restart,
}

/// How long to wait for batches that are overtaken on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The most batches that are held back.
    pub batches: usize,
    /// The longest time that one is held back.
    pub wait: Duration,
}

impl Patience {
    /// For paths that keep the order, as one ZMQ connection does: whatever is missing is lost.
    pub const NONE: Self = Self { batches: 0, wait: Duration::ZERO };
    /// For NATS, whose redelivery may reorder.
    pub const NATS: Self = Self { batches: 64, wait: Duration::from_millis(50) };
}

/// What the owner of a feed does next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Applies the batch to the view.
    Apply(T),
    /// Has lost these batches. Without a way to get them back: empties the view, which may name blocks that are gone.
    Lost(Range<u64>),
    /// Empties the view: the engine's cache is empty too.
    Restarted,
}

/// What a feed has seen since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Batches handed out for application.
    pub applied: u64,
    /// Batches that waited for others.
    pub held: u64,
    /// Batches dropped as known or outdated.
    pub duplicates: u64,
    /// Gaps.
    pub gaps: u64,
    /// Batches missing in those gaps.
    pub missing: u64,
    /// Restarts of the engine.
    pub restarts: u64,
    /// Held batches of a process that is gone.
    pub outdated: u64,
}

struct Held<T> {
    item: T,
    stamp: Stamp,
    since: Instant,
}

/// Judges the batches of one (worker, rank), and holds back at most [`Patience::batches`] of them.
///
/// 1. Batches are handed out in ascending order of (epoch, seq), each at most once.
/// 2. Nothing waits longer than [`Patience::wait`], if `expire` is called by the [`deadline`](Self::deadline).
/// 3. The stream begins at 0: a first batch with a higher number is preceded by a gap.
pub struct WorkerFeed<T> {
    patience: Patience,
    epoch: Option<u64>,
    next: u64,
    started: bool,
    newest: Option<f64>,
    held: BTreeMap<u64, Held<T>>,
    counts: FeedCounts,
}

impl<T> WorkerFeed<T> {
    /// A feed that has seen nothing yet.
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            epoch: None,
            next: 0,
            started: false,
            newest: None,
            held: BTreeMap::new(),
            counts: FeedCounts::default(),
        }
    }

    /// What to do with a batch of this stamp. Changes nothing.
    ///
    /// With an epoch: a higher one is a restart, a lower one is outdated, within an equal one the number decides.
    /// Without: a number that is past means a restart if the batch is newer than all that was applied. Without a time
    /// as well, if it is 0, or if `orphan` finds that the batch hangs below a block that the view does not hold; that
    /// is a suspicion only, but an emptied view costs speed, and one that outlives its engine costs false hits.
    pub fn judge(&self, stamp: &Stamp, orphan: impl FnOnce() -> bool) -> Verdict {
        match (stamp.epoch, self.epoch) {
            (Some(epoch), Some(known)) if epoch > known => return Verdict::Restart,
            (Some(epoch), Some(known)) if epoch < known => return Verdict::Duplicate,
            (Some(_), None) if self.started => return Verdict::Restart,
            _ => {}
        }
        if stamp.seq >= self.next {
            return self.judge_ahead(stamp.seq);
        }
        let restarted = match (stamp.epoch, stamp.ts) {
            (Some(_), _) => false,
            (None, Some(ts)) => self.newest.is_some_and(|newest| ts > newest),
            (None, None) => stamp.seq == 0 || orphan(),
        };
        if restarted { Verdict::Restart } else { Verdict::Duplicate }
    }

    fn judge_ahead(&self, seq: u64) -> Verdict {
        if seq == self.next {
            return Verdict::Apply;
        }
        if self.held.contains_key(&seq) {
            return Verdict::Duplicate;
        }
        if self.held.len() < self.patience.batches {
            return Verdict::Hold;
        }
        let first = self.held.keys().next().map_or(seq, |&held| held.min(seq));
        Verdict::Gap { missing: self.next..first }
    }

    /// Takes one batch in, appends what is to be done now, and returns how the batch itself was judged. `orphan` is
    /// asked only where [`judge`](Self::judge) needs it.
    pub fn push(
        &mut self,
        stamp: Stamp,
        item: T,
        orphan: impl FnOnce(&T) -> bool,
        now: Instant,
        actions: &mut Vec<Action<T>>,
    ) -> Verdict {
        let verdict = self.judge(&stamp, || orphan(&item));
        if verdict == Verdict::Restart {
            self.restart(stamp.epoch, actions);
            let seq = stamp.seq;
            self.act(&self.judge_ahead(seq), stamp, item, now, actions);
        } else {
            if verdict != Verdict::Duplicate && stamp.epoch.is_some() {
                self.epoch = stamp.epoch;
            }
            self.act(&verdict, stamp, item, now, actions);
        }
        verdict
    }

    fn act(&mut self, verdict: &Verdict, stamp: Stamp, item: T, now: Instant, actions: &mut Vec<Action<T>>) {
        match verdict {
            Verdict::Duplicate => self.counts.duplicates += 1,
            Verdict::Apply => {
                self.apply(stamp, item, actions);
                self.drain(actions);
            }
            Verdict::Hold | Verdict::Gap { .. } | Verdict::Restart => {
                self.held.insert(stamp.seq, Held { item, stamp, since: now });
                if *verdict == Verdict::Hold {
                    self.counts.held += 1;
                } else {
                    self.skip(actions);
                }
            }
        }
    }

    /// How far the stream was applied; what is held back is not.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, next: self.next, newest: self.newest }
    }

    /// Goes on behind a view that was put in the place of what was applied so far: batches before `position` are
    /// duplicates from now on, the one there is the next, one beyond is a gap, a later epoch or time is a restart. What
    /// is held back and follows is handed out. Returns false, and changes nothing, where the view is older than what was
    /// applied, for nobody would bring again what lies between, or where the process that it describes is gone.
    pub fn resume(&mut self, position: Position, actions: &mut Vec<Action<T>>) -> bool {
        let same = position.epoch == self.epoch;
        let older = if same { position.next < self.next } else { position.epoch < self.epoch };
        let outlived = self.held.values().any(|held| held.stamp.epoch > position.epoch);
        if self.started && older || outlived {
            return false;
        }
        let held = self.held.len();
        self.held.retain(|&seq, held| held.stamp.epoch == position.epoch && seq >= position.next);
        self.counts.duplicates += u64::try_from(held - self.held.len()).unwrap_or(u64::MAX);
        self.started = true;
        self.epoch = position.epoch;
        self.next = position.next;
        self.newest = position.newest;
        self.drain(actions);
        true
    }

    /// Gives up on what is missing before batches that have waited long enough.
    pub fn expire(&mut self, now: Instant, actions: &mut Vec<Action<T>>) {
        while self.deadline().is_some_and(|deadline| deadline <= now) {
            self.skip(actions);
        }
    }

    /// When [`expire`](Self::expire) has something to do; none while nothing is held.
    pub fn deadline(&self) -> Option<Instant> {
        let oldest = self.held.values().map(|held| held.since).min()?;
        Some(oldest + self.patience.wait)
    }

    /// The number of the batch that comes next; 0 before the first.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// What happened so far.
    pub fn counts(&self) -> FeedCounts {
        self.counts
    }

    /// Passes over the first gap: the lowest batch that is held comes next.
    fn skip(&mut self, actions: &mut Vec<Action<T>>) {
        let Some((&seq, _)) = self.held.first_key_value() else { return };
        let missing = self.next..seq;
        self.counts.gaps += 1;
        self.counts.missing = self.counts.missing.saturating_add(seq - self.next);
        actions.push(Action::Lost(missing));
        self.next = seq;
        self.drain(actions);
    }

    fn drain(&mut self, actions: &mut Vec<Action<T>>) {
        while let Some(held) = self.held.remove(&self.next) {
            self.apply(held.stamp, held.item, actions);
        }
    }

    fn apply(&mut self, stamp: Stamp, item: T, actions: &mut Vec<Action<T>>) {
        self.started = true;
        self.next = stamp.seq.saturating_add(1);
        if let Some(ts) = stamp.ts {
            self.newest = Some(self.newest.map_or(ts, |newest| newest.max(ts)));
        }
        self.counts.applied += 1;
        actions.push(Action::Apply(item));
    }

    fn restart(&mut self, epoch: Option<u64>, actions: &mut Vec<Action<T>>) {
        self.counts.restarts += 1;
        self.counts.outdated += u64::try_from(self.held.len()).unwrap_or(u64::MAX);
        self.held.clear();
        self.epoch = epoch;
        self.next = 0;
        actions.push(Action::Restarted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A feed, and a clock that the test moves.
    struct Bench {
        feed: WorkerFeed<u64>,
        now: Instant,
    }

    use Action::{Apply, Lost, Restarted};

    impl Bench {
        #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning")]
        fn new(patience: Patience) -> Self {
            Self { feed: WorkerFeed::new(patience), now: Instant::now() }
        }

        /// Pushes a batch whose item is its own number, plus 100 for each epoch.
        fn push(&mut self, seq: u64, epoch: Option<u64>, ts: Option<f64>) -> (Verdict, Vec<Action<u64>>) {
            self.push_orphan(seq, epoch, ts, false)
        }

        fn push_orphan(
            &mut self,
            seq: u64,
            epoch: Option<u64>,
            ts: Option<f64>,
            orphan: bool,
        ) -> (Verdict, Vec<Action<u64>>) {
            let mut actions = Vec::new();
            let item = seq + 100 * epoch.unwrap_or(0);
            let verdict = self.feed.push(Stamp { seq, epoch, ts }, item, |_| orphan, self.now, &mut actions);
            (verdict, actions)
        }

        fn expire_after(&mut self, wait_ms: u64) -> Vec<Action<u64>> {
            let mut actions = Vec::new();
            self.now += Duration::from_millis(wait_ms);
            self.feed.expire(self.now, &mut actions);
            actions
        }
    }

    #[test]
    fn consecutive_batches_are_applied() {
        let mut bench = Bench::new(Patience::NONE);
        for seq in 0..3 {
            assert_eq!(bench.push(seq, None, Some(1.0)), (Verdict::Apply, vec![Apply(seq)]));
        }
        assert_eq!((bench.feed.counts().applied, bench.feed.next_seq()), (3, 3));
    }

    #[test]
    fn without_patience_a_gap_is_one_at_once() {
        let mut bench = Bench::new(Patience::NONE);
        bench.push(0, None, Some(1.0));
        assert_eq!(bench.push(3, None, Some(2.0)), (Verdict::Gap { missing: 1..3 }, vec![Lost(1..3), Apply(3)]));
        assert_eq!(bench.push(4, None, Some(3.0)), (Verdict::Apply, vec![Apply(4)]));
        let counts = bench.feed.counts();
        assert_eq!((counts.gaps, counts.missing, counts.applied), (1, 2, 3));
    }

    #[test]
    fn a_stream_that_is_joined_late_begins_with_a_gap() {
        let mut bench = Bench::new(Patience::NONE);
        assert_eq!(bench.push(7, None, None), (Verdict::Gap { missing: 0..7 }, vec![Lost(0..7), Apply(7)]));
    }

    #[test]
    fn overtaken_batches_are_put_back_in_order() {
        let mut bench = Bench::new(Patience::NATS);
        assert_eq!(bench.push(2, Some(1), None), (Verdict::Hold, vec![]));
        assert_eq!(bench.push(1, Some(1), None), (Verdict::Hold, vec![]));
        assert_eq!(bench.push(2, Some(1), None), (Verdict::Duplicate, vec![]));
        assert_eq!(bench.push(0, Some(1), None), (Verdict::Apply, vec![Apply(100), Apply(101), Apply(102)]));
        assert_eq!(bench.feed.deadline(), None);
        let expected = FeedCounts { applied: 3, held: 2, duplicates: 1, ..FeedCounts::default() };
        assert_eq!(bench.feed.counts(), expected);
    }

    #[test]
    fn a_hold_becomes_a_gap_when_it_is_too_old() {
        let mut bench = Bench::new(Patience::NATS);
        bench.push(0, None, None);
        bench.push(3, None, None);
        assert_eq!(bench.expire_after(30), vec![]);
        bench.push(5, None, None);
        assert_eq!(bench.expire_after(19), vec![]);
        assert_eq!(bench.expire_after(1), vec![Lost(1..3), Apply(3)]);
        // The second gap was seen 30 ms later and is given its own 50.
        assert_eq!(bench.expire_after(29), vec![]);
        assert_eq!(bench.expire_after(1), vec![Lost(4..5), Apply(5)]);
        assert_eq!(bench.feed.deadline(), None);
    }

    #[test]
    fn a_full_hold_becomes_a_gap() {
        let mut bench = Bench::new(Patience { batches: 2, ..Patience::NATS });
        bench.push(0, None, None);
        assert_eq!(bench.push(4, None, None).0, Verdict::Hold);
        assert_eq!(bench.push(6, None, None).0, Verdict::Hold);
        let (verdict, actions) = bench.push(3, None, None);
        assert_eq!((verdict, actions), (Verdict::Gap { missing: 1..3 }, vec![Lost(1..3), Apply(3), Apply(4)]));
        assert_eq!(bench.push(5, None, None).1, vec![Apply(5), Apply(6)]);
    }

    #[test]
    fn a_higher_epoch_is_a_restart_and_a_lower_one_is_outdated() {
        let mut bench = Bench::new(Patience::NATS);
        bench.push(0, Some(1), Some(5.0));
        bench.push(1, Some(1), Some(5.0));
        bench.push(9, Some(1), Some(5.0));
        assert_eq!(bench.push(1, Some(1), Some(9.0)).0, Verdict::Duplicate);
        // Its clock was set back; the epoch decides.
        assert_eq!(bench.push(0, Some(2), Some(1.0)), (Verdict::Restart, vec![Restarted, Apply(200)]));
        assert_eq!(bench.push(2, Some(1), Some(6.0)), (Verdict::Duplicate, vec![]));
        assert_eq!(bench.push(1, Some(2), Some(1.1)), (Verdict::Apply, vec![Apply(201)]));
        let counts = bench.feed.counts();
        assert_eq!((counts.restarts, counts.outdated, counts.duplicates), (1, 1, 2));
    }

    #[test]
    fn a_restart_whose_beginning_is_late_waits_for_it() {
        let mut bench = Bench::new(Patience::NATS);
        bench.push(0, Some(1), None);
        assert_eq!(bench.push(1, Some(2), None), (Verdict::Restart, vec![Restarted]));
        assert_eq!(bench.push(0, Some(2), None), (Verdict::Apply, vec![Apply(200), Apply(201)]));
        let mut bench = Bench::new(Patience::NONE);
        bench.push(0, Some(1), None);
        assert_eq!(bench.push(1, Some(2), None), (Verdict::Restart, vec![Restarted, Lost(0..1), Apply(201)]));
    }

    /// The restart's number even looks like a duplicate.
    #[test]
    fn without_an_epoch_the_time_tells_a_restart_from_a_duplicate() {
        let mut bench = Bench::new(Patience::NONE);
        for seq in 0..5 {
            bench.push(seq, None, Some(10.0));
        }
        assert_eq!(bench.push(0, None, Some(10.0)), (Verdict::Duplicate, vec![]));
        assert_eq!(bench.push(3, None, Some(9.0)), (Verdict::Duplicate, vec![]));
        assert_eq!(bench.push(0, None, Some(10.5)), (Verdict::Restart, vec![Restarted, Apply(0)]));
        assert_eq!(bench.push(1, None, Some(10.6)), (Verdict::Apply, vec![Apply(1)]));
    }

    #[test]
    fn without_epoch_and_time_an_orphan_or_number_0_is_suspect() {
        let mut bench = Bench::new(Patience::NONE);
        for seq in 0..5 {
            bench.push(seq, None, None);
        }
        assert_eq!(bench.push_orphan(2, None, None, false), (Verdict::Duplicate, vec![]));
        assert_eq!(bench.push_orphan(2, None, None, true), (Verdict::Restart, vec![Restarted, Lost(0..2), Apply(2)]));
        assert_eq!(bench.push_orphan(0, None, None, false), (Verdict::Restart, vec![Restarted, Apply(0)]));
    }

    #[test]
    fn a_bridge_that_takes_over_begins_anew() {
        let mut bench = Bench::new(Patience::NONE);
        bench.push(0, None, Some(1.0));
        assert_eq!(bench.push(0, Some(1), Some(1.0)), (Verdict::Restart, vec![Restarted, Apply(100)]));
    }

    #[test]
    fn the_last_number_of_all_does_not_overflow() {
        let mut bench = Bench::new(Patience::NONE);
        let (verdict, _) = bench.push(u64::MAX, None, None);
        assert_eq!(verdict, Verdict::Gap { missing: 0..u64::MAX });
        assert_eq!(bench.feed.next_seq(), u64::MAX);
    }

    fn at(epoch: Option<u64>, next: u64, newest: Option<f64>) -> Position {
        Position { epoch, next, newest }
    }

    #[test]
    fn a_stream_goes_on_where_a_view_was_written_down() {
        let mut before = Bench::new(Patience::NATS);
        for seq in 0..5 {
            before.push(seq, Some(7), Some(10.0));
        }
        // What is held back was not applied.
        before.push(6, Some(7), Some(11.0));
        assert_eq!(before.feed.position(), at(Some(7), 5, Some(10.0)));
        let mut bench = Bench::new(Patience::NONE);
        assert!(bench.feed.resume(before.feed.position(), &mut Vec::new()));
        for seq in 0..5 {
            assert_eq!(bench.push(seq, Some(7), Some(10.0)), (Verdict::Duplicate, vec![]));
        }
        assert_eq!(bench.push(5, Some(7), Some(10.5)), (Verdict::Apply, vec![Apply(705)]));
        assert_eq!(bench.push(9, Some(7), Some(12.0)).1, vec![Lost(6..9), Apply(709)]);
        assert_eq!(bench.push(0, Some(8), Some(13.0)), (Verdict::Restart, vec![Restarted, Apply(800)]));
    }

    #[test]
    fn without_an_epoch_a_restart_that_nobody_saw_is_told_by_its_time() {
        let resumed = || {
            let mut bench = Bench::new(Patience::NONE);
            assert!(bench.feed.resume(at(None, 100, Some(10.0)), &mut Vec::new()));
            bench
        };
        assert_eq!(resumed().push(3, None, Some(9.5)), (Verdict::Duplicate, vec![]));
        assert_eq!(resumed().push(0, None, Some(11.0)), (Verdict::Restart, vec![Restarted, Apply(0)]));
        assert_eq!(resumed().push(100, None, Some(11.0)), (Verdict::Apply, vec![Apply(100)]));
        assert_eq!(resumed().push(100, Some(1), Some(11.0)).0, Verdict::Restart);
    }

    #[test]
    fn what_is_held_back_follows_a_view_that_was_put_before_it() {
        let mut bench = Bench::new(Patience::NATS);
        bench.push(0, Some(1), None);
        for seq in [4, 7, 8, 10] {
            assert_eq!(bench.push(seq, Some(1), None).0, Verdict::Hold);
        }
        let mut actions = Vec::new();
        assert!(bench.feed.resume(at(Some(1), 7, None), &mut actions));
        assert_eq!(actions, vec![Apply(107), Apply(108)]);
        assert_eq!((bench.feed.next_seq(), bench.feed.counts().duplicates), (9, 1));
        assert_eq!(bench.push(9, Some(1), None).1, vec![Apply(109), Apply(110)]);
    }

    #[test]
    fn a_view_that_is_older_than_what_was_applied_is_not_gone_on_from() {
        let mut bench = Bench::new(Patience::NATS);
        for seq in 0..5 {
            bench.push(seq, Some(3), Some(1.0));
        }
        let mut actions = Vec::new();
        for older in [at(Some(3), 4, None), at(Some(2), 900, None), at(None, 900, None)] {
            assert!(!bench.feed.resume(older, &mut actions));
        }
        assert_eq!((bench.feed.position(), actions), (at(Some(3), 5, Some(1.0)), vec![]));
        let mut late = Bench::new(Patience::NATS);
        assert_eq!(late.push(3, Some(2), None).0, Verdict::Hold);
        assert!(!late.feed.resume(at(Some(1), 9, None), &mut Vec::new()), "its process is gone");
    }

    /// Ten per cent repeated, reordered within eight places, a restart in the middle: 1 000 seeds.
    #[test]
    fn repeats_and_reordering_leave_no_trace() {
        for seed in 1..=1000_u64 {
            let mut state = seed;
            let mut draw = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let mut stream = Vec::new();
            for (place, number) in (0..80_u64).enumerate() {
                let stamp = (number % 50, number / 50);
                stream.push((10 * place + usize::try_from(draw(80)).unwrap(), stamp));
                if draw(10) == 0 {
                    stream.push((10 * place + usize::try_from(draw(200)).unwrap(), stamp));
                }
            }
            stream.sort_unstable();
            let mut bench = Bench::new(Patience::NATS);
            let mut applied = Vec::new();
            for (_, (seq, epoch)) in stream {
                for action in bench.push(seq, Some(epoch), None).1 {
                    match action {
                        Apply(item) => applied.push(item),
                        Restarted => applied.clear(),
                        Lost(missing) => panic!("seed {seed}: {missing:?} lost"),
                    }
                }
            }
            assert_eq!(applied, (100..130).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}
