//! What is let go when the index is full.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use warmpath_core::ids::Slot;

use super::{Index, Lane};
use crate::event::CacheEvent;
use crate::store::BlockStore;

/// This part of all entries is let go beyond what is needed, so that not every event has to.
const SPARE: usize = 64;

/// Blocks that events may add.
fn stored(events: &[CacheEvent]) -> usize {
    let of = |event: &CacheEvent| match event {
        CacheEvent::Stored(stored) => stored.hashes.len(),
        CacheEvent::Removed(_) | CacheEvent::Cleared => 0,
    };
    events.iter().map(of).sum()
}

impl<S: BlockStore> Index<S> {
    fn left(&self) -> usize {
        self.room.left().min(self.store.room())
    }

    /// Whether there is no room for what events may add, or some is being made.
    pub(super) fn lacks_room(&self, events: &[CacheEvent]) -> bool {
        let wanted = stored(events);
        wanted > 0 && self.left() < wanted || self.shedding.try_lock().is_err()
    }

    /// Makes room for what events may add, as far as something can be let go.
    pub(super) fn make_room(&self, events: &[CacheEvent]) {
        if !self.make_room_for(stored(events)) {
            // All of it was used at the present, which would never end where nothing more can be stored.
            self.store.end_present();
        }
    }

    /// Makes room for so many blocks, as far as something can be let go; returns whether there is as much.
    pub(super) fn make_room_for(&self, wanted: usize) -> bool {
        // The store is asked only where it could matter: it never keeps more blocks than there are entries and holes.
        if wanted == 0 || self.left() >= wanted {
            return true;
        }
        let _one_at_a_time = self.shedding.lock().unwrap_or_else(PoisonError::into_inner);
        let target = wanted.saturating_add(self.room.max() / SPARE).min(self.room.max());
        let mut spent = Vec::new();
        while let Some(missing) = target.checked_sub(self.left()).filter(|&missing| missing > 0) {
            let Some(lane) = self.largest(&spent) else { break };
            // In parts, so that another may become the largest.
            let part = missing.min(lane.names.load(Ordering::Relaxed) / 4 + 1);
            let shed = {
                let mut view = lane.view();
                let shed = view.shed(&self.keeper(lane.slot), part);
                lane.publish(&view);
                shed
            };
            self.shed.fetch_add(u64::try_from(shed).unwrap_or(u64::MAX), Ordering::Relaxed);
            if shed == 0 {
                // For what is only to spare nobody else is asked: that costs the time of all their names.
                if self.left() >= wanted {
                    break;
                }
                spent.push(lane.slot);
            }
        }
        self.left() >= wanted
    }

    /// The worker with the most names, but for those that have nothing more to let go.
    fn largest(&self, spent: &[Slot]) -> Option<Arc<Lane>> {
        let lanes = self.lanes();
        let others = lanes.iter().flatten().filter(|lane| !spent.contains(&lane.slot));
        others.max_by_key(|lane| lane.names.load(Ordering::Relaxed)).cloned()
    }
}
