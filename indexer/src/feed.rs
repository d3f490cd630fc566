//! The order of one worker's batches: what to apply, in which order, what is missing, and whose batches they are. Nothing
//! here knows a bus, a clock or an index. What is done about a gap is not decided here: its owner fills it
//! ([`WorkerFeed::take`]) or passes over it ([`WorkerFeed::pass_to`]).

mod hold;
mod past;
mod stamp;
mod verdict;

use std::ops::Range;
use std::time::Instant;

pub use hold::HoldMax;
use hold::{Held, Hold};
pub use past::WALL_CLOCK;
use past::{Past, later};
pub use stamp::{Began, Patience, Position, Stamp};
pub use verdict::{Action, Verdict};

/// What a feed has seen since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounts {
    /// Batches handed out for application.
    pub applied: u64,
    /// Batches that waited for others.
    pub held: u64,
    /// Batches dropped as known or outdated.
    pub duplicates: u64,
    /// Gaps that were passed over.
    pub gaps: u64,
    /// Batches missing in those gaps.
    pub missing: u64,
    /// Restarts of the engine.
    pub restarts: u64,
    /// Held batches of a process that is gone.
    pub outdated: u64,
    /// Batches for which there was no room.
    pub refused: u64,
}

/// Judges the batches of one (worker, rank), and holds back what is ahead of its time: while nothing is being fetched
/// at most [`Patience::batches`], else at most [`HoldMax`].
///
/// 1. Batches are handed out in ascending order of (epoch, seq), each at most once.
/// 2. What waits longer than [`Patience::wait`] is [`overdue`](Self::overdue).
/// 3. The stream begins at 0: a first batch with a higher number is preceded by a gap.
/// 4. While it is paused, live batches are held only.
pub struct WorkerFeed<T> {
    patience: Patience,
    epoch: Option<u64>,
    next: u64,
    /// One more than the highest number that was heard live in this life.
    seen: u64,
    started: bool,
    paused: bool,
    newest: Option<f64>,
    past: Past,
    /// The time of the first batch of this life that was applied; of a view that was put in, the newest.
    began: Option<f64>,
    held: Hold<T>,
    counts: FeedCounts,
}

