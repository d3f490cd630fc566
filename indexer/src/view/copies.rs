//! How often an engine holds one block, and where.

use smallvec::SmallVec;
use warmpath_core::units::Tier;

/// Copies of one block by group and tier; nearly always one of one.
#[derive(Default)]
pub(super) struct Copies(SmallVec<[Copy; 1]>);

struct Copy {
    group: u32,
    tier: Tier,
    count: u32,
}

impl Copies {
    fn find(&mut self, group: u32, tier: Tier) -> Option<usize> {
        self.0.iter().position(|copy| copy.group == group && copy.tier == tier)
    }

    /// Whether there is a copy in this place.
    pub(super) fn holds(&self, group: u32, tier: Tier) -> bool {
        self.0.iter().any(|copy| copy.group == group && copy.tier == tier)
    }

    /// Counts one copy more; returns whether it is the first in this place.
    pub(super) fn add(&mut self, group: u32, tier: Tier) -> bool {
        match self.find(group, tier) {
            Some(place) => {
                self.0[place].count = self.0[place].count.saturating_add(1);
                false
            }
            None => {
                self.0.push(Copy { group, tier, count: 1 });
                true
            }
        }
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

    /// Forgets all copies in a tier; returns in how many groups there were some.
    pub(super) fn clear_tier(&mut self, tier: Tier) -> u32 {
        let mut groups = 0;
        self.0.retain(|copy| {
            groups += u32::from(copy.tier == tier);
            copy.tier != tier
        });
        groups
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
