//! What a view tells an index, and the port through which it does.

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::units::Tier;

/// A change of what one worker holds. Idempotent: copies are counted by the view, the index knows only whether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The worker holds the block in this tier now.
    Store {
        /// The block and all before it.
        hash: SequenceHash,
        /// The block before it (the root of the namespace for a first block), where that is known. Tells an index where
        /// to keep the block; no answer depends on it.
        parent: Option<SequenceHash>,
        /// Where it lies.
        tier: Tier,
    },
    /// The worker does not hold the block in this tier any more.
    Remove {
        /// The block and all before it.
        hash: SequenceHash,
        /// Where it lay.
        tier: Tier,
    },
}

impl Change {
    /// Stores of `blocks`, which follow each other below `parent`.
    pub fn stores(
        parent: Option<SequenceHash>,
        blocks: &[SequenceHash],
        tier: Tier,
    ) -> impl Iterator<Item = Change> + '_ {
        let parents = std::iter::once(parent).chain(blocks.iter().copied().map(Some));
        blocks.iter().zip(parents).map(move |(&hash, parent)| Change::Store { hash, parent, tier })
    }
}

/// The writing side of an index. Tasks that receive events have it; handlers of requests have only
/// [`PrefixIndex`](warmpath_core::overlap::PrefixIndex).
///
/// One worker's changes come from one task, in order. Readers never wait for a long list of changes as a whole.
pub trait IndexWriter: Send + Sync {
    /// Makes the changes of one worker, in order.
    fn apply(&self, slot: Slot, changes: &[Change]);

    /// Takes the worker out of every block. Once this returns, no match that starts later names it.
    fn forget(&self, slot: Slot);

    /// How many blocks the worker holds, a block in several tiers counted once.
    fn entries(&self, slot: Slot) -> usize;
}
