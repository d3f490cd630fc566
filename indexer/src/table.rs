//! A map from hashes to small numbers, at 12 bytes a slot.

/// Parts that grow one at a time, so that growth is a short pause: a power of two.
const SHARDS: usize = 64;
/// Bits of a key that its part tells.
const SHARD_BITS: u32 = SHARDS.trailing_zeros();
/// Turns hashes that are near each other into ones that are not: 2^64 divided by the golden ratio, an odd number, so that
/// different hashes stay different.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// What undoes it: their product is 1.
const GATHER: u64 = 0xf1de_83e1_9937_733d;
/// Homes of a part that holds anything.
const HOMES_MIN: usize = 4;
/// Marks that an entry can carry beside its value.
const MARK_BITS: u32 = SHARD_BITS;

/// A map from 64-bit hashes to numbers below `u32::MAX`, each with six bits of marks. Open addressing with the slots in
/// the order of the mixed hashes: a miss ends early, growth is one pass, and deletion moves back, so that nothing but
/// entries is ever held. It shrinks as it empties, though not below what was reserved.
///
/// The part in which an entry lies tells six bits of its key; the marks are kept in their place.
pub(crate) struct HashTable {
    shards: Box<[Shard]>,
    /// Homes of each part that stay, however empty.
    reserved: usize,
    len: usize,
}

/// What is kept under a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Below `u32::MAX`.
    pub(crate) value: u32,
    /// Below 64.
    pub(crate) marks: u8,
}

/// 1. Keys ascend from slot to slot.
/// 2. Between an entry's home and the entry no slot is free.
#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    homes: usize,
    len: usize,
}

/// The low half of the key; the marks above the rest of the key; the value plus one. All zeros is a free slot, so that
/// the system's fresh pages are free slots.
type Slot = [u32; 3];

const FREE: Slot = [0; 3];

fn half(bits: u64) -> u32 {
    u32::try_from(bits & 0xffff_ffff).expect("the mask leaves 32 bits")
}

/// A key within its part: without the bits that the part tells.
fn within(key: u64) -> u64 {
    key & (u64::MAX >> SHARD_BITS)
}

fn slot_of(key: u64, kept: Kept) -> Slot {
    let marks = u32::from(kept.marks) << (32 - MARK_BITS);
    [half(key), half(within(key) >> 32) | marks, kept.value + 1]
}

fn key_of(slot: &Slot) -> u64 {
    u64::from(slot[0]) | within(u64::from(slot[1]) << 32)
}

fn kept_of(slot: &Slot) -> Kept {
    let marks = u8::try_from(slot[1] >> (32 - MARK_BITS)).expect("six bits");
    Kept { value: slot[2] - 1, marks }
}

fn is_free(slot: &Slot) -> bool {
    slot[2] == 0
}

impl HashTable {
    /// An empty table that has room for about `entries` before it grows.
    pub(crate) fn with_capacity(entries: usize) -> Self {
        let mut table = Self { shards: (0..SHARDS).map(|_| Shard::default()).collect(), reserved: 0, len: 0 };
        table.reserve(entries);
        table
    }

