//! What an engine has cached, whichever engine it is.

use std::sync::Arc;

use warmpath_core::ids::EngineHash;

use super::blocks::{BlockEvent, BlockPool, CacheInUse, OutOfBlocks};
use super::check::{Replica, check_tables};
use super::engine_config::EngineConfig;
use super::free_queue::BlockId;
use super::nano::{NanoError, NanoPool};
use super::radix::RadixCache;
use super::sequence::{PromptText, Sequence};

/// Whose cache an engine has. The scheduler is vLLM's in each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// vLLM's block pool; the default.
    #[default]
    Vllm,
    /// nano-vllm's block manager: a prompt gets all its blocks, and names them, when it is admitted.
    Nano,
    /// SGLang's radix cache.
    SglangRadix,
}

/// An engine's cache: what it holds for requests, and what it keeps for later ones. Counts are of tokens.
#[derive(Debug)]
pub enum Cache {
    /// vLLM's.
    Blocks {
        /// The pool.
        pool: BlockPool,
        /// What the last look-up found.
        hits: Vec<BlockId>,
    },
    /// nano-vllm's.
    Nano(NanoPool),
    /// SGLang's.
    Radix(RadixCache),
}

impl Cache {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let (size, usable, caching) = (config.block_size, config.usable_blocks(), config.prefix_caching);
        match config.profile {
            Profile::Vllm => Self::Blocks { pool: BlockPool::new(config.pool()), hits: Vec::new() },
            Profile::Nano => Self::Nano(NanoPool::new(usable, size, caching)),
            Profile::SglangRadix => {
                Self::Radix(RadixCache::new(size, BlockId(usable).index(), caching, config.scheme()))
            }
        }
    }

    /// A request's tokens, which hold nothing yet.
    pub(super) fn sequence(&self, prompt: PromptText, salt: Option<Arc<str>>, adapter: Option<Arc<str>>) -> Sequence {
        match self {
            Self::Blocks { pool, .. } => pool.sequence(prompt, salt, adapter),
            Self::Nano(pool) => pool.sequence(prompt),
            Self::Radix(tree) => tree.sequence(prompt, salt, adapter),
        }
    }

    /// What it would call the full blocks of a prompt. O(prompt).
    pub(super) fn names_of(&self, prompt: PromptText) -> Vec<EngineHash> {
        match self {
            Self::Nano(pool) => pool.names(&pool.sequence(prompt)),
            Self::Blocks { .. } | Self::Radix(_) => self.sequence(prompt, None, None).hashes().to_vec(),
        }
    }

    /// How many leading tokens of a sequence that holds nothing it could reuse.
    pub(super) fn lookup(&mut self, sequence: &Sequence, size: usize) -> usize {
        match self {
            Self::Blocks { pool, hits } => {
                pool.lookup(sequence, hits);
                hits.len() * size
            }
            Self::Nano(pool) => pool.cached_tokens(sequence),
            Self::Radix(tree) => tree.lookup(sequence) * size,
        }
    }

    /// Gives the sequence of the last look-up what was found, and room for its first `tokens` tokens.
    ///
    /// # Errors
    /// [`OutOfBlocks`] without room. Nothing is changed then.
    pub(super) fn admit(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), OutOfBlocks> {
        match self {
            Self::Blocks { pool, hits } => pool.allocate(sequence, hits, tokens),
            Self::Nano(pool) => pool.allocate(sequence).map_err(out_of_blocks),
            Self::Radix(tree) => tree.admit(sequence, tokens),
        }
    }

    /// Gives a sequence that was admitted room for its first `tokens` tokens.
    ///
    /// # Errors
    /// [`OutOfBlocks`] without room. Nothing is changed then.
    pub(super) fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), OutOfBlocks> {
        match self {
            Self::Blocks { pool, .. } => pool.allocate(sequence, &[], tokens),
            Self::Nano(_) if tokens < sequence.len() => Ok(()),
            Self::Nano(pool) => pool.may_append(sequence).map_err(out_of_blocks),
            Self::Radix(tree) => tree.grow(sequence, tokens),
        }
    }

    /// A step has computed a part of a prompt, up to its first `tokens` tokens.
    pub(super) fn computed(&mut self, sequence: &mut Sequence, tokens: usize) {
        if let Self::Radix(tree) = self {
            tree.insert(sequence, tokens);
        }
    }

    /// Takes back what a sequence holds, of which `tokens` tokens are computed: it has ended.
    pub(super) fn finish(&mut self, sequence: &mut Sequence, tokens: usize) {
        self.computed(sequence, tokens);
        self.release(sequence);
    }

    /// Takes back what a sequence holds: it makes way for others.
    pub(super) fn release(&mut self, sequence: &mut Sequence) {
        match self {
            Self::Blocks { pool, .. } => pool.free(sequence),
            Self::Nano(pool) => pool.deallocate(sequence),
            Self::Radix(tree) => tree.release(sequence),
        }
    }

    /// Forgets all that is cached.
    ///
    /// # Errors
    /// [`CacheInUse`] while a request holds anything.
    pub(super) fn clear(&mut self) -> Result<(), CacheInUse> {
        match self {
            Self::Blocks { pool, .. } => pool.clear(),
            Self::Nano(pool) => pool.clear(),
            Self::Radix(tree) => tree.clear(),
        }
    }

    /// The events since the last call, in the order in which they happened.
    pub(super) fn take_events(&mut self) -> Vec<BlockEvent> {
        match self {
            Self::Blocks { pool, .. } => pool.take_events(),
            Self::Nano(pool) => pool.take_events(),
            Self::Radix(tree) => tree.take_events(),
        }
    }

    /// Blocks that requests hold.
    pub(super) fn used(&self) -> usize {
        match self {
            Self::Blocks { pool, .. } => pool.used(),
            Self::Nano(pool) => pool.used(),
            Self::Radix(tree) => tree.used(),
        }
    }

    /// Checks that the events told of exactly what is cached, and what requests hold. O(blocks).
    pub(super) fn check(&self, replica: &mut Replica, events: &[BlockEvent], owners: &[&Sequence]) {
        replica.follow(events, self.cached().collect());
        if let Self::Blocks { pool, .. } = self {
            check_tables(pool, owners);
        }
    }

    /// Share that requests hold, 0 to 1; what is cached but idle is free.
    pub(super) fn usage(&self) -> f64 {
        match self {
            Self::Blocks { pool, .. } => pool.usage(),
            Self::Nano(pool) => pool.usage(),
            Self::Radix(tree) => tree.usage(),
        }
    }

    /// All names that are cached with their numbers of copies, in no particular order.
    pub(super) fn cached(&self) -> impl Iterator<Item = (EngineHash, usize)> + '_ {
        let (blocks, nano, radix) = match self {
            Self::Blocks { pool, .. } => (Some(pool.cached()), None, None),
            Self::Nano(pool) => (None, Some(pool.cached()), None),
            Self::Radix(tree) => (None, None, Some(tree.cached())),
        };
        let once = nano.into_iter().flatten().chain(radix.into_iter().flatten()).map(|hash| (hash, 1));
        blocks.into_iter().flatten().chain(once)
    }
}

fn out_of_blocks(error: NanoError) -> OutOfBlocks {
    match error {
        NanoError::OutOfBlocks { needed, free } => OutOfBlocks { needed, free },
        NanoError::AlreadyAllocated | NanoError::NotAllocated => OutOfBlocks { needed: 0, free: 0 },
    }
}
