//! Batches that wait for others: in order, and no more than there is room for.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Stamp;

/// How much may wait. Decoded, a batch takes at most about four times the bytes that it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldMax {
    /// Batches.
    pub batches: usize,
    /// Bytes of these as they came.
    pub bytes: usize,
}

impl HoldMax {
    /// What a busy engine says while ten thousand batches are sent again.
    pub const DEFAULT: Self = Self { batches: 4096, bytes: 16 << 20 };
}

pub(super) struct Held<T> {
    pub(super) item: T,
    pub(super) stamp: Stamp,
    pub(super) bytes: usize,
    pub(super) since: Instant,
}

/// Batches by number.
pub(super) struct Hold<T> {
    batches: BTreeMap<u64, Held<T>>,
    bytes: usize,
    max: HoldMax,
}

impl<T> Hold<T> {
    pub(super) fn new(max: HoldMax) -> Self {
        Self { batches: BTreeMap::new(), bytes: 0, max }
    }

    #[cfg(test)]
    pub(super) fn set_max(&mut self, max: HoldMax) {
        self.max = max;
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.batches.len() < self.max.batches && self.bytes.saturating_add(bytes) <= self.max.bytes
    }

    pub(super) fn insert(&mut self, seq: u64, held: Held<T>) {
        self.bytes += held.bytes;
        if let Some(before) = self.batches.insert(seq, held) {
            self.bytes -= before.bytes;
        }
    }

    pub(super) fn remove(&mut self, seq: u64) -> Option<Held<T>> {
        let held = self.batches.remove(&seq)?;
        self.bytes -= held.bytes;
        Some(held)
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(&u64, &Held<T>) -> bool) {
        self.batches.retain(|seq, held| keep(seq, held));
        self.bytes = self.batches.values().map(|held| held.bytes).sum();
    }

    /// The first batch of this number or a later one.
    pub(super) fn first_from(&self, seq: u64) -> Option<&Held<T>> {
        self.batches.range(seq..).next().map(|(_, held)| held)
    }

    pub(super) fn contains(&self, seq: u64) -> bool {
        self.batches.contains_key(&seq)
    }

    pub(super) fn first(&self) -> Option<u64> {
        self.batches.keys().next().copied()
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.batches.keys().next_back().copied()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Held<T>> {
        self.batches.values()
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
