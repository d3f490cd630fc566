//! A request's tokens as the block manager sees them: how the engine names their blocks, and where they lie.

use std::sync::Arc;

use warmpath_core::ids::{EngineHash, TokenId};
use warmpath_core::units::BlockSize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::free_queue::BlockId;
use super::radix::NodeId;

/// How one engine names blocks: a chained hash over (parent, tokens), rooted in adapter and salt.
///
/// Two engines with different seeds name equal content differently, as real engines do, whose start value is random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// The engine's own seed.
    pub seed: u64,
    /// Tokens in a block.
    pub block_size: BlockSize,
}

impl Naming {
    /// What the first block of a prompt with this adapter and salt follows.
    pub fn root(self, salt: Option<&str>, adapter: Option<&str>) -> u64 {
        let mut bytes = Vec::new();
        for part in [adapter, salt] {
            let text = part.unwrap_or("");
            bytes.push(u8::from(part.is_some()));
            bytes.extend_from_slice(&text.len().to_le_bytes());
            bytes.extend_from_slice(text.as_bytes());
        }
        xxh3_64_with_seed(&bytes, self.seed)
    }

    /// The name of the block with these tokens after `parent`, which is the name of the block before it or a root.
    pub fn block(self, parent: u64, tokens: &[TokenId]) -> EngineHash {
        let mut bytes = Vec::with_capacity(size_of::<u64>() + size_of_val(tokens));
        bytes.extend_from_slice(&parent.to_le_bytes());
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        EngineHash(xxh3_64_with_seed(&bytes, self.seed))
    }
}

/// One request's tokens, prompt and output, with the names of its full blocks and its block table.
///
/// Only a [`Cache`](super::cache::Cache) makes one and changes what it holds. Dropping it does not give its blocks back.
#[derive(Debug)]
pub struct Sequence {
    tokens: Vec<TokenId>,
    /// One for each full block; always empty where prefix caching is off.
    hashes: Vec<EngineHash>,
    naming: Option<Naming>,
    root: u64,
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
    pub(super) fn new(
        tokens: Vec<TokenId>,
        naming: Option<Naming>,
        salt: Option<Arc<str>>,
        adapter: Option<Arc<str>>,
    ) -> Self {
        let root = naming.map_or(0, |naming| naming.root(salt.as_deref(), adapter.as_deref()));
        let (hashes, table) = (Vec::new(), Vec::new());
        let mut sequence =
            Self { tokens, hashes, naming, root, salt, adapter, table, registered: 0, node: None, private: 0 };
        sequence.name_full_blocks();
        sequence
    }

    /// Adds a token. It needs a place in a block once it is computed, not before.
    pub fn push(&mut self, token: TokenId) {
        self.tokens.push(token);
        self.name_full_blocks();
    }

    /// How many tokens are known, computed or not.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The known tokens.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
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
        let Some(naming) = self.naming else { return };
        let size = naming.block_size.len();
        while let Some(block) = self.tokens.get(self.hashes.len() * size..(self.hashes.len() + 1) * size) {
            let parent = self.hashes.last().map_or(self.root, |hash| hash.0);
            self.hashes.push(naming.block(parent, block));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naming(seed: u64) -> Naming {
        Naming { seed, block_size: BlockSize::new(4).unwrap() }
    }

    fn hashes(seed: u64, tokens: std::ops::Range<u32>, salt: Option<&str>, adapter: Option<&str>) -> Vec<EngineHash> {
        let sequence = Sequence::new(tokens.collect(), Some(naming(seed)), salt.map(Arc::from), adapter.map(Arc::from));
        sequence.hashes().to_vec()
    }

    #[test]
    fn only_full_blocks_have_a_name() {
        assert_eq!(hashes(0, 0..3, None, None).len(), 0);
        assert_eq!(hashes(0, 0..7, None, None).len(), 1);
        assert_eq!(hashes(0, 0..8, None, None).len(), 2);
    }

    #[test]
    fn a_sequence_that_grew_has_the_names_of_one_given_whole() {
        let mut grown = Sequence::new(vec![0], Some(naming(5)), None, None);
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
}
