//! A map from sequence hashes to small numbers, at 12 bytes a slot.

use warmpath_core::ids::SequenceHash;

/// Parts that grow one at a time, so that growth is a short pause: a power of two.
const SHARDS: usize = 64;
/// Turns hashes that are near each other into ones that are not: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Slots of a part that holds anything.
const SLOTS_MIN: usize = 8;

/// What no entry has as its value.
const EMPTY: u32 = u32::MAX;

/// A map from sequence hashes to numbers below `u32::MAX`. Open addressing with linear probing and deletion by moving
/// back, so that it never holds more than its entries; it shrinks as it empties.
pub(super) struct HashTable {
    shards: Box<[Shard]>,
    len: usize,
}

#[derive(Default)]
struct Shard {
    slots: Vec<Entry>,
    len: usize,
}

/// A hash in halves, so that the entry is aligned to 4 bytes.
#[derive(Clone, Copy)]
struct Entry {
    low: u32,
    high: u32,
    value: u32,
}

const VACANT: Entry = Entry { low: 0, high: 0, value: EMPTY };

impl Entry {
    fn new(hash: SequenceHash, value: u32) -> Self {
        let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).expect("the mask leaves 32 bits");
        Self { low: half(hash.0), high: half(hash.0 >> 32), value }
    }

    fn hash(self) -> SequenceHash {
        SequenceHash(u64::from(self.low) | u64::from(self.high) << 32)
    }
}

impl HashTable {
    /// An empty table.
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), len: 0 }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of heap, by capacities.
    pub(super) fn bytes(&self) -> usize {
        let slots: usize = self.shards.iter().map(|shard| shard.slots.capacity()).sum();
        slots * size_of::<Entry>() + SHARDS * size_of::<Shard>()
    }

    /// The value under `hash`. O(1).
    pub(super) fn get(&self, hash: SequenceHash) -> Option<u32> {
        let shard = &self.shards[shard_of(hash)];
        if shard.len == 0 {
            return None;
        }
        let entry = shard.slots[shard.find(hash)];
        (entry.value != EMPTY).then_some(entry.value)
    }

    /// Puts a value under `hash`, in place of the one that may be there. O(1), but for growth.
    pub(super) fn insert(&mut self, hash: SequenceHash, value: u32) {
        let shard = &mut self.shards[shard_of(hash)];
        // At most 4 of 5 slots are taken: a miss then looks at 13 neighbouring ones on average.
        if (shard.len + 1) * 5 > shard.slots.len() * 4 {
            shard.resize((shard.slots.len() + shard.slots.len() / 4).max(SLOTS_MIN));
        }
        let at = shard.find(hash);
        let new = usize::from(shard.slots[at].value == EMPTY);
        shard.slots[at] = Entry::new(hash, value);
        shard.len += new;
        self.len += new;
    }

    /// Takes the entry of `hash` out, if there is one. O(1), but for shrinking.
    pub(super) fn remove(&mut self, hash: SequenceHash) {
        let shard = &mut self.shards[shard_of(hash)];
        if shard.len == 0 {
            return;
        }
        let at = shard.find(hash);
        if shard.slots[at].value == EMPTY {
            return;
        }
        shard.close(at);
        shard.len -= 1;
        self.len -= 1;
        if shard.len == 0 {
            shard.slots = Vec::new();
        } else if shard.slots.len() > SLOTS_MIN && shard.len * 5 < shard.slots.len() * 2 {
            shard.resize((shard.len * 5 / 3).max(SLOTS_MIN));
        }
    }
}

fn mixed(hash: SequenceHash) -> u64 {
    hash.0.wrapping_mul(SPREAD)
}

fn shard_of(hash: SequenceHash) -> usize {
    usize::try_from(mixed(hash) >> (64 - SHARDS.trailing_zeros())).expect("a few bits")
}

impl Shard {
    /// Where `hash` would lie if all slots were free. Keeps the order of the hashes, whatever the number of slots.
    fn home(&self, hash: SequenceHash) -> usize {
        let place = mixed(hash) << SHARDS.trailing_zeros() >> 32;
        let slots = u64::try_from(self.slots.len()).expect("64 bits");
        usize::try_from((place * slots) >> 32).expect("less than a length")
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The slot of `hash`, or the free one where it belongs. There are slots, and one is free.
    fn find(&self, hash: SequenceHash) -> usize {
        let mut at = self.home(hash);
        loop {
            let entry = self.slots[at];
            if entry.value == EMPTY || entry.hash() == hash {
                return at;
            }
            at = self.after(at);
        }
    }

    /// Empties a slot and moves those behind it back as far as their homes allow.
    fn close(&mut self, mut hole: usize) {
        let mut at = hole;
        loop {
            at = self.after(at);
            let entry = self.slots[at];
            if entry.value == EMPTY {
                break;
            }
            let home = self.home(entry.hash());
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.slots[hole] = entry;
                hole = at;
            }
        }
        self.slots[hole] = VACANT;
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![VACANT; slots]);
        for entry in old.into_iter().filter(|entry| entry.value != EMPTY) {
            let at = self.find(entry.hash());
            self.slots[at] = entry;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn it_is_a_map_through_growth_and_shrinking() {
        let mut table = HashTable::new();
        let mut map = HashMap::new();
        let mut state = 7_u64;
        for number in 0..60_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hash = SequenceHash((state >> 33) % 3000);
            // More comes than goes, then more goes than comes.
            if (state >> 20) % 10 < if number < 30_000 { 7 } else { 3 } {
                table.insert(hash, number);
                map.insert(hash, number);
            } else {
                table.remove(hash);
                map.remove(&hash);
            }
            assert_eq!(table.len(), map.len());
        }
        for hash in (0..3000).map(SequenceHash) {
            assert_eq!(table.get(hash), map.get(&hash).copied());
        }
    }

    #[test]
    fn an_empty_table_keeps_no_slots() {
        let mut table = HashTable::new();
        let empty = table.bytes();
        (0..10_000).for_each(|hash| table.insert(SequenceHash(hash), 1));
        let full = table.bytes() - empty;
        assert!((10_000 * 15..10_000 * 22).contains(&full), "{full} bytes");
        (0..10_000).for_each(|hash| table.remove(SequenceHash(hash)));
        assert_eq!((table.len(), table.bytes(), table.get(SequenceHash(3))), (0, empty, None));
    }
}
