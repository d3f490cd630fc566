//! The plain store of blocks: exact, short enough to be believed. The other is measured against it.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use foldhash::fast::RandomState;
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{Blocks, Tier};

use crate::index::Index;
use crate::store::{Above, BlockStore, CHAINS_MAX, Origin, Place, Placed, Pools};

/// The index over all engines that others are measured against.
pub type PlainIndex = Index<PrefixTree>;

impl PlainIndex {
    /// An empty index of at most `entries_max` (worker, block) entries.
    pub fn new(entries_max: usize) -> Self {
        Self::over(PrefixTree::new(entries_max), entries_max)
    }
}

/// The tree of all cached prefixes, kept as a map: a sequence hash names a block together with all blocks before it, so
/// it needs no links to parents or children. A hole is a name that is missing, and a block stored again closes it.
///
/// Every block is a chain of its own. Readers wait for whole lists of blocks.
pub struct PrefixTree {
    tree: RwLock<Tree>,
    blocks_max: usize,
}

#[derive(Default)]
struct Tree {
    numbers: HashMap<SequenceHash, u32, RandomState>,
    blocks: Vec<Block>,
    /// Numbers of blocks that are gone.
    free: Vec<u32>,
    pools: Pools,
}

#[derive(Default)]
struct Block {
    hash: Option<SequenceHash>,
    /// What it follows; some while the block is in use.
    origin: Option<Origin>,
    holders: Holders,
}

/// Who holds a block, by tier. Most blocks lie on devices only.
#[derive(Default)]
struct Holders {
    device: SlotSet,
    lower: Option<Box<[SlotSet; 3]>>,
}

impl Holders {
    fn tier(&self, tier: Tier) -> Option<&SlotSet> {
        match tier.index().checked_sub(1) {
            None => Some(&self.device),
            Some(lower) => self.lower.as_ref().map(|tiers| &tiers[lower]),
        }
    }

    fn tier_mut(&mut self, tier: Tier) -> &mut SlotSet {
        match tier.index().checked_sub(1) {
            None => &mut self.device,
            Some(lower) => &mut self.lower.get_or_insert_default()[lower],
        }
    }

    fn holds(&self, slot: Slot) -> bool {
        Tier::ALL.into_iter().any(|tier| self.tier(tier).is_some_and(|slots| slots.contains(slot)))
    }

