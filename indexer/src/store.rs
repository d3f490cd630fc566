//! What an engine's view needs of a place where blocks are kept: the port between the two.

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::PrefixIndex;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tier;

/// Blocks of a chain: an offset has 9 bits.
pub const CHAIN_BLOCKS: usize = 512;

/// Chains at most: a place is 23 bits of chain and 9 of offset.
pub(crate) const CHAINS_MAX: usize = 1 << 23;

/// Where a block is kept. The same for all workers that hold the block, and fixed for as long as any of them does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The stretch of blocks in which it lies.
    pub chain: u32,
    /// Where in that stretch.
    pub offset: usize,
}

impl Place {
    /// The place as a number; never `u32::MAX`, since there is always room for one chain more than there may be.
    pub(crate) fn packed(self) -> u32 {
        debug_assert!(self.offset < CHAIN_BLOCKS, "a chain ends before");
        self.chain << 9 | u32::try_from(self.offset).expect("9 bits")
    }

    pub(crate) fn unpacked(packed: u32) -> Self {
        Self { chain: packed >> 9, offset: usize::try_from(packed & 511).expect("9 bits") }
    }

    /// The place of the next block in the same chain.
    pub(crate) fn next(self) -> Self {
        Self { offset: self.offset + 1, ..self }
    }
}

/// What blocks follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    /// Nothing: they begin a prompt in the namespace of this root.
    Root(SequenceHash),
    /// A block that the same worker holds.
    Block(Place),
}

/// What comes before a block, as the store knows it: whoever holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The root of a namespace.
    Root(SequenceHash),
    /// A block, which somebody may hold, here or nowhere.
    Block(SequenceHash),
}

/// A set of tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tiers(u8);

impl Tiers {
    fn bit(tier: Tier) -> u8 {
        1 << tier.index()
    }

    /// One tier.
    pub fn one(tier: Tier) -> Self {
        Self(Self::bit(tier))
    }

    /// The set that [`bits`](Self::bits) gave; none for more bits than there are tiers.
    pub fn of_bits(bits: u8) -> Option<Self> {
        (bits < 1 << Tier::ALL.len()).then_some(Self(bits))
    }

    /// A bit for each tier, in the order of [`Tier::ALL`], the lowest first.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// Whether a tier is among them.
    pub fn contains(self, tier: Tier) -> bool {
        self.0 & Self::bit(tier) != 0
    }

    /// These and one more.
    #[must_use]
    pub fn with(self, tier: Tier) -> Self {
        Self(self.0 | Self::bit(tier))
    }

    /// These but one.
    #[must_use]
    pub fn without(self, tier: Tier) -> Self {
        Self(self.0 & !Self::bit(tier))
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Each of them, the fastest first.
    pub fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |&tier| self.contains(tier))
    }
}

/// What became of blocks that were to be stored. A buffer of the caller.
#[derive(Clone, Debug, Default)]
pub struct Placed {
    /// The places of the first blocks; fewer than asked for where the store is full.
    pub places: Vec<Place>,
    /// Which of them the worker held in that tier already, from 0.
    pub held: Vec<usize>,
    /// Of how many it held nothing, in no tier.
    pub new: usize,
}

impl Placed {
    pub(crate) fn clear(&mut self) {
        self.places.clear();
        self.held.clear();
        self.new = 0;
    }
}

/// Blocks, each kept once however many workers hold it, and who holds which in which tier.
///
/// 1. One worker's calls come one after the other; those of different workers at once.
/// 2. A worker names only places that it holds; those of others may be gone at any time.
/// 3. Look-ups never wait for a whole list of blocks.
pub trait BlockStore: PrefixIndex {
    /// The block at a place.
    fn hash_at(&self, place: Place) -> Option<SequenceHash>;

    /// Appends the blocks of a chain to `blocks`, also those that the worker does not hold; returns what comes before the
    /// first of them, and its offset. None where there is no such chain.
    fn blocks_of(&self, chain: u32, blocks: &mut Vec<SequenceHash>) -> Option<(Origin, usize)>;

    /// Says that a worker holds `blocks`, which follow each other behind `above`, in a tier; appends what became of them
    /// to `placed`.
    fn store(&self, slot: Slot, tier: Tier, above: Above, blocks: &[SequenceHash], placed: &mut Placed);

    /// Says that a worker holds a block of its own in one more tier; returns whether that is new.
    fn add_tier(&self, slot: Slot, tier: Tier, place: Place) -> bool;

    /// Takes a worker out of tiers of blocks; returns how many it holds nowhere now, but did.
    fn remove(&self, slot: Slot, places: &[(Place, Tier)]) -> usize;

    /// Takes a worker out of every block of some chains, in one tier or in all; returns how many blocks it holds nowhere
    /// now, but did.
    fn remove_all(&self, slot: Slot, tier: Option<Tier>, chains: &[u32]) -> usize;

    /// Says who belongs together: what one of a pool holds outside of all workers counts for each of the pool. No slot is
    /// in two pools. These replace those before them.
    fn set_pools(&self, pools: &[SlotSet]);

    /// When each of `chains` was last stored into or matched; higher is later, and none is higher than [`now`](Self::now).
    fn last_used(&self, chains: &[u32], ages: &mut Vec<u32>);

    /// The present, in the units of [`last_used`](Self::last_used): it advances as blocks are stored,
    /// and where it is [ended](Self::end_present).
    fn now(&self) -> u32;

    /// Ends the present: what was used until now may be let go.
    fn end_present(&self);

    /// Blocks that may still be added.
    fn room(&self) -> usize;

    /// Bytes of heap, by capacities. O(chains).
    fn bytes(&self) -> usize;
}

/// The pools, each of which reaches all that one of it has told to lie in external storage.
#[derive(Default)]
pub(crate) struct Pools(Vec<SlotSet>);

impl Pools {
    /// Replaces them.
    pub(crate) fn set(&mut self, pools: &[SlotSet]) {
        self.0 = pools.to_vec();
    }

    /// Adds the others of their pools to those who told of a block in external storage. O(pools × slots / 64).
    pub(crate) fn join(&self, tellers: &mut SlotSet) {
        for pool in &self.0 {
            if !pool.is_disjoint(tellers) {
                tellers.union_with(pool);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_numbers_and_back() {
        let place = Place { chain: 8_388_606, offset: 511 };
        assert_eq!((Place::unpacked(place.packed()), place.packed() < u32::MAX), (place, true));
    }
}
