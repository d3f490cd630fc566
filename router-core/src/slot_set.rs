//! A set of slots, as bits.

use std::ops::Range;

use smallvec::SmallVec;

use crate::ids::Slot;

/// A set of slots: one bit each, the first 128 without an allocation. Trailing zero words are never kept, so equal sets
/// are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet(SmallVec<[u64; 2]>);

impl SlotSet {
    /// The empty set.
    pub fn new() -> Self {
        Self::default()
    }

    fn place(slot: Slot) -> (usize, u64) {
        (slot.index() / 64, 1 << (slot.index() % 64))
    }

    /// Adds `slot`; returns whether it was new.
    pub fn insert(&mut self, slot: Slot) -> bool {
        let (word, bit) = Self::place(slot);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        new
    }

    /// Takes `slot` out; returns whether it was there.
    pub fn remove(&mut self, slot: Slot) -> bool {
        let (word, bit) = Self::place(slot);
        let Some(bits) = self.0.get_mut(word) else { return false };
        let held = *bits & bit != 0;
        *bits &= !bit;
        self.trim();
        held
    }

    /// Whether `slot` is in the set.
    pub fn contains(&self, slot: Slot) -> bool {
        let (word, bit) = Self::place(slot);
        self.0.get(word).is_some_and(|bits| bits & bit != 0)
    }

    /// Whether `slot` is in the set and no other is.
    pub fn is_only(&self, slot: Slot) -> bool {
        let (word, bit) = Self::place(slot);
        self.0.len() == word + 1 && self.0[word] == bit && self.0[..word].iter().all(|bits| *bits == 0)
    }

    /// Whether no slot is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many slots are in the set.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones()).fold(0, |sum, ones| sum + usize::try_from(ones).unwrap_or(0))
    }

    /// Takes all slots out; keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Makes this set equal to `other`, reusing memory.
    pub fn copy_from(&mut self, other: &SlotSet) {
        self.0.clear();
        self.0.extend_from_slice(&other.0);
    }

    /// Adds every slot of `other`.
    pub fn union_with(&mut self, other: &SlotSet) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }

    /// Keeps only the slots that are in `other` too.
    pub fn intersect_with(&mut self, other: &SlotSet) {
        self.0.truncate(other.0.len());
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= theirs;
        }
        self.trim();
    }

    /// Takes every slot of `other` out.
    pub fn subtract(&mut self, other: &SlotSet) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine &= !theirs;
        }
        self.trim();
    }

    /// The slots in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        self.0.iter().zip(0_u16..).flat_map(|(&bits, word)| Ones(bits).map(move |bit| Slot(word * 64 + bit)))
    }

    /// Those that are not in `other`, as stretches of neighbours, in ascending order: of a fleet that holds the same, a few.
    pub(crate) fn stretches_without<'a>(
        &'a self,
        other: Option<&'a SlotSet>,
    ) -> impl Iterator<Item = Range<usize>> + 'a {
        let others = other.map_or(&[][..], |other| &other.0).iter().copied().chain(std::iter::repeat(0));
        let words = self.0.iter().zip(others).zip((0..).step_by(64));
        words.flat_map(|((&bits, theirs), first)| {
            Stretches(bits & !theirs).map(move |Range { start, end }| first + start..first + end)
        })
    }

    /// Whether no slot of `other` is in the set.
    pub fn is_disjoint(&self, other: &SlotSet) -> bool {
        self.0.iter().zip(&other.0).all(|(mine, theirs)| mine & theirs == 0)
    }

    /// Whether every slot of `other` is in the set.
    pub(crate) fn contains_all(&self, other: &SlotSet) -> bool {
        other.0.len() <= self.0.len() && self.0.iter().zip(&other.0).all(|(mine, theirs)| theirs & !mine == 0)
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl FromIterator<Slot> for SlotSet {
    fn from_iter<I: IntoIterator<Item = Slot>>(slots: I) -> Self {
        let mut set = Self::new();
        for slot in slots {
            set.insert(slot);
        }
        set
    }
}

/// The places of neighbouring ones in a word, ascending.
struct Stretches(u64);

impl Iterator for Stretches {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.0 == 0 {
            return None;
        }
        let start = self.0.trailing_zeros();
        let len = (self.0 >> start).trailing_ones();
        let end = start + len;
        self.0 &= u64::MAX.checked_shl(end).unwrap_or(0);
        let place = |bit| usize::try_from(bit).unwrap_or(usize::MAX);
        Some(place(start)..place(end))
    }
}

/// The places of the ones in a word, ascending.
struct Ones(u64);

impl Iterator for Ones {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        u16::try_from(bit).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: &[u16]) -> SlotSet {
        slots.iter().copied().map(Slot).collect()
    }

    #[test]
    fn stretches_are_those_that_the_other_does_not_have() {
        let all: SlotSet = (0..130).map(Slot).collect();
        let told = |set: &SlotSet, other: Option<&SlotSet>| set.stretches_without(other).collect::<Vec<_>>();
        assert_eq!(told(&all, None), [0..64, 64..128, 128..130]);
        assert_eq!(told(&all, Some(&all)), []);
        assert_eq!(told(&all, Some(&set(&[0, 2, 63, 64, 129]))), [1..2, 3..63, 65..128, 128..129]);
        assert_eq!(told(&set(&[5, 63, 70]), Some(&set(&[5]))), [63..64, 70..71]);
        assert_eq!(told(&SlotSet::new(), Some(&all)), []);
    }

    #[test]
    fn sets_behave_as_sets_across_word_borders() {
        let mut a = set(&[0, 63, 64, 200]);
        assert_eq!(a.iter().map(|slot| slot.0).collect::<Vec<_>>(), [0, 63, 64, 200]);
        assert_eq!(a.len(), 4);
        assert!(a.contains(Slot(64)) && !a.contains(Slot(65)) && !a.contains(Slot(999)));
        a.intersect_with(&set(&[63, 64, 65]));
        assert_eq!(a, set(&[63, 64]));
        a.union_with(&set(&[300]));
        a.subtract(&set(&[64]));
        assert_eq!(a, set(&[63, 300]));
        assert!(a.remove(Slot(300)) && !a.remove(Slot(300)));
        assert_eq!(a, set(&[63]));
        assert!(a.remove(Slot(63)) && a.is_empty());
    }
}
