//! In which order an engine's batches are passed on, what is asked for again, and where its process changed. No I/O.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warmpath_indexer::codec;
use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::feed::{Action, Patience, Stamp, Verdict, WorkerFeed};

use crate::events::{AskId, Heard, Message};

/// Live batches that are held back while older ones are fetched. Beyond it the missing ones are given up.
const HELD_MAX: usize = 8192;

/// The longest silence of a replay; then it has failed.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A batch of the engine, as far as the bridge has to understand it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    /// Its number within the engine's process.
    pub(super) seq: u64,
    /// The engine's time stamp in seconds; 0 where it could not be read.
    pub(super) ts: f64,
    /// What the engine sent.
    pub(super) payload: Bytes,
    /// What it says; none if it could not be read, or a removal in it could not. It is passed on all the same.
    pub(super) events: Option<Vec<CacheEvent>>,
}

/// What is to be done next, in this order.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Ask the engine for its batches from this number on; the answers name the question.
    Ask(AskId, u64),
    /// Pass the batch on.
    Publish(Batch),
    /// These are lost for good: who reads will see the gap.
    Lost(Range<u64>),
    /// Another process speaks from here on.
    Restarted {
        /// The time stamp of its first batch, in seconds.
        ts: f64,
    },
}

/// The order of one (worker, rank)'s batches. Each is passed on once, in ascending order within its process.
pub(super) struct Course {
    feed: WorkerFeed<Batch>,
    /// Whether there is somebody to ask.
    replays: bool,
    catching_up: Option<CatchingUp>,
    last_id: AskId,
    actions: Vec<Action<Batch>>,
}

struct CatchingUp {
    /// The question whose answer is waited for.
    asked: AskId,
    until: Instant,
    held: VecDeque<Batch>,
}

impl Course {
    /// A course before the first batch.
    pub(super) fn new(replays: bool) -> Self {
        let feed = WorkerFeed::new(Patience::NONE);
        Self { feed, replays, catching_up: None, last_id: AskId::default(), actions: Vec::new() }
    }

    /// Takes in what the source told.
    pub(super) fn hear(&mut self, heard: Heard, now: Instant, steps: &mut Vec<Step>) {
        match heard {
            // From the beginning: a new process is told by the time stamps of numbers that are known.
            Heard::Connected | Heard::Dropped(_) => self.catch_up(0, now, steps),
            Heard::Live(message) => {
                let batch = self.read(message);
                self.live(batch, now, steps);
            }
            Heard::Replayed(id, message) => {
                let Some(catching_up) = self.catching_up.as_mut().filter(|catching_up| catching_up.asked == id) else {
                    // An answer that came too late, perhaps of a process that is gone.
                    return;
                };
                catching_up.until = now + SILENCE_MAX;
                let batch = self.read(message);
                self.push(batch, now, steps);
            }
            Heard::ReplayEnded(id, _) => {
                if self.catching_up.as_ref().is_some_and(|catching_up| catching_up.asked == id) {
                    self.give_up(now, steps);
                }
            }
            Heard::History(_) | Heard::SnapshotChunk(..) | Heard::SnapshotEnded(_) => {}
        }
    }

    /// Another process is known to run: what is numbered from now on counts from 0.
    pub(super) fn begin_anew(&mut self, now: Instant, steps: &mut Vec<Step>) {
        self.feed = WorkerFeed::new(Patience::NONE);
        self.catch_up(0, now, steps);
    }