    /// Makes room for about `entries` in all, and keeps it however empty the table gets.
    pub(crate) fn reserve(&mut self, entries: usize) {
        let share = entries.div_ceil(SHARDS);
        // Parts are not equally full. Two standard deviations more let few of them grow; small ones grow in no time.
        let spare = if share < 1024 { 0 } else { 2 * share.isqrt() };
        self.reserved = if entries == 0 { 0 } else { (share + spare) * 6 / 5 + 1 };
        for shard in &mut self.shards {
            if shard.homes < self.reserved {
                shard.resize(self.reserved);
            }
        }
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of heap, by capacities.
    pub(crate) fn bytes(&self) -> usize {
        let slots: usize = self.shards.iter().map(|shard| shard.slots.capacity()).sum();
        slots * size_of::<Slot>() + SHARDS * size_of::<Shard>()
    }

    /// What is kept under `hash`. O(1).
    pub(crate) fn get(&self, hash: u64) -> Option<Kept> {
        let key = mixed(hash);
        let shard = &self.shards[shard_of(key)];
        let at = shard.find(within(key)).ok()?;
        Some(kept_of(&shard.slots[at]))
    }

    /// Loads what will be looked at for some hashes, so that their misses of the processor's cache are waited for together.
    pub(crate) fn warm(&self, hashes: impl Iterator<Item = u64>) {
        let load = |hash: u64| {
            let key = mixed(hash);
            let shard = &self.shards[shard_of(key)];
            shard.slots.get(shard.home(within(key))).map_or(0, |slot| slot[0])
        };
        std::hint::black_box(hashes.fold(0, |sum, hash| sum ^ load(hash)));
    }

    /// Keeps a value under `hash`; returns the one that was there. O(1), but for growth.
    pub(crate) fn insert(&mut self, hash: u64, kept: Kept) -> Option<Kept> {
        let key = mixed(hash);
        let shard = &mut self.shards[shard_of(key)];
        if (shard.len + 1) * 6 > shard.homes * 5 {
            shard.resize((shard.homes + shard.homes / 4).max(HOMES_MIN));
        }
        let slot = slot_of(key, kept);
        match shard.find(within(key)) {
            Ok(at) => Some(kept_of(&std::mem::replace(&mut shard.slots[at], slot))),
            Err(at) => {
                shard.open(at, slot);
                self.len += 1;
                None
            }
        }
    }

    /// Takes the entry of `hash` out, if there is one. O(1), but for shrinking.
    pub(crate) fn remove(&mut self, hash: u64) -> Option<Kept> {
        let key = mixed(hash);
        let shard = &mut self.shards[shard_of(key)];
        let at = shard.find(within(key)).ok()?;
        let kept = kept_of(&shard.slots[at]);
        shard.close(at);
        shard.shrink(self.reserved);
        self.len -= 1;
        Some(kept)
    }

    /// Every hash and what is kept under it, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, Kept)> + '_ {
        self.shards.iter().zip(0_u64..).flat_map(|(shard, number)| {
            let entries = shard.slots.iter().filter(|slot| !is_free(slot));
            entries.map(move |slot| (unmixed(number << (64 - SHARD_BITS) | key_of(slot)), kept_of(slot)))
        })
    }

    /// Changes every entry; those of which nothing is left go. O(slots).
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(u64, Kept) -> Option<Kept>) {
        for (shard, number) in self.shards.iter_mut().zip(0_u64..) {
            let before = shard.len;
            for slot in shard.slots.iter_mut().filter(|slot| !is_free(slot)) {
                let key = number << (64 - SHARD_BITS) | key_of(slot);
                match keep(unmixed(key), kept_of(slot)) {
                    Some(kept) => *slot = slot_of(key, kept),
                    None => {
                        *slot = FREE;
                        shard.len -= 1;
                    }
                }
            }
            if shard.len < before {
                self.len -= before - shard.len;
                shard.resize(if shard.is_sparse() { shard.fitting().max(self.reserved) } else { shard.homes });
            }
        }
    }

    /// Takes all entries out; keeps what was reserved.
    pub(crate) fn clear(&mut self) {
        for shard in &mut self.shards {
            *shard = Shard::default();
            if self.reserved > 0 {
                shard.resize(self.reserved);
            }
        }
        self.len = 0;
    }
}

fn mixed(hash: u64) -> u64 {
    hash.wrapping_mul(SPREAD)
}

fn unmixed(key: u64) -> u64 {
    key.wrapping_mul(GATHER)
}

fn shard_of(key: u64) -> usize {
    usize::try_from(key >> (64 - SHARD_BITS)).expect("a few bits")
}

impl Shard {
    /// Where an entry would lie if it were alone. Ascends with the key, whatever the number of homes.
    fn home(&self, key: u64) -> usize {
        let place = (key << SHARD_BITS) >> 32;
        let homes = u64::try_from(self.homes).expect("64 bits");
        usize::try_from((place * homes) >> 32).expect("less than a length")
    }

    /// The slot of a key, or as an error the one where it belongs.
    fn find(&self, key: u64) -> Result<usize, usize> {
        let mut at = self.home(key);
        while let Some(slot) = self.slots.get(at)
            && !is_free(slot)
        {
            let other = key_of(slot);
            if other >= key {
                return if other == key { Ok(at) } else { Err(at) };
            }
            at += 1;
        }
        Err(at)
    }

    /// Puts an entry into a slot; what is there moves on by one.
    fn open(&mut self, at: usize, slot: Slot) {
        let mut moving = slot;
        for slot in &mut self.slots[at..] {
            std::mem::swap(slot, &mut moving);
            if is_free(&moving) {
                break;
            }
        }
        if !is_free(&moving) {
            self.slots.reserve_exact(self.margin());
            self.slots.push(moving);
        }
        self.len += 1;
    }

