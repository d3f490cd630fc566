//! Each worker's prefix cache, imitated: what `approx_lru` remembers.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use warmpath_core::history::{Asked, History, Known, Measured};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Units;

use super::recency::{Recency, place};

/// Bounds of what is remembered. Defaults: the endpoint picker of the Gateway API inference extension, as its successor
/// in llm-d has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LruLimits {
    /// Leading blocks of a prompt that are looked at.
    pub match_blocks_max: NonZeroU32,
    /// Blocks of each worker.
    pub capacity_blocks: NonZeroU32,
}

impl Default for LruLimits {
    fn default() -> Self {
        Self {
            match_blocks_max: NonZeroU32::new(2_048).expect("2 048 is not 0"),
            capacity_blocks: NonZeroU32::new(31_250).expect("31 250 is not 0"),
        }
    }
}

impl LruLimits {
    /// The blocks of a prompt that count: no more than a worker's cache holds, or a prompt would push itself out.
    fn leading(self, blocks: &[SequenceHash]) -> &[SequenceHash] {
        let most = self.match_blocks_max.min(self.capacity_blocks);
        &blocks[..blocks.len().min(place(most.get()))]
    }
}

/// Parts of the map of holders, so that one that grows keeps others waiting for a 64th of the time.
const PARTS: usize = 64;

/// An LRU list of block names for each worker, and who has which. Only leading blocks match. Of a prompt the first block
/// is the most recently used and the last one the least, so that a prefix outlives what follows it, as in engines.
pub struct ApproxLru {
    limits: LruLimits,
    caches: RwLock<Vec<Arc<Mutex<Cache>>>>,
    holders: [RwLock<Holders>; PARTS],
}

/// Who has which block.
type Holders = HashMap<SequenceHash, SlotSet, RandomState>;

/// The part of the map in which a block is. Hashes are mixed: any bits do.
fn part(hash: SequenceHash) -> usize {
    usize::from(hash.0.to_le_bytes()[7]) % PARTS
}

/// One worker's blocks, by their last use.
#[derive(Default)]
struct Cache {
    ids: HashMap<SequenceHash, u32, RandomState>,
    hashes: Vec<SequenceHash>,
    free: Vec<u32>,
    recency: Recency,
    evicted: u64,
    /// What one request changed, in order; empty between requests.
    changes: Vec<Change>,
}

/// A block that a cache has now, or has no more.
#[derive(Clone, Copy)]
enum Change {
    Came(SequenceHash),
    Went(SequenceHash),
}

impl Cache {
    fn store(&mut self, hash: SequenceHash, capacity: usize) {
        if let Some(&id) = self.ids.get(&hash) {
            self.recency.touch(id);
            return;
        }
        if self.ids.len() >= capacity {
            self.evict();
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.hashes[place(id)] = hash;
                id
            }
            None => {
                self.hashes.push(hash);
                u32::try_from(self.hashes.len() - 1).expect("the capacity is a u32")
            }
        };
        self.ids.insert(hash, id);
        self.recency.touch(id);
        self.changes.push(Change::Came(hash));
    }

    fn evict(&mut self) {
        if let Some(id) = self.recency.oldest() {
            let hash = self.hashes[place(id)];
            self.recency.remove(id);
            self.ids.remove(&hash);
            self.free.push(id);
            self.changes.push(Change::Went(hash));
            self.evicted += 1;
        }
    }
}

impl ApproxLru {
    /// Empty caches for as many workers as will come.
    pub fn new(limits: LruLimits) -> Self {
        Self { limits, caches: RwLock::default(), holders: std::array::from_fn(|_| RwLock::default()) }
    }

    fn cache(&self, slot: Slot) -> Option<Arc<Mutex<Cache>>> {
        let caches = self.caches.read().unwrap_or_else(PoisonError::into_inner);
        caches.get(slot.index()).map(Arc::clone)
    }

    fn new_cache(&self, slot: Slot) -> Arc<Mutex<Cache>> {
        let mut caches = self.caches.write().unwrap_or_else(PoisonError::into_inner);
        if caches.len() <= slot.index() {
            caches.resize_with(slot.index() + 1, Arc::default);
        }
        Arc::clone(&caches[slot.index()])
    }

