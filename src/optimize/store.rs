//! Caches that are simulated block by block, for evictions that distances say nothing of.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use foldhash::fast::FixedState;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::stack::Order;

/// Blocks drawn by [`Eviction::RandomLru`], with replacement.
const SAMPLE: usize = 16;

/// Who goes when a cache is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used block.
    Lru,
    /// The least recently used of 16 that are drawn at random.
    RandomLru,
    /// The least recently used of those on which no other block hangs. Where suffixes count as older this is LRU.
    LeafAwareLru,
    /// The least often used since it was stored; of those the least recently used.
    Lfu,
    /// The least recently used; and whatever was not used for a time, full or not.
    Ttl,
}

/// All evictions with their names.
pub const EVICTIONS: [(Eviction, &str); 5] = [
    (Eviction::Lru, "lru"),
    (Eviction::RandomLru, "random_lru"),
    (Eviction::LeafAwareLru, "leaf_aware_lru"),
    (Eviction::Lfu, "lfu"),
    (Eviction::Ttl, "ttl"),
];

/// What a cache goes by.
#[derive(Clone, Copy, Debug)]
pub struct StoreRules {
    /// Who goes.
    pub eviction: Eviction,
    /// Which of the blocks that are used together counts as older.
    pub order: Order,
    /// The time of [`Eviction::Ttl`] in ms.
    pub ttl_ms: u64,
    /// The seed of chance.
    pub seed: u64,
}

/// One cache.
pub struct Store {
    rules: StoreRules,
    capacity: usize,
    entries: HashMap<u32, Entry, FixedState>,
    /// Who may go, the first first: uses (for LFU), last use, block.
    queue: BTreeSet<(u32, u64, u32)>,
    /// All blocks, for drawing.
    drawn_from: Vec<u32>,
    clock: u64,
    rng: StdRng,
}

#[derive(Clone, Copy)]
struct Entry {
    moment: u64,
    at_ms: u64,
    uses: u32,
    /// Blocks that hang on it.
    children: u32,
    parent: Option<u32>,
    /// Where it lies in `drawn_from`.
    place: usize,
}

impl Store {
    /// An empty cache of `capacity` blocks.
    pub fn new(rules: StoreRules, capacity: usize) -> Self {
        Self {
            rules,
            capacity,
            entries: HashMap::default(),
            queue: BTreeSet::new(),
            drawn_from: Vec::new(),
            clock: 0,
            rng: StdRng::seed_from_u64(rules.seed),
        }
    }

    /// How many leading blocks of `prompt` it holds.
    pub fn run(&self, prompt: &[u32], now_ms: u64) -> usize {
        let holds = |block: &&u32| match self.entries.get(*block) {
            Some(entry) => {
                self.rules.eviction != Eviction::Ttl || now_ms.saturating_sub(entry.at_ms) <= self.rules.ttl_ms
            }
            None => false,
        };
        prompt.iter().take_while(holds).count()
    }

    /// Uses the blocks of a prompt: those that it holds, and unless `only_held`, the others after making room.
    pub fn touch(&mut self, prompt: &[u32], now_ms: u64, only_held: bool) {
        self.expire(now_ms);
        if self.rules.eviction == Eviction::LeafAwareLru {
            return self.touch_tree(prompt, now_ms, only_held);
        }
        for at in 0..prompt.len() {
            let at = if self.rules.order == Order::SuffixOlder { prompt.len() - 1 - at } else { at };
            let block = prompt[at];
            self.clock += 1;
            if self.entries.contains_key(&block) {
                self.refresh(block, self.clock, now_ms);
            } else if !only_held && self.capacity > 0 {
                if self.entries.len() >= self.capacity {
                    self.evict();
                }
                self.insert(block, None, self.clock, now_ms);
            }
        }
    }

