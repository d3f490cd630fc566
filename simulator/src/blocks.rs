//! vLLM's block manager: which physical block holds what, what is cached, what is evicted, and the events that tell.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use warmpath_core::count::real_len;
use warmpath_core::ids::EngineHash;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::Content;

use super::free_queue::{BlockId, FreeQueue};
use super::naming::{Naming, Scheme};
use super::sequence::{PromptText, Sequence};

/// How a pool is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Blocks in the pool, the null block included.
    pub blocks: u32,
    /// Whether block 0 is set aside at the start, as vLLM does.
    pub null_block: bool,
    /// Whether blocks are cached at all; if not, there are no hits and no events.
    pub prefix_caching: bool,
    /// Whose names blocks have.
    pub names: Scheme,
    /// Rules that decide what stays reusable.
    pub reuse: Reuse,
}

/// The rules that decide what is found again, each of which an ablation can switch off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reuse {
    /// A freed block stays cached until its place is needed; if not, it is evicted when it is freed.
    pub late_eviction: bool,
    /// A request's last blocks are queued before its first, so that they are evicted first.
    pub reverse_append: bool,
    /// A prompt's last token is always computed, and its block with it; if not, a wholly cached prompt uses all its blocks.
    pub last_token: bool,
    /// Blocks that end in generated tokens are cached too.
    pub output_blocks: bool,
    /// Equal content that is computed twice is cached twice; if not, the second copy has no name.
    pub duplicates: bool,
}

impl Default for Reuse {
    fn default() -> Self {
        Self { late_eviction: true, reverse_append: true, last_token: true, output_blocks: true, duplicates: true }
    }
}

/// A change of what is cached, as an engine announces it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockEvent {
    /// Blocks of one request became cached.
    Stored {
        /// Names of the blocks, in order.
        hashes: Vec<EngineHash>,
        /// Name of the block before the first, none if the first begins the prompt.
        parent: Option<EngineHash>,
        /// What these blocks hold.
        content: Content,
        /// The request's salt.
        salt: Option<Arc<str>>,
        /// The request's adapter.
        adapter: Option<Arc<str>>,
        /// Where they lie.
        tier: Tier,
    },
    /// One copy of a block was evicted. Other copies of it may remain.
    Removed {
        /// Name of the block.
        hash: EngineHash,
        /// Where the copy lay.
        tier: Tier,
    },
    /// The device's cache was reset.
    Cleared,
}

/// There are not enough free blocks. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} blocks are needed and {free} are free")]
pub struct OutOfBlocks {
    /// Blocks that would have left the free queue.
    pub needed: usize,
    /// Blocks in it.
    pub free: usize,
}

/// The cache cannot be reset while requests hold blocks. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache cannot be reset: {used} blocks are in use")]
pub struct CacheInUse {
    /// Blocks in use.
    pub used: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Block {
    /// How many tables it stands in.
    refs: u32,
    /// Its name while it is cached.
    hash: Option<EngineHash>,
}

/// The cached blocks of one name, first come first.
type Copies = SmallVec<[BlockId; 2]>;

/// vLLM's `BlockPool` and `KVCacheManager` for one group of full-attention layers.
///
/// - A block is free when no table holds it; a cached block that is free stays cached until it is taken.
/// - Equal content is not deduplicated: a name can have several copies, and a look-up takes the first.
/// - A prompt's last token is always computed, so at most ⌊(n−1)/block size⌋ blocks hit.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockPool {
    config: PoolConfig,
    blocks: Vec<Block>,
    free: FreeQueue,
    cached: HashMap<EngineHash, Copies, FixedState>,
    events: Vec<BlockEvent>,
}

impl BlockPool {
    /// A pool of empty blocks, all free, in order of their ids. O(blocks), and so is its memory: the caller bounds it.
    pub fn new(config: PoolConfig) -> Self {
        let mut free = FreeQueue::new(config.blocks);
        for id in u32::from(config.null_block)..config.blocks {
            free.push_back(BlockId(id));
        }
        let blocks = vec![Block::default(); BlockId(config.blocks).index()];
        Self { config, blocks, free, cached: HashMap::default(), events: Vec::new() }
    }

