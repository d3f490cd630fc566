//! What only writers know, and how they change what look-ups read.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::units::Tier;

use super::core::Core;
use super::slab::Place;
use super::table::HashTable;
use crate::change::Change;

/// Changes under one hold of the lock, some microseconds; the table is read before it and written after it.
pub(super) const HOLD: usize = 128;

/// Where each block is kept, and counts. One writer at a time has it.
pub(super) struct Writer {
    /// All blocks that are kept, also inner ones that nobody holds any more.
    places: HashTable,
    /// Blocks by slot.
    held: Vec<usize>,
    entries: usize,
    entries_max: usize,
    refused: u64,
    // Buffers of one piece of changes.
    hashes: Vec<SequenceHash>,
    found: Vec<Option<Place>>,
    placed: Vec<u32>,
    /// Which of `hashes` were placed: where they begin, and how many.
    stretches: Vec<(usize, usize)>,
    freed: Vec<SequenceHash>,
}

// A poisoned lock is used on: a half-made change costs a hit, giving up would cost all of them.
pub(super) fn read(core: &RwLock<Core>) -> RwLockReadGuard<'_, Core> {
    core.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(core: &RwLock<Core>) -> RwLockWriteGuard<'_, Core> {
    core.write().unwrap_or_else(PoisonError::into_inner)
}

/// How many of the first changes can be made as one: stores in one tier of blocks that follow each other, or removals
/// from one tier.
pub(super) fn piece_len(changes: &[Change]) -> usize {
    let joined = changes.windows(2).take(HOLD - 1).take_while(|pair| match (pair[0], pair[1]) {
        (Change::Store { hash, tier, .. }, Change::Store { parent, tier: next, .. }) => {
            parent == Some(hash) && tier == next
        }
        (Change::Remove { tier, .. }, Change::Remove { tier: next, .. }) => tier == next,
        _ => false,
    });
    changes.len().min(joined.count() + 1)
}

impl Writer {
    /// A writer of an index of at most `entries_max` (worker, block) pairs.
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            places: HashTable::new(),
            held: Vec::new(),
            entries: 0,
            entries_max,
            refused: 0,
            hashes: Vec::with_capacity(HOLD),
            found: Vec::with_capacity(HOLD),
            placed: Vec::with_capacity(HOLD),
            stretches: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// How many blocks the worker holds.
    pub(super) fn held(&self, slot: Slot) -> usize {
        self.held.get(slot.index()).copied().unwrap_or(0)
    }

    /// All (worker, block) pairs.
    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Blocks that were refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Bytes of heap, by capacities.
    pub(super) fn bytes(&self) -> usize {
        self.places.bytes() + self.held.capacity() * size_of::<usize>()
    }

    fn place_of(&self, hash: SequenceHash) -> Option<Place> {
        self.places.get(hash).map(Place::unpacked)
    }

    /// Makes changes that [`piece_len`] allows to make as one.
    pub(super) fn apply(&mut self, core: &RwLock<Core>, slot: Slot, piece: &[Change]) {
        let (mut hashes, mut found) = (std::mem::take(&mut self.hashes), std::mem::take(&mut self.found));
        hashes.clear();
        hashes.extend(piece.iter().map(|change| match *change {
            Change::Store { hash, .. } | Change::Remove { hash, .. } => hash,
        }));
        found.clear();
        found.extend(hashes.iter().map(|&hash| self.place_of(hash)));
        match piece.first() {
            Some(&Change::Store { parent, tier, .. }) => {
                let below = parent.and_then(|parent| self.place_of(parent));
                self.store(core, (slot, tier), below, (&hashes, &found));
            }
            Some(&Change::Remove { tier, .. }) => self.remove(core, (slot, tier), (&hashes, &found)),
            None => {}
        }
        (self.hashes, self.found) = (hashes, found);
    }

