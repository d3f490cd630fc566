//! The prefix index that a gateway runs on: exact, for many readers while events apply.

mod chain;
mod core;
mod holders;
mod slab;
mod table;
mod writer;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};

use self::core::Core;
use crate::change::{Change, IndexWriter};
use writer::{Writer, piece_len, read};

/// Chains that one hold of the lock looks at, or changes, when a worker is forgotten.
const SEARCHED: u32 = 256;
const FORGOTTEN: usize = 32;

/// Which worker holds which leading blocks, kept as chains of at most 512 blocks with their holders as runs.
///
/// A look-up compares one hash for each run on its way, whatever the number of workers. What look-ups read lies behind
/// one lock that is held for some microseconds at a time; the larger part of a writer's work, its table of places, lies
/// outside. Writers take turns, a piece of changes each. No more than a given number of (worker, block) entries is ever
/// kept: what goes beyond is refused and counted, which can only cost hits.
pub struct ConcurrentIndex {
    core: RwLock<Core>,
    writer: Mutex<Writer>,
}

impl ConcurrentIndex {
    /// An empty index of at most `entries_max` (worker, block) entries.
    pub fn new(entries_max: usize) -> Self {
        Self { core: RwLock::new(Core::new()), writer: Mutex::new(Writer::new(entries_max)) }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All (worker, block) entries.
    pub fn len(&self) -> usize {
        self.writer().entries()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks that were refused because the index was full.
    pub fn refused(&self) -> u64 {
        self.writer().refused()
    }

    /// Bytes of heap, by capacities. O(chains).
    pub fn bytes(&self) -> usize {
        let mut bytes = self.writer().bytes() + read(&self.core).bytes();
        let mut from = 0;
        loop {
            // A statement of its own, so that the lock is free between two segments.
            let Some((segment, next)) = read(&self.core).slab().bytes(from) else { return bytes };
            bytes += segment;
            from = next;
        }
    }
}

impl PrefixIndex for ConcurrentIndex {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        read(&self.core).match_prefix(prompt, overlaps);
    }
}

impl IndexWriter for ConcurrentIndex {
    fn apply(&self, slot: Slot, changes: &[Change]) {
        let mut left = changes;
        while !left.is_empty() {
            let (piece, rest) = left.split_at(piece_len(left));
            self.writer().apply(&self.core, slot, piece);
            left = rest;
        }
    }

    /// O(all chains).
    fn forget(&self, slot: Slot) {
        let mut held = Vec::new();
        let mut from = 0;
        loop {
            {
                let core = read(&self.core);
                let numbers = core.slab().numbers();
                if from >= numbers {
                    break;
                }
                let to = numbers.min(from + SEARCHED);
                let names = |&chain: &u32| core.slab().get(chain).is_some_and(|chain| chain.names(slot));
                held.extend((from..to).filter(names));
                from = to;
            }
            for chains in held.chunks(FORGOTTEN) {
                self.writer().forget(&self.core, slot, chains);
            }
            held.clear();
        }
    }

    fn entries(&self, slot: Slot) -> usize {
        self.writer().held(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::PrefixTree;
    use warmpath_core::units::{Blocks, Tier};

    const WORKERS: [u16; 5] = [0, 1, 63, 130, 700];

    fn random(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).expect("63 bits") % below
    }

    /// A prompt of `len` blocks in a tree that has three branches at every 97th block.
    fn prompt(state: &mut u64, len: usize) -> Vec<SequenceHash> {
        let mut hash = 1_u64;
        let mut follow = |place: usize| {
            let branch = if place.is_multiple_of(97) { u64::try_from(random(state, 3)).expect("small") } else { 0 };
            hash = (hash ^ branch).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) ^ 0x5bf0_3635;
            SequenceHash(hash)
        };
        (0..len).map(&mut follow).collect()
    }

    fn removes(blocks: &[SequenceHash], tier: Tier) -> Vec<Change> {
        blocks.iter().map(|&hash| Change::Remove { hash, tier }).collect()
    }

    fn totals(index: &impl PrefixIndex, prompt: &[SequenceHash]) -> Vec<[u32; 4]> {
        let mut overlaps = Overlaps::default();
        index.match_prefix(prompt, &mut overlaps);
        WORKERS.map(|slot| Tier::ALL.map(|tier| overlaps.of(Slot(slot)).get(tier).0)).to_vec()
    }

    /// One stretch of a prompt stored or removed, or a worker forgotten, in both indexes.
    fn step(state: &mut u64, index: &ConcurrentIndex, tree: &mut PrefixTree) {
        let slot = Slot(WORKERS[random(state, WORKERS.len())]);
        let tier = Tier::ALL[random(state, 4) * random(state, 2)];
        let len = 1 + random(state, 1500);
        let blocks = prompt(state, len);
        let from = [0, random(state, len)][random(state, 2)];
        let to = [len, (from + 1 + random(state, 5)).min(len)][random(state, 2)];
        let parent = from.checked_sub(1).map(|above| blocks[above]);
        let mut changes: Vec<Change> = Vec::new();
        match random(state, 100) {
            0..50 => changes.extend(Change::stores(parent, &blocks[from..to], tier)),
            50..60 => changes.extend(Change::stores(None, &blocks[to - 1..to], tier)),
            60..75 => changes.extend(removes(&blocks[from..to], tier)),
            75..98 => changes.extend(removes(&blocks[from..to], tier).into_iter().rev()),
            _ => {
                index.forget(slot);
                tree.forget(slot);
            }
        }
        index.apply(slot, &changes);
        tree.apply(slot, &changes);
        assert_eq!(index.entries(slot), tree.entries(slot));
    }