    /// Empties a slot and moves those behind it back as far as their homes allow.
    fn close(&mut self, at: usize) {
        let mut end = at + 1;
        while let Some(slot) = self.slots.get(end)
            && !is_free(slot)
            && self.home(key_of(slot)) < end
        {
            end += 1;
        }
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = FREE;
        self.len -= 1;
    }

    fn is_sparse(&self) -> bool {
        self.len * 2 < self.homes
    }

    /// Homes for what there is, with some room.
    fn fitting(&self) -> usize {
        if self.len == 0 { 0 } else { (self.len * 5 / 3).max(HOMES_MIN) }
    }

    fn shrink(&mut self, reserved: usize) {
        if self.is_sparse() && self.homes > reserved.max(HOMES_MIN) || self.len == 0 && reserved == 0 {
            self.resize(self.fitting().max(reserved));
        }
    }

    /// Slots behind the last home.
    fn margin(&self) -> usize {
        (self.homes / 16).clamp(1, 8)
    }

    fn resize(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = homes;
        if homes == 0 {
            return;
        }
        // All at once, so that a large table is fresh pages of the system, which nobody has written.
        self.slots = vec![FREE; homes + self.margin()];
        let mut next = 0;
        for slot in old.into_iter().filter(|slot| !is_free(slot)) {
            let at = next.max(self.home(key_of(&slot)));
            if at == self.slots.len() {
                self.slots.reserve_exact(self.margin());
                self.slots.push(FREE);
            }
            self.slots[at] = slot;
            next = at + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn kept(value: u32) -> Kept {
        Kept { value, marks: u8::try_from(value % 64).unwrap() }
    }

    /// A table and a map that live through the same 60 000 steps: more comes than goes, then more goes than comes.
    fn grown_and_shrunk(capacity: usize) -> (HashTable, HashMap<u64, Kept>) {
        let mut table = HashTable::with_capacity(capacity);
        let mut map = HashMap::new();
        let mut state = 7_u64;
        for number in 0..60_000_u32 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let hash = (state >> 33) % 3000;
            if (state >> 20) % 10 < if number < 30_000 { 7 } else { 3 } {
                assert_eq!(table.insert(hash, kept(number)), map.insert(hash, kept(number)));
            } else {
                assert_eq!(table.remove(hash), map.remove(&hash));
            }
            assert_eq!(table.len(), map.len());
        }
        (table, map)
    }

    #[test]
    fn it_is_a_map_through_growth_and_shrinking() {
        for capacity in [0, 500, 3000] {
            let (mut table, mut map) = grown_and_shrunk(capacity);
            let equal = |table: &HashTable, map: &HashMap<u64, Kept>| {
                assert!((0..3000).all(|hash| table.get(hash) == map.get(&hash).copied()));
                assert_eq!(&table.iter().collect::<HashMap<u64, Kept>>(), map);
            };
            equal(&table, &map);
            let thin = |hash: u64, kept: Kept| hash.is_multiple_of(5).then_some(Kept { marks: 63, ..kept });
            table.retain(thin);
            map = map.into_iter().filter_map(|(hash, kept)| Some((hash, thin(hash, kept)?))).collect();
            equal(&table, &map);
            assert_eq!(table.len(), map.len());
            table.clear();
            equal(&table, &HashMap::new());
        }
    }

    #[test]
    fn an_empty_table_keeps_no_slots() {
        let mut table = HashTable::with_capacity(0);
        let empty = table.bytes();
        (0..10_000).for_each(|hash| assert_eq!(table.insert(hash, kept(1)), None));
        let full = table.bytes() - empty;
        assert!((10_000 * 14..10_000 * 19).contains(&full), "{full} bytes");
        (0..10_000).for_each(|hash| assert_eq!(table.remove(hash), Some(kept(1))));
        assert_eq!((table.len(), table.bytes(), table.get(3)), (0, empty, None));
    }

    #[test]
    fn what_was_reserved_neither_grows_nor_shrinks() {
        let mut table = HashTable::with_capacity(100_000);
        let reserved = table.bytes();
        assert!(reserved < 100_000 * 16, "{reserved} bytes");
        (0..100_000).for_each(|hash| assert_eq!(table.insert(hash, kept(1)), None));
        assert_eq!(table.bytes(), reserved);
        (0..100_000).for_each(|hash| assert_eq!(table.remove(hash), Some(kept(1))));
        assert_eq!(table.bytes(), reserved);
    }

    #[test]
    fn mixing_can_be_undone() {
        assert_eq!(SPREAD.wrapping_mul(GATHER), 1);
        assert_eq!(unmixed(mixed(0x1234_5678_9abc_def0)), 0x1234_5678_9abc_def0);
    }
}
