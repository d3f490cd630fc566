//! The block manager of nano-vllm: another hash, no duplicates, and its own rule for appending.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warmpath_core::count::real_len;
use warmpath_core::ids::{EngineHash, TokenId};
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::Content;
use xxhash_rust::xxh64::xxh64;

use super::blocks::{BlockEvent, CacheInUse};
use super::free_queue::{BlockId, FreeQueue};
use super::sequence::{PromptText, Sequence};

/// The name of the block with these tokens after `parent`: xxh64 over the parent's name as 8 little-endian bytes, if
/// there is one, then each token as an 8-byte little-endian integer.
pub fn nano_hash(parent: Option<u64>, tokens: &[TokenId]) -> u64 {
    let mut bytes = Vec::with_capacity((tokens.len() + 1) * size_of::<u64>());
    bytes.extend(parent.into_iter().flat_map(u64::to_le_bytes));
    bytes.extend(tokens.iter().flat_map(|token| u64::from(*token).to_le_bytes()));
    xxh64(&bytes, 0)
}

/// Why a call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NanoError {
    /// The sequence has blocks already.
    #[error("the sequence has blocks already")]
    AlreadyAllocated,
    /// The sequence has no blocks yet.
    #[error("the sequence has no blocks yet")]
    NotAllocated,
    /// Too few blocks are free; the caller preempts someone.
    #[error("{needed} blocks are needed and {free} are free")]
    OutOfBlocks {
        /// Blocks that would be taken.
        needed: usize,
        /// Blocks that are free.
        free: usize,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Block {
    refs: u32,
    hash: Option<u64>,
    tokens: Vec<TokenId>,
}

/// nano-vllm's `BlockManager`, in its newer form: a block that is taken anew loses its old name, and the last block of a
/// prompt is never looked up, so that something is left to compute. It knows neither salts nor adapters.
///
/// nano-vllm itself announces nothing; here events tell which names can be found, so that a router can follow it.
#[derive(Clone, Debug, PartialEq)]
pub struct NanoPool {
    block_size: BlockSize,
    prefix_caching: bool,
    blocks: Vec<Block>,
    by_hash: HashMap<u64, BlockId, FixedState>,
    free: FreeQueue,
    events: Vec<BlockEvent>,
}

impl NanoPool {
    /// A pool of empty blocks, free in order of their ids. O(blocks).
    pub fn new(blocks: u32, block_size: BlockSize, prefix_caching: bool) -> Self {
        let mut free = FreeQueue::new(blocks);
        (0..blocks).for_each(|id| {
            free.push_back(BlockId(id));
        });
        let blocks = vec![Block::default(); BlockId(blocks).index()];
        Self { block_size, prefix_caching, blocks, by_hash: HashMap::default(), free, events: Vec::new() }
    }

    /// A request's tokens, without blocks yet.
    pub fn sequence(&self, prompt: impl Into<PromptText>) -> Sequence {
        Sequence::new(prompt.into(), (None, self.block_size, 0), None, None)
    }

    /// Gives a sequence all its blocks, cached ones first, and caches the others that are full.
    ///
    /// # Errors
    /// [`NanoError::AlreadyAllocated`] or [`NanoError::OutOfBlocks`]; nothing is changed.
    pub fn allocate(&mut self, sequence: &mut Sequence) -> Result<(), NanoError> {
        if !sequence.table.is_empty() {
            return Err(NanoError::AlreadyAllocated);
        }
        let hits = self.lookup(sequence);
        let in_use = hits.iter().filter(|id| !self.free.contains(**id)).count();
        let needed = sequence.len().div_ceil(self.block_size.len()) - in_use;
        if needed > self.free.len() {
            return Err(NanoError::OutOfBlocks { needed, free: self.free.len() });
        }
        for id in &hits {
            self.free.remove(*id);
            self.blocks[id.index()].refs += 1;
        }
        sequence.registered = hits.len();
        let mut parent = hits.last().copied();
        sequence.table = hits;
        let mut fresh = Vec::new();
        for tokens in sequence.tokens()[sequence.registered * self.block_size.len()..].chunks(self.block_size.len()) {
            let id = self.take().expect("counted above");
            fresh.push(id);
            if tokens.len() == self.block_size.len() {
                self.register(id, parent, tokens);
            }
            parent = Some(id);
        }
        sequence.table.append(&mut fresh);
        Ok(())
    }

    /// What it would call a sequence's full blocks.
    pub(super) fn names(&self, sequence: &Sequence) -> Vec<EngineHash> {
        let mut parent = None;
        let mut name = |tokens: &[TokenId]| {
            let hash = nano_hash(parent, tokens);
            parent = Some(hash);
            EngineHash(hash)
        };
        sequence.tokens().chunks_exact(self.block_size.len()).map(&mut name).collect()
    }

    /// How many leading tokens of a sequence would be found.
    pub fn cached_tokens(&self, sequence: &Sequence) -> usize {
        self.lookup(sequence).len() * self.block_size.len()
    }

    /// Makes room for the newest token of a sequence: takes a block if the token begins one, caches the block if it fills
    /// one. To be called once for each generated token, before it is computed.
    ///
    /// # Errors
    /// [`NanoError::NotAllocated`] or [`NanoError::OutOfBlocks`]; nothing is changed.
    pub fn may_append(&mut self, sequence: &mut Sequence) -> Result<(), NanoError> {
        let Some(mut last) = sequence.table.last().copied() else { return Err(NanoError::NotAllocated) };
        if self.begins_block(sequence) {
            last = self.take().ok_or(NanoError::OutOfBlocks { needed: 1, free: 0 })?;
            sequence.table.push(last);
        }
        if sequence.len().is_multiple_of(self.block_size.len()) {
            let parent = sequence.table.iter().rev().nth(1).copied();
            self.register(last, parent, &sequence.tokens()[sequence.len() - self.block_size.len()..]);
        }
        Ok(())
    }

    /// Takes all blocks from a sequence, the last one first. Those that no one else holds become free, and stay cached.
    pub fn deallocate(&mut self, sequence: &mut Sequence) {
        for id in std::mem::take(&mut sequence.table).into_iter().rev() {
            let block = &mut self.blocks[id.index()];
            block.refs -= 1;
            if block.refs == 0 {
                self.free.push_back(id);
            }
        }
        sequence.registered = 0;
    }

    /// The free blocks in the order in which they will be taken.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter()
    }

    /// In how many tables a block stands; 0 for an unknown one.
    pub fn refs(&self, id: BlockId) -> u32 {
        self.blocks.get(id.index()).map_or(0, |block| block.refs)
    }

    /// A block's name, if it is cached.
    pub fn hash(&self, id: BlockId) -> Option<u64> {
        self.blocks.get(id.index())?.hash
    }

    /// All names that can be found, in no particular order.
    pub fn cached(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.by_hash.keys().map(|hash| EngineHash(*hash))
    }

    /// Forgets all that is cached.
    ///
    /// # Errors
    /// [`CacheInUse`] while any block is in use.
    pub fn clear(&mut self) -> Result<(), CacheInUse> {
        let used = self.used();
        if used > 0 {
            return Err(CacheInUse { used });
        }
        self.by_hash.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        if self.prefix_caching {
            self.events.push(BlockEvent::Cleared);
        }
        Ok(())
    }

    /// The events since the last call, in the order in which they happened.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks in use.
    pub fn used(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Share of the blocks that is in use, 0 to 1; cached but idle blocks are free.
    pub fn usage(&self) -> f64 {
        if self.blocks.is_empty() { 0.0 } else { 1.0 - real_len(self.free.len()) / real_len(self.blocks.len()) }
    }

    /// The cached run from the start of the sequence, its last block left out. A hit needs equal tokens, not only an
    /// equal name.
    fn lookup(&self, sequence: &Sequence) -> Vec<BlockId> {
        let reusable = sequence.len().saturating_sub(1) / self.block_size.len();
        let mut hits = Vec::new();
        let mut parent = None;
        for tokens in sequence.tokens().chunks(self.block_size.len()).take(reusable) {
            let hash = nano_hash(parent, tokens);
            let hit = self.by_hash.get(&hash).filter(|id| self.blocks[id.index()].tokens == tokens);
            let Some(id) = hit else { break };
            hits.push(*id);
            parent = Some(hash);
        }
        hits
    }

    /// Takes the head of the free queue. What it held is forgotten.
    fn take(&mut self) -> Option<BlockId> {
        let id = self.free.pop_front()?;
        let block = &mut self.blocks[id.index()];
        block.refs = 1;
        block.tokens.clear();
        if let Some(hash) = block.hash.take()
            && self.by_hash.get(&hash) == Some(&id)
        {
            self.by_hash.remove(&hash);
            self.events.push(BlockEvent::Removed { hash: EngineHash(hash), tier: Tier::Device });
        }
        Some(id)
    }

    /// Caches a full block.
    fn register(&mut self, id: BlockId, parent: Option<BlockId>, tokens: &[TokenId]) {
        if !self.prefix_caching {
            return;
        }
        let parent = parent.and_then(|parent| self.hash(parent));
        let hash = nano_hash(parent, tokens);
        let block = &mut self.blocks[id.index()];
        block.hash = Some(hash);
        block.tokens.clear();
        block.tokens.extend_from_slice(tokens);
        if self.by_hash.insert(hash, id).is_none() {
            self.events.push(BlockEvent::Stored {
                hashes: vec![EngineHash(hash)],
                parent: parent.map(EngineHash),
                content: Content::Tokens(tokens.to_vec()),
                salt: None,
                adapter: None,
                tier: Tier::Device,
            });
        }
    }

    /// Whether the newest token of a sequence is the first of a block.
    fn begins_block(&self, sequence: &Sequence) -> bool {
        sequence.len() > sequence.table.len() * self.block_size.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl NanoPool {
        /// Whether there is room for the newest token of a sequence.
        fn can_append(&self, sequence: &Sequence) -> bool {
            !self.begins_block(sequence) || !self.free.is_empty()
        }
    }

    fn pool(blocks: u32, block_size: u32) -> NanoPool {
        NanoPool::new(blocks, BlockSize::new(block_size).unwrap(), true)
    }

    fn allocated(pool: &mut NanoPool, prompt: impl IntoIterator<Item = u32>) -> Sequence {
        let mut sequence = pool.sequence(prompt.into_iter().collect::<Vec<_>>());
        pool.allocate(&mut sequence).unwrap();
        sequence
    }

    fn ids<'a>(ids: impl IntoIterator<Item = &'a BlockId>) -> Vec<u32> {
        ids.into_iter().map(|id| id.0).collect()
    }

    fn table(sequence: &Sequence) -> Vec<u32> {
        ids(sequence.table())
    }

    fn free(pool: &NanoPool) -> Vec<u32> {
        pool.free_blocks().map(|id| id.0).collect()
    }

    #[test]
    fn names_are_chained_xxh64_over_eight_byte_integers() {
        let first = nano_hash(None, &[1, 2, 3, 4]);
        assert_eq!(first, 8_356_527_653_647_720_045);
        assert_eq!(nano_hash(Some(first), &[5, 6, 7, 8]), 610_383_040_053_763_902);
    }

    #[test]
    fn a_new_pool_is_free_in_order_and_names_nothing() {
        let pool = pool(4, 4);
        assert_eq!(free(&pool), [0, 1, 2, 3]);
        assert!((0..4).all(|id| (pool.refs(BlockId(id)), pool.hash(BlockId(id))) == (0, None)));
    }

    #[test]
    fn two_prompts_share_their_common_block_and_free_from_the_end() {
        let mut pool = pool(4, 4);
        let mut a = allocated(&mut pool, [1, 2, 3, 4, 5, 6]);
        assert_eq!((ids(a.table()), a.registered * 4), (vec![0, 1], 0));
        let mut b = allocated(&mut pool, [1, 2, 3, 4, 7, 8]);
        assert_eq!((ids(b.table()), b.registered * 4), (vec![0, 2], 4));
        assert_eq!((pool.refs(BlockId(0)), free(&pool)), (2, vec![3]));
        pool.deallocate(&mut a);
        assert_eq!((free(&pool), a.table().len()), (vec![3, 1], 0));
        pool.deallocate(&mut b);
        assert_eq!((free(&pool), b.registered * 4), (vec![3, 1, 2, 0], 0));
    }

    #[test]
    fn an_idle_hit_leaves_the_middle_of_the_free_queue() {
        let mut pool = pool(4, 4);
        let mut a = allocated(&mut pool, [1, 2, 3, 4, 5, 6]);
        pool.deallocate(&mut a);
        assert_eq!(free(&pool), [2, 3, 1, 0]);
        let b = allocated(&mut pool, [1, 2, 3, 4, 9]);
        assert_eq!((ids(b.table()), free(&pool), pool.refs(BlockId(0))), (vec![0, 2], vec![3, 1], 1));
    }

    #[test]
    fn only_full_blocks_have_a_name() {
        let mut pool = pool(4, 4);
        allocated(&mut pool, [1, 2, 3, 4, 5, 6]);
        assert_eq!(pool.hash(BlockId(0)), Some(8_356_527_653_647_720_045));
        assert_eq!((pool.hash(BlockId(1)), pool.cached().count()), (None, 1));
    }

    #[test]
    fn a_sequence_is_allocated_once() {
        let mut pool = pool(4, 4);
        let mut sequence = allocated(&mut pool, 0..3);
        assert_eq!(pool.allocate(&mut sequence), Err(NanoError::AlreadyAllocated));
        assert_eq!(pool.may_append(&mut pool.sequence(vec![1])), Err(NanoError::NotAllocated));
    }

    #[test]
    fn an_equal_name_with_other_tokens_is_a_miss() {
        let mut pool = pool(4, 4);
        let mut sequence = allocated(&mut pool, 0..5);
        pool.deallocate(&mut sequence);
        pool.blocks[0].tokens = vec![9, 9, 9, 9];
        assert_eq!(allocated(&mut pool, 0..5).registered * 4, 0);
    }

    #[test]
    fn the_first_miss_makes_every_later_block_a_miss() {
        let mut pool = pool(8, 4);
        let mut sequence = allocated(&mut pool, 0..12);
        pool.deallocate(&mut sequence);
        let second = pool.hash(BlockId(1)).unwrap();
        pool.by_hash.remove(&second);
        assert_eq!(allocated(&mut pool, 0..13).registered * 4, 4, "blocks 0 and 2 are cached");
    }

    #[test]
    fn the_last_block_of_a_prompt_is_always_computed() {
        let mut pool = pool(8, 4);
        let mut sequence = allocated(&mut pool, 0..8);
        pool.deallocate(&mut sequence);
        assert_eq!(allocated(&mut pool, 0..8).registered * 4, 4);
    }

    #[test]
    fn a_block_taken_anew_loses_its_old_name() {
        let mut pool = pool(2, 4);
        let mut sequence = allocated(&mut pool, 0..5);
        pool.deallocate(&mut sequence);
        let mut other = allocated(&mut pool, 10..18);
        assert_eq!(pool.cached().count(), 2, "the two of the other one");
        pool.deallocate(&mut other);
        assert_eq!(allocated(&mut pool, 0..5).registered * 4, 0);
    }

    #[test]
    fn appending_takes_a_block_for_a_first_token_and_names_a_block_that_fills() {
        let mut pool = pool(4, 256);
        let mut sequence = allocated(&mut pool, 0..254);
        let mut seen = Vec::new();
        for token in 254..258 {
            sequence.push(token);
            assert!(pool.can_append(&sequence));
            pool.may_append(&mut sequence).unwrap();
            seen.push((sequence.len(), free(&pool).len(), pool.cached().count()));
        }
        assert_eq!(seen, [(255, 3, 0), (256, 3, 1), (257, 2, 1), (258, 2, 1)]);
    }

    #[test]
    fn appending_names_a_block_after_its_parent() {
        let (mut grown, mut whole) = (pool(4, 4), pool(4, 4));
        let mut sequence = allocated(&mut grown, 1..7);
        for token in [7, 8] {
            sequence.push(token);
            grown.may_append(&mut sequence).unwrap();
        }
        allocated(&mut whole, 1..9);
        assert_eq!(grown.hash(BlockId(1)), Some(610_383_040_053_763_902));
        assert_eq!(grown.hash(BlockId(1)), whole.hash(BlockId(1)));
    }

    #[test]
    fn without_a_free_block_appending_is_an_error_and_changes_nothing() {
        let mut pool = pool(1, 256);
        let mut sequence = allocated(&mut pool, 0..256);
        sequence.push(256);
        let before = (pool.clone(), table(&sequence));
        assert!(!pool.can_append(&sequence));
        assert_eq!(pool.may_append(&mut sequence), Err(NanoError::OutOfBlocks { needed: 1, free: 0 }));
        let mut other = pool.sequence(vec![1]);
        assert_eq!(pool.allocate(&mut other), Err(NanoError::OutOfBlocks { needed: 1, free: 0 }));
        assert_eq!((pool, table(&sequence)), before);
    }
}