    /// A request's tokens, without blocks yet. O(prompt): names its full blocks.
    pub fn sequence(
        &self,
        prompt: impl Into<PromptText>,
        salt: Option<Arc<str>>,
        adapter: Option<Arc<str>>,
    ) -> Sequence {
        let (prompt, block_size) = (prompt.into(), self.config.block_size);
        let naming = Naming { scheme: self.config.names, block_size };
        let nameable = if self.config.reuse.output_blocks { usize::MAX } else { prompt.len() / block_size.len() };
        let naming = (self.config.prefix_caching.then_some(naming), block_size, nameable);
        Sequence::new(prompt, naming, salt, adapter)
    }

    /// Sets `hits` to the cached blocks that the sequence could reuse: a run from its start, never all of its tokens.
    pub fn lookup(&self, sequence: &Sequence, hits: &mut Vec<BlockId>) {
        let computed = usize::from(self.config.reuse.last_token);
        let reusable = sequence.len().saturating_sub(computed) / self.config.block_size.len();
        let run = sequence.hashes().iter().take(reusable).map_while(|hash| self.cached.get(hash)?.first());
        hits.clear();
        hits.extend(run.copied());
    }

    /// Gives `sequence` room for its first `tokens` tokens, `hits` (from [`lookup`](Self::lookup), for a sequence without
    /// blocks) at the front, and caches every block that these tokens fill. Hits are taken before others are evicted.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if the free queue holds too few, idle hits counted. Nothing is changed then.
    pub fn allocate(&mut self, sequence: &mut Sequence, hits: &[BlockId], tokens: usize) -> Result<(), OutOfBlocks> {
        let owned = sequence.table.len() + hits.len();
        let fresh = tokens.div_ceil(self.config.block_size.len()).saturating_sub(owned);
        let idle_hits = hits.iter().filter(|hit| self.free.contains(**hit)).count();
        if fresh + idle_hits > self.free.len() {
            return Err(OutOfBlocks { needed: fresh + idle_hits, free: self.free.len() });
        }
        for hit in hits {
            self.free.remove(*hit);
            self.blocks[hit.index()].refs += 1;
        }
        sequence.table.extend_from_slice(hits);
        sequence.registered += hits.len();
        for _ in 0..fresh {
            let id = self.free.pop_front().expect("counted above");
            self.evict(id);
            self.blocks[id.index()].refs = 1;
            sequence.table.push(id);
        }
        self.register(sequence, tokens);
        Ok(())
    }

    /// Takes all blocks from `sequence`. Those that no other table holds become free, and stay cached.
    pub fn free(&mut self, sequence: &mut Sequence) {
        sequence.registered = 0;
        let mut table = std::mem::take(&mut sequence.table);
        if self.config.reuse.reverse_append {
            table.reverse();
        }
        for id in table {
            let block = &mut self.blocks[id.index()];
            block.refs -= 1;
            if block.refs == 0 {
                self.free.push_back(id);
                if !self.config.reuse.late_eviction {
                    self.evict(id);
                }
            }
        }
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
        self.cached.clear();
        for block in &mut self.blocks {
            block.hash = None;
        }
        if self.config.prefix_caching {
            self.events.push(BlockEvent::Cleared);
        }
        Ok(())
    }

    /// The events since the last call, in the order in which they happened.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Blocks that requests can use: all but the null block.
    pub fn usable(&self) -> usize {
        self.blocks.len().saturating_sub(usize::from(self.config.null_block))
    }

    /// Blocks in use.
    pub fn used(&self) -> usize {
        self.usable() - self.free.len()
    }

    /// Share of the blocks that is in use, 0 to 1, as vLLM reports it: cached but idle blocks are free.
    pub fn usage(&self) -> f64 {
        if self.usable() == 0 { 0.0 } else { 1.0 - real_len(self.free.len()) / real_len(self.usable()) }
    }

