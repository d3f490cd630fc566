//! The plain tree behind one lock.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};

use super::PrefixTree;
use crate::change::{Change, IndexWriter};

/// Changes that are made under one hold of the lock: some tens of microseconds.
const HOLD: usize = 256;

/// A [`PrefixTree`] for many readers and many writers. A long list of changes is made in pieces, so that a reader waits
/// for one piece at most; between two pieces it sees a prefix of the list made, which is as true as any moment.
#[derive(Default)]
pub struct SharedTree(RwLock<PrefixTree>);

impl SharedTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    // A poisoned lock is used on: a half-made change costs a hit, giving up would cost all of them.
    fn read(&self) -> RwLockReadGuard<'_, PrefixTree> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, PrefixTree> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PrefixIndex for SharedTree {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.read().match_prefix(prompt, overlaps);
    }
}

impl IndexWriter for SharedTree {
    fn apply(&self, slot: Slot, changes: &[Change]) {
        for piece in changes.chunks(HOLD) {
            self.write().apply(slot, piece);
        }
    }

    fn forget(&self, slot: Slot) {
        let holdings: Vec<SequenceHash> = self.write().take_holdings(slot).into_iter().collect();
        for piece in holdings.chunks(HOLD) {
            let mut tree = self.write();
            for &hash in piece {
                tree.release(slot, hash);
            }
        }
    }

    fn entries(&self, slot: Slot) -> usize {
        self.read().entries(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_core::units::{Blocks, Tier};

    #[test]
    fn a_list_longer_than_one_hold_is_made_in_full() {
        let tree = SharedTree::new();
        let prompt: Vec<SequenceHash> = (0..1000).map(SequenceHash).collect();
        let changes: Vec<Change> = Change::stores(None, &prompt, Tier::Device).collect();
        tree.apply(Slot(3), &changes);
        let mut overlaps = Overlaps::default();
        tree.match_prefix(&prompt, &mut overlaps);
        assert_eq!(overlaps.best(), Some((Slot(3), Blocks(1000))));
        assert_eq!(tree.entries(Slot(3)), 1000);
        tree.forget(Slot(3));
        tree.match_prefix(&prompt, &mut overlaps);
        assert_eq!((overlaps.best(), tree.entries(Slot(3))), (None, 0));
        assert!(tree.read().is_empty());
    }
}
