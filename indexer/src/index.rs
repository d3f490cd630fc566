//! All engines' views over one store of blocks: who writes, how much there may be, and what is let go when it is full.

mod shedding;
mod snapshots;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::slot_set::SlotSet;

use crate::event::CacheEvent;
use crate::room::Room;
use crate::store::BlockStore;
use crate::view::{Applied, EngineView, Keeper, ViewSettings};
pub use snapshots::{Restore, Restored, Snapshot};

/// Which worker holds which leading blocks of a prompt.
///
/// Look-ups read the store only. Each worker's events come through a [`Writer`] of its own; writers of different workers
/// work side by side, and meet only where blocks are put into the store. No more than a given number of (worker, block)
/// entries is ever kept: near it, the workers with the most let go of what was least recently used, and what still does
/// not fit is refused. Both are counted, and can only cost hits.
pub struct Index<S> {
    store: S,
    room: Room,
    lanes: Mutex<Vec<Option<Arc<Lane>>>>,
    /// One lets go at a time.
    shedding: Mutex<()>,
    refused: AtomicU64,
    shed: AtomicU64,
}

/// What one worker's events are told to.
struct Lane {
    slot: Slot,
    view: Mutex<EngineView>,
    /// The view's sizes after its last change, so that nobody has to wait for it to know them.
    names: AtomicUsize,
    held: AtomicUsize,
    /// Whether the slot is somebody else's by now, so that nothing more may be put into it. Changes with the view locked.
    retired: AtomicBool,
}

/// One worker's way into the index. Its events come in order, from one task. Once the slot has another writer, whatever is
/// still told to this one is passed over.
pub struct Writer<S> {
    index: Arc<Index<S>>,
    lane: Arc<Lane>,
}

impl Lane {
    fn view(&self) -> MutexGuard<'_, EngineView> {
        // A poisoned lock is used on: a half-made change costs a hit, giving up would cost all of them.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, view: &EngineView) {
        self.names.store(view.names(), Ordering::Relaxed);
        self.held.store(view.held(), Ordering::Relaxed);
    }

    /// To be asked with the view locked.
    fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }
}

impl<S: BlockStore> Index<S> {
    /// An empty index over an empty store, of at most `entries_max` (worker, block) entries.
    pub(crate) fn over(store: S, entries_max: usize) -> Self {
        Self {
            store,
            room: Room::new(entries_max),
            lanes: Mutex::default(),
            shedding: Mutex::default(),
            refused: AtomicU64::new(0),
            shed: AtomicU64::new(0),
        }
    }

    /// The way in for the worker in `slot`, which begins empty: what another left in the slot is forgotten.
    pub fn writer(self: &Arc<Self>, slot: Slot, settings: &ViewSettings) -> Writer<S> {
        let blocks = settings.blocks.min(self.share());
        let view = Mutex::new(EngineView::new(&ViewSettings { blocks, ..settings.clone() }));
        let [names, held] = [0; 2].map(AtomicUsize::new);
        let lane = Arc::new(Lane { slot, view, names, held, retired: AtomicBool::new(false) });
        let before = {
            let mut lanes = self.lanes();
            if lanes.len() <= slot.index() {
                lanes.resize_with(slot.index() + 1, || None);
            }
            lanes[slot.index()].replace(Arc::clone(&lane))
        };
        if let Some(before) = before {
            self.retire(&before);
        }
        Writer { index: Arc::clone(self), lane }
    }

    /// Says who belongs together: blocks in external storage count for all of the pool of which one tells of them. No slot
    /// is in two pools. These replace those before them.
    pub fn set_pools(&self, pools: &[SlotSet]) {
        self.store.set_pools(pools);
    }

