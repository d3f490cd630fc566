//! What becomes of a batch whose turn has come.

use std::time::{Duration, Instant};

use warmpath_indexer::event::{CacheEvent, EventBatch};
use warmpath_indexer::view::Applied;

use super::EventTask;
use crate::wall_clock;

impl EventTask {
    pub(super) fn apply(&mut self, batch: &EventBatch) {
        let applied = self.index.apply(&batch.events);
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
        let lag_s = batch.ts.map(|ts| (wall_clock::now().as_secs_f64() - ts).max(0.0));
        if let Some(lag_s) = lag_s {
            self.worker.metrics.event_lag.record(lag_s);
        }
        let events = u64::try_from(batch.events.len()).unwrap_or(u64::MAX);
        let lag = lag_s.and_then(|lag_s| Duration::try_from_secs_f64(lag_s).ok());
        self.source.course.applied(Instant::now(), events, lag);
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