    fn remove(&mut self, slot: Slot, tier: Tier) {
        if self.tier(tier).is_some() {
            self.tier_mut(tier).remove(slot);
            if self.lower.as_ref().is_some_and(|tiers| tiers.iter().all(SlotSet::is_empty)) {
                self.lower = None;
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.device.is_empty() && self.lower.is_none()
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("a usize has 32 bits")
}

impl Tree {
    fn holders(&self, hash: SequenceHash) -> Option<&Holders> {
        self.numbers.get(&hash).map(|&number| &self.blocks[index(number)].holders)
    }

    fn number(&mut self, hash: SequenceHash, origin: Option<Origin>) -> u32 {
        if let Some(&number) = self.numbers.get(&hash) {
            return number;
        }
        let number = self.free.pop().unwrap_or_else(|| {
            self.blocks.push(Block::default());
            u32::try_from(self.blocks.len() - 1).expect("fewer blocks than chains")
        });
        let block = &mut self.blocks[index(number)];
        (block.hash, block.origin) = (Some(hash), origin);
        self.numbers.insert(hash, number);
        number
    }

    /// Whether the worker holds the block nowhere now, but did.
    fn remove(&mut self, slot: Slot, number: u32, tier: Tier) -> bool {
        let Some(block) = self.blocks.get_mut(index(number)) else { return false };
        let held = block.holders.holds(slot);
        block.holders.remove(slot, tier);
        let gone = held && !block.holders.holds(slot);
        if block.holders.is_empty()
            && let Some(hash) = block.hash.take()
        {
            self.numbers.remove(&hash);
            self.free.push(number);
        }
        gone
    }
}

impl PrefixTree {
    /// An empty tree of at most `blocks_max` blocks.
    pub(crate) fn new(blocks_max: usize) -> Self {
        Self { tree: RwLock::default(), blocks_max: blocks_max.min(CHAINS_MAX - 1) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Tree> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tree> {
        self.tree.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefixIndex for PrefixTree {
    /// O(blocks matched × (tiers + slots / 64)); allocates only beyond 128 slots.
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
        let tree = self.read();
        let mut alive = SlotSet::new();
        let mut anywhere = SlotSet::new();
        for (place, hash) in prompt.iter().enumerate() {
            let Some(holders) = tree.holders(*hash) else { break };
            anywhere.clear();
            if let Some(tellers) = holders.tier(Tier::External) {
                anywhere.copy_from(tellers);
                tree.pools.join(&mut anywhere);
            }
            for tier in Tier::ALL {
                holders.tier(tier).into_iter().for_each(|slots| anywhere.union_with(slots));
            }
            if place == 0 {
                alive.copy_from(&anywhere);
            } else {
                alive.intersect_with(&anywhere);
            }
            if alive.is_empty() {
                break;
            }
            book((holders, &tree.pools), &alive, overlaps);
        }
    }
}

impl BlockStore for PrefixTree {
    fn hash_at(&self, place: Place) -> Option<SequenceHash> {
        self.read().blocks.get(index(place.chain))?.hash
    }

    fn blocks_of(&self, chain: u32, blocks: &mut Vec<SequenceHash>) -> Option<(Origin, usize)> {
        let tree = self.read();
        let block = tree.blocks.get(index(chain))?;
        blocks.push(block.hash?);
        Some((block.origin?, 0))
    }

    fn store(&self, slot: Slot, tier: Tier, above: Above, blocks: &[SequenceHash], placed: &mut Placed) {
        let mut tree = self.write();
        let mut origin = match above {
            Above::Root(root) => Some(Origin::Root(root)),
            Above::Block(place) => tree.blocks.get(index(place.chain)).and_then(|block| block.hash).map(Origin::Block),
        };
        for &hash in blocks {
            if tree.numbers.len() >= self.blocks_max && !tree.numbers.contains_key(&hash) {
                return;
            }
            let number = tree.number(hash, origin);
            origin = Some(Origin::Block(hash));
            let holders = &mut tree.blocks[index(number)].holders;
            placed.new += usize::from(!holders.holds(slot));
            if !holders.tier_mut(tier).insert(slot) {
                placed.held.push(placed.places.len());
            }
            placed.places.push(Place { chain: number, offset: 0 });
        }
    }

    fn add_tier(&self, slot: Slot, tier: Tier, place: Place) -> bool {
        let mut tree = self.write();
        tree.blocks.get_mut(index(place.chain)).is_some_and(|block| block.holders.tier_mut(tier).insert(slot))
    }

    fn remove(&self, slot: Slot, places: &[(Place, Tier)]) -> usize {
        let mut tree = self.write();
        places.iter().filter(|&&(place, tier)| tree.remove(slot, place.chain, tier)).count()
    }

    fn remove_all(&self, slot: Slot, tier: Option<Tier>, chains: &[u32]) -> usize {
        let mut tree = self.write();
        let tiers = || Tier::ALL.into_iter().filter(|&other| tier.is_none_or(|tier| tier == other));
        // It is gone with the last tier in which it was held.
        let gone = |&&number: &&u32| tiers().filter(|&tier| tree.remove(slot, number, tier)).count() > 0;
        chains.iter().filter(gone).count()
    }

    fn set_pools(&self, pools: &[SlotSet]) {
        self.write().pools.set(pools);
    }

    /// It does not know: all were used long ago.
    fn last_used(&self, chains: &[u32], ages: &mut Vec<u32>) {
        ages.extend(chains.iter().map(|_| 0));
    }

    fn now(&self) -> u32 {
        1
    }

    fn end_present(&self) {}

    fn room(&self) -> usize {
        self.blocks_max - self.read().numbers.len()
    }

    fn bytes(&self) -> usize {
        let tree = self.read();
        tree.blocks.capacity() * size_of::<Block>()
            + tree.free.capacity() * size_of::<u32>()
            + tree.numbers.capacity() * size_of::<(SequenceHash, u32)>()
    }
}

/// Books one block for each of `alive` under the fastest tier in which it holds the block.
fn book((holders, pools): (&Holders, &Pools), alive: &SlotSet, overlaps: &mut Overlaps) {
    let mut left = alive.clone();
    let mut here = SlotSet::new();
    for tier in Tier::ALL {
        let Some(slots) = holders.tier(tier) else { continue };
        here.copy_from(slots);
        if tier == Tier::External {
            pools.join(&mut here);
        }
        here.intersect_with(&left);
        overlaps.push(Blocks(1), tier, &here);
        left.subtract(&here);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Above = Above::Root(SequenceHash(0));

    /// The places of a block for each of `hashes`.
    fn store(tree: &PrefixTree, slot: u16, hashes: &[u64], tier: Tier) -> Vec<Place> {
        let hashes: Vec<SequenceHash> = hashes.iter().copied().map(SequenceHash).collect();
        let mut placed = Placed::default();
        tree.store(Slot(slot), tier, ROOT, &hashes, &mut placed);
        placed.places
    }

    fn matched(tree: &PrefixTree, prompt: &[u64], slot: u16) -> [u32; 4] {
        let prompt: Vec<SequenceHash> = prompt.iter().copied().map(SequenceHash).collect();
        let mut overlaps = Overlaps::default();
        tree.match_prefix(&prompt, &mut overlaps);
        let held = overlaps.of(Slot(slot));
        Tier::ALL.map(|tier| held.get(tier).0)
    }

    #[test]
    fn a_hole_ends_the_run_and_a_new_store_closes_it() {
        let tree = PrefixTree::new(10);
        let places = store(&tree, 1, &[1, 2, 3], Tier::Device);
        assert_eq!(tree.remove(Slot(1), &[(places[1], Tier::Device)]), 1);
        assert_eq!(matched(&tree, &[1, 2, 3], 1), [1, 0, 0, 0]);
        store(&tree, 1, &[2], Tier::Host);
        assert_eq!(matched(&tree, &[1, 2, 3], 1), [2, 1, 0, 0]);
    }

    #[test]
    fn removing_what_is_not_held_changes_nothing() {
        let tree = PrefixTree::new(10);
        let places = store(&tree, 0, &[1], Tier::Device);
        assert_eq!(tree.remove(Slot(0), &[(places[0], Tier::Disk)]), 0);
        assert_eq!(tree.remove(Slot(9), &[(places[0], Tier::Device)]), 0);
        assert_eq!((matched(&tree, &[1, 2], 0), tree.room()), ([1, 0, 0, 0], 9));
    }

    #[test]
    fn a_block_is_kept_once_and_vanishes_with_its_last_holder() {
        let tree = PrefixTree::new(2);
        let places = store(&tree, 0, &[1, 2, 3], Tier::Device);
        assert_eq!((places.len(), tree.room()), (2, 0));
        assert!(tree.add_tier(Slot(0), Tier::Host, places[0]) && !tree.add_tier(Slot(0), Tier::Host, places[0]));
        assert_eq!(store(&tree, 1, &[1], Tier::Device), places[..1]);
        assert_eq!(tree.remove_all(Slot(0), Some(Tier::Device), &[places[0].chain, places[1].chain]), 1);
        assert_eq!((matched(&tree, &[1, 2], 0), tree.room()), ([0, 1, 0, 0], 1));
        assert_eq!(tree.remove_all(Slot(0), None, &[places[0].chain]), 1);
        assert_eq!((tree.room(), tree.remove(Slot(1), &[(places[0], Tier::Device)]), tree.room()), (1, 1, 2));
        assert_eq!((tree.hash_at(places[0]), matched(&tree, &[1], 1)), (None, [0; 4]));
    }

    #[test]
    fn an_answer_replaces_the_last_one() {
        let tree = PrefixTree::new(10);
        store(&tree, 0, &[1], Tier::Device);
        let mut overlaps = Overlaps::default();
        tree.match_prefix(&[SequenceHash(1)], &mut overlaps);
        tree.match_prefix(&[SequenceHash(2)], &mut overlaps);
        assert_eq!(overlaps.longest(), Blocks(0));
        tree.match_prefix(&[], &mut overlaps);
        assert_eq!(overlaps.longest(), Blocks(0));
    }
}
