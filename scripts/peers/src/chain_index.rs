//! `ChainIndex` of `kv-index`, asked by `score_into` into a dense array, which is its fastest way. All workers name equal
//! blocks alike, for which it is made.

use std::sync::Mutex;

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock, compute_request_content_hashes};
use warmpath_core::ids::{Slot, TokenId};

use crate::draws::index;
use crate::feed::{Kind, Move};
use crate::subject::Subject;
use crate::workload::{BLOCK_TOKENS, Block};

/// Their index.
pub(crate) struct Chains {
    chains: ChainIndex,
    interning: Mutex<()>,
    workers: usize,
}

/// One worker's map and number.
pub(crate) struct Lane {
    worker: u32,
    map: ChainBlockMap,
}

/// An event in their terms.
pub(crate) enum Told {
    Stored { parent: Option<SequenceHash>, blocks: Vec<StoredBlock> },
    Removed(Vec<SequenceHash>),
}

fn name(block: &Block) -> SequenceHash {
    SequenceHash(block.sequence.0)
}

impl Subject for Chains {
    const NAME: &'static str = "kv-index";
    const EXACT: bool = true;
    const TIERS: bool = false;
    const USES_EVENTS_UP: bool = false;
    type Writer = Lane;
    type Event = Told;
    type Query = Vec<ContentHash>;
    type Answer = Vec<u32>;

    fn new(workers: u16, _: usize) -> Self {
        let workers = usize::from(workers);
        Self { chains: ChainIndex::with_max_workers(workers), interning: Mutex::new(()), workers }
    }

    fn writer(&self, slot: Slot, _: usize) -> Lane {
        // Numbers are given in the order of interning, and writers are made in the order of slots.
        let _one_at_a_time = self.interning.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let worker = self.chains.intern_worker(&slot.0.to_string()).expect("there is room for every worker");
        assert_eq!(worker, u32::from(slot.0), "the score of a slot lies at its own place");
        Lane { worker, map: ChainBlockMap::new() }
    }

    fn event(moved: Move) -> Told {
        match moved.kind {
            Kind::Store { parent } => {
                let block =
                    |block: &Block| StoredBlock { seq_hash: name(block), content_hash: ContentHash(block.local.0) };
                let parent = parent.map(|parent| SequenceHash(parent.0));
                Told::Stored { parent, blocks: moved.blocks.iter().map(block).collect() }
            }
            Kind::Remove => Told::Removed(moved.blocks.iter().map(name).collect()),
        }
    }

    fn apply(&self, lane: &mut Lane, events: &mut [Told]) {
        for event in events {
            match event {
                Told::Stored { parent, blocks } => {
                    self.chains.apply_stored(lane.worker, blocks, *parent, &mut lane.map).expect("the parent is held");
                }
                Told::Removed(names) => self.chains.apply_removed(lane.worker, names, &mut lane.map),
            }
        }
    }

    fn drain(&self) {}

    fn query(blocks: &[Block]) -> Vec<ContentHash> {
        blocks.iter().map(|block| ContentHash(block.local.0)).collect()
    }

    fn read(query: &Vec<ContentHash>) -> u64 {
        query.iter().fold(0, |sum, hash| sum.wrapping_add(hash.0))
    }

    fn look_up(&self, query: &Vec<ContentHash>, len: usize, answer: &mut Vec<u32>) {
        answer.clear();
        answer.resize(self.workers, 0);
        let report = |worker: u32, score: u32| answer[index(worker)] = score;
        self.chains.score_into(&query[..len], |hash| hash.0, false, report);
    }

    fn look_up_local(&self, query: &Vec<ContentHash>, answer: &mut Vec<u32>) {
        self.look_up(query, query.len(), answer);
    }

    fn hash(&self, tokens: &[TokenId], _: &mut Vec<u32>) {
        std::hint::black_box(compute_request_content_hashes(tokens, index(BLOCK_TOKENS)));
    }

    fn overlap(answer: &Vec<u32>, slot: Slot) -> u32 {
        answer.get(slot.index()).copied().unwrap_or(0)
    }

    fn counted_bytes(&self) -> Option<usize> {
        None
    }
}
