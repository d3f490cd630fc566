//! A map from sequence hashes to small numbers, at 12 bytes a slot.

use warmpath_core::ids::SequenceHash;

/// Parts that grow one at a time, so that growth is a short pause: a power of two.
const SHARDS: usize = 64;
/// Turns hashes that are near each other into ones that are not: 2^64 divided by the golden ratio, an odd number, so that
/// different hashes stay different.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Homes of a part that holds anything.
const HOMES_MIN: usize = 8;
/// Slots behind the last home.
const MARGIN: usize = 8;

/// What no entry has as its value.
const EMPTY: u32 = u32::MAX;

/// A map from sequence hashes to numbers below `u32::MAX`. Open addressing with the slots in the order of the mixed
/// hashes: a miss ends early, growth is one pass, and deletion moves back, so that nothing but entries is ever held. It
/// shrinks as it empties.
pub(super) struct HashTable {
    shards: Box<[Shard]>,
    len: usize,
}

/// 1. Keys ascend from slot to slot.
/// 2. Between an entry's home and the entry no slot is free.
#[derive(Default)]
struct Shard {
    slots: Vec<Entry>,
    homes: usize,
    len: usize,
}

/// A key in halves, so that the entry is aligned to 4 bytes.
#[derive(Clone, Copy)]
struct Entry {
    low: u32,
    high: u32,
    value: u32,
}

const VACANT: Entry = Entry { low: 0, high: 0, value: EMPTY };

impl Entry {
    fn new(key: u64, value: u32) -> Self {
        let half = |bits: u64| u32::try_from(bits & 0xffff_ffff).expect("the mask leaves 32 bits");
        Self { low: half(key), high: half(key >> 32), value }
    }

    fn key(self) -> u64 {
        u64::from(self.low) | u64::from(self.high) << 32
    }

    fn is_vacant(self) -> bool {
        self.value == EMPTY
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
        let key = mixed(hash);
        let shard = &self.shards[shard_of(key)];
        let at = shard.find(key).ok()?;
        Some(shard.slots[at].value)
    }

    /// Puts a value under `hash`, in place of the one that may be there. O(1), but for growth.
    pub(super) fn insert(&mut self, hash: SequenceHash, value: u32) {
        let key = mixed(hash);
        let shard = &mut self.shards[shard_of(key)];
        if (shard.len + 1) * 6 > shard.homes * 5 {
            shard.resize((shard.homes + shard.homes / 4).max(HOMES_MIN));
        }
        match shard.find(key) {
            Ok(at) => shard.slots[at].value = value,
            Err(at) => {
                shard.open(at, Entry::new(key, value));
                self.len += 1;
            }
        }
    }

    /// Takes the entry of `hash` out, if there is one. O(1), but for shrinking.
    pub(super) fn remove(&mut self, hash: SequenceHash) {
        let key = mixed(hash);
        let shard = &mut self.shards[shard_of(key)];
        if let Ok(at) = shard.find(key) {
            shard.close(at);
            self.len -= 1;
        }
    }
}

fn mixed(hash: SequenceHash) -> u64 {
    hash.0.wrapping_mul(SPREAD)
}

fn shard_of(key: u64) -> usize {
    usize::try_from(key >> (64 - SHARDS.trailing_zeros())).expect("a few bits")
}

impl Shard {
    /// Where an entry would lie if it were alone. Ascends with the key, whatever the number of homes.
    fn home(&self, key: u64) -> usize {
        let place = (key << SHARDS.trailing_zeros()) >> 32;
        let homes = u64::try_from(self.homes).expect("64 bits");
        usize::try_from((place * homes) >> 32).expect("less than a length")
    }

    /// The slot of a key, or as an error the one where it belongs.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let mut at = self.home(key);
        while let Some(entry) = self.slots.get(at)
            && !entry.is_vacant()
        {
            let other = entry.key();
            if other >= key {
                return if other == key { Ok(at) } else { Err(at) };
            }
            at += 1;
        }
        Err(at)
    }

    /// Puts an entry into a slot; what is there moves on by one.
    fn open(&mut self, at: usize, entry: Entry) {
        let taken = self.slots[at..].iter().take_while(|entry| !entry.is_vacant()).count();
        if at + taken == self.slots.len() {
            self.slots.reserve_exact(MARGIN);
            self.slots.push(VACANT);
        }
        self.slots.copy_within(at..at + taken, at + 1);
        self.slots[at] = entry;
        self.len += 1;
    }

    /// Empties a slot and moves those behind it back as far as their homes allow.
    fn close(&mut self, at: usize) {
        let mut end = at + 1;
        while let Some(entry) = self.slots.get(end)
            && !entry.is_vacant()
            && self.home(entry.key()) < end
        {
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = VACANT;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        } else if self.homes > HOMES_MIN && self.len * 5 < self.homes * 2 {
            self.resize((self.len * 5 / 3).max(HOMES_MIN));
        }
    }

    fn resize(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = homes;
        self.slots.reserve_exact(homes + MARGIN);
        for entry in old.into_iter().filter(|entry| !entry.is_vacant()) {
            let home = self.home(entry.key());
            while self.slots.len() < home {
                self.slots.push(VACANT);
            }
            self.slots.push(entry);
        }
        let slots = self.slots.len().max(homes + MARGIN);
        self.slots.resize(slots, VACANT);
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
