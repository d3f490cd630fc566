//! Among whom a request may choose: one that wants an adapter, or that some have failed, may not go where others may.

use std::collections::{BTreeMap, BTreeSet};

use super::Ticket;

/// The workers that a request may go to, by a hash of who they are. Where one request finds no room, another of the
/// same choice finds none either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Choice(u64);

impl Choice {
    /// Every worker: whoever may go to all and finds no room finds it for everybody.
    pub const ANY: Self = Self(0);

    /// Set where a request speaks for itself alone, so that no hash is the same.
    const ALONE: u64 = 1 << 63;

    /// Only some; which, is what the hash stands for.
    pub fn some(hash: u64) -> Self {
        Self((hash & !Self::ALONE).max(1))
    }

    /// Nobody knows whom this one may go to, nor whether another may go there.
    pub(super) fn alone(ticket: Ticket) -> Self {
        Self(ticket.0 | Self::ALONE)
    }
}

/// Things in order, of which those of some choices can be passed over.
#[derive(Debug)]
pub(super) struct ByChoice<T>(BTreeMap<Choice, BTreeSet<T>>);

impl<T> Default for ByChoice<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Copy + Ord> ByChoice<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, choice: Choice, thing: T) {
        self.0.entry(choice).or_default().insert(thing);
    }

    /// Returns whether it was there.
    pub(super) fn remove(&mut self, choice: Choice, thing: T) -> bool {
        let Some(things) = self.0.get_mut(&choice) else { return false };
        let was_there = things.remove(&thing);
        if things.is_empty() {
            self.0.remove(&choice);
        }
        was_there
    }

    /// The first one that is of none of these choices. O(choices).
    pub(super) fn first_but(&self, passed_over: &[Choice]) -> Option<T> {
        let others = self.0.iter().filter(|(choice, _)| !passed_over.contains(choice));
        others.filter_map(|(_, things)| things.first().copied()).min()
    }
}