    /// When [`Course::give_up`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.catching_up.as_ref().map(|catching_up| catching_up.until)
    }

    /// Waits no longer for what is missing.
    pub(super) fn give_up(&mut self, now: Instant, steps: &mut Vec<Step>) {
        for batch in self.catching_up.take().into_iter().flat_map(|catching_up| catching_up.held) {
            self.push(batch, now, steps);
        }
    }

    fn catch_up(&mut self, from: u64, now: Instant, steps: &mut Vec<Step>) {
        if self.replays {
            self.last_id = self.last_id.next();
            let held = self.catching_up.take().map(|before| before.held).unwrap_or_default();
            self.catching_up = Some(CatchingUp { asked: self.last_id, until: now + SILENCE_MAX, held });
            steps.push(Step::Ask(self.last_id, from));
        }
    }

    fn live(&mut self, batch: Batch, now: Instant, steps: &mut Vec<Step>) {
        if self.catching_up.is_none() && self.replays {
            match self.feed.judge(&stamp(&batch), || false) {
                Verdict::Gap { missing } => self.catch_up(missing.start, now, steps),
                Verdict::Restart => self.catch_up(0, now, steps),
                Verdict::Apply | Verdict::Hold | Verdict::Full | Verdict::Duplicate => {}
            }
        }
        match &mut self.catching_up {
            None => self.push(batch, now, steps),
            Some(catching_up) => {
                catching_up.held.push_back(batch);
                if catching_up.held.len() > HELD_MAX {
                    self.give_up(now, steps);
                }
            }
        }
    }

    fn push(&mut self, batch: Batch, now: Instant, steps: &mut Vec<Step>) {
        let (ts, bytes) = (batch.ts, batch.payload.len());
        let mut actions = std::mem::take(&mut self.actions);
        self.feed.push(stamp(&batch), (batch, bytes), |_| false, now, &mut actions);
        // What is missing now has been asked for in vain.
        while let Some(missing) = self.feed.overdue(now) {
            self.feed.pass_to(missing.end, &mut actions);
        }
        steps.extend(actions.drain(..).map(|action| match action {
            Action::Apply(batch) => Step::Publish(batch),
            Action::Lost(missing) => Step::Lost(missing),
            Action::Restarted => Step::Restarted { ts },
        }));
        self.actions = actions;
    }

    fn read(&self, message: Message) -> Batch {
        let decoded = codec::decode(&message.payload).ok();
        let ts = decoded.as_ref().and_then(|batch| batch.ts).unwrap_or_default();
        // A source that numbers nothing is taken to lose nothing.
        let seq = message.seq.unwrap_or_else(|| self.feed.next_seq());
        let events = decoded.filter(|batch| !batch.removal_rejected).map(|batch| batch.events);
        Batch { seq, ts, payload: message.payload, events }
    }
}

