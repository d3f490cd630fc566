//! Events of chains that are written as paths of contents. A worker's name of a block is made of its path.

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, step};
use warmpath_core::ids::{BlockHash, EngineHash, SequenceHash};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::view::ViewSettings;

fn pool() -> Namespace {
    Namespace::plain("m", BlockSize::new(16).expect("not 0"))
}

pub(crate) fn settings() -> ViewSettings {
    ViewSettings { pool: pool(), seed: DEFAULT_ROOT_SEED, blocks: 0 }
}

/// What the router calls the blocks of a path.
pub(crate) fn hashes(path: &[u64]) -> Vec<SequenceHash> {
    let follow = |above: &mut SequenceHash, &content: &u64| {
        *above = step(*above, BlockHash(content));
        Some(*above)
    };
    path.iter().scan(Root::new(&pool(), DEFAULT_ROOT_SEED).sequence, follow).collect()
}

/// What an engine calls them.
fn names(path: &[u64]) -> Vec<EngineHash> {
    hashes(path).into_iter().map(|hash| EngineHash(hash.0.rotate_left(17) ^ 5)).collect()
}

/// The blocks of a path from `from` on are stored.
pub(crate) fn stored(path: &[u64], from: usize, tier: Tier) -> CacheEvent {
    let names = names(path);
    CacheEvent::from(Stored {
        hashes: names[from..].to_vec(),
        parent: from.checked_sub(1).map(|parent| names[parent]),
        content: Content::Hashes(path[from..].iter().copied().map(BlockHash).collect()),
        block_size: None,
        tier,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    })
}

/// The blocks of a path from `from` on are removed, each by an event of its own.
pub(crate) fn removed(path: &[u64], from: usize, tier: Tier) -> Vec<CacheEvent> {
    let one = |&hash: &EngineHash| {
        let hashes = std::iter::once(hash).collect();
        CacheEvent::Removed(Removed { hashes, tier, group: None, remaining_copy_counts: None })
    };
    names(path)[from..].iter().map(one).collect()
}
