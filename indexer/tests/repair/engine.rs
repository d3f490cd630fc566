//! A model engine: an LRU cache of blocks that says what it does, its publisher with a ring for replays, and lives.

use std::collections::VecDeque;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::{EngineHash, SequenceHash, TokenId};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::feed::{Position, Stamp};

/// Numbers that are the same everywhere (SplitMix64).
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x2545_f491_4f6c_dd1d))
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(crate) fn per_cent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

pub(crate) fn pool() -> Namespace {
    Namespace::plain("m", BlockSize::new(2).unwrap())
}

/// One block of the cache: its name, and the tokens of its whole prefix.
#[derive(Clone)]
struct Block {
    name: EngineHash,
    prefix: Vec<TokenId>,
}

/// A batch as it is published.
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) stamp: Stamp,
    pub(crate) events: Vec<CacheEvent>,
}

fn removed(name: EngineHash) -> CacheEvent {
    let hashes = std::iter::once(name).collect();
    CacheEvent::Removed(Removed { hashes, tier: Tier::Device, group: None, remaining_copy_counts: None })
}

pub(crate) struct Engine {
    /// Least recently used first.
    cache: VecDeque<Block>,
    capacity: usize,
    ring: VecDeque<Batch>,
    depth: usize,
    next: u64,
    life: u64,
    with_epoch: bool,
    /// The wall clock, in milliseconds; it never steps back here.
    clock: u64,
}

impl Engine {
    pub(crate) fn new(capacity: usize, depth: usize, with_epoch: bool) -> Self {
        let (cache, ring) = (VecDeque::new(), VecDeque::new());
        Self { cache, capacity, ring, depth, next: 0, life: 1, with_epoch, clock: 1 }
    }

    fn publish(&mut self, events: Vec<CacheEvent>) -> Batch {
        self.clock += 1;
        let ts = f64::from(u32::try_from(self.clock).unwrap()) / 1000.0;
        let stamp = Stamp { seq: self.next, epoch: self.with_epoch.then_some(self.life), ts: Some(ts) };
        let batch = Batch { stamp, events };
        self.next += 1;
        self.ring.push_back(batch.clone());
        if self.ring.len() > self.depth {
            self.ring.pop_front();
        }
        batch
    }

    /// Serves a prompt of `len` blocks of one of a few families, and says what that did.
    pub(crate) fn serve(&mut self, draw: &mut Draw) -> Batch {
        let family = u32::try_from(draw.below(5)).unwrap();
        let (fork, branch) = (1 + draw.below(5), u32::try_from(draw.below(3)).unwrap());
        let len = 1 + draw.below(8);
        let tokens: Vec<TokenId> =
            (0..len).flat_map(|place| [if place < fork { family } else { 100 + 10 * family + branch }; 2]).collect();
        let mut events = Vec::new();
        let mut parent = None;
        for end in 1..=usize::try_from(len).unwrap() {
            let prefix = &tokens[..end * 2];
            let place = self.cache.iter().position(|block| block.prefix == prefix);
            let block = match place.and_then(|place| self.cache.remove(place)) {
                Some(block) => block,
                None => {
                    self.make_room(&tokens, &mut events);
                    self.store(prefix, parent, &mut events)
                }
            };
            parent = Some(block.name);
            self.cache.push_back(block);
        }
        self.publish(events)
    }

    /// Evicts the least recently used block that is not of this prompt.
    fn make_room(&mut self, tokens: &[TokenId], events: &mut Vec<CacheEvent>) {
        while self.cache.len() >= self.capacity {
            let place = self.cache.iter().position(|block| !tokens.starts_with(&block.prefix)).unwrap();
            let gone = self.cache.remove(place).unwrap();
            events.push(removed(gone.name));
        }
    }

    /// Names are a process's own: a hash of the life and the prefix.
    fn store(&self, prefix: &[TokenId], parent: Option<EngineHash>, events: &mut Vec<CacheEvent>) -> Block {
        let name = prefix
            .iter()
            .fold(self.life, |name, token| Draw(name.wrapping_mul(31).wrapping_add(u64::from(*token))).below(u64::MAX));
        let block = Block { name: EngineHash(name), prefix: prefix.to_vec() };
        events.push(CacheEvent::from(Stored {
            hashes: vec![block.name],
            parent,
            content: Content::Tokens(prefix[prefix.len() - 2..].to_vec()),
            block_size: Some(2),
            tier: Tier::Device,
            group: None,
            attention: Attention::Unstated,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        }));
        block
    }

    pub(crate) fn clear(&mut self) -> Batch {
        self.cache.clear();
        self.publish(vec![CacheEvent::Cleared])
    }

    /// The process ends, and another one begins with nothing, under the same name.
    pub(crate) fn restart(&mut self) {
        self.cache.clear();
        self.ring.clear();
        self.next = 0;
        self.life += 1;
        self.clock += 1000;
    }

    /// What the publisher sends again.
    pub(crate) fn replay(&self, from: u64) -> Vec<Batch> {
        self.ring.iter().filter(|batch| batch.stamp.seq >= from).cloned().collect()
    }

    /// What somebody who keeps its blocks would say of them: stored events, parents first, and then the removal of those
    /// that only say where others belong.
    pub(crate) fn snapshot(&self) -> (Position, Vec<Vec<CacheEvent>>) {
        let mut prefixes: Vec<&[TokenId]> = Vec::new();
        for block in &self.cache {
            for end in (2..=block.prefix.len()).step_by(2) {
                if !prefixes.contains(&&block.prefix[..end]) {
                    prefixes.push(&block.prefix[..end]);
                }
            }
        }
        let (mut stores, mut removals) = (Vec::new(), Vec::new());
        let mut parent = None;
        prefixes.sort_by_key(|prefix| prefix.len());
        for prefix in prefixes {
            if prefix.len() > 2 {
                parent = Some(self.store(&prefix[..prefix.len() - 2], None, &mut Vec::new()).name);
            }
            let block = self.store(prefix, parent, &mut stores);
            if !self.cache.iter().any(|held| held.prefix == prefix) {
                removals.push(removed(block.name));
            }
        }
        let newest = self.ring.back().and_then(|batch| batch.stamp.ts);
        let position = Position { epoch: self.with_epoch.then_some(self.life), next: self.next, newest };
        let chunks = stores.chunks(4).map(<[CacheEvent]>::to_vec).chain([removals]);
        (position, chunks.collect())
    }

    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// How many leading blocks of a prompt it holds.
    pub(crate) fn truth(&self, tokens: &[TokenId]) -> u32 {
        let held = |end: &usize| self.cache.iter().any(|block| block.prefix == tokens[..end * 2]);
        u32::try_from((1..=tokens.len() / 2).take_while(held).count()).unwrap()
    }

    /// Every prompt that can be asked: family, fork, branch.
    pub(crate) fn prompts() -> Vec<(Vec<TokenId>, Vec<SequenceHash>)> {
        let mut prompts = Vec::new();
        for family in 0..5_u32 {
            for (fork, branch) in (1..=5).flat_map(|fork| (0..3).map(move |branch| (fork, branch))) {
                let token = |place| if place < fork { family } else { 100 + 10 * family + branch };
                let tokens: Vec<TokenId> = (0..8_u32).flat_map(|place| [token(place); 2]).collect();
                let mut hashes = Vec::new();
                hash_blocks(&Root::new(&pool(), DEFAULT_ROOT_SEED), &tokens, &[], &mut hashes);
                prompts.push((tokens, hashes));
            }
        }
        prompts
    }
}
