//! Feeds events to an index and times only the applying, to the last event.

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_core::ids::Slot;

use crate::clock::{nanoseconds, on_processor, rate, timed};
use crate::draws::{real, wide};
use crate::feed::{LARGE, Move, removals, stores};
use crate::plan::{Load, Plan};
use crate::subject::Subject;

/// Blocks and events that are made ready before the clock runs: few enough to lie in the processor's caches, as they do
/// when they were just decoded.
const ROUND_BLOCKS: usize = 65_536;
const ROUND_EVENTS: usize = 8192;
/// Blocks that are removed and stored again one by one.
const SINGLE: usize = 1_000_000;
/// Events of one worker that are handed over together, where they come in batches.
const BATCH: usize = 32;
/// Blocks from which on an event is large.
const LARGE_LEAST: usize = 128;

/// An index, and a writer for each worker.
pub(crate) struct Fed<S: Subject> {
    pub(crate) index: S,
    pub(crate) writers: Vec<S::Writer>,
}

/// What was fed, and how long it took to apply.
#[derive(Clone, Copy, Default)]
pub(crate) struct Taken {
    pub(crate) blocks: usize,
    pub(crate) events: usize,
    pub(crate) time: Duration,
    /// The same by the system's account of all threads; none where it does not tell.
    on_processor: Option<Duration>,
    /// Blocks that came in events of at least 128.
    in_large: usize,
}

impl<S: Subject> Fed<S> {
    /// An empty index. With `sized`, every worker tells beforehand how many blocks to expect.
    pub(crate) fn empty(plan: &Plan, sized: bool) -> Self {
        // Room for what the measurements add, and for what a turnover may hold between two steps.
        let index = S::new(plan.workers, plan.entries * 2 + 4_000_000);
        let expected = plan.entries_by_worker();
        let writer = |(slot, &expected): (u16, &usize)| index.writer(Slot(slot), if sized { expected } else { 0 });
        let writers = (0..).zip(&expected).map(writer).collect();
        Self { index, writers }
    }

    /// Applies all moves, at most `batch` of one worker at a time.
    pub(crate) fn feed(&mut self, batch: usize, moves: impl Iterator<Item = Move>) -> Taken {
        let mut moves = moves;
        let mut taken = Taken { on_processor: Some(Duration::ZERO), ..Taken::default() };
        let mut round = Round::<S>::new(batch);
        while round.fill(&mut moves) {
            taken.blocks += round.blocks;
            taken.events += round.events.len();
            taken.in_large += round.in_large;
            let before = on_processor();
            taken.time += timed(|| {
                round.apply(&self.index, &mut self.writers);
                self.index.drain();
            });
            let ran = before.zip(on_processor()).map(|(before, after)| after.saturating_sub(before));
            taken.on_processor = taken.on_processor.zip(ran).map(|(sum, ran)| sum + ran);
        }
        taken
    }
}

/// Events that are ready, cut into batches of one worker each.
pub(crate) struct Round<S: Subject> {
    batch: usize,
    events: Vec<S::Event>,
    batches: Vec<(Slot, usize)>,
    blocks: usize,
    in_large: usize,
}

impl<S: Subject> Round<S> {
    /// Nothing yet; batches of at most `batch` events.
    fn new(batch: usize) -> Self {
        Self { batch, events: Vec::new(), batches: Vec::new(), blocks: 0, in_large: 0 }
    }

    /// All of `moves`, made ready at once.
    pub(crate) fn all(batch: usize, moves: impl Iterator<Item = Move>) -> Vec<Self> {
        let mut moves = moves;
        let rounds = std::iter::from_fn(|| {
            let mut round = Self::new(batch);
            round.fill(&mut moves).then_some(round)
        });
        rounds.collect()
    }

    /// How many blocks are ready.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Replaces what is ready by the next moves; false if there are none.
    fn fill(&mut self, moves: &mut impl Iterator<Item = Move>) -> bool {
        self.events.clear();
        self.batches.clear();
        (self.blocks, self.in_large) = (0, 0);
        while self.blocks < ROUND_BLOCKS && self.events.len() < ROUND_EVENTS {
            let Some(moved) = moves.next() else { break };
            let blocks = moved.blocks.len();
            self.blocks += blocks;
            self.in_large += if blocks >= LARGE_LEAST { blocks } else { 0 };
            match self.batches.last_mut() {
                Some((slot, len)) if *slot == moved.slot && *len < self.batch => *len += 1,
                _ => self.batches.push((moved.slot, 1)),
            }
            self.events.push(S::event(moved));
        }
        !self.events.is_empty()
    }

    /// Applies what is ready.
    pub(crate) fn apply(&mut self, index: &S, writers: &mut [S::Writer]) {
        let mut events = self.events.as_mut_slice();
        for &(slot, len) in &self.batches {
            let (batch, rest) = std::mem::take(&mut events).split_at_mut(len);
            index.apply(&mut writers[slot.index()], batch);
            events = rest;
        }
    }
}

impl Taken {
    /// Rates and times for a report.
    pub(crate) fn told(self, what: &str) -> Value {
        let blocks = real(wide(self.blocks.max(1)));
        json!({
            "what": what, "blocks": self.blocks, "events": self.events,
            "blocks_per_event": blocks / real(wide(self.events.max(1))),
            "share_in_large_events": real(wide(self.in_large)) / blocks,
            "blocks_per_s": rate(self.blocks, self.time), "ns_per_block": nanoseconds(self.time) / blocks,
            "processor_ns_per_block": self.on_processor.map(|time| nanoseconds(time) / blocks),
        })
    }
}

/// The events that fill an index.
pub(crate) fn filling(plan: &Plan) -> impl Iterator<Item = Move> + '_ {
    plan.loads.iter().flat_map(|load| stores(load, LARGE))
}

/// Fills `times` indexes; the last of them, and what the one of median speed took.
pub(crate) fn fill<S: Subject>(plan: &Plan, sized: bool, times: usize) -> (Fed<S>, Taken) {
    let mut all = Vec::new();
    loop {
        let mut fed = Fed::empty(plan, sized);
        all.push(fed.feed(1, filling(plan)));
        if all.len() >= times {
            all.sort_unstable_by_key(|taken| taken.time);
            return (fed, all[(all.len() - 1) / 2]);
        }
    }
}

/// Removes the newest blocks one by one and stores them again one by one, an event a call and 32 a call. The index is
/// afterwards what it was.
pub(crate) fn one_by_one<S: Subject>(plan: &Plan, fed: &mut Fed<S>) -> Vec<Value> {
    let mut newest: Vec<&Load> = Vec::new();
    let mut blocks = 0;
    for load in plan.loads.iter().rev() {
        if blocks >= SINGLE.min(plan.entries) {
            break;
        }
        blocks += load.to - load.from;
        newest.push(load);
    }
    let mut told = Vec::new();
    for (batch, suffix) in [(1, ""), (BATCH, ", 32 a call")] {
        let removed = fed.feed(batch, newest.iter().flat_map(|load| removals(load)));
        told.push(removed.told(&format!("one-hash removals{suffix}")));
        let stored = fed.feed(batch, newest.iter().rev().flat_map(|load| stores(load, 1)));
        told.push(stored.told(&format!("one-block stores{suffix}")));
    }
    told
}
