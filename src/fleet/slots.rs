//! Which slots are free.

use std::sync::{Arc, Weak};

use warmpath_core::ids::Slot;

/// Slots as they are given away: the lowest that is free, so that tables by slot stay dense.
///
/// A slot is free once nobody holds what was given it: neither the table in use, nor one that a placement under way has
/// begun with, nor a request in flight, nor a task. So nothing that is said of the old holder can be taken for the new.
#[derive(Debug)]
pub struct Slots<T> {
    holders: Vec<Weak<T>>,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self { holders: Vec::new() }
    }
}

impl<T> Slots<T> {
    /// Gives the lowest free slot to what `make` makes for it; none when all 65 536 are taken. O(slots).
    pub fn give(&mut self, make: impl FnOnce(Slot) -> Arc<T>) -> Option<Arc<T>> {
        let place = self.holders.iter().position(|holder| holder.strong_count() == 0).unwrap_or(self.holders.len());
        let slot = Slot(u16::try_from(place).ok()?);
        let holder = make(slot);
        let weak = Arc::downgrade(&holder);
        match self.holders.get_mut(place) {
            Some(free) => *free = weak,
            None => self.holders.push(weak),
        }
        Some(holder)
    }

    /// All that somebody holds, ascending by slot. O(slots).
    pub fn holders(&self) -> impl Iterator<Item = Arc<T>> {
        self.holders.iter().filter_map(Weak::upgrade)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_away_again_only_when_nobody_holds_it() {
        let mut slots = Slots::default();
        let mut give = || slots.give(Arc::new).unwrap();
        let (first, second) = (give(), give());
        let in_flight = Arc::clone(&first);
        drop(first);
        let third = give();
        assert_eq!([&in_flight, &second, &third].map(|slot| slot.0), [0, 1, 2]);
        drop(in_flight);
        let fourth = give();
        assert_eq!(fourth.0, 0);
        assert_eq!(slots.holders().map(|slot| slot.0).collect::<Vec<_>>(), [0, 1, 2]);
        let mut give = || slots.give(Arc::new).unwrap();
        drop(fourth);
        assert_eq!(give().0, 0);
    }

    #[test]
    fn there_are_as_many_slots_as_a_slots_number_can_tell() {
        let one = Arc::new(Slot(0));
        let mut slots = Slots { holders: std::iter::repeat_n(&one, 65_535).map(Arc::downgrade).collect() };
        assert_eq!(slots.give(Arc::new).map(|slot| slot.0), Some(u16::MAX));
        slots.holders.push(Arc::downgrade(&one));
        let last = slots.give(Arc::new).unwrap();
        assert_eq!((last.0, slots.give(Arc::new)), (u16::MAX, None));
    }
}