    fn store(
        &mut self,
        core: &RwLock<Core>,
        holder: (Slot, Tier),
        mut below: Option<Place>,
        (hashes, found): (&[SequenceHash], &[Option<Place>]),
    ) {
        self.placed.clear();
        self.stretches.clear();
        let mut new = 0;
        let mut at = 0;
        {
            let mut core = write(core);
            while at < hashes.len() {
                let len = match found[at] {
                    Some(place) => {
                        let len = joined(&found[at..], place).min(self.room(new));
                        new += core.mark(place, len, holder);
                        below = Some(Place { offset: place.offset + len.saturating_sub(1), ..place });
                        len
                    }
                    None => {
                        let absent = found[at..].iter().take_while(|place| place.is_none()).count();
                        // Inner blocks that nobody holds take memory too.
                        let kept = self.places.len() + self.placed.len();
                        let room = self.room(new).min(self.entries_max.saturating_sub(kept));
                        let before = self.placed.len();
                        core.place(&hashes[at..at + absent.min(room)], below, holder, &mut self.placed);
                        let len = self.placed.len() - before;
                        self.stretches.push((at, len));
                        below = self.placed.last().copied().map(Place::unpacked);
                        new += len;
                        len
                    }
                };
                // What follows would hang below a block that is not there: it would only fill the memory.
                if len == 0 {
                    break;
                }
                at += len;
            }
        }
        self.refused += u64::try_from(hashes.len() - at).unwrap_or(u64::MAX);
        self.add(holder.0, new);
        let mut placed = self.placed.iter();
        for &(from, len) in &self.stretches {
            for (&hash, &place) in hashes[from..from + len].iter().zip(placed.by_ref()) {
                self.places.insert(hash, place);
            }
        }
    }

    fn remove(
        &mut self,
        core: &RwLock<Core>,
        holder: (Slot, Tier),
        (hashes, found): (&[SequenceHash], &[Option<Place>]),
    ) {
        let mut gone = 0;
        {
            let mut core = write(core);
            for (&hash, place) in hashes.iter().zip(found) {
                if let &Some(place) = place {
                    gone += usize::from(core.unmark((place, hash), holder, &mut self.freed));
                }
            }
        }
        self.subtract(holder.0, gone);
        self.free();
    }

    /// Takes a worker out of some chains.
    pub(super) fn forget(&mut self, core: &RwLock<Core>, slot: Slot, chains: &[u32]) {
        let gone = {
            let mut core = write(core);
            chains.iter().map(|&chain| core.unmark_all(chain, slot, &mut self.freed)).sum()
        };
        self.subtract(slot, gone);
        self.free();
    }

    /// Entries that may be added besides `new` that are not counted yet.
    fn room(&self, new: usize) -> usize {
        self.entries_max.saturating_sub(self.entries + new)
    }

    fn add(&mut self, slot: Slot, blocks: usize) {
        if self.held.len() <= slot.index() {
            self.held.resize(slot.index() + 1, 0);
        }
        self.held[slot.index()] += blocks;
        self.entries += blocks;
    }

    fn subtract(&mut self, slot: Slot, blocks: usize) {
        if let Some(held) = self.held.get_mut(slot.index()) {
            *held = held.saturating_sub(blocks);
        }
        self.entries = self.entries.saturating_sub(blocks);
    }

    /// Forgets the places of blocks that are kept no longer.
    fn free(&mut self) {
        for hash in self.freed.drain(..) {
            self.places.remove(hash);
        }
        if self.freed.capacity() > 64 * HOLD {
            self.freed = Vec::new();
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self, core: &Core) {
        let kept = core.check();
        assert_eq!(kept.len(), self.places.len());
        assert!(kept.iter().all(|&(hash, place)| self.place_of(hash) == Some(place)));
        assert_eq!(self.entries, self.held.iter().sum::<usize>());
    }
}

/// How many of `found` lie next to each other from `place` on.
fn joined(found: &[Option<Place>], place: Place) -> usize {
    let mut expected = place;
    let mut len = 0;
    while found.get(len) == Some(&Some(expected)) {
        len += 1;
        expected = expected.next();
    }
    len
}
