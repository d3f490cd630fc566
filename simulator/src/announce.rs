//! What an engine announces, as those who read its events see it.

use warmpath_core::units::BlockSize;
use warmpath_indexer::event::{Attention, CacheEvent, Removed, Stored};

use super::blocks::BlockEvent;

impl BlockEvent {
    /// The event as it is after decoding, of an engine with blocks of this size. O(1): what it holds is moved.
    pub fn announced(self, block_size: BlockSize) -> CacheEvent {
        match self {
            Self::Stored { hashes, parent, content, salt, adapter, tier } => Stored {
                hashes,
                parent,
                content,
                block_size: Some(block_size.get()),
                tier,
                group: Some(0),
                attention: Attention::Prefix,
                adapter,
                salt,
                media: Vec::new(),
                cut: 0,
            }
            .into(),
            Self::Removed { hash, tier } => CacheEvent::Removed(Removed {
                hashes: [hash].into_iter().collect(),
                tier,
                group: Some(0),
                remaining_copy_counts: None,
            }),
            Self::Cleared => CacheEvent::Cleared,
        }
    }
}
