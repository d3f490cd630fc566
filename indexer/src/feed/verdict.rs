//! What a feed says of a batch, and what follows from it.

use std::ops::Range;

/// What to do with a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the next one.
    Apply,
    /// It is ahead of its time: the path may have reordered, or what is missing before it is being fetched.
    Hold,
    /// It was applied or is held already, or its process is gone: drop it.
    Duplicate,
    /// Batches before it are missing, as far as waiting can tell. It is held.
    Gap {
        /// Their numbers.
        missing: Range<u64>,
    },
    /// The engine began anew: nothing that it said before holds.
    Restart,
    /// It is ahead of its time, and there is no room to hold it: it is missing now.
    Full,
}

/// What the owner of a feed does next, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<T> {
    /// Applies the batch to the view.
    Apply(T),
    /// Empties the view, which may name blocks that are gone: these batches were passed over.
    Lost(Range<u64>),
    /// Empties the view: the engine's cache is empty too.
    Restarted,
}
