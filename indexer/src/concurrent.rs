//! The prefix index that a gateway runs on: exact, for many readers while events apply.

mod chain;
mod core;
mod holders;
mod slab;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::Tier;

use self::core::Core;
use crate::index::Index;
use crate::store::{Above, BlockStore, Place, Placed};

/// The index over all engines that many requests ask at once.
pub type ConcurrentIndex = Index<Chains>;

impl ConcurrentIndex {
    /// An empty index of at most `entries_max` (worker, block) entries.
    pub fn new(entries_max: usize) -> Self {
        Self::over(Chains::new(entries_max), entries_max)
    }
}

/// Changes under one hold of the lock, a microsecond or so.
const HOLD: usize = 128;
/// Chains under one hold, where a worker is taken out of many.
const CHAINS_HELD: usize = 32;

/// Blocks kept as chains of at most 512 with their holders as runs.
///
/// A look-up compares one hash for each run on its way, whatever the number of workers. What look-ups read lies behind
/// one lock that writers hold for about a microsecond at a time; the larger part of their work, the table of an engine's
/// names, lies outside and is their own.
pub struct Chains {
    core: RwLock<Core>,
    /// What room the core had after its last change, so that nobody has to wait for it to know.
    room: AtomicUsize,
}

// A poisoned lock is used on: a half-made change costs a hit, giving up would cost all of them.
impl Chains {
    fn new(blocks_max: usize) -> Self {
        Self { core: RwLock::new(Core::new(blocks_max)), room: AtomicUsize::new(blocks_max) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut core);
        self.room.store(core.room(), Ordering::Relaxed);
        result
    }
}

impl PrefixIndex for Chains {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.read().match_prefix(prompt, overlaps);
    }
}

impl BlockStore for Chains {
    fn hash_at(&self, place: Place) -> Option<SequenceHash> {
        self.read().hash_at(place)
    }

    fn store(&self, slot: Slot, tier: Tier, above: Above, blocks: &[SequenceHash], placed: &mut Placed) {
        let mut above = above;
        for piece in blocks.chunks(HOLD) {
            let before = placed.places.len();
            self.change(|core| core.store((slot, tier), above, piece, placed));
            match placed.places.last() {
                Some(&last) if placed.places.len() == before + piece.len() => above = Above::Block(last),
                _ => return,
            }
        }
    }

    fn add_tier(&self, slot: Slot, tier: Tier, place: Place) -> bool {
        self.change(|core| core.add_tier(place, (slot, tier)))
    }

    fn remove(&self, slot: Slot, places: &[(Place, Tier)]) -> usize {
        let mut gone = 0;
        for piece in places.chunks(HOLD) {
            let unmark = |core: &mut Core| {
                piece.iter().filter(|&&(place, tier)| core.unmark(place, slot, tier)).count()
            };
            gone += self.change(unmark);
        }
        gone
    }

    fn remove_all(&self, slot: Slot, tier: Option<Tier>, chains: &[u32]) -> usize {
        let mut gone = 0;
        for piece in chains.chunks(CHAINS_HELD) {
            let unmark =
                |core: &mut Core| piece.iter().map(|&chain| core.unmark_all(chain, slot, tier)).sum::<usize>();
            gone += self.change(unmark);
        }
        gone
    }

    fn last_used(&self, chains: &[u32], ages: &mut Vec<u32>) {
        for piece in chains.chunks(HOLD) {
            let core = self.read();
            ages.extend(piece.iter().map(|&chain| core.slab().get(chain).map_or(0, chain::Chain::used)));
        }
    }

    fn now(&self) -> u32 {
        self.read().now()
    }

    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        let mut bytes = self.read().bytes();
        let mut from = 0;
        loop {
            // A statement of its own, so that the lock is free between two segments.
            let Some((segment, next)) = self.read().slab().bytes(from) else { return bytes };
            bytes += segment;
            from = next;
        }
    }
}
