//! Who holds a stretch of a chain.

use warmpath_core::ids::Slot;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tier;

/// The workers that hold a block, by tier. Most blocks lie on devices only. Equal holders are equal values.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Holders {
    device: SlotSet,
    lower: Option<Box<Lower>>,
}

/// Holders where not all is on devices. `anywhere` decides a look-up; it is kept ready.
#[derive(Clone, Default, PartialEq, Eq)]
struct Lower {
    anywhere: SlotSet,
    tiers: [SlotSet; 3],
}

impl Holders {
    /// One worker in one tier.
    pub(super) fn one(slot: Slot, tier: Tier) -> Self {
        let mut holders = Self::default();
        holders.insert(slot, tier);
        holders
    }

    /// Those that hold it in any tier.
    pub(super) fn anywhere(&self) -> &SlotSet {
        self.lower.as_ref().map_or(&self.device, |lower| &lower.anywhere)
    }

    /// Those that hold it in `tier`; none if it lies on devices only.
    pub(super) fn in_tier(&self, tier: Tier) -> Option<&SlotSet> {
        match tier.index().checked_sub(1) {
            None => Some(&self.device),
            Some(lower) => self.lower.as_ref().map(|all| &all.tiers[lower]),
        }
    }

    /// Whether it lies on devices only.
    pub(super) fn on_devices_only(&self) -> bool {
        self.lower.is_none()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.anywhere().is_empty()
    }

    /// Whether the worker holds it in any tier.
    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.anywhere().contains(slot)
    }

    /// Whether the worker holds it in `tier`.
    pub(super) fn contains_in(&self, slot: Slot, tier: Tier) -> bool {
        self.in_tier(tier).is_some_and(|slots| slots.contains(slot))
    }

    /// Whether nobody holds it but this worker, on its device, which is the tier.
    pub(super) fn are_only(&self, slot: Slot, tier: Tier) -> bool {
        tier == Tier::Device && self.lower.is_none() && self.device.is_only(slot)
    }

    /// Adds the worker in a tier; returns whether it held nothing before.
    pub(super) fn insert(&mut self, slot: Slot, tier: Tier) -> bool {
        let new = !self.contains(slot);
        match tier.index().checked_sub(1) {
            None => {
                self.device.insert(slot);
                if let Some(lower) = &mut self.lower {
                    lower.anywhere.insert(slot);
                }
            }
            Some(place) => {
                let device = &self.device;
                let lower = self
                    .lower
                    .get_or_insert_with(|| Box::new(Lower { anywhere: device.clone(), tiers: Default::default() }));
                lower.tiers[place].insert(slot);
                lower.anywhere.insert(slot);
            }
        }
        new
    }

    /// Takes the worker out of a tier; returns whether it holds nothing any more, but did.
    pub(super) fn remove(&mut self, slot: Slot, tier: Tier) -> bool {
        if !self.contains_in(slot, tier) {
            return false;
        }
        let Some(lower) = &mut self.lower else { return self.device.remove(slot) };
        match tier.index().checked_sub(1) {
            None => self.device.remove(slot),
            Some(place) => lower.tiers[place].remove(slot),
        };
        let gone = !self.device.contains(slot) && !lower.tiers.iter().any(|slots| slots.contains(slot));
        if gone {
            lower.anywhere.remove(slot);
        }
        if lower.tiers.iter().all(SlotSet::is_empty) {
            self.lower = None;
        }
        gone
    }

    /// Takes the worker out of every tier; returns whether it held anything.
    pub(super) fn remove_all(&mut self, slot: Slot) -> bool {
        // The tier that says yes is the last in which it held anything.
        Tier::ALL.into_iter().any(|tier| self.remove(slot, tier))
    }

    /// Bytes of heap, by the highest slot of each set: sets grow by powers of two words, two of which lie inside.
    pub(super) fn bytes(&self) -> usize {
        let of = |slots: &SlotSet| {
            let words = slots.iter().last().map_or(0, |slot| slot.index() / 64 + 1);
            if words > 2 { words.next_power_of_two() * 8 } else { 0 }
        };
        let lower = self
            .lower
            .as_ref()
            .map_or(0, |lower| size_of::<Lower>() + of(&lower.anywhere) + lower.tiers.iter().map(of).sum::<usize>());
        of(&self.device) + lower
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_gone_when_its_last_tier_is() {
        let mut holders = Holders::one(Slot(1), Tier::Device);
        assert!(!holders.insert(Slot(1), Tier::Disk));
        assert!(holders.insert(Slot(200), Tier::External));
        assert!(!holders.remove(Slot(1), Tier::Host));
        assert!(!holders.remove(Slot(1), Tier::Device));
        assert!(holders.contains(Slot(1)) && !holders.contains_in(Slot(1), Tier::Device));
        assert!(holders.remove(Slot(1), Tier::Disk) && !holders.remove(Slot(1), Tier::Disk));
        assert!(holders.remove_all(Slot(200)) && holders.is_empty());
        assert!(holders == Holders::default() && holders.bytes() == 0);
    }
}
