//! What is done to an index: how it is filled, what is asked, and how its content turns over. Planned before anything is
//! measured, piece by piece, so that a plan for millions of blocks takes a few megabytes.

use std::sync::Arc;

use warmpath_core::ids::{BlockHash, SequenceHash, Slot};

use crate::draws::{Counter, splitmix64, wide};
use crate::fleet::Fleet;
use crate::reference::Holders;
use crate::subject::Prompt;
use crate::trace::Trace;
use crate::workload::{Block, Piece, Workload, blocks_of, chain, length, root};

/// Lengths of the prompts that are asked for, how many of each, and how long a request must be to serve.
pub(crate) const QUERIES: [(usize, usize, usize); 4] =
    [(128, 2000, 128), (512, 1000, 512), (2048, 500, 2048), (8192, 200, 4096)];
/// Where the numbers of unknown blocks begin.
const UNKNOWN: u64 = 1 << 63;

/// A worker stores the blocks `from..to` of a prompt.
#[derive(Clone)]
pub(crate) struct Load {
    pub(crate) slot: Slot,
    pub(crate) pieces: Arc<[Piece]>,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// One step of the turnover.
pub(crate) enum Turn {
    /// A worker stores what it misses of a request.
    Store(Load),
    /// A worker gives up a piece whose first block follows `above`.
    Evict { slot: Slot, piece: Piece, above: SequenceHash },
}

/// Prompts of one length.
pub(crate) struct QuerySet {
    pub(crate) blocks: usize,
    pub(crate) queries: Vec<Query>,
    /// The sum of all overlaps of all workers, once the index is filled.
    pub(crate) filled: u64,
    /// The same after the turnover.
    pub(crate) turned: u64,
}

/// A prompt that is asked for.
pub(crate) struct Query {
    locals: Vec<BlockHash>,
    sequences: Vec<SequenceHash>,
}

/// All that is done to an index in one run.
pub(crate) struct Plan {
    pub(crate) workers: u16,
    /// (worker, block) pairs once it is filled.
    pub(crate) entries: usize,
    pub(crate) loads: Vec<Load>,
    pub(crate) query_sets: Vec<QuerySet>,
    pub(crate) turns: Vec<Turn>,
    /// (worker, block) pairs after the turnover.
    pub(crate) entries_turned: usize,
}

impl Plan {
    /// Fills with exactly `entries` pairs, then stores `turnover` blocks more and gives up as many.
    pub(crate) fn new(workload: Workload, trace: &Trace, workers: u16, entries: usize, turnover: usize) -> Self {
        let mut requests = workload.requests(trace, workers);
        let mut fleet = Fleet::new(workers);
        let mut loads = Vec::new();
        let mut left = entries;
        while left > 0 {
            let Some(mut load) = requests.next().map(|request| fleet.serve(&request)) else { break };
            load.to = load.to.min(load.from + left);
            left -= load.to - load.from;
            loads.push(load);
        }
        let mut query_sets = query_sets(&loads);
        let filled = Holders::of_loads(&loads);
        let cut = loads.last().map(|load| Load { from: load.to, to: length(&load.pieces), ..load.clone() });
        let (turns, turned) = if turnover == 0 { (Vec::new(), 0) } else { fleet.turn_over(cut, requests, turnover) };
        let kept = Holders(fleet.holdings());
        for asked in &mut query_sets {
            let len = asked.set.blocks;
            asked.set.filled = asked.pieces.iter().map(|pieces| filled.sum(pieces, len)).sum();
            asked.set.turned = asked.pieces.iter().map(|pieces| kept.sum(pieces, len)).sum();
        }
        let query_sets = query_sets.into_iter().map(|asked| asked.set).collect();
        Self { workers, entries: entries - left, loads, query_sets, turns, entries_turned: turned }
    }

    /// How many entries each worker has once the index is filled.
    pub(crate) fn entries_by_worker(&self) -> Vec<usize> {
        let mut entries = vec![0; usize::from(self.workers)];
        self.loads.iter().for_each(|load| entries[load.slot.index()] += load.to - load.from);
        entries
    }
}

/// Queries, and for the reference the pieces of which they are made.
struct Asked {
    set: QuerySet,
    pieces: Vec<Arc<[Piece]>>,
}

/// Draws filled requests of sufficient length and cuts, or pads, each to the length asked.
fn query_sets(loads: &[Load]) -> Vec<Asked> {
    let mut draws = Counter::started_at(7);
    let mut sets = Vec::new();
    for (blocks, count, least) in QUERIES {
        let long: Vec<&Load> = loads.iter().filter(|load| length(&load.pieces) >= least).collect();
        let mut asked = Vec::new();
        let mut queries = Vec::new();
        for _ in 0..if long.is_empty() { 0 } else { count } {
            let pieces = &long[draws.below(long.len())].pieces;
            queries.push(Query::new(pieces, blocks));
            asked.push(Arc::clone(pieces));
        }
        sets.push(Asked { set: QuerySet { blocks, queries, filled: 0, turned: 0 }, pieces: asked });
    }
    sets
}

impl Query {
    fn new(pieces: &[Piece], len: usize) -> Self {
        let known: Vec<Block> = blocks_of(pieces).take(len).collect();
        let last = known.last().map_or(root().sequence, |block| block.sequence);
        let unknown = (known.len()..len).map(|at| BlockHash(splitmix64(UNKNOWN + wide(at))));
        let blocks: Vec<Block> = known.iter().copied().chain(chain(last, unknown)).collect();
        Self::of_blocks(&blocks)
    }

    /// A prompt of these blocks.
    pub(crate) fn of_blocks(blocks: &[Block]) -> Self {
        let locals = blocks.iter().map(|block| block.local).collect();
        let sequences = blocks.iter().map(|block| block.sequence).collect();
        Self { locals, sequences }
    }

    /// How many blocks it has.
    pub(crate) fn len(&self) -> usize {
        self.locals.len()
    }

    /// Its first `len` blocks.
    pub(crate) fn first(&self, len: usize) -> Prompt<'_> {
        Prompt { locals: &self.locals[..len], sequences: &self.sequences[..len] }
    }

    /// All of it.
    pub(crate) fn prompt(&self) -> Prompt<'_> {
        self.first(self.len())
    }
}
