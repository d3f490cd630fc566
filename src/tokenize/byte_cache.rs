//! A cache that is bounded in bytes and is no lock that everybody waits for.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Parts with a lock each. A request holds one for a look-up in a table, some 50 ns.
const SHARDS: usize = 16;

/// What an entry takes beside its value: key, pointer and mark in a table that is half full, and the value's counters.
const ENTRY_BYTES: usize = 72;

/// Memory that a value holds.
pub(super) trait Weigh {
    /// Its bytes, those of its heap included.
    fn bytes(&self) -> usize;
}

/// Values by a hash of 128 bits of all that they follow from: it stands for the key itself, which is not kept.
///
/// Two generations: what is new or was asked for again is young; when the young fill half of a shard's bytes they become the
/// old ones, and what had been old until then is let go. So a value stays while it is used at least once a generation, and
/// nobody keeps a list of what was used when.
pub(super) struct ByteCache<V> {
    shards: Box<[Mutex<Shard<V>>]>,
    generation_bytes: usize,
}

struct Shard<V> {
    young: Generation<V>,
    old: Generation<V>,
}

struct Generation<V> {
    entries: HashMap<u128, Arc<V>, foldhash::fast::RandomState>,
    bytes: usize,
}

impl<V> Default for Generation<V> {
    fn default() -> Self {
        Self { entries: HashMap::default(), bytes: 0 }
    }
}

impl<V: Weigh> ByteCache<V> {
    /// A cache of at most `bytes` bytes; what takes more than a 32nd of them is not kept.
    pub(super) fn new(bytes: usize) -> Self {
        let shard = || Mutex::new(Shard { young: Generation::default(), old: Generation::default() });
        Self { shards: (0..SHARDS).map(|_| shard()).collect(), generation_bytes: bytes / SHARDS / 2 }
    }

    /// The value of `key`, which then stays for another generation.
    pub(super) fn get(&self, key: u128) -> Option<Arc<V>> {
        let mut shard = self.shard(key);
        if let Some(value) = shard.young.entries.get(&key) {
            return Some(Arc::clone(value));
        }
        let value = shard.old.take(key)?;
        let gone = shard.put(key, Arc::clone(&value), self.generation_bytes);
        drop(shard);
        drop(gone);
        Some(value)
    }

    /// Keeps a value, unless it is too large.
    pub(super) fn insert(&self, key: u128, value: Arc<V>) {
        if weight(&*value) > self.generation_bytes {
            return;
        }
        let mut shard = self.shard(key);
        shard.old.take(key);
        let gone = shard.put(key, value, self.generation_bytes);
        // Thousands of entries are given back without the lock.
        drop(shard);
        drop(gone);
    }

    /// Bytes in use. Takes every lock in turn.
    pub(super) fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard)).map(|shard| shard.young.bytes + shard.old.bytes).sum()
    }

    fn shard(&self, key: u128) -> std::sync::MutexGuard<'_, Shard<V>> {
        let place = usize::try_from(key % 16).expect("less than 16");
        lock(&self.shards[place])
    }
}

fn lock<V>(shard: &Mutex<Shard<V>>) -> std::sync::MutexGuard<'_, Shard<V>> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

fn weight<V: Weigh>(value: &V) -> usize {
    value.bytes().saturating_add(ENTRY_BYTES)
}

impl<V: Weigh> Shard<V> {
    /// Puts a value among the young and returns those that make room for it.
    fn put(&mut self, key: u128, value: Arc<V>, generation_bytes: usize) -> Generation<V> {
        let mut gone = Generation::default();
        if self.young.bytes + weight(&*value) > generation_bytes {
            gone = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        }
        self.young.take(key);
        self.young.bytes += weight(&*value);
        self.young.entries.insert(key, value);
        gone
    }
}

impl<V: Weigh> Generation<V> {
    fn take(&mut self, key: u128) -> Option<Arc<V>> {
        let value = self.entries.remove(&key)?;
        self.bytes -= weight(&*value);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sized(usize);

    impl Weigh for Sized {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    /// Keys of one shard.
    fn key(number: u128) -> u128 {
        number * 16
    }

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        // Two generations of ten entries a shard.
        let cache = ByteCache::new(SHARDS * 2 * 10 * (ENTRY_BYTES + 28));
        let put = |number| cache.insert(key(number), Arc::new(Sized(28)));
        (0..10).for_each(put);
        assert_eq!(cache.bytes(), 1_000);
        for number in 10..100 {
            put(number);
            assert!(cache.get(key(0)).is_some(), "{number}");
            assert!(cache.bytes() <= 2_000, "{number}");
        }
        assert!(cache.get(key(1)).is_none());
        assert!(cache.get(key(99)).is_some());
    }

    #[test]
    fn a_value_that_is_put_twice_counts_once_and_one_that_is_too_large_is_not_kept() {
        let cache = ByteCache::new(SHARDS * 2 * 1_000);
        cache.insert(7, Arc::new(Sized(100)));
        cache.insert(7, Arc::new(Sized(200)));
        assert_eq!((cache.bytes(), cache.get(7).unwrap().0), (200 + ENTRY_BYTES, 200));
        cache.insert(8, Arc::new(Sized(1_000)));
        assert!(cache.get(8).is_none());
        assert_eq!(cache.bytes(), 200 + ENTRY_BYTES);
    }
}