    /// From the front, since a block hangs on the one before it; moments are given as the order wants them. Where only the
    /// prompt's own blocks could go, the rest of it is not stored.
    fn touch_tree(&mut self, prompt: &[u32], now_ms: u64, only_held: bool) {
        let begin = self.clock;
        self.clock += u64::try_from(prompt.len()).unwrap_or(0);
        let mut parent = None;
        for (at, block) in prompt.iter().enumerate() {
            let place = match self.rules.order {
                Order::SuffixOlder => prompt.len() - at,
                Order::PrefixOlder => at + 1,
            };
            let moment = begin + u64::try_from(place).unwrap_or(0);
            if self.entries.contains_key(block) {
                self.refresh(*block, moment, now_ms);
            } else {
                if only_held || self.capacity == 0 {
                    return;
                }
                parent.inspect(|parent| self.hang(*parent));
                if self.entries.len() >= self.capacity && !self.evict() {
                    parent.inspect(|parent| self.unhang(*parent));
                    return;
                }
                self.insert(*block, parent, moment, now_ms);
            }
            parent = Some(*block);
        }
    }

    fn rank(&self, block: u32, entry: &Entry) -> (u32, u64, u32) {
        let uses = if self.rules.eviction == Eviction::Lfu { entry.uses } else { 0 };
        (uses, entry.moment, block)
    }

    fn is_queued(&self, entry: &Entry) -> bool {
        self.rules.eviction != Eviction::RandomLru && entry.children == 0
    }

    fn insert(&mut self, block: u32, parent: Option<u32>, moment: u64, at_ms: u64) {
        let entry = Entry { moment, at_ms, uses: 1, children: 0, parent, place: self.drawn_from.len() };
        if self.rules.eviction == Eviction::RandomLru {
            self.drawn_from.push(block);
        } else {
            self.queue.insert(self.rank(block, &entry));
        }
        self.entries.insert(block, entry);
    }

    fn refresh(&mut self, block: u32, moment: u64, at_ms: u64) {
        let Some(old) = self.entries.get(&block).copied() else { return };
        let new = Entry { moment, at_ms, uses: old.uses.saturating_add(1), ..old };
        if self.is_queued(&old) {
            self.queue.remove(&self.rank(block, &old));
            self.queue.insert(self.rank(block, &new));
        }
        self.entries.insert(block, new);
    }

    fn hang(&mut self, parent: u32) {
        let Some(old) = self.entries.get(&parent).copied() else { return };
        self.queue.remove(&self.rank(parent, &old));
        self.entries.insert(parent, Entry { children: old.children + 1, ..old });
    }

    fn unhang(&mut self, parent: u32) {
        let Some(old) = self.entries.get(&parent).copied() else { return };
        let new = Entry { children: old.children.saturating_sub(1), ..old };
        self.entries.insert(parent, new);
        if new.children == 0 {
            self.queue.insert(self.rank(parent, &new));
        }
    }

    /// Lets one go. False where none may.
    fn evict(&mut self) -> bool {
        let victim = match self.rules.eviction {
            Eviction::RandomLru => self.draw(),
            _ => self.queue.first().map(|(_, _, block)| *block),
        };
        victim.inspect(|block| self.remove(*block)).is_some()
    }

    fn draw(&mut self) -> Option<u32> {
        if self.drawn_from.is_empty() {
            return None;
        }
        let draws = (0..SAMPLE).map(|_| self.drawn_from[self.rng.random_range(0..self.drawn_from.len())]);
        draws.min_by_key(|block| self.entries.get(block).map(|entry| entry.moment))
    }

    fn remove(&mut self, block: u32) {
        let Some(entry) = self.entries.remove(&block) else { return };
        if self.rules.eviction == Eviction::RandomLru {
            self.drawn_from.swap_remove(entry.place);
            if let Some(moved) = self.drawn_from.get(entry.place)
                && let Some(moved) = self.entries.get_mut(moved)
            {
                moved.place = entry.place;
            }
        } else {
            self.queue.remove(&self.rank(block, &entry));
        }
        entry.parent.inspect(|parent| self.unhang(*parent));
    }

