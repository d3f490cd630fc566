//! The way from the engine to the index, with all that can go wrong on it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::{SequenceHash, Slot, TokenId};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::trust::ViewState;
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::index::Writer;
use warmpath_indexer::repair::{Abilities, Ask, AskId, Repair, ReplayEnd, Step};
use warmpath_indexer::view::ViewSettings;

use super::engine::{Batch, Draw, Engine, pool};

/// A step of time.
const STEP: Duration = Duration::from_millis(10);

/// A sort of path.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) abilities: Abilities,
    pub(crate) epoch: bool,
    pub(crate) ring: usize,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) loss: bool,
    pub(crate) repeats: bool,
    /// Only on paths that can: one connection keeps the order.
    pub(crate) reorder: bool,
    pub(crate) full_replay: bool,
    pub(crate) restart: bool,
    pub(crate) cut: bool,
    /// Answers that come when nobody waits for them any more.
    pub(crate) stale: bool,
}

enum Heard {
    Connected,
    Live(Batch),
    Replayed(AskId, Batch),
    ReplayEnded(AskId, ReplayEnd),
    Chunk(AskId, Vec<CacheEvent>),
    SnapshotEnded(AskId, Option<Position>),
}

pub(crate) struct World {
    kind: Kind,
    faults: Faults,
    seed: u64,
    draw: Draw,
    engine: Engine,
    index: Arc<ConcurrentIndex>,
    writer: Writer<Chains>,
    pub(crate) repair: Repair<Vec<CacheEvent>>,
    steps: Vec<Step<Vec<CacheEvent>>>,
    now: Instant,
    at: u64,
    /// By when it arrives, and a number that keeps the order of what arrives together.
    under_way: Vec<(u64, u64, Heard)>,
    sent: u64,
    /// Until when the path is cut.
    cut_until: u64,
    restoring: bool,
    /// How far the view went when it was looked at last.
    checked: Position,
    prompts: Vec<(Vec<TokenId>, Vec<SequenceHash>)>,
    /// What the cache held after the batch of this life and number.
    truths: HashMap<(u64, u64), Vec<u32>>,
    /// The same, found by time stamp.
    by_time: HashMap<u64, (u64, u64)>,
    /// All batches of all lives.
    log: Vec<Batch>,
    pub(crate) published: u64,
    pub(crate) repairs: u64,
    pub(crate) suspect: Duration,
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, {}, {:?}, step {}", self.seed, self.kind.name, self.faults, self.at)
    }
}