    /// The free blocks in the order in which they will be taken.
    pub fn free_blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.free.iter()
    }

    /// How many tables hold a block; 0 for an unknown one.
    pub fn refs(&self, id: BlockId) -> u32 {
        self.blocks.get(id.index()).map_or(0, |block| block.refs)
    }

    /// The cached blocks of one name, first come first.
    pub fn copies(&self, hash: EngineHash) -> &[BlockId] {
        self.cached.get(&hash).map_or(&[], SmallVec::as_slice)
    }

    /// All names that are cached, each with its number of copies, in no particular order.
    pub fn cached(&self) -> impl Iterator<Item = (EngineHash, usize)> + '_ {
        self.cached.iter().map(|(hash, copies)| (*hash, copies.len()))
    }

    /// Caches the blocks that the first `tokens` tokens fill, as far as they are not yet: one event.
    fn register(&mut self, sequence: &mut Sequence, tokens: usize) {
        let size = self.config.block_size.len();
        let (from, to) = (sequence.registered, (tokens / size).min(sequence.hashes().len()));
        if from >= to {
            return;
        }
        let mut unsaid = from;
        for at in from..to {
            let (hash, id) = (sequence.hashes()[at], sequence.table[at]);
            if !self.config.reuse.duplicates && self.cached.contains_key(&hash) {
                self.announce(sequence, unsaid..at);
                unsaid = at + 1;
                continue;
            }
            self.blocks[id.index()].hash = Some(hash);
            self.cached.entry(hash).or_default().push(id);
        }
        self.announce(sequence, unsaid..to);
        sequence.registered = to;
    }

    /// Tells that these blocks of a sequence are cached now.
    fn announce(&mut self, sequence: &Sequence, blocks: Range<usize>) {
        if blocks.is_empty() {
            return;
        }
        self.events.push(BlockEvent::Stored {
            hashes: sequence.hashes()[blocks.clone()].to_vec(),
            parent: blocks.start.checked_sub(1).map(|last| sequence.hashes()[last]),
            content: sequence.content(blocks),
            salt: sequence.salt.clone(),
            adapter: sequence.adapter.clone(),
            tier: Tier::Device,
        });
    }

    /// Takes a block's name away, if it has one.
    fn evict(&mut self, id: BlockId) {
        let Some(hash) = self.blocks[id.index()].hash.take() else { return };
        if let Some(copies) = self.cached.get_mut(&hash) {
            copies.retain(|copy| *copy != id);
            if copies.is_empty() {
                self.cached.remove(&hash);
            }
        }
        self.events.push(BlockEvent::Removed { hash, tier: Tier::Device });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Replica, check_tables};

    fn pool_with(blocks: u32, change: impl FnOnce(&mut PoolConfig)) -> BlockPool {
        let mut config = PoolConfig {
            block_size: BlockSize::new(4).unwrap(),
            blocks,
            null_block: false,
            prefix_caching: true,
            names: Scheme::Seeded(7),
            reuse: Reuse::default(),
        };
        change(&mut config);
        BlockPool::new(config)
    }

    fn pool(blocks: u32) -> BlockPool {
        pool_with(blocks, |_| ())
    }

    /// A sequence of one token a character.
    fn text(pool: &BlockPool, text: &str) -> Sequence {
        pool.sequence(text.chars().map(u32::from).collect::<Vec<_>>(), None, None)
    }

    /// Admits a sequence as a scheduler does that has budget for all of it. Returns how many blocks hit.
    fn admit(pool: &mut BlockPool, sequence: &mut Sequence) -> Result<usize, OutOfBlocks> {
        let mut hits = Vec::new();
        pool.lookup(sequence, &mut hits);
        pool.allocate(sequence, &hits, sequence.len())?;
        Ok(hits.len())
    }

    /// One decode step: the token that the step before gave is computed.
    fn decode(pool: &mut BlockPool, sequence: &mut Sequence, token: char) {
        sequence.push(u32::from(token));
        pool.allocate(sequence, &[], sequence.len()).unwrap();
    }

    fn free(pool: &BlockPool) -> Vec<u32> {
        pool.free_blocks().map(|id| id.0).collect()
    }

    fn table(sequence: &Sequence) -> Vec<u32> {
        sequence.table().iter().map(|id| id.0).collect()
    }

    /// The stored event of `count` blocks of `sequence` from the `from`th on.
    fn stored(sequence: &Sequence, from: usize, count: usize) -> BlockEvent {
        BlockEvent::Stored {
            hashes: sequence.hashes()[from..from + count].to_vec(),
            parent: from.checked_sub(1).map(|last| sequence.hashes()[last]),
            content: Content::Tokens(sequence.tokens()[from * 4..(from + count) * 4].to_vec()),
            salt: None,
            adapter: None,
            tier: Tier::Device,
        }
    }

    /// The worked example of vLLM's design document on prefix caching, up to its sixth picture.
    fn worked_example(pool: &mut BlockPool) -> (Sequence, Sequence) {
        let mut first = text(pool, "ABCDEFGHIJKLMNO");
        assert_eq!(admit(pool, &mut first), Ok(0));
        decode(pool, &mut first, 'P');
        decode(pool, &mut first, 'Q');
        let mut second = text(pool, "ABCDEFGHIJklmn");
        assert_eq!(admit(pool, &mut second), Ok(2));
        (first, second)
    }

    #[test]
    fn the_worked_example_goes_queue_by_queue_as_vllm_documents_it() {
        let mut pool = pool(10);
        let mut first = text(&pool, "ABCDEFGHIJKLMNO");
        assert_eq!(admit(&mut pool, &mut first), Ok(0));
        assert_eq!((table(&first), free(&pool)), (vec![0, 1, 2, 3], vec![4, 5, 6, 7, 8, 9]));
        assert_eq!(pool.take_events(), [stored(&first, 0, 3)]);
        assert_eq!(pool.cached().count(), 3);

        decode(&mut pool, &mut first, 'P');
        assert_eq!(pool.take_events(), [stored(&first, 3, 1)], "T3: MNOP, parent IJKL");
        decode(&mut pool, &mut first, 'Q');
        assert_eq!((table(&first), free(&pool)), (vec![0, 1, 2, 3, 4], vec![5, 6, 7, 8, 9]));
        assert_eq!(pool.take_events(), []);

        let mut second = text(&pool, "ABCDEFGHIJklmn");
        assert_eq!(admit(&mut pool, &mut second), Ok(2));
        assert_eq!((table(&second), free(&pool)), (vec![0, 1, 5, 6], vec![7, 8, 9]));
        assert_eq!(pool.take_events(), [stored(&second, 2, 1)], "T4: IJkl, parent EFGH");
        assert_eq!((pool.refs(BlockId(0)), pool.refs(BlockId(2))), (2, 1));

        pool.free(&mut first);
        assert_eq!(free(&pool), [7, 8, 9, 4, 3, 2]);
        pool.free(&mut second);
        assert_eq!(free(&pool), [7, 8, 9, 4, 3, 2, 6, 5, 1, 0]);

        let mut third = text(&pool, "ABCDEFGHIJKLmnopqrstuvwxyz012");
        let mut hits = Vec::new();
        pool.lookup(&third, &mut hits);
        assert_eq!(hits, [BlockId(0), BlockId(1), BlockId(2)]);
        assert_eq!(admit(&mut pool, &mut third), Ok(3));
        assert_eq!((table(&third), free(&pool)), (vec![0, 1, 2, 7, 8, 9, 4, 3], vec![6, 5]));
        let removed = BlockEvent::Removed { hash: text(&pool, "ABCDEFGHIJKLMNOP").hashes()[3], tier: Tier::Device };
        assert_eq!(pool.take_events(), [removed, stored(&third, 3, 4)]);
    }

    #[test]
    fn hits_leave_the_free_queue_before_others_are_taken_from_it() {
        let mut pool = pool(3);
        let mut first = text(&pool, "ABCDEFGH");
        admit(&mut pool, &mut first).unwrap();
        pool.free(&mut first);
        assert_eq!(free(&pool), [2, 1, 0]);
        let mut second = text(&pool, "ABCDEFGHIJ");
        assert_eq!(
            admit(&mut pool, &mut second),
            Ok(2),
            "the hits stand in the way of the one new block, and are kept"
        );
        assert_eq!((table(&second), free(&pool)), (vec![0, 1, 2], vec![]));
    }

    #[test]
    fn freed_blocks_enter_the_tail_last_block_first() {
        let mut pool = pool(9);
        let mut held: Vec<Sequence> = ["0---", "1---"].into_iter().map(|prompt| text(&pool, prompt)).collect();
        for sequence in &mut held {
            admit(&mut pool, sequence).unwrap();
        }
        let mut request = text(&pool, "ABCDEFGHIJKL");
        admit(&mut pool, &mut request).unwrap();
        let mut others = text(&pool, "5---6---7---");
        admit(&mut pool, &mut others).unwrap();
        decode(&mut pool, &mut request, 'M');
        assert_eq!(table(&request), [2, 3, 4, 8]);
        pool.free(&mut request);
        assert_eq!(free(&pool), [8, 4, 3, 2]);
    }

    #[test]
    fn only_full_blocks_are_cached() {
        let mut pool = pool(10);
        let mut request = text(&pool, "ABCDEFG");
        admit(&mut pool, &mut request).unwrap();
        assert_eq!(pool.take_events(), [stored(&request, 0, 1)]);
        assert_eq!(request.hashes().len(), 1);
    }

    #[test]
    fn reuse_needs_an_identical_prefix() {
        let mut pool = pool(10);
        let mut first = text(&pool, "ABCDEFGHI");
        admit(&mut pool, &mut first).unwrap();
        let mut second = text(&pool, "DCABEFGHI");
        assert_eq!(admit(&mut pool, &mut second), Ok(0));
    }

    #[test]
    fn salt_and_adapter_keep_equal_prompts_apart() {
        let mut pool = pool(10);
        let prompt: Vec<u32> = (0..9).collect();
        let mut plain = pool.sequence(prompt.clone(), None, None);
        admit(&mut pool, &mut plain).unwrap();
        let mut salted = pool.sequence(prompt.clone(), Some("s".into()), None);
        assert_eq!(admit(&mut pool, &mut salted), Ok(0));
        let mut adapted = pool.sequence(prompt, None, Some("s".into()));
        assert_eq!(admit(&mut pool, &mut adapted), Ok(0));
        let mut adapters = Vec::new();
        for event in pool.take_events() {
            let BlockEvent::Stored { salt, adapter, .. } = event else { panic!("only stores") };
            adapters.push((salt.is_some(), adapter.is_some()));
        }
        assert_eq!(adapters, [(false, false), (true, false), (false, true)]);
    }

    #[test]
    fn a_fully_cached_prompt_hits_all_but_its_last_block_and_makes_a_copy() {
        let mut pool = pool(10);
        let mut first = text(&pool, "ABCDEFGH");
        admit(&mut pool, &mut first).unwrap();
        pool.free(&mut first);
        pool.take_events();
        let mut second = text(&pool, "ABCDEFGH");
        assert_eq!(admit(&mut pool, &mut second), Ok(1));
        assert_eq!((table(&second), free(&pool)), (vec![0, 2], vec![3, 4, 5, 6, 7, 8, 9, 1]));
        assert_eq!(pool.take_events(), [stored(&second, 1, 1)], "EFGH again, parent ABCD");
        assert_eq!(pool.copies(second.hashes()[1]), [BlockId(1), BlockId(2)]);

        let mut long = text(&pool, "abcdefghijklmnopqrstuvwxyz012345");
        admit(&mut pool, &mut long).unwrap();
        let events = pool.take_events();
        let removed = BlockEvent::Removed { hash: second.hashes()[1], tier: Tier::Device };
        assert_eq!(events[0], removed, "one copy went");
        assert_eq!(pool.copies(second.hashes()[1]), [BlockId(2)], "the other stayed");
    }

    #[test]
    fn without_room_nothing_changes() {
        let mut pool = pool(4);
        let mut first = text(&pool, "ABCDEFGHIJ");
        admit(&mut pool, &mut first).unwrap();
        let before = pool.clone();
        let mut second = text(&pool, "ABCDEFGHKLMNO");
        assert_eq!(admit(&mut pool, &mut second), Err(OutOfBlocks { needed: 2, free: 1 }));
        assert_eq!(pool, before);
        assert!(table(&second).is_empty());
    }

    #[test]
    fn an_idle_hit_takes_room_like_a_new_block() {
        let mut pool = pool(3);
        let mut idle = text(&pool, "ABCDE");
        admit(&mut pool, &mut idle).unwrap();
        let mut busy = text(&pool, "abcd");
        admit(&mut pool, &mut busy).unwrap();
        pool.free(&mut idle);
        let mut request = text(&pool, "ABCDEFGHI");
        assert_eq!(admit(&mut pool, &mut request), Err(OutOfBlocks { needed: 3, free: 2 }));
    }

    #[test]
    fn without_prefix_caching_there_are_no_hits_and_no_events() {
        let mut pool = pool_with(10, |config| config.prefix_caching = false);
        for _ in 0..2 {
            let mut request = text(&pool, "ABCDEFGHIJ");
            assert_eq!(admit(&mut pool, &mut request), Ok(0));
            pool.free(&mut request);
        }
        pool.clear().unwrap();
        assert_eq!((pool.cached().count(), pool.take_events()), (0, vec![]));
    }

    #[test]
    fn the_null_block_is_never_used() {
        let mut pool = pool_with(3, |config| config.null_block = true);
        assert_eq!((pool.usable(), pool.usage()), (2, 0.0));
        let mut request = text(&pool, "ABCDE");
        admit(&mut pool, &mut request).unwrap();
        assert_eq!((table(&request), pool.usage()), (vec![1, 2], 1.0));
    }

    #[test]
    fn cached_blocks_that_idle_count_as_free() {
        let mut pool = pool(4);
        let mut request = text(&pool, "ABCDEFGH");
        admit(&mut pool, &mut request).unwrap();
        assert_eq!(pool.usage(), 0.5);
        pool.free(&mut request);
        assert_eq!((pool.usage(), pool.cached().count()), (0.0, 2));
    }

    #[test]
    fn the_cache_is_reset_only_while_nothing_runs() {
        let mut pool = pool(4);
        let mut request = text(&pool, "ABCDEFGH");
        admit(&mut pool, &mut request).unwrap();
        assert_eq!(pool.clear(), Err(CacheInUse { used: 2 }));
        pool.free(&mut request);
        pool.take_events();
        assert_eq!(pool.clear(), Ok(()));
        assert_eq!(pool.take_events(), [BlockEvent::Cleared]);
        assert_eq!(admit(&mut pool, &mut request), Ok(0));
        assert_eq!(
            pool.take_events(),
            [stored(&request, 0, 2)],
            "a name that went with the reset is not removed later"
        );
    }

    #[test]
    fn evicting_when_freed_instead_of_late_loses_every_hit() {
        for (late_eviction, hits) in [(true, 3), (false, 0)] {
            let mut pool = pool_with(10, |config| config.reuse.late_eviction = late_eviction);
            let (mut first, mut second) = worked_example(&mut pool);
            pool.free(&mut first);
            pool.free(&mut second);
            let mut third = text(&pool, "ABCDEFGHIJKLmnopqrstuvwxyz012");
            assert_eq!(admit(&mut pool, &mut third), Ok(hits));
        }
    }

    #[test]
    fn appending_first_block_first_loses_the_prefix_to_the_next_eviction() {
        for (reverse_append, hits) in [(true, 1), (false, 0)] {
            let mut pool = pool_with(2, |config| config.reuse.reverse_append = reverse_append);
            let mut first = text(&pool, "ABCDEFGH");
            admit(&mut pool, &mut first).unwrap();
            pool.free(&mut first);
            let mut other = text(&pool, "abcd");
            admit(&mut pool, &mut other).unwrap();
            pool.free(&mut other);
            let mut found = Vec::new();
            pool.lookup(&text(&pool, "ABCDEFGHI"), &mut found);
            assert_eq!(found.len(), hits);
        }
    }

    #[test]
    fn what_is_left_out_of_reuse_leaves_no_trace_in_the_cache() {
        let reuse = |change: fn(&mut Reuse)| pool_with(10, |config| change(&mut config.reuse));
        let mut pool = reuse(|reuse| reuse.duplicates = false);
        let held: Vec<Sequence> = (0..2)
            .map(|_| {
                let mut request = text(&pool, "ABCDEFGH");
                admit(&mut pool, &mut request).unwrap();
                request
            })
            .collect();
        assert_eq!(pool.take_events(), [stored(&held[0], 0, 2)], "the copy of EFGH has no name");
        assert_eq!((pool.copies(held[0].hashes()[1]).len(), table(&held[1])), (1, vec![0, 2]));

        let mut pool = reuse(|reuse| reuse.last_token = false);
        let mut first = text(&pool, "ABCDEFGH");
        admit(&mut pool, &mut first).unwrap();
        let mut second = text(&pool, "ABCDEFGH");
        assert_eq!(admit(&mut pool, &mut second), Ok(2));

        let mut pool = reuse(|reuse| reuse.output_blocks = false);
        let mut request = text(&pool, "ABCDEFG");
        admit(&mut pool, &mut request).unwrap();
        ('H'..='M').for_each(|token| decode(&mut pool, &mut request, token));
        assert_eq!((pool.cached().count(), table(&request)), (1, vec![0, 1, 2, 3]));
    }

    #[test]
    fn the_worked_example_keeps_every_invariant() {
        let mut pool = pool(10);
        let mut replica = Replica::default();
        let (mut first, mut second) = worked_example(&mut pool);
        let events = pool.take_events();
        replica.follow(&events, pool.cached().collect());
        check_tables(&pool, &[&first, &second]);
        pool.free(&mut first);
        pool.free(&mut second);
        let mut third = text(&pool, "ABCDEFGHIJKLmnopqrstuvwxyz012");
        admit(&mut pool, &mut third).unwrap();
        let events = pool.take_events();
        replica.follow(&events, pool.cached().collect());
        check_tables(&pool, &[&third]);
    }
}
