//! The plain prefix index: exact, single-threaded, short enough to be believed. Others are measured against it.

mod shared;

use std::collections::{HashMap, HashSet};

use foldhash::fast::RandomState;
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{Blocks, Tier};

use crate::change::Change;
pub use shared::SharedTree;

/// The tree of all cached prefixes, kept as a map: a sequence hash names a block together with all blocks before it, so
/// it needs no links to parents or children. A hole is a name that is missing, and a block stored again closes it.
#[derive(Default)]
pub struct PrefixTree {
    blocks: HashMap<SequenceHash, Holders, RandomState>,
    held: Vec<Holdings>,
}

/// The blocks of one worker.
type Holdings = HashSet<SequenceHash, RandomState>;

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

impl PrefixTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the changes of one worker, in order. O(changes).
    pub fn apply(&mut self, slot: Slot, changes: &[Change]) {
        for change in changes {
            match *change {
                Change::Store { hash, tier, .. } => self.store(slot, hash, tier),
                Change::Remove { hash, tier } => self.remove(slot, hash, tier),
            }
        }
    }

    fn store(&mut self, slot: Slot, hash: SequenceHash, tier: Tier) {
        if self.held.len() <= slot.index() {
            self.held.resize_with(slot.index() + 1, Holdings::default);
        }
        self.held[slot.index()].insert(hash);
        self.blocks.entry(hash).or_default().tier_mut(tier).insert(slot);
    }

    fn remove(&mut self, slot: Slot, hash: SequenceHash, tier: Tier) {
        let Some(holders) = self.blocks.get_mut(&hash) else { return };
        holders.remove(slot, tier);
        if !holders.holds(slot)
            && let Some(held) = self.held.get_mut(slot.index())
        {
            held.remove(&hash);
        }
        if holders.is_empty() {
            self.blocks.remove(&hash);
        }
    }

    /// Takes a worker out of every block. O(blocks that it holds).
    pub fn forget(&mut self, slot: Slot) {
        for hash in self.take_holdings(slot) {
            self.release(slot, hash);
        }
    }

    /// The blocks that a worker holds, which from now on count as none; each must be released.
    fn take_holdings(&mut self, slot: Slot) -> Holdings {
        self.held.get_mut(slot.index()).map(std::mem::take).unwrap_or_default()
    }

    /// Takes a worker out of one block, in every tier.
    fn release(&mut self, slot: Slot, hash: SequenceHash) {
        for tier in Tier::ALL {
            self.remove(slot, hash, tier);
        }
    }

    /// How many blocks a worker holds, a block in several tiers counted once.
    pub fn entries(&self, slot: Slot) -> usize {
        self.held.get(slot.index()).map_or(0, HashSet::len)
    }

    /// How many different blocks are held by anybody.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }
}

impl PrefixIndex for PrefixTree {
    /// O(blocks matched × (tiers + slots / 64)); allocates only beyond 128 slots.
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
        let mut alive = SlotSet::new();
        let mut anywhere = SlotSet::new();
        for (place, hash) in prompt.iter().enumerate() {
            let Some(holders) = self.blocks.get(hash) else { break };
            anywhere.copy_from(&holders.device);
            for lower in holders.lower.iter().flat_map(|tiers| tiers.iter()) {
                anywhere.union_with(lower);
            }
            if place == 0 {
                alive.copy_from(&anywhere);
            } else {
                alive.intersect_with(&anywhere);
            }
            if alive.is_empty() {
                break;
            }
            book(holders, &alive, overlaps);
        }
    }
}

/// Books one block for each of `alive` under the fastest tier in which it holds the block.
fn book(holders: &Holders, alive: &SlotSet, overlaps: &mut Overlaps) {
    if holders.lower.is_none() {
        overlaps.push(Blocks(1), Tier::Device, alive);
        return;
    }
    let mut left = alive.clone();
    let mut here = SlotSet::new();
    for tier in Tier::ALL {
        let Some(slots) = holders.tier(tier) else { continue };
        here.copy_from(&left);
        here.intersect_with(slots);
        overlaps.push(Blocks(1), tier, &here);
        left.subtract(&here);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_core::overlap::TierBlocks;

    fn store(hash: u64, tier: Tier) -> Change {
        Change::Store { hash: SequenceHash(hash), parent: None, tier }
    }

    fn remove(hash: u64, tier: Tier) -> Change {
        Change::Remove { hash: SequenceHash(hash), tier }
    }

    fn matched(tree: &PrefixTree, prompt: &[u64], slot: u16) -> [u32; 4] {
        let prompt: Vec<SequenceHash> = prompt.iter().copied().map(SequenceHash).collect();
        let mut overlaps = Overlaps::default();
        tree.match_prefix(&prompt, &mut overlaps);
        let held: TierBlocks = overlaps.of(Slot(slot));
        Tier::ALL.map(|tier| held.get(tier).0)
    }

    #[test]
    fn a_hole_ends_the_run_and_a_new_store_closes_it() {
        let mut tree = PrefixTree::new();
        tree.apply(Slot(1), &[1, 2, 3].map(|hash| store(hash, Tier::Device)));
        tree.apply(Slot(1), &[remove(2, Tier::Device)]);
        assert_eq!(matched(&tree, &[1, 2, 3], 1), [1, 0, 0, 0]);
        tree.apply(Slot(1), &[store(2, Tier::Host)]);
        assert_eq!(matched(&tree, &[1, 2, 3], 1), [2, 1, 0, 0]);
    }

    #[test]
    fn removing_what_is_not_held_changes_nothing() {
        let mut tree = PrefixTree::new();
        tree.apply(Slot(0), &[store(1, Tier::Device), remove(1, Tier::Disk), remove(2, Tier::Device)]);
        tree.apply(Slot(9), &[remove(1, Tier::Device)]);
        assert_eq!(matched(&tree, &[1, 2], 0), [1, 0, 0, 0]);
        assert_eq!((tree.entries(Slot(0)), tree.entries(Slot(9)), tree.len()), (1, 0, 1));
    }

    #[test]
    fn entries_count_a_block_once_and_vanish_with_it() {
        let mut tree = PrefixTree::new();
        tree.apply(Slot(0), &[store(1, Tier::Device), store(1, Tier::Host), store(2, Tier::External)]);
        tree.apply(Slot(1), &[store(1, Tier::Device)]);
        assert_eq!((tree.entries(Slot(0)), tree.entries(Slot(1)), tree.len()), (2, 1, 2));
        tree.apply(Slot(0), &[remove(1, Tier::Device)]);
        assert_eq!(matched(&tree, &[1, 2], 0), [0, 1, 0, 1]);
        tree.forget(Slot(0));
        assert_eq!((tree.entries(Slot(0)), tree.entries(Slot(1)), tree.len()), (0, 1, 1));
        tree.apply(Slot(1), &[remove(1, Tier::Device)]);
        assert!(tree.is_empty());
    }

    #[test]
    fn an_answer_replaces_the_last_one() {
        let mut tree = PrefixTree::new();
        tree.apply(Slot(0), &[store(1, Tier::Device)]);
        let mut overlaps = Overlaps::default();
        tree.match_prefix(&[SequenceHash(1)], &mut overlaps);
        tree.match_prefix(&[SequenceHash(2)], &mut overlaps);
        assert_eq!(overlaps.longest(), Blocks(0));
        tree.match_prefix(&[], &mut overlaps);
        assert_eq!(overlaps.longest(), Blocks(0));
    }
}