    fn lanes(&self) -> MutexGuard<'_, Vec<Option<Arc<Lane>>>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lane(&self, slot: Slot) -> Option<Arc<Lane>> {
        self.lanes().get(slot.index())?.clone()
    }

    fn keeper(&self, slot: Slot) -> Keeper<'_, S> {
        Keeper { slot, store: &self.store, room: &self.room }
    }

    fn refuse(&self, blocks: usize) {
        if blocks > 0 {
            self.refused.fetch_add(u64::try_from(blocks).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    fn forget(&self, lane: &Lane) {
        self.empty(lane, &mut lane.view());
    }

    /// Empties the view for good: whoever still writes to it, such as a snapshot that is being read, puts nothing in.
    fn retire(&self, lane: &Lane) {
        let mut view = lane.view();
        lane.retired.store(true, Ordering::Relaxed);
        self.empty(lane, &mut view);
    }

    fn empty(&self, lane: &Lane, view: &mut EngineView) {
        view.forget(&self.keeper(lane.slot));
        lane.publish(view);
    }

    /// Sets memory aside for a worker's engine of so many blocks, once that is known; at most its share of all that there
    /// may be.
    pub fn reserve(&self, slot: Slot, blocks: usize) {
        let share = self.share();
        if let Some(lane) = self.lane(slot) {
            lane.view().reserve(blocks.min(share));
        }
    }

    /// An equal part of all entries that there may be, for each worker. Whatever somebody says of an engine, no more is set
    /// aside for it: emptying a view takes as long as there is room in it.
    fn share(&self) -> usize {
        self.room.max() / self.lanes().iter().flatten().count().max(1)
    }

    /// How many blocks a worker holds, one in several tiers counted once.
    pub fn entries(&self, slot: Slot) -> usize {
        self.lane(slot).map_or(0, |lane| lane.held.load(Ordering::Relaxed))
    }

    /// All (worker, block) entries, a block that a worker has under two names counted twice.
    pub fn len(&self) -> usize {
        self.room.taken()
    }

    /// How many entries there may be.
    pub fn capacity(&self) -> usize {
        self.room.max()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks that were refused because the index was full.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Entries that were let go to make room.
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Bytes of heap of a worker's own: its names of blocks. What it shares with others is not among them.
    pub fn bytes_of(&self, slot: Slot) -> usize {
        self.lane(slot).map_or(0, |lane| lane.view().bytes())
    }

    /// Bytes of heap, by capacities. O(chains).
    pub fn bytes(&self) -> usize {
        let lanes: Vec<Arc<Lane>> = self.lanes().iter().flatten().cloned().collect();
        let views: usize = lanes.iter().map(|lane| size_of::<Lane>() + lane.view().bytes()).sum();
        self.store.bytes() + views
    }
}

#[cfg(test)]
impl<S: BlockStore> Index<S> {
    /// Where the blocks are, for tests that look inside.
    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// Every block that a worker holds, with its place and tiers, by name.
    pub(crate) fn blocks_of(&self, slot: Slot) -> Vec<(crate::store::Place, Vec<warmpath_core::units::Tier>)> {
        self.lane(slot).map_or(Vec::new(), |lane| lane.view().places())
    }
}

impl<S: BlockStore> PrefixIndex for Index<S> {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.store.match_prefix(prompt, overlaps);
    }
}

impl<S: BlockStore> Writer<S> {
    /// Takes the worker's events in, in order. O(blocks of the events), but for letting go when the index is full.
    pub fn apply(&self, events: &[CacheEvent]) -> Applied {
        self.index.make_room(events);
        let mut view = self.lane.view();
        if self.lane.is_retired() {
            return Applied::default();
        }
        let applied = view.apply(&self.index.keeper(self.lane.slot), events);
        self.lane.publish(&view);
        drop(view);
        self.index.refuse(applied.over_limit);
        applied
    }

    /// Whether others have to let go of something for these events, or do so for others: then [`Self::apply`] walks through all
    /// names of the largest views, or waits for whoever does.
    pub fn lacks_room(&self, events: &[CacheEvent]) -> bool {
        self.index.lacks_room(events)
    }

    /// Whether an event hangs below a block that the worker is not known to hold, so that it could not be applied.
    pub fn is_orphan(&self, event: &CacheEvent) -> bool {
        self.lane.view().is_orphan(event)
    }

    /// Whether the index had no room for blocks that the worker may still hold: what hangs below them is an orphan.
    pub fn is_partial(&self) -> bool {
        self.lane.view().is_partial()
    }

    /// Takes the worker out of every block, as after a restart or a gap. Once this returns, no match that starts later
    /// names it. O(blocks that it holds).
    pub fn forget(&self) {
        self.index.forget(&self.lane);
    }

    /// How many blocks the worker holds, one in several tiers counted once.
    pub fn entries(&self) -> usize {
        self.lane.held.load(Ordering::Relaxed)
    }

    /// How many names the worker's engine has for them.
    pub fn names(&self) -> usize {
        self.lane.names.load(Ordering::Relaxed)
    }
}