    /// Tells everybody what came to the worker's cache and went from it. Called under the cache's lock, so that the
    /// changes of one worker are made in order; those who look wait for one change at most.
    fn publish(&self, slot: Slot, changes: &[Change]) {
        for change in changes {
            let (Change::Came(hash) | Change::Went(hash)) = *change;
            let mut holders = self.holders[part(hash)].write().unwrap_or_else(PoisonError::into_inner);
            match change {
                Change::Came(_) => {
                    holders.entry(hash).or_default().insert(slot);
                }
                Change::Went(_) => {
                    let Some(slots) = holders.get_mut(&hash) else { continue };
                    slots.remove(slot);
                    if slots.is_empty() {
                        holders.remove(&hash);
                    }
                }
            }
        }
    }

    /// Adds each worker's leading blocks to `known`. O(blocks × slots / 64 + workers).
    fn count_leading(&self, blocks: &[SequenceHash], known: &mut [Known]) {
        let mut credit = |slots: &SlotSet, blocks: u32| {
            for slot in slots.iter() {
                let Some(known) = known.get_mut(slot.index()) else { break };
                known.matched = Units(known.matched.0.saturating_add(blocks));
            }
        };
        // Always in this order, and a writer has one part only, so nobody waits in a circle.
        let parts = self.holders.iter().map(|part| part.read().unwrap_or_else(PoisonError::into_inner));
        let parts: SmallVec<[_; PARTS]> = parts.collect();
        let (mut alive, mut next) = (SlotSet::new(), SlotSet::new());
        let mut matched = 0;
        for hash in blocks {
            let Some(holding) = parts[part(*hash)].get(hash) else { break };
            if matched == 0 {
                alive.copy_from(holding);
            } else if alive != *holding {
                next.copy_from(&alive);
                next.intersect_with(holding);
                alive.subtract(&next);
                credit(&alive, matched);
                alive.copy_from(&next);
            }
            if alive.is_empty() {
                return;
            }
            matched += 1;
        }
        credit(&alive, matched);
    }
}

impl History for ApproxLru {
    /// Allocates only beyond 128 slots.
    fn recall(&self, asked: Asked<'_>, known: &mut [Known]) {
        let lengths = asked.each().map(|(_, blocks)| self.limits.leading(blocks).len());
        let all = Units(u32::try_from(lengths.sum::<usize>()).unwrap_or(u32::MAX));
        known.fill(Known { asked: all, ..Known::default() });
        for (_, blocks) in asked.each() {
            self.count_leading(self.limits.leading(blocks), known);
        }
    }

    /// O(blocks). Allocates nothing where the worker was sent all of them before.
    fn learn(&self, _now: Instant, slot: Slot, asked: Asked<'_>) {
        let cache = self.cache(slot).unwrap_or_else(|| self.new_cache(slot));
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let capacity = place(self.limits.capacity_blocks.get());
        for (_, blocks) in asked.each() {
            for hash in self.limits.leading(blocks).iter().rev() {
                cache.store(*hash, capacity);
            }
        }
        self.publish(slot, &cache.changes);
        cache.changes.clear();
    }

    fn forget(&self, slot: Slot) {
        let Some(cache) = self.cache(slot) else { return };
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let went: Vec<Change> = cache.ids.keys().copied().map(Change::Went).collect();
        *cache = Cache::default();
        self.publish(slot, &went);
    }

