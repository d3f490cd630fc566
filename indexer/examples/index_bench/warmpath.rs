//! Warmpath's index under measurement. This file is all that knows how it is written to and asked.

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks, step};
use warmpath_core::ids::{BlockHash, EngineHash, SequenceHash, Slot, TokenId};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::{Attention, CacheEvent, Content, Removed, Stored};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

use crate::draws::splitmix64;
use crate::feed::{Kind, Move};
use crate::subject::Subject;
use crate::workload::{BLOCK_TOKENS, Block, namespace, root};

/// The index that a gateway runs on.
pub(crate) struct Warmpath {
    index: Arc<ConcurrentIndex>,
    root: Root,
}

/// A prompt: by its sequence hashes, and by those from which they are made.
pub(crate) struct WarmpathQuery {
    sequences: Vec<SequenceHash>,
    locals: Vec<BlockHash>,
}

/// The answer, and a buffer for hashes that are made on the way.
#[derive(Default)]
pub(crate) struct WarmpathAnswer {
    overlaps: Overlaps,
    hashes: Vec<SequenceHash>,
}

/// What the engine of a worker calls a block: a name of its own on every worker.
fn engine_name(slot: Slot, sequence: SequenceHash) -> EngineHash {
    EngineHash(splitmix64(sequence.0 ^ splitmix64(u64::from(slot.0))))
}

impl Subject for Warmpath {
    const NAME: &'static str = "warmpath";
    const EXACT: bool = true;
    const TIERS: bool = true;
    const USES_EVENTS_UP: bool = false;
    type Writer = Writer<Chains>;
    type Event = CacheEvent;
    type Query = WarmpathQuery;
    type Answer = WarmpathAnswer;

    fn new(_: u16, entries_max: usize) -> Self {
        Self { index: Arc::new(ConcurrentIndex::new(entries_max)), root: root() }
    }

    fn writer(&self, slot: Slot, expected: usize) -> Writer<Chains> {
        self.index.writer(slot, &ViewSettings { pool: namespace(), seed: DEFAULT_ROOT_SEED, blocks: expected })
    }

    fn event(moved: Move) -> CacheEvent {
        let name = |sequence| engine_name(moved.slot, sequence);
        let names = moved.blocks.iter().map(|block| name(block.sequence));
        match moved.kind {
            Kind::Store { parent } => CacheEvent::from(Stored {
                hashes: names.collect(),
                parent: parent.map(name),
                content: Content::Hashes(moved.blocks.iter().map(|block| block.local).collect()),
                block_size: Some(BLOCK_TOKENS),
                tier: moved.tier,
                group: None,
                attention: Attention::Unstated,
                adapter: None,
                salt: None,
                media: Vec::new(),
                cut: 0,
            }),
            Kind::Remove => CacheEvent::Removed(Removed {
                hashes: names.collect(),
                tier: moved.tier,
                group: None,
                remaining_copy_counts: None,
            }),
        }
    }

    fn apply(&self, writer: &mut Writer<Chains>, events: &mut [CacheEvent]) {
        writer.apply(events);
    }

    fn drain(&self) {}

    fn query(blocks: &[Block]) -> WarmpathQuery {
        let sequences = blocks.iter().map(|block| block.sequence).collect();
        WarmpathQuery { sequences, locals: blocks.iter().map(|block| block.local).collect() }
    }

    fn read(query: &WarmpathQuery) -> u64 {
        query.sequences.iter().fold(0, |sum, hash| sum.wrapping_add(hash.0))
    }

    fn look_up(&self, query: &WarmpathQuery, len: usize, answer: &mut WarmpathAnswer) {
        self.index.match_prefix(&query.sequences[..len], &mut answer.overlaps);
    }

    fn look_up_local(&self, query: &WarmpathQuery, answer: &mut WarmpathAnswer) {
        let mut sequence = self.root.sequence;
        answer.hashes.clear();
        answer.hashes.extend(query.locals.iter().map(|&local| {
            sequence = step(sequence, local);
            sequence
        }));
        self.index.match_prefix(&answer.hashes, &mut answer.overlaps);
    }

    fn hash(&self, tokens: &[TokenId], answer: &mut WarmpathAnswer) {
        answer.hashes.clear();
        hash_blocks(&self.root, tokens, &[], &mut answer.hashes);
    }

    fn overlap(answer: &WarmpathAnswer, slot: Slot) -> u32 {
        answer.overlaps.of(slot).total().0
    }

    fn counted_bytes(&self) -> Option<usize> {
        Some(self.index.bytes())
    }
}
