//! What becomes of a batch whose turn has come.

use std::time::{Duration, Instant};

use tokio::task::yield_now;
use warmpath_indexer::event::{CacheEvent, EventBatch};
use warmpath_indexer::feed::WALL_CLOCK;
use warmpath_indexer::view::Applied;

use super::EventTask;
use crate::aside::in_place;
use crate::wall_clock;

/// Blocks and events that are taken in at once: a batch may have hundreds of thousands, one event of it as many blocks, and
/// thousands of batches come together.
const LOT_MAX: usize = 4096;

/// What was taken in since others had their turn.
#[derive(Debug, Default)]
pub(super) struct Lot(usize);

impl Lot {
    /// These events, which are so much work, are about to be taken in: others first, where the lot is full.
    async fn add(&mut self, events: &[CacheEvent], work: usize) {
        // Whoever empties a tier walks through all names.
        let walks = events.iter().any(|event| matches!(event, CacheEvent::Cleared));
        self.make_room(if walks { LOT_MAX } else { work }).await;
    }

    /// A walk through all names is about to be made.
    pub(super) async fn add_walk(&mut self) {
        self.make_room(LOT_MAX).await;
    }

    async fn make_room(&mut self, work: usize) {
        if self.0 > 0 && self.0 + work > LOT_MAX {
            yield_now().await;
            self.0 = 0;
        }
        self.0 += work;
    }
}

/// How much it is to take an event in, in blocks. Of several that empty a tier in one part only the last does.
fn work(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.hashes.len().max(1),
        CacheEvent::Removed(removed) => removed.hashes.len().max(1),
        CacheEvent::Cleared => 1,
    }
}

/// The events in order, in parts of a lot each, or of one that is larger by itself; with how much each part is.
fn lots(mut events: &[CacheEvent]) -> impl Iterator<Item = (&[CacheEvent], usize)> {
    std::iter::from_fn(move || {
        let (mut count, mut sum) = (0, 0);
        for event in events {
            let more = work(event);
            if count > 0 && sum + more > LOT_MAX {
                break;
            }
            (count, sum) = (count + 1, sum + more);
        }
        let (lot, rest) = events.split_at(count);
        events = rest;
        (count > 0).then_some((lot, sum))
    })
}

impl EventTask {
    pub(super) async fn apply(&mut self, batch: &EventBatch, lot: &mut Lot) {
        let mut applied = Applied::default();
        for (events, work) in lots(&batch.events) {
            lot.add(events, work).await;
            let apply = || self.index.apply(events);
            applied += if self.index.lacks_room(events) { in_place(usize::MAX, apply) } else { apply() };
        }
        self.count(&applied);
        if batch.removal_rejected {
            // What it took away would be matched for good.
            self.index.forget();
            self.repair.emptied(Instant::now(), &mut self.steps);
        } else if applied.orphans > 0 && !self.index.is_partial() {
            self.repair.orphaned(Instant::now(), &mut self.steps);
        }
        if applied.wrong_size > 0 {
            self.note_size(batch);
        }
        // Of what was asked for, or kept from before, it would be the age of history.
        if !self.is_late && !self.is_asked_for {
            self.note_lag(batch);
        }
        self.source.course.applied(Instant::now(), u64::try_from(batch.events.len()).unwrap_or(u64::MAX));
    }

    fn note_lag(&self, batch: &EventBatch) {
        // The time of another clock says nothing of its age.
        let Some(ts) = batch.ts.filter(|ts| *ts >= WALL_CLOCK) else { return };
        let lag_s = (wall_clock::now().as_secs_f64() - ts).max(0.0);
        self.worker.metrics.event_lag.record(lag_s);
        if let Ok(lag) = Duration::try_from_secs_f64(lag_s) {
            self.source.course.lags(lag);
        }
    }

    fn note_size(&self, batch: &EventBatch) {
        let configured = self.pool.block_size.get();
        let mut sizes = batch.events.iter().filter_map(|event| match event {
            CacheEvent::Stored(stored) => stored.block_size.filter(|size| *size != configured && *size > 0),
            _ => None,
        });
        if let Some(size) = sizes.next() {
            self.worker.metrics.belief.carries(size);
        }
    }

    fn count(&self, applied: &Applied) {
        let metrics = &self.worker.metrics;
        let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
        metrics.belief.applied(number(applied.telling()), number(applied.wrong_size));
        let outcomes = [
            ("stored", applied.stored),
            ("copy", applied.copies),
            ("reported", applied.reported),
            ("removed", applied.removed),
            ("orphan", applied.orphans),
            ("wrong_block_size", applied.wrong_size),
            ("filtered", applied.filtered),
            ("conflict", applied.conflicts),
            ("unknown", applied.unknown),
            ("over_limit", applied.over_limit),
            ("cut", applied.cut),
        ];
        for (outcome, count) in outcomes {
            metrics.events(outcome, number(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use warmpath_core::ids::EngineHash;
    use warmpath_core::units::Tier;
    use warmpath_indexer::event::Removed;

    use super::*;

    #[test]
    fn others_have_their_turn_between_lots_and_before_each_further_walk() {
        let mut lot = Lot::default();
        let goes_on = |lot: &mut Lot, events| lot.make_room(events).now_or_never().is_some();
        assert!(goes_on(&mut lot, LOT_MAX - 1) && goes_on(&mut lot, 1));
        assert!(!goes_on(&mut lot, 1), "the lot is full");
        let (mut lot, walk) = (Lot::default(), [CacheEvent::Cleared]);
        assert!(lot.add(&walk, 1).now_or_never().is_some(), "nothing was done before");
        assert!(lot.add(&walk, 1).now_or_never().is_none() && lot.add_walk().now_or_never().is_none());
    }

    #[test]
    fn a_part_has_as_many_events_as_are_work_enough() {
        let removed = |blocks: u64| {
            let hashes = (0..blocks).map(EngineHash).collect();
            CacheEvent::Removed(Removed { hashes, tier: Tier::Device, group: None, remaining_copy_counts: None })
        };
        let sizes = |events: &[CacheEvent]| lots(events).map(|(lot, work)| (lot.len(), work)).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), []);
        assert_eq!(sizes(&[removed(0), CacheEvent::Cleared, removed(4_094), removed(1)]), [(3, 4_096), (1, 1)]);
        // One that is more than a part by itself is one part.
        assert_eq!(sizes(&[removed(9_000), removed(1), removed(4_096)]), [(1, 9_000), (1, 1), (1, 4_096)]);
        assert_eq!(sizes(&vec![CacheEvent::Cleared; 5_000]), [(4_096, 4_096), (904, 904)]);
    }
}