impl<T> WorkerFeed<T> {
    /// A feed that has seen nothing yet.
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            epoch: None,
            next: 0,
            seen: 0,
            started: false,
            paused: false,
            newest: None,
            past: Past::default(),
            began: None,
            held: Hold::new(HoldMax::DEFAULT),
            counts: FeedCounts::default(),
        }
    }

    /// Holds at most so much while something is being fetched.
    #[cfg(test)]
    pub(crate) fn set_hold_max(&mut self, max: HoldMax) {
        self.held.set_max(max);
    }

    /// What to do with a batch of this stamp. Changes nothing.
    ///
    /// With an epoch: a higher one is a restart, a lower one is outdated, within an equal one the number decides.
    /// Without: numbers and times rise together within a life, so a number that is known by now means a restart if the
    /// batch is newer than all, or than the one that was applied under it. Without a time as well, if it is 0, or if
    /// `orphan` finds that the batch hangs below a block that the view does not hold; that is a suspicion only, but an
    /// emptied view costs speed, and one that outlives its engine costs false hits.
    pub fn judge(&self, stamp: &Stamp, orphan: impl FnOnce() -> bool) -> Verdict {
        match (stamp.epoch, self.epoch) {
            (Some(epoch), Some(known)) if epoch > known => return Verdict::Restart,
            (Some(_), None) if self.started => return Verdict::Restart,
            _ => {}
        }
        if self.is_outdated(stamp) {
            return Verdict::Duplicate;
        }
        if let (None, Some(ts)) = (stamp.epoch, stamp.ts)
            && self.is_reborn(stamp.seq, ts)
        {
            return Verdict::Restart;
        }
        if stamp.seq >= self.next {
            return self.judge_ahead(stamp.seq, 0);
        }
        let suspect = stamp.epoch.is_none() && stamp.ts.is_none() && (stamp.seq == 0 || orphan());
        if suspect { Verdict::Restart } else { Verdict::Duplicate }
    }

    /// Whether a batch is of a process that is gone.
    pub fn is_outdated(&self, stamp: &Stamp) -> bool {
        let is_before = |epoch: u64| self.epoch.is_some_and(|known| epoch < known);
        match (stamp.epoch, stamp.ts) {
            (Some(epoch), ts) => is_before(epoch) || ts.is_some_and(|ts| self.past.has_ended(epoch, ts)),
            (None, ts) => ts.is_some_and(|ts| self.past.has(stamp.seq, ts)),
        }
    }

    fn is_reborn(&self, seq: u64, ts: f64) -> bool {
        let newer = |than: Option<f64>| than.is_some_and(|than| ts > than);
        let is_another = newer(self.newest) || self.past.has_another(seq, ts);
        (seq < self.next && is_another) || self.held.first_from(seq).is_some_and(|held| newer(held.stamp.ts))
    }

    fn judge_ahead(&self, seq: u64, bytes: usize) -> Verdict {
        if self.held.contains(seq) {
            return Verdict::Duplicate;
        }
        if self.paused {
            return if self.held.has_room(bytes) { Verdict::Hold } else { Verdict::Full };
        }
        if seq == self.next {
            return Verdict::Apply;
        }
        if self.held.len() < self.patience.batches && self.held.has_room(bytes) {
            return Verdict::Hold;
        }
        let first = self.held.first().map_or(seq, |held| held.min(seq));
        Verdict::Gap { missing: self.next..first }
    }

    /// Takes one live batch of so many bytes in, appends what is to be done now, and returns how the batch itself was
    /// judged. `orphan` is asked only where [`judge`](Self::judge) needs it.
    pub fn push(
        &mut self,
        stamp: Stamp,
        (item, bytes): (T, usize),
        orphan: impl FnOnce(&T) -> bool,
        now: Instant,
        actions: &mut Vec<Action<T>>,
    ) -> Verdict {
        let mut verdict = self.judge(&stamp, || orphan(&item));
        if verdict == Verdict::Restart {
            self.end_life(&stamp);
            self.counts.restarts += 1;
            actions.push(Action::Restarted);
        } else if verdict != Verdict::Duplicate && stamp.epoch.is_some() {
            self.epoch = stamp.epoch;
        }
        let held = Held { item, stamp, bytes, since: now };
        match verdict {
            Verdict::Duplicate => self.counts.duplicates += 1,
            Verdict::Restart => {
                self.arrive(held, actions);
            }
            _ => verdict = self.arrive(held, actions),
        }
        verdict
    }

    /// Applies or holds a batch that is not known yet.
    fn arrive(&mut self, held: Held<T>, actions: &mut Vec<Action<T>>) -> Verdict {
        let seq = held.stamp.seq;
        self.note_seen(seq);
        let verdict = self.judge_ahead(seq, held.bytes);
        match verdict {
            Verdict::Apply => {
                self.apply(held.stamp, held.item, actions);
                self.drain(actions);
            }
            Verdict::Full => self.counts.refused += 1,
            Verdict::Duplicate => self.counts.duplicates += 1,
            Verdict::Hold => {
                self.counts.held += 1;
                self.held.insert(seq, held);
            }
            Verdict::Gap { .. } | Verdict::Restart => self.held.insert(seq, held),
        }
        verdict
    }

    /// Applies a batch that was fetched, if it is the next one, and what follows it among those that are held, paused
    /// or not.
    pub fn take(&mut self, stamp: Stamp, item: T, actions: &mut Vec<Action<T>>) {
        if stamp.seq != self.next {
            return;
        }
        if stamp.epoch.is_some() {
            self.epoch = stamp.epoch;
        }
        self.apply(stamp, item, actions);
        // The same batch may have come live as well.
        if self.held.remove(stamp.seq).is_some() {
            self.counts.duplicates += 1;
        }
        self.drain_held(actions);
    }

    /// Takes note that there is a batch of this number, although nobody can use it.
    pub fn note_seen(&mut self, seq: u64) {
        self.seen = self.seen.max(seq.saturating_add(1));
    }

    /// From now on live batches are held only.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Live batches are applied again, first of all those that are held and come next.
    pub fn go_on(&mut self, actions: &mut Vec<Action<T>>) {
        self.paused = false;
        self.drain(actions);
    }

    /// Whether nothing is missing that anybody has heard of.
    pub fn is_complete(&self) -> bool {
        self.held.is_empty() && self.next >= self.seen
    }

    /// Whether anything was applied, or put in the place of it.
    pub fn is_started(&self) -> bool {
        self.started
    }

    /// Whether the stream has epochs, so that restarts need no guessing.
    pub fn has_epoch(&self) -> bool {
        self.epoch.is_some()
    }

    /// Believes that what looked like batches of an earlier life may be of the present one: a clock was set back.
    pub fn forget_dead(&mut self) {
        self.past.forget();
    }

    /// Takes note of when the engine's process was started, in seconds by the engine's clock, and whether that is `later`
    /// than another one. Returns whether what was applied is of another one; none where no time tells.
    pub fn note_process(&mut self, at: f64, later: bool) -> Option<bool> {
        self.past.note_process(at, self.epoch.filter(|_| later));
        self.began.and_then(|began| self.past.was_before(began))
    }

    /// Whether something that was kept, in a history or a view, is from before the engine's process was started.
    pub fn is_from_before(&self, ts: Option<f64>) -> bool {
        ts.and_then(|ts| self.past.was_before(ts)).unwrap_or(false)
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
        if self.started && older || outlived || self.is_from_before(position.newest) {
            return false;
        }
        let held = self.held.len();
        self.held.retain(|&seq, held| held.stamp.epoch == position.epoch && seq >= position.next);
        self.counts.duplicates += u64::try_from(held - self.held.len()).unwrap_or(u64::MAX);
        if !same {
            // What was heard of another life says nothing of how far this one has come.
            self.seen = self.held_end();
        }
        self.started = true;
        self.epoch = position.epoch;
        self.next = position.next;
        (self.newest, self.began) = (position.newest, position.newest);
        self.drain(actions);
        true
    }

    /// Which batches have been waited for long enough; none while they are being fetched.
    pub fn overdue(&self, now: Instant) -> Option<Range<u64>> {
        let first = self.held.first()?;
        self.deadline().is_some_and(|deadline| deadline <= now).then_some(self.next..first)
    }

    /// When [`overdue`](Self::overdue) has something to tell; none while nothing is held, or all is.
    pub fn deadline(&self) -> Option<Instant> {
        if self.paused {
            return None;
        }
        let oldest = self.held.values().map(|held| held.since).min()?;
        let too_many = self.held.len() > self.patience.batches;
        Some(if too_many { oldest } else { oldest + self.patience.wait })
    }

    /// The number of the batch that comes next; 0 before the first.
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// The lowest number of which is known when its batch was made, so that another one under it gives a restart away.
    pub fn oldest_known(&self) -> Option<u64> {
        self.past.oldest()
    }

    /// Batches that are held, and the bytes that they came in.
    pub fn held(&self) -> (usize, usize) {
        (self.held.len(), self.held.bytes())
    }

    /// What happened so far.
    pub fn counts(&self) -> FeedCounts {
        self.counts
    }

    /// Where the first gap ends: the lowest number that is held; where none is, behind all that was heard of.
    pub fn gap_end(&self) -> u64 {
        self.held.first().unwrap_or(self.seen).max(self.next)
    }

    /// Passes over all that is missing before number `to`, and goes on there.
    pub fn pass_to(&mut self, to: u64, actions: &mut Vec<Action<T>>) {
        self.counts.gaps += 1;
        self.counts.missing = self.counts.missing.saturating_add(to.saturating_sub(self.next));
        actions.push(Action::Lost(self.next..to.max(self.next)));
        self.next = self.next.max(to);
        let next = self.next;
        self.held.retain(|&seq, _| seq >= next);
        self.drain(actions);
    }

    /// Begins at 0 again, with nothing held; its owner empties the view.
    pub fn begin_anew(&mut self) {
        self.end_life(&Stamp { seq: 0, epoch: self.epoch, ts: None });
    }

    fn drain(&mut self, actions: &mut Vec<Action<T>>) {
        if !self.paused {
            self.drain_held(actions);
        }
    }

    fn drain_held(&mut self, actions: &mut Vec<Action<T>>) {
        while let Some(held) = self.held.remove(self.next) {
            self.apply(held.stamp, held.item, actions);
        }
    }

    fn apply(&mut self, stamp: Stamp, item: T, actions: &mut Vec<Action<T>>) {
        self.started = true;
        self.next = stamp.seq.saturating_add(1);
        self.began = self.began.or(stamp.ts);
        self.newest = later(self.newest, stamp.ts);
        self.past.note_applied(&stamp);
        self.counts.applied += 1;
        actions.push(Action::Apply(item));
    }

    /// One more than the highest number that is held; 0 while nothing is.
    fn held_end(&self) -> u64 {
        self.held.last().map_or(0, |last| last.saturating_add(1))
    }

    /// Ends the life before the batch of this stamp. What is held and can only be of the same life as it stays.
    fn end_life(&mut self, stamp: &Stamp) {
        let mut newest = self.newest;
        let before = self.held.len();
        self.held.retain(|&seq, held| {
            let follows = seq > stamp.seq && stamp.epoch.is_none() && stamp.ts.is_some() && held.stamp.ts >= stamp.ts;
            if !follows {
                newest = later(newest, held.stamp.ts);
            }
            follows
        });
        self.counts.outdated += u64::try_from(before - self.held.len()).unwrap_or(u64::MAX);
        self.past.end(newest, stamp);
        self.epoch = stamp.epoch;
        self.next = 0;
        self.seen = self.held_end();
        (self.newest, self.began) = (None, None);
        self.paused = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            let verdict = self.feed.push(Stamp { seq, epoch, ts }, (item, 1), |_| orphan, self.now, &mut actions);
            self.give_up(&mut actions);
            (verdict, actions)
        }

        fn expire_after(&mut self, wait_ms: u64) -> Vec<Action<u64>> {
            let mut actions = Vec::new();
            self.now += Duration::from_millis(wait_ms);
            self.give_up(&mut actions);
            actions
        }

        /// As where nothing can be fetched.
        fn give_up(&mut self, actions: &mut Vec<Action<u64>>) {
            while self.feed.overdue(self.now).is_some() {
                let to = self.feed.gap_end();
                self.feed.pass_to(to, actions);
            }
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

    /// Nobody knows of an epoch where nothing came: the first to name one is not another than before.
    #[test]
    fn what_was_passed_over_is_no_life_that_a_first_epoch_ends() {
        let mut bench = Bench::new(Patience::NATS);
        bench.feed.pass_to(7, &mut Vec::new());
        assert!(!bench.feed.is_started());
        assert_eq!(bench.push(7, Some(1), Some(5.0)), (Verdict::Apply, vec![Apply(107)]));
        assert_eq!(bench.push(8, Some(2), Some(6.0)).0, Verdict::Restart);
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
    fn what_was_heard_of_a_dead_life_is_not_missing_in_the_next() {
        let mut bench = Bench::new(Patience::NATS);
        bench.feed.pause();
        assert_eq!(bench.push(249, Some(1), None).0, Verdict::Hold);
        assert_eq!(bench.push(2, Some(1), None).0, Verdict::Hold);
        assert!(bench.feed.resume(at(Some(2), 2, None), &mut Vec::new()));
        assert!(bench.feed.is_complete());
        assert_eq!(bench.push(3, Some(2), None).0, Verdict::Hold);
        assert_eq!((bench.feed.is_complete(), bench.feed.gap_end()), (false, 3));
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