    fn measure(&self, slot: Slot) -> Measured {
        let Some(cache) = self.cache(slot) else { return Measured::default() };
        let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        let units = u64::try_from(cache.ids.len()).unwrap_or(u64::MAX);
        Measured { units, evicted: cache.evicted, ..Measured::default() }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin: only differences matter")]
mod tests {
    use super::*;
    use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
    use warmpath_core::namespace::Namespace;
    use warmpath_core::shape::Prompt;
    use warmpath_core::units::BlockSize;

    /// A prompt with these blocks, of one token each.
    fn with_prompt<T>(blocks: &[u64], ask: impl FnOnce(Asked<'_>) -> T) -> T {
        let root = Root::new(&Namespace::plain("m", BlockSize::new(1).unwrap()), DEFAULT_ROOT_SEED);
        let tokens = vec![0; blocks.len()];
        let hashes: Vec<SequenceHash> = blocks.iter().copied().map(SequenceHash).collect();
        ask(Asked::new(&[Prompt::of(root, &tokens)], &hashes))
    }

    fn learn(history: &ApproxLru, slot: u16, blocks: &[u64]) {
        with_prompt(blocks, |asked| history.learn(Instant::now(), Slot(slot), asked));
    }

    /// Blocks matched by workers 0 to 2, and blocks asked for.
    fn recall(history: &ApproxLru, blocks: &[u64]) -> ([u32; 3], u32) {
        let mut known = [Known { matched: Units(99), ..Known::default() }; 3];
        with_prompt(blocks, |asked| history.recall(asked, &mut known));
        (known.map(|known| known.matched.0), known[0].asked.0)
    }

    fn history(match_blocks_max: u32, capacity_blocks: u32) -> ApproxLru {
        ApproxLru::new(LruLimits {
            match_blocks_max: NonZeroU32::new(match_blocks_max).unwrap(),
            capacity_blocks: NonZeroU32::new(capacity_blocks).unwrap(),
        })
    }

    ///
    #[test]
    fn r060_the_oldest_of_31_251_blocks_is_gone() {
        let history = ApproxLru::new(LruLimits::default());
        for block in 0..31_250 {
            learn(&history, 0, &[block]);
        }
        assert_eq!((recall(&history, &[0]).0, history.measure(Slot(0)).units), ([1, 0, 0], 31_250));
        learn(&history, 0, &[31_250]);
        assert_eq!([0, 1, 31_250].map(|block| recall(&history, &[block]).0[0]), [0, 1, 1]);
        assert_eq!((history.measure(Slot(0)).units, history.measure(Slot(0)).evicted), (31_250, 1));
    }

    ///
    #[test]
    fn r060_at_most_2_048_blocks_are_matched() {
        let history = ApproxLru::new(LruLimits::default());
        let prompt: Vec<u64> = (0..3_000).collect();
        learn(&history, 1, &prompt);
        assert_eq!(recall(&history, &prompt), ([0, 2_048, 0], 2_048));
        assert_eq!(history.measure(Slot(1)).units, 2_048);
    }

    /// A holder of a later block alone is given nothing.
    #[test]
    fn only_leading_blocks_match() {
        let history = history(10, 4);
        learn(&history, 0, &[1, 2, 3]);
        learn(&history, 1, &[1]);
        learn(&history, 1, &[3]);
        learn(&history, 2, &[2, 3]);
        assert_eq!(recall(&history, &[1, 2, 3, 4]), ([3, 1, 0], 4));
        assert_eq!(recall(&history, &[]), ([0; 3], 0));
    }

    #[test]
    fn a_prefix_outlives_what_follows_it_and_use_keeps_blocks() {
        let history = history(10, 4);
        learn(&history, 0, &[1, 2]);
        learn(&history, 0, &[5, 6]);
        learn(&history, 0, &[1]);
        learn(&history, 0, &[7]);
        assert_eq!([recall(&history, &[1, 2]).0[0], recall(&history, &[5, 6]).0[0]], [1, 2]);
        // A block that goes and comes again within one request is there.
        let size = BlockSize::new(1).unwrap();
        let root = Root::new(&Namespace::plain("m", size), DEFAULT_ROOT_SEED);
        let prompts = [1, 4, 1].map(|len| Prompt::of(root, &[0; 4][..len]));
        let hashes = [8, 20, 21, 22, 23, 8].map(SequenceHash);
        history.learn(Instant::now(), Slot(0), Asked::new(&prompts, &hashes));
        assert_eq!([recall(&history, &[8]).0[0], recall(&history, &[20, 21, 22, 23]).0[0]], [1, 3]);
        // A prompt longer than the cache is kept as far as the cache goes.
        learn(&history, 0, &[10, 11, 12, 13, 14, 15]);
        assert_eq!(recall(&history, &[10, 11, 12, 13, 14, 15]), ([4, 0, 0], 4));
    }

    #[test]
    fn a_forgotten_worker_leaves_nothing_and_starts_anew() {
        let history = history(10, 4);
        learn(&history, 0, &[1, 2]);
        learn(&history, 2, &[1, 2]);
        history.forget(Slot(0));
        history.forget(Slot(55));
        assert_eq!(recall(&history, &[1, 2]).0, [0, 0, 2]);
        history.forget(Slot(2));
        assert!(history.holders.iter().all(|part| part.read().unwrap().is_empty()));
        learn(&history, 2, &[1]);
        assert_eq!((recall(&history, &[1, 2]).0, history.measure(Slot(2)).units), ([0, 0, 1], 1));
    }
}
