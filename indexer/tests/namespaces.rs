//! Prefixes never match across namespaces: model, adapter, salt and block size keep them apart.
#![expect(clippy::unwrap_used, reason = "a small world may panic")]

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::{EngineHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{BlockSize, Blocks, Tier};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::event::{Attention, CacheEvent, Content, Stored};
use warmpath_indexer::view::ViewSettings;

const TOKENS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

fn namespace(model: &str, adapter: Option<&str>, salt: Option<&str>, block_size: u32) -> Namespace {
    Namespace {
        model: model.into(),
        adapter: adapter.map(Into::into),
        salt: salt.map(Into::into),
        block_size: BlockSize::new(block_size).unwrap(),
    }
}

/// Blocks of a prompt in `asked` that a worker holds after it stored the same tokens in `stored`.
fn overlap(stored: &Namespace, asked: &Namespace) -> Blocks {
    let plain = Namespace { adapter: None, salt: None, ..stored.clone() };
    let size = stored.block_size.len();
    let blocks = TOKENS.len() / size;
    let event = CacheEvent::from(Stored {
        hashes: (1..=u64::try_from(blocks).unwrap()).map(EngineHash).collect(),
        parent: None,
        content: Content::Tokens(TOKENS[..blocks * size].to_vec()),
        block_size: Some(stored.block_size.get()),
        tier: Tier::Device,
        group: None,
        attention: Attention::Unstated,
        adapter: stored.adapter.clone(),
        salt: stored.salt.clone(),
        media: Vec::new(),
        cut: 0,
    });
    let index = Arc::new(ConcurrentIndex::new(100));
    index.writer(Slot(0), &ViewSettings { pool: plain, seed: DEFAULT_ROOT_SEED, blocks: 0 }).apply(&[event]);
    let mut prompt = Vec::new();
    hash_blocks(&Root::new(asked, DEFAULT_ROOT_SEED), &TOKENS, &[], &mut prompt);
    let mut overlaps = Overlaps::default();
    index.match_prefix(&prompt, &mut overlaps);
    overlaps.longest()
}

/// what was stored under an adapter is nothing to the base model, and so on for every part of a namespace.
#[test]
fn r006_equal_tokens_of_two_namespaces_share_nothing() {
    let namespaces = [
        namespace("m", None, None, 4),
        namespace("m", Some("a"), None, 4),
        namespace("m", Some("b"), None, 4),
        namespace("m", None, Some("a"), 4),
        namespace("m", Some("a"), Some("a"), 4),
        namespace("n", None, None, 4),
        namespace("m", None, None, 2),
    ];
    for stored in &namespaces {
        for asked in &namespaces {
            let held = if stored == asked { 9 / stored.block_size.get() } else { 0 };
            assert_eq!(overlap(stored, asked), Blocks(held), "stored {stored:?}, asked {asked:?}");
        }
    }
}
