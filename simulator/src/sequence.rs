//! A request's tokens as the block manager sees them: how the engine names their blocks, and where they lie.

use std::ops::Range;
use std::sync::Arc;

use warmpath_core::ids::{BlockHash, EngineHash, TokenId};
use warmpath_core::units::BlockSize;
use warmpath_indexer::event::Content;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::free_queue::BlockId;
use super::naming::{Block, Digest, Extras, Naming};
use super::radix::NodeId;

/// What a prompt says: its tokens, or as much as a cache needs to know of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PromptText {
    /// The tokens.
    Tokens(Vec<TokenId>),
    /// A hash of each full block's tokens: all that matters where nobody reads the tokens themselves, at a price for each
    /// block instead of each token. Equal hashes are taken for equal tokens.
    Hashed {
        /// The full blocks.
        blocks: Vec<BlockHash>,
        /// Tokens of the prompt.
        len: usize,
        /// What makes the blocks that its output will fill different from those of others.
        seed: u64,
    },
}

impl From<Vec<TokenId>> for PromptText {
    fn from(tokens: Vec<TokenId>) -> Self {
        Self::Tokens(tokens)
    }
}

impl PromptText {
    /// How many tokens it has.
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Hashed { len, .. } => *len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn push(&mut self, token: TokenId, size: usize) {
        match self {
            Self::Tokens(tokens) => tokens.push(token),
            Self::Hashed { blocks, len, seed } => {
                *len += 1;
                if *len % size == 0 {
                    blocks.push(BlockHash(xxh3_64_with_seed(&len.to_le_bytes(), *seed)));
                }
            }
        }
    }

    /// What the `at`-th block holds; none where it is not full.
    fn block(&self, size: usize, at: usize) -> Option<Block<'_>> {
        match self {
            Self::Tokens(tokens) => Some(Block::Tokens(tokens.get(at * size..(at + 1) * size)?)),
            Self::Hashed { blocks, .. } => Some(Block::Hash(*blocks.get(at)?)),
        }
    }
}

/// One request's tokens, prompt and output, with the names of its full blocks and its block table.
///
/// Only a [`Cache`](super::cache::Cache) makes one and changes what it holds. Dropping it does not give its blocks back.
#[derive(Debug)]
pub struct Sequence {
    text: PromptText,
    /// One for each full block; always empty where prefix caching is off.
    hashes: Vec<EngineHash>,
    naming: Option<Naming>,
    /// Tokens in a block.
    size: usize,
    /// Blocks that may have a name.
    nameable: usize,
    /// Of the last block that has a name, or what the first one follows.
    digest: Option<Digest>,
    /// Isolates its prefix from all others.
    pub(super) salt: Option<Arc<str>>,
    /// The LoRA adapter that computes it.
    pub(super) adapter: Option<Arc<str>>,
    /// The physical blocks, in order of the tokens.
    pub(super) table: Vec<BlockId>,
    /// How many leading blocks are in the cache under their names.
    pub(super) registered: usize,
    /// In a tree: the node in which the registered blocks end, which it keeps from being evicted.
    pub(super) node: Option<NodeId>,
    /// In a tree: blocks that it holds beside it.
    pub(super) private: usize,
}

impl Sequence {
    /// Of its blocks, the first `nameable` have a name once they are full.
    pub(super) fn new(
        text: PromptText,
        (naming, size, nameable): (Option<Naming>, BlockSize, usize),
        salt: Option<Arc<str>>,
        adapter: Option<Arc<str>>,
    ) -> Self {
        let extras = Extras { salt: salt.as_deref(), adapter: adapter.as_deref() };
        let digest = naming.map(|naming| naming.root(extras));
        let (hashes, table, size) = (Vec::new(), Vec::new(), size.len());
        let (registered, node, private) = (0, None, 0);
        let mut sequence =
            Self { text, hashes, naming, size, nameable, digest, salt, adapter, table, registered, node, private };
        sequence.name_full_blocks();
        sequence
    }

    /// Adds a token. It needs a place in a block once it is computed, not before.
    pub fn push(&mut self, token: TokenId) {
        self.text.push(token, self.size);
        self.name_full_blocks();
    }

    /// How many tokens are known, computed or not.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The known tokens; none where only hashes of blocks are told.
    pub fn tokens(&self) -> &[TokenId] {
        match &self.text {
            PromptText::Tokens(tokens) => tokens,
            PromptText::Hashed { .. } => &[],
        }
    }

