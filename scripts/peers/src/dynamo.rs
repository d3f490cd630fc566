//! Dynamo's default index, `ConcurrentRadixTreeCompressed`, as its router runs it: behind a queue and a thread that
//! applies. All workers name equal blocks alike, which it asks for.

use dynamo_kv_router::indexer::KvIndexerInterface;
use dynamo_kv_router::protocols::{
    BlockHashOptions, ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, OverlapScores, RouterEvent, WorkerWithDpRank, compute_block_hash_for_seq,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, SyncIndexer, ThreadPoolIndexer};
use warmpath_core::ids::{Slot, TokenId};

use crate::feed::{Kind, Move};
use crate::subject::Subject;
use crate::workload::{BLOCK_TOKENS, Block};

/// Its index behind one applying thread.
pub(crate) struct Compressed {
    pool: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
}

impl Subject for Compressed {
    const NAME: &'static str = "dynamo-crtc";
    // Worker sets are compared by size, so answers are exact only while nothing is removed.
    const EXACT: bool = false;
    const TIERS: bool = false;
    const USES_EVENTS_UP: bool = true;
    type Writer = ();
    type Event = Option<RouterEvent>;
    type Query = Vec<LocalBlockHash>;
    type Answer = OverlapScores;

    fn new(_: u16, _: usize) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O");
        Self { pool: ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK_TOKENS), runtime }
    }

    fn writer(&self, _: Slot, _: usize) {}

    fn event(moved: Move) -> Option<RouterEvent> {
        let name = ExternalSequenceBlockHash;
        let data = match moved.kind {
            Kind::Store { parent } => {
                let block = |block: &Block| KvCacheStoredBlockData {
                    block_hash: name(block.sequence.0),
                    tokens_hash: LocalBlockHash(block.local.0),
                    mm_extra_info: None,
                };
                KvCacheEventData::Stored(KvCacheStoreData {
                    parent_hash: parent.map(|parent| name(parent.0)),
                    start_position: None,
                    blocks: moved.blocks.iter().map(block).collect(),
                })
            }
            Kind::Remove => KvCacheEventData::Removed(KvCacheRemoveData {
                block_hashes: moved.blocks.iter().map(|block| name(block.sequence.0)).collect(),
            }),
        };
        Some(RouterEvent::new(u64::from(moved.slot.0), KvCacheEvent { event_id: 0, data, dp_rank: 0 }))
    }

    fn apply(&self, (): &mut (), events: &mut [Option<RouterEvent>]) {
        for event in events.iter_mut().filter_map(Option::take) {
            self.pool.enqueue_event(event).expect("its thread runs");
        }
    }

    fn drain(&self) {
        self.runtime.block_on(self.pool.flush_and_wait()).expect("its thread runs");
    }

    fn query(blocks: &[Block]) -> Vec<LocalBlockHash> {
        blocks.iter().map(|block| LocalBlockHash(block.local.0)).collect()
    }

    fn read(query: &Vec<LocalBlockHash>) -> u64 {
        query.iter().fold(0, |sum, hash| sum.wrapping_add(hash.0))
    }

    fn look_up(&self, query: &Vec<LocalBlockHash>, len: usize, answer: &mut OverlapScores) {
        *answer = self.pool.backend().find_matches(&query[..len], false);
    }

    fn look_up_local(&self, query: &Vec<LocalBlockHash>, answer: &mut OverlapScores) {
        self.look_up(query, query.len(), answer);
    }

    fn hash(&self, tokens: &[TokenId], _: &mut OverlapScores) {
        std::hint::black_box(compute_block_hash_for_seq(tokens, BLOCK_TOKENS, BlockHashOptions::default()));
    }

    fn overlap(answer: &OverlapScores, slot: Slot) -> u32 {
        let worker = WorkerWithDpRank::from_worker_id(u64::from(slot.0));
        answer.scores.get(&worker).copied().unwrap_or(0)
    }

    fn counted_bytes(&self) -> Option<usize> {
        None
    }
}

impl Drop for Compressed {
    fn drop(&mut self) {
        self.pool.shutdown();
    }
}
