//! How often an engine holds one block, and where.

use smallvec::SmallVec;
use warmpath_core::units::Tier;

use crate::snapshot::CopyCount;

/// Groups and tiers of one block that are told apart: engines have a handful of both.
const PLACES_MAX: usize = 16;

/// Copies of one block by group and tier; nearly always one of one.
#[derive(Clone)]
pub(super) struct Copies(SmallVec<[CopyCount; 1]>);

impl Copies {
    /// A single copy.
    pub(super) fn one(group: u32, tier: Tier) -> Self {
        Self::of(Some(group), [tier])
    }

    /// A copy in each of `tiers`.
    pub(super) fn of(group: Option<u32>, tiers: impl IntoIterator<Item = Tier>) -> Self {
        let copies = tiers.into_iter().map(|tier| CopyCount { group: group.unwrap_or(0), tier, count: 1 });
        Self(copies.collect())
    }

    /// Copies as they were counted elsewhere.
    pub(super) fn counted(copies: &[CopyCount]) -> Self {
        Self(copies.into())
    }

    /// All of them.
    pub(super) fn all(&self) -> &[CopyCount] {
        &self.0
    }

    /// Whether there is a copy in a tier, in any group.
    pub(super) fn holds_in(&self, tier: Tier) -> bool {
        self.0.iter().any(|copy| copy.tier == tier)
    }

    /// Whether there is one copy in each tier at most, all of one group.
    pub(super) fn are_single_in(&self, group: u32) -> bool {
        self.0.iter().all(|copy| copy.group == group && copy.count == 1)
    }

    fn find(&mut self, group: u32, tier: Tier) -> Option<usize> {
        self.0.iter().position(|copy| copy.group == group && copy.tier == tier)
    }

    /// Whether there is a copy in this place.
    pub(super) fn holds(&self, group: u32, tier: Tier) -> bool {
        self.0.iter().any(|copy| copy.group == group && copy.tier == tier)
    }

    /// Counts one copy more. Returns whether it did: not in more places than there are.
    pub(super) fn add(&mut self, group: u32, tier: Tier) -> bool {
        match self.find(group, tier) {
            Some(place) => self.0[place].count = self.0[place].count.saturating_add(1),
            None if self.0.len() >= PLACES_MAX => return false,
            None => self.0.push(CopyCount { group, tier, count: 1 }),
        }
        true
    }

    /// Bytes of heap.
    pub(super) fn bytes(&self) -> usize {
        if self.0.spilled() { self.0.capacity() * size_of::<CopyCount>() } else { 0 }
    }

    /// Counts one copy less, or as many as the engine says remain. `None` if none was known in this place, else
    /// whether the last one is gone.
    pub(super) fn take(&mut self, group: u32, tier: Tier, remaining: Option<u32>) -> Option<bool> {
        let place = self.find(group, tier)?;
        let copy = &mut self.0[place];
        copy.count = remaining.unwrap_or(copy.count.saturating_sub(1));
        let gone = copy.count == 0;
        if gone {
            self.0.swap_remove(place);
        }
        Some(gone)
    }

    /// Forgets all copies in a tier.
    pub(super) fn clear_tier(&mut self, tier: Tier) {
        self.0.retain(|copy| copy.tier != tier);
    }
}
