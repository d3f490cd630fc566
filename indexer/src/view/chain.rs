//! From an event's content to places in the index.

use warmpath_core::blocks::{Root, media_hash, step};
use warmpath_core::ids::{BlockHash, SequenceHash};

use crate::event::{Content, Medium, Stored};

/// The sequence hashes of an event's blocks, one after the other.
pub(super) struct Chain<'a> {
    root: &'a Root,
    content: &'a Content,
    media: &'a [Medium],
    sequence: SequenceHash,
    /// The place in the event of the block that comes next.
    block: usize,
}

impl<'a> Chain<'a> {
    /// The chain of `stored` below `above`.
    pub(super) fn new(root: &'a Root, stored: &'a Stored, above: SequenceHash) -> Self {
        Self { root, content: &stored.content, media: &stored.media, sequence: above, block: 0 }
    }

    /// The hash of the event's next block; none where it has no content.
    pub(super) fn next(&mut self) -> Option<SequenceHash> {
        self.sequence = step(self.sequence, self.block_hash(self.block)?);
        while let Some((medium, rest)) = self.media.split_first()
            && medium.block == self.block
        {
            self.sequence = step(self.sequence, media_hash(&medium.identifier));
            self.media = rest;
        }
        self.block += 1;
        Some(self.sequence)
    }

    fn block_hash(&self, block: usize) -> Option<BlockHash> {
        match self.content {
            Content::Tokens(tokens) => {
                let size = self.root.block_size().len();
                let from = block.checked_mul(size)?;
                let tokens = tokens.get(from..from.checked_add(size)?)?;
                Some(self.root.block_hash(tokens))
            }
            Content::Hashes(hashes) => hashes.get(block).copied(),
            Content::Nothing => None,
        }
    }
}