    /// What these full blocks hold.
    pub(super) fn content(&self, blocks: Range<usize>) -> Content {
        match &self.text {
            PromptText::Tokens(tokens) => {
                Content::Tokens(tokens[blocks.start * self.size..blocks.end * self.size].to_vec())
            }
            PromptText::Hashed { blocks: hashes, .. } => Content::Hashes(hashes[blocks].to_vec()),
        }
    }

    /// What others would take the names of its full blocks from, made as they are asked for.
    pub(super) fn digests(&self, naming: Naming) -> impl Iterator<Item = Digest> + '_ {
        let mut digest = naming.root(self.extras());
        (0..).map_while(move |at| {
            digest = naming.next(digest, self.extras(), self.text.block(self.size, at)?);
            Some(digest)
        })
    }

    fn extras(&self) -> Extras<'_> {
        Extras { salt: self.salt.as_deref(), adapter: self.adapter.as_deref() }
    }

    /// The names of its full blocks; none where prefix caching is off.
    pub fn hashes(&self) -> &[EngineHash] {
        &self.hashes
    }

    /// Its physical blocks, in order of the tokens.
    pub fn table(&self) -> &[BlockId] {
        &self.table
    }

    fn name_full_blocks(&mut self) {
        let (Some(naming), Some(mut digest)) = (self.naming, self.digest) else { return };
        while self.hashes.len() < self.nameable
            && let Some(block) = self.text.block(self.size, self.hashes.len())
        {
            digest = naming.next(digest, self.extras(), block);
            self.hashes.push(naming.name(digest));
        }
        self.digest = Some(digest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naming::Scheme;

    fn naming(seed: u64) -> Naming {
        Naming { scheme: Scheme::Seeded(seed), block_size: BlockSize::new(4).unwrap() }
    }

    fn hashes(seed: u64, tokens: std::ops::Range<u32>, salt: Option<&str>, adapter: Option<&str>) -> Vec<EngineHash> {
        let text = PromptText::Tokens(tokens.collect());
        Sequence::new(text, named(seed), salt.map(Arc::from), adapter.map(Arc::from)).hashes().to_vec()
    }

    fn named(seed: u64) -> (Option<Naming>, BlockSize, usize) {
        (Some(naming(seed)), naming(seed).block_size, usize::MAX)
    }

    #[test]
    fn only_full_blocks_have_a_name() {
        assert_eq!(hashes(0, 0..3, None, None).len(), 0);
        assert_eq!(hashes(0, 0..7, None, None).len(), 1);
        assert_eq!(hashes(0, 0..8, None, None).len(), 2);
    }

    #[test]
    fn a_sequence_that_grew_has_the_names_of_one_given_whole() {
        let mut grown = Sequence::new(vec![0].into(), named(5), None, None);
        (1..12).for_each(|token| grown.push(token));
        assert_eq!(grown.hashes(), hashes(5, 0..12, None, None));
    }

    #[test]
    fn engine_salt_and_adapter_each_change_every_name() {
        let plain = hashes(0, 0..8, None, None);
        for other in [
            hashes(1, 0..8, None, None),
            hashes(0, 0..8, Some("a"), None),
            hashes(0, 0..8, None, Some("a")),
            hashes(0, 0..8, Some(""), None),
        ] {
            assert!(plain.iter().all(|hash| !other.contains(hash)));
        }
    }

    #[test]
    fn a_name_covers_all_that_stands_before_the_block() {
        let (first, second) = (hashes(0, 0..8, None, None), hashes(0, 4..8, None, None));
        assert_ne!(first[1], second[0], "the same tokens 4..8 behind another prefix");
    }

    #[test]
    fn hashes_of_blocks_stand_for_their_tokens() {
        let grown = |blocks: [u64; 2], seed, tokens: usize| {
            let text = PromptText::Hashed { blocks: blocks.map(BlockHash).to_vec(), len: 9, seed };
            let mut sequence = Sequence::new(text, named(0), None, None);
            (0..tokens).for_each(|_| sequence.push(0));
            (sequence.len(), sequence.hashes().to_vec(), sequence.content(1..sequence.hashes().len()))
        };
        let (len, names, content) = grown([7, 8], 1, 2);
        assert_eq!((len, names.len(), content), (11, 2, Content::Hashes(vec![BlockHash(8)])));
        let (other, filled) = (grown([7, 9], 1, 3).1, grown([7, 8], 1, 3).1);
        assert_eq!((names[0], filled.len()), (other[0], 3));
        assert!(names[1] != other[1] && filled[2] != other[2] && filled[..2] == names);
        assert_eq!(grown([7, 8], 1, 3), grown([7, 8], 1, 3));
        assert_ne!(grown([7, 8], 2, 3).1[2], filled[2], "what another request generates is something else");
    }
}