    #[test]
    fn long_chains_equal_the_plain_tree_and_keep_the_invariants() {
        for seed in 0..6 {
            let state = &mut (seed * 1000);
            let (index, mut tree) = (ConcurrentIndex::new(1 << 20), PrefixTree::new());
            for number in 0..1200 {
                step(state, &index, &mut tree);
                let asked = prompt(state, 1600);
                assert_eq!(totals(&index, &asked), totals(&tree, &asked), "seed {seed}, step {number}");
                if number % 50 == 0 {
                    index.writer().check(&read(&index.core));
                }
            }
            assert!(tree.len() > 2000, "the run saw too little to mean anything");
            WORKERS.iter().for_each(|&slot| index.forget(Slot(slot)));
            index.writer().check(&read(&index.core));
            assert!(index.is_empty() && index.bytes() < 20_000, "{} bytes", index.bytes());
        }
    }

    #[test]
    fn a_million_blocks_come_and_go_on_a_small_stack() {
        let run = || {
            let blocks: Vec<SequenceHash> = (0..1_000_000).map(SequenceHash).collect();
            let changes: Vec<Change> = Change::stores(None, &blocks, Tier::Device).collect();
            let index = ConcurrentIndex::new(1 << 20);
            let empty = index.bytes();
            index.apply(Slot(2), &changes);
            assert_eq!((totals(&index, &blocks)[0][0], index.len()), (0, 1_000_000));
            let mut overlaps = Overlaps::default();
            index.match_prefix(&blocks, &mut overlaps);
            assert_eq!(overlaps.best(), Some((Slot(2), Blocks(1_000_000))));
            let full = index.bytes();
            index.apply(Slot(2), &removes(&blocks[..500_000], Tier::Device));
            index.match_prefix(&blocks, &mut overlaps);
            assert_eq!((overlaps.best(), index.entries(Slot(2))), (None, 500_000));
            assert!(index.bytes() < full * 2 / 3, "half of the memory is back at once");
            index.apply(Slot(2), &removes(&blocks[500_000..], Tier::Device));
            assert!(index.is_empty() && index.bytes() < empty + 10_000, "{} bytes", index.bytes());
            index.apply(Slot(2), &changes);
            drop(index);
        };
        std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("a thread").join().expect("no overflow");
    }

    #[test]
    fn a_full_index_refuses_counts_and_takes_again_what_fits() {
        let index = ConcurrentIndex::new(1000);
        let blocks: Vec<SequenceHash> = (0..2000).map(SequenceHash).collect();
        let store = |slot: u16, blocks: &[SequenceHash]| {
            index.apply(Slot(slot), &Change::stores(None, blocks, Tier::Device).collect::<Vec<_>>());
        };
        store(0, &blocks[..900]);
        store(63, &blocks[..300]);
        assert_eq!((index.len(), index.entries(Slot(63)), index.refused()), (1000, 100, 200));
        store(1, &blocks[500..501]);
        store(0, &blocks[1990..2000]);
        assert_eq!((index.len(), index.refused()), (1000, 211));
        assert_eq!(totals(&index, &blocks).iter().map(|tiers| tiers[0]).collect::<Vec<_>>(), [900, 0, 100, 0, 0]);
        // Removals of what was refused change nothing; those of what is held make room.
        index.apply(Slot(63), &removes(&blocks[..300], Tier::Device));
        assert_eq!((index.len(), index.entries(Slot(63))), (900, 0));
        store(1, &blocks[..50]);
        assert_eq!((index.len(), totals(&index, &blocks)[1][0], index.refused()), (950, 50, 211));
        index.writer().check(&read(&index.core));
    }

    #[test]
    fn inner_blocks_that_nobody_holds_count_against_the_bound_of_memory() {
        let index = ConcurrentIndex::new(1000);
        let blocks: Vec<SequenceHash> = (0..1100).map(SequenceHash).collect();
        index.apply(Slot(0), &Change::stores(None, &blocks[..1000], Tier::Device).collect::<Vec<_>>());
        // Of each chain of 512, 512 and 8 blocks both ends stay.
        index.apply(Slot(0), &removes(&blocks[1..511], Tier::Device));
        index.apply(Slot(0), &Change::stores(None, &blocks[1000..], Tier::Device).collect::<Vec<_>>());
        assert_eq!((index.len(), index.refused()), (490, 100));
        index.apply(Slot(0), &removes(&blocks[..1], Tier::Device));
        index.apply(Slot(0), &Change::stores(None, &blocks[1000..], Tier::Device).collect::<Vec<_>>());
        assert_eq!((index.len(), index.refused()), (589, 100));
        index.writer().check(&read(&index.core));
    }
}