impl World {
    #[expect(clippy::disallowed_methods, reason = "any instant will do as the beginning")]
    pub(crate) fn new(kind: Kind, faults: Faults, seed: u64) -> Self {
        let index = Arc::new(ConcurrentIndex::new(10_000));
        let settings = ViewSettings { pool: pool(), seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let mut world = Self {
            kind,
            faults,
            seed,
            draw: Draw::seeded(seed),
            engine: Engine::new(20, kind.ring, kind.epoch),
            writer: index.writer(Slot(0), &settings),
            index,
            repair: Repair::new(kind.abilities),
            steps: Vec::new(),
            now: Instant::now(),
            at: 0,
            under_way: Vec::new(),
            sent: 0,
            cut_until: 0,
            restoring: false,
            checked: Position::default(),
            prompts: Engine::prompts(),
            truths: HashMap::new(),
            by_time: HashMap::new(),
            log: Vec::new(),
            published: 0,
            repairs: 0,
            suspect: Duration::ZERO,
        };
        world.send(0, Heard::Connected);
        world
    }

    /// So many steps with faults.
    pub(crate) fn live_through(&mut self, steps: u64) {
        for _ in 0..steps {
            self.engine_works();
            self.path_fails();
            self.pass();
        }
    }

    /// The faults stop, the engine says a little more, and whatever is tried again has time to be.
    pub(crate) fn quiesce(&mut self) {
        self.faults = Faults::default();
        self.at = self.at.max(self.cut_until);
        for _ in 0..3 {
            self.serve();
            for _ in 0..3000 {
                self.pass();
                if self.under_way.is_empty() && self.repair.deadline().is_none() {
                    break;
                }
            }
        }
    }

    fn engine_works(&mut self) {
        // A life that ends after its first batch: the next one's first looks like it again.
        let restarts = if self.engine.next() == 1 && self.engine.life() < 3 { 50 } else { 1 };
        if self.faults.restart && self.draw.per_cent(restarts) && self.draw.per_cent(50) {
            self.restart();
        }
        for _ in 0..self.draw.below(3) {
            self.serve();
        }
    }

    fn serve(&mut self) {
        let batch = if self.draw.per_cent(1) { self.engine.clear() } else { self.engine.serve(&mut self.draw) };
        self.published += 1;
        let place = (self.engine.life(), batch.stamp.seq);
        let truth = self.prompts.iter().map(|(tokens, _)| self.engine.truth(tokens)).collect();
        self.truths.insert(place, truth);
        self.by_time.insert(batch.stamp.ts.unwrap().to_bits(), place);
        self.log.push(batch.clone());
        self.publish(batch);
    }

    fn reorders(&self) -> bool {
        self.faults.reorder && self.kind.abilities.patience.batches > 0
    }

    fn publish(&mut self, batch: Batch) {
        if self.at < self.cut_until || self.faults.loss && self.draw.per_cent(5) {
            return;
        }
        if self.faults.repeats && self.draw.per_cent(10) {
            let late = self.draw.below(20);
            self.send(late, Heard::Live(batch.clone()));
        }
        let late = if self.reorders() { self.draw.below(5) } else { 0 };
        self.send(late, Heard::Live(batch));
    }

    fn restart(&mut self) {
        self.engine.restart();
        if !self.kind.epoch {
            // One connection: what is not here by now never comes; what answers a replay goes another way.
            self.under_way.retain(|(_, _, heard)| !matches!(heard, Heard::Live(_)));
        }
        if self.kind.abilities.replays {
            // The first to speak are not heard.
            let silence = self.draw.below(6);
            self.cut_until = self.cut_until.max(self.at + silence);
            self.send(silence, Heard::Connected);
        }
    }

    fn path_fails(&mut self) {
        if self.faults.cut && self.draw.per_cent(1) {
            let long = 1 + self.draw.below(30);
            self.cut_until = self.cut_until.max(self.at + long);
            self.send(long, Heard::Connected);
        }
        if self.faults.full_replay && self.draw.per_cent(1) {
            let again = if self.kind.epoch { self.log.clone() } else { self.engine.replay(0) };
            for batch in again {
                self.send(0, Heard::Live(batch));
            }
        }
    }

    fn send(&mut self, late: u64, heard: Heard) {
        self.sent += 1;
        self.under_way.push((self.at + late, self.sent, heard));
    }

    /// Time passes by a step: what is due arrives.
    fn pass(&mut self) {
        let mut due: Vec<_> = self.under_way.extract_if(.., |(when, ..)| *when <= self.at).collect();
        due.sort_by_key(|&(when, number, _)| (when, number));
        for (.., heard) in due {
            self.hear(heard);
            self.act();
        }
        if self.repair.deadline().is_some_and(|deadline| deadline <= self.now) {
            self.repair.tick(self.now, &mut self.steps);
            self.act();
        }
        if self.repair.view().is_doubted() {
            self.suspect += STEP;
        }
        let position = self.repair.feed().position();
        if self.at.is_multiple_of(16) && self.checked != position {
            self.checked = position;
            self.check();
        }
        self.at += 1;
        self.now += STEP;
    }

    fn hear(&mut self, heard: Heard) {
        let (now, steps) = (self.now, &mut self.steps);
        match heard {
            Heard::Connected => self.repair.connected(now, steps),
            Heard::Live(batch) => self.repair.live(batch.stamp, (batch.events, 100), |_| false, now, steps),
            Heard::Replayed(id, batch) => self.repair.replayed(id, batch.stamp, (batch.events, 100), now, steps),
            Heard::ReplayEnded(id, end) => self.repair.replay_ended((id, end), now, steps),
            Heard::Chunk(id, events) => {
                if self.repair.takes_snapshot(id, now) {
                    if !std::mem::replace(&mut self.restoring, true) {
                        self.writer.forget();
                    }
                    self.writer.apply(&events);
                }
            }
            Heard::SnapshotEnded(id, _) if !self.repair.awaits_snapshot(id) => {}
            Heard::SnapshotEnded(id, position) => match position.filter(|_| std::mem::take(&mut self.restoring)) {
                Some(position) => self.repair.restored(id, (position, Began::AtStart), now, steps),
                None => self.repair.not_restored(id, now, steps),
            },
        }
    }

    fn act(&mut self) {
        for step in std::mem::take(&mut self.steps) {
            match step {
                Step::Apply(events) => {
                    assert!(!self.restoring, "{self}: an event amid a snapshot");
                    let applied = self.writer.apply(&events);
                    let cold = self.repair.cold().is_some();
                    assert!(applied.orphans == 0 || cold, "{self}: {applied:?}");
                }
                Step::Clear(_) => {
                    self.restoring = false;
                    self.writer.forget();
                }
                Step::Ask(Ask::Replay { id, from }) => self.answer_replay(id, from),
                Step::Ask(Ask::Snapshot { id }) => self.answer_snapshot(id),
                Step::View(ViewState::Current) => self.check(),
                Step::View(_) => {}
                Step::Repaired(_) => self.repairs += 1,
            }
        }
    }

    fn answer_replay(&mut self, id: AskId, from: u64) {
        assert_eq!(self.repair.view(), ViewState::Suspect, "{self}");
        let mut answer = self.engine.replay(from);
        let all = answer.len();
        if self.at < self.cut_until || self.faults.cut && self.draw.per_cent(30) {
            let end = self.draw.below(1 + u64::try_from(answer.len()).unwrap());
            answer.truncate(usize::try_from(end).unwrap());
        }
        let late = match self.draw.below(10) {
            // Longer than anybody waits.
            0 if self.faults.stale => 1000 + self.draw.below(1500),
            1..4 if self.faults.stale => self.draw.below(60),
            _ => 1,
        };
        let count = u64::try_from(answer.len()).unwrap();
        let whole = answer.len() == all;
        let end = if whole { ReplayEnd::Whole } else { ReplayEnd::CutShort };
        for (place, batch) in (0_u64..).zip(answer) {
            self.send(late + place / 8, Heard::Replayed(id, batch));
        }
        self.send(late + count.div_ceil(8), Heard::ReplayEnded(id, end));
    }

    fn answer_snapshot(&mut self, id: AskId) {
        assert_eq!(self.repair.view(), ViewState::Suspect, "{self}");
        let late = match self.draw.below(10) {
            // Longer than anybody waits.
            0 if self.faults.stale => 1000 + self.draw.below(1500),
            _ if self.faults.stale => self.draw.below(30),
            _ => 1,
        };
        if self.faults.cut && self.draw.per_cent(30) {
            return self.send(late, Heard::SnapshotEnded(id, None));
        }
        let (position, chunks) = self.engine.snapshot();
        // In parts, between which other things may happen.
        let apart = if self.faults.stale { 1 } else { 0 };
        let mut end = late;
        for chunk in chunks {
            self.send(end, Heard::Chunk(id, chunk));
            end += apart;
        }
        self.send(end, Heard::SnapshotEnded(id, Some(position)));
    }

    fn overlap(&self, prompt: &[SequenceHash]) -> u32 {
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(prompt, &mut overlaps);
        overlaps.of(Slot(0)).total().0
    }

    /// A view that is called whole is just what the engine held after the last batch that was applied.
    fn check(&self) {
        let position = self.repair.feed().position();
        if self.repair.view() != ViewState::Current || position.next == 0 {
            return;
        }
        let place = self.by_time[&position.newest.unwrap().to_bits()];
        assert_eq!(place.1 + 1, position.next, "{self}");
        self.compare_with(&self.truths[&place]);
    }

    /// Of every prompt, the index knows as many leading blocks as the engine holds; a cold view perhaps fewer.
    pub(crate) fn compare(&self) {
        self.compare_with(&self.truths[&(self.engine.life(), self.engine.next() - 1)]);
    }

    fn compare_with(&self, truth: &[u32]) {
        let cold = self.repair.view() == ViewState::Cold;
        for ((tokens, hashes), &truth) in self.prompts.iter().zip(truth) {
            let known = self.overlap(hashes);
            assert!(known == truth || cold && known < truth, "{self}: {known} of {truth} blocks of {tokens:?}");
        }
    }
}