    fn expire(&mut self, now_ms: u64) {
        if self.rules.eviction != Eviction::Ttl {
            return;
        }
        while let Some((_, _, oldest)) = self.queue.first().copied()
            && let Some(entry) = self.entries.get(&oldest)
            && now_ms.saturating_sub(entry.at_ms) > self.rules.ttl_ms
        {
            self.remove(oldest);
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EVICTIONS.iter().find(|(eviction, _)| eviction == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Eviction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = EVICTIONS.iter().find(|(_, name)| *name == text);
        found.map(|(eviction, _)| *eviction).ok_or_else(|| {
            let names = EVICTIONS.map(|(_, name)| name).join(", ");
            format!("no eviction is called `{text}` (known: {names})")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(eviction: Eviction, order: Order, capacity: usize) -> Store {
        Store::new(StoreRules { eviction, order, ttl_ms: 100, seed: 1 }, capacity)
    }

    fn held(store: &Store) -> Vec<u32> {
        let mut blocks: Vec<_> = store.entries.keys().copied().collect();
        blocks.sort_unstable();
        blocks
    }

    #[test]
    fn lru_lets_the_suffix_go_or_the_prefix_as_the_order_says() {
        for (order, kept) in [(Order::SuffixOlder, [1, 2, 4]), (Order::PrefixOlder, [2, 3, 4])] {
            let mut store = store(Eviction::Lru, order, 3);
            store.touch(&[1, 2, 3], 0, false);
            store.touch(&[4], 1, false);
            assert_eq!(held(&store), kept, "{order}");
        }
    }

    #[test]
    fn only_leaves_go_whatever_the_order_says() {
        let mut store = store(Eviction::LeafAwareLru, Order::PrefixOlder, 4);
        store.touch(&[1, 2, 3], 0, false);
        store.touch(&[4], 1, false);
        store.touch(&[5], 2, false);
        assert_eq!(held(&store), [1, 2, 4, 5]);
        // The parent of what went is a leaf now.
        store.touch(&[6], 3, false);
        assert_eq!(held(&store), [1, 4, 5, 6]);
    }

    #[test]
    fn a_prompt_that_is_larger_than_the_cache_keeps_its_beginning() {
        for eviction in [Eviction::Lru, Eviction::LeafAwareLru] {
            let mut store = store(eviction, Order::SuffixOlder, 2);
            store.touch(&[9], 0, false);
            store.touch(&[1, 2, 3, 4], 1, false);
            assert_eq!(held(&store), [1, 2], "{eviction}");
            assert_eq!(store.run(&[1, 2, 3], 1), 2);
        }
    }

    #[test]
    fn what_is_used_often_stays_under_lfu() {
        let mut store = store(Eviction::Lfu, Order::SuffixOlder, 2);
        store.touch(&[1], 0, false);
        store.touch(&[1], 1, false);
        store.touch(&[2], 2, false);
        store.touch(&[3], 3, false);
        assert_eq!(held(&store), [1, 3]);
    }

    #[test]
    fn what_was_not_used_for_the_time_is_gone_and_use_renews_it() {
        let mut store = store(Eviction::Ttl, Order::SuffixOlder, 9);
        store.touch(&[1], 0, false);
        assert_eq!((store.run(&[1], 100), store.run(&[1], 101)), (1, 0));
        store.touch(&[1], 100, false);
        store.touch(&[2], 101, false);
        assert_eq!((store.run(&[1], 200), held(&store).len()), (1, 2));
        store.touch(&[2], 201, false);
        assert_eq!(held(&store), [2]);
    }

    #[test]
    fn equal_seeds_draw_alike_and_the_cache_stays_full() {
        let run = |seed| {
            let rules = StoreRules { eviction: Eviction::RandomLru, order: Order::SuffixOlder, ttl_ms: 0, seed };
            let mut store = Store::new(rules, 50);
            (0..500_u32).for_each(|block| store.touch(&[block], u64::from(block), false));
            held(&store)
        };
        assert_eq!(run(1).len(), 50);
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_look_up_that_stores_nothing_still_counts_as_use() {
        let mut store = store(Eviction::Lru, Order::SuffixOlder, 2);
        store.touch(&[1], 0, false);
        store.touch(&[2], 1, false);
        store.touch(&[1, 7], 2, true);
        store.touch(&[3], 3, false);
        assert_eq!(held(&store), [1, 3]);
    }
}