/// A batch that cannot be read has the earliest time there is, so that it is never taken for a restart.
fn stamp(batch: &Batch) -> Stamp {
    Stamp { seq: batch.seq, epoch: None, ts: Some(batch.ts) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::ReplayEnd;
    use warmpath_indexer::codec::encode::{Form, HashForm, encode};
    use warmpath_indexer::event::EventBatch;

    struct Bench {
        course: Course,
        now: Instant,
    }

    /// What was done, in short.
    #[derive(Debug, PartialEq)]
    enum Did {
        Asked(u64),
        Published(u64),
        Lost(Range<u64>),
        Restarted,
    }
    use Did::{Asked, Published};

    fn message(seq: u64, ts: f64) -> Message {
        let batch = EventBatch { ts: Some(ts), events: vec![CacheEvent::Cleared], ..EventBatch::default() };
        let payload = encode(&batch, Form::Map, HashForm::Int).unwrap().into();
        Message { payload, seq: Some(seq), epoch: None }
    }

    impl Bench {
        fn new(replays: bool) -> Self {
            Self { course: Course::new(replays), now: Instant::now() }
        }

        fn hear(&mut self, heard: Heard) -> Vec<Did> {
            let mut steps = Vec::new();
            self.course.hear(heard, self.now, &mut steps);
            did(steps)
        }

        fn live(&mut self, seq: u64, ts: f64) -> Vec<Did> {
            self.hear(Heard::Live(message(seq, ts)))
        }

        fn replayed(&mut self, seq: u64, ts: f64) -> Vec<Did> {
            self.hear(Heard::Replayed(self.course.last_id, message(seq, ts)))
        }

        fn ended(&mut self) -> Vec<Did> {
            self.hear(Heard::ReplayEnded(self.course.last_id, ReplayEnd::Whole))
        }
    }

    fn did(steps: Vec<Step>) -> Vec<Did> {
        let short = |step| match step {
            Step::Ask(_, from) => Asked(from),
            Step::Publish(batch) => Published(batch.seq),
            Step::Lost(missing) => Did::Lost(missing),
            Step::Restarted { .. } => Did::Restarted,
        };
        steps.into_iter().map(short).collect()
    }

    #[test]
    fn what_was_missed_comes_before_what_is_new() {
        let mut bench = Bench::new(true);
        assert_eq!(bench.hear(Heard::Connected), [Asked(0)]);
        assert_eq!(bench.live(3, 1.3), []);
        for (seq, ts) in [(0, 1.0), (1, 1.1), (2, 1.2), (3, 1.3)] {
            assert_eq!(bench.replayed(seq, ts), [Published(seq)]);
        }
        assert_eq!(bench.live(4, 1.4), []);
        assert_eq!(bench.ended(), [Published(4)]);
        assert_eq!(bench.live(5, 1.5), [Published(5)]);
    }

    #[test]
    fn a_gap_is_filled_and_what_cannot_be_filled_stays_one() {
        let mut bench = Bench::new(true);
        bench.live(0, 1.0);
        assert_eq!(bench.live(3, 1.3), [Asked(1)]);
        assert_eq!(bench.live(4, 1.4), []);
        assert_eq!(bench.replayed(2, 1.2), [Did::Lost(1..2), Published(2)]);
        assert_eq!(bench.ended(), [Published(3), Published(4)]);
        let mut alone = Bench::new(false);
        assert_eq!(alone.hear(Heard::Connected), []);
        alone.live(0, 1.0);
        assert_eq!(alone.live(3, 1.3), [Did::Lost(1..3), Published(3)]);
    }

    #[test]
    fn a_new_process_is_passed_on_from_its_beginning() {
        let mut bench = Bench::new(true);
        for seq in 0..5 {
            bench.live(seq, 10.0);
        }
        assert_eq!(bench.live(2, 20.2), [Asked(0)]);
        assert_eq!(bench.replayed(0, 20.0), [Did::Restarted, Published(0)]);
        assert_eq!(bench.replayed(1, 20.1), [Published(1)]);
        assert_eq!(bench.ended(), [Published(2)]);
    }

    #[test]
    fn a_reconnect_to_the_same_process_passes_nothing_on_twice() {
        let mut bench = Bench::new(true);
        for seq in 0..5 {
            bench.live(seq, 10.0);
        }
        assert_eq!(bench.hear(Heard::Connected), [Asked(0)]);
        for seq in 0..5 {
            assert_eq!(bench.replayed(seq, 10.0), []);
        }
        assert_eq!(bench.replayed(5, 10.5), [Published(5)]);
        assert_eq!(bench.ended(), []);
    }

    #[test]
    fn a_late_answer_of_a_dead_process_is_not_passed_on() {
        let mut bench = Bench::new(true);
        bench.hear(Heard::Connected);
        let first = bench.course.last_id;
        let mut steps = Vec::new();
        bench.course.begin_anew(bench.now, &mut steps);
        assert_eq!(did(steps), [Asked(0)]);
        assert_eq!(bench.hear(Heard::Replayed(first, message(57, 9.0))), []);
        assert_eq!(bench.live(1, 10.1), []);
        assert_eq!(bench.hear(Heard::ReplayEnded(first, ReplayEnd::Whole)), []);
        assert_eq!((bench.replayed(0, 10.0), bench.ended()), (vec![Published(0)], vec![Published(1)]));
    }

    #[test]
    fn a_process_that_is_known_by_its_start_begins_at_0() {
        let mut bench = Bench::new(true);
        for seq in 0..5 {
            bench.live(seq, 10.0);
        }
        let mut steps = Vec::new();
        bench.course.begin_anew(bench.now, &mut steps);
        assert_eq!(did(steps), [Asked(0)]);
        // Its clock is behind that of the process before.
        assert_eq!(bench.replayed(0, 9.0), [Published(0)]);
        assert_eq!(bench.ended(), []);
        assert_eq!(bench.live(1, 9.1), [Published(1)]);
    }

    #[test]
    fn what_cannot_be_read_is_passed_on_and_is_never_a_restart() {
        let mut bench = Bench::new(false);
        let junk = |seq| Heard::Live(Message { payload: vec![0xc1].into(), seq: Some(seq), epoch: None });
        assert_eq!(bench.hear(junk(0)), [Published(0)]);
        assert_eq!(bench.live(1, 5.0), [Published(1)]);
        assert_eq!(bench.hear(junk(0)), []);
        assert_eq!(bench.hear(junk(2)), [Published(2)]);
    }

    #[test]
    fn a_removal_that_cannot_be_read_costs_the_batch() {
        let course = Course::new(false);
        let read = |payload: &'static [u8]| {
            course
                .read(Message { payload: payload.into(), seq: Some(0), epoch: None })
                .events
                .map(|events| events.len())
        };
        assert_eq!(read(b"\x92\xc0\x91\x92\xacBlockRemoved\x91\x01"), Some(1));
        assert_eq!(read(b"\x92\xc0\x91\x92\xacBlockRemoved\x91\xc0"), None);
        assert_eq!(read(b"\x92\xc0\x91\x91\xa3Foo"), Some(0));
    }

    #[test]
    fn neither_silence_nor_a_flood_holds_anything_back_for_ever() {
        let mut bench = Bench::new(true);
        bench.hear(Heard::Connected);
        assert_eq!(bench.live(7, 1.0), []);
        assert_eq!(bench.course.deadline(), Some(bench.now + SILENCE_MAX));
        let mut steps = Vec::new();
        bench.course.give_up(bench.now + SILENCE_MAX, &mut steps);
        assert_eq!(did(steps), [Did::Lost(0..7), Published(7)]);
        bench.hear(Heard::Connected);
        let flood: Vec<Did> = (8..).take(HELD_MAX + 1).flat_map(|seq| bench.live(seq, 1.0)).collect();
        assert_eq!((flood.len(), bench.course.deadline()), (HELD_MAX + 1, None));
    }
}
