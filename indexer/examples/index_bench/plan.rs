//! What is done to an index: how it is filled, what is asked, and how its content turns over. Planned before anything is
//! measured, piece by piece, so that a plan for millions of blocks takes a few megabytes.

use std::sync::Arc;

use warmpath_core::ids::{BlockHash, SequenceHash, Slot};

use crate::draws::{Counter, splitmix64, wide};
use crate::fleet::Fleet;
use crate::reference::Holders;
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
    /// All blocks of each prompt.
    pub(crate) queries: Vec<Vec<Block>>,
    /// The sum of all overlaps of all workers, once the index is filled.
    pub(crate) filled: u64,
    /// The same after the turnover.
    pub(crate) turned: u64,
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
            queries.push(padded(pieces, blocks));
            asked.push(Arc::clone(pieces));
        }
        sets.push(Asked { set: QuerySet { blocks, queries, filled: 0, turned: 0 }, pieces: asked });
    }
    sets
}

/// `len` blocks: those of `pieces`, then some that nobody holds.
fn padded(pieces: &[Piece], len: usize) -> Vec<Block> {
    let mut blocks: Vec<Block> = blocks_of(pieces).take(len).collect();
    let last = blocks.last().map_or(root().sequence, |block| block.sequence);
    let unknown = (blocks.len()..len).map(|at| BlockHash(splitmix64(UNKNOWN + wide(at))));
    blocks.extend(chain(last, unknown));
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{LARGE, stores};
    use std::collections::{HashMap, HashSet};
    use std::path::Path;

    fn trace() -> Trace {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/traces/mooncake-conversation.jsonl.gz");
        Trace::read(&file).expect("the trace is in the repository")
    }

    fn sums(plan: &Plan, sum: fn(&QuerySet) -> u64) -> Vec<(usize, u64)> {
        plan.query_sets.iter().map(|set| (set.queries.len(), sum(set))).collect()
    }

    /// Golden values by another program, in another language, from the description of the workload alone.
    #[test]
    fn a_thousand_entries_on_eight_workers_are_these() {
        let plan = Plan::new(Workload::Trace, &trace(), 8, 1000, 0);
        let loads: Vec<_> = plan.loads.iter().map(|load| (load.slot.0, load.from, load.to)).collect();
        assert_eq!(loads, [(3, 0, 448), (1, 0, 480), (3, 32, 104)]);
        assert_eq!((plan.entries, plan.entries_by_worker()), (1000, vec![0, 480, 0, 520, 0, 0, 0, 0]));
        let locals: Vec<u64> = blocks_of(&plan.loads[0].pieces).map(|block| block.local.0).collect();
        assert_eq!(locals[..2], [16_294_208_416_658_607_535, 10_451_216_379_200_822_465]);
        assert_eq!((locals.len(), locals[447]), (448, 2_589_943_805_828_319_586));
        assert_eq!(sums(&plan, |set| set.filled), [(2000, 304_088), (0, 0), (0, 0), (0, 0)]);
    }

    /// Golden values as above.
    #[test]
    fn two_hundred_thousand_entries_sum_to_these_overlaps() {
        let plan = Plan::new(Workload::Trace, &trace(), 8, 200_000, 0);
        let events: Vec<_> = plan.loads.iter().flat_map(|load| stores(load, LARGE)).collect();
        assert_eq!((plan.loads.len(), events.len()), (238, 525));
        assert_eq!(events.last().map(|event| (event.slot.0, event.blocks.len())), Some((4, 256)));
        let exact = [(2000, 710_240), (1000, 754_720), (500, 1_156_000), (200, 1_088_288)];
        assert_eq!(sums(&plan, |set| set.filled), exact);
    }

    /// What is held, and what was ever stored below each block.
    #[derive(Default)]
    struct World {
        held: HashSet<(Slot, SequenceHash)>,
        children: HashMap<SequenceHash, Vec<SequenceHash>>,
    }

    impl World {
        fn store(&mut self, load: &Load) {
            let blocks: Vec<Block> = blocks_of(&load.pieces).take(load.to).collect();
            for at in load.from..load.to {
                let above = if at == 0 { root().sequence } else { blocks[at - 1].sequence };
                assert!(at == 0 || self.held.contains(&(load.slot, above)), "the parent is held");
                assert!(self.held.insert((load.slot, blocks[at].sequence)), "no block is stored twice");
                self.children.entry(above).or_default().push(blocks[at].sequence);
            }
        }

        fn give_up(&mut self, slot: Slot, block: SequenceHash) {
            let mut below = self.children.get(&block).into_iter().flatten();
            assert!(below.all(|child| !self.held.contains(&(slot, *child))), "it is a leaf");
            assert!(self.held.remove(&(slot, block)), "it was held");
        }
    }

    #[test]
    fn a_turnover_keeps_the_size_where_pieces_are_long() {
        let plan = Plan::new(Workload::Tree, &trace(), 16, 100_000, 200_000);
        assert!((100_000..100_000 + 16 * 1920).contains(&plan.entries_turned), "{}", plan.entries_turned);
    }

    #[test]
    fn a_turnover_gives_up_as_much_as_it_stores_and_never_a_parent_before_its_child() {
        let plan = Plan::new(Workload::Trace, &trace(), 8, 20_000, 30_000);
        let mut world = World::default();
        plan.loads.iter().for_each(|load| world.store(load));
        assert_eq!(world.held.len(), 20_000);
        let mut stored = 0;
        for turn in &plan.turns {
            match turn {
                Turn::Store(load) => {
                    stored += load.to - load.from;
                    world.store(load);
                }
                Turn::Evict { slot, piece, above } => {
                    let blocks: Vec<Block> = chain(*above, piece.locals()).collect();
                    blocks.iter().rev().for_each(|block| world.give_up(*slot, block.sequence));
                }
            }
        }
        assert!(stored >= 30_000);
        assert_eq!(world.held.len(), plan.entries_turned);
        // Pieces are given up whole: the size differs by less than one of them for each worker.
        assert!(world.held.len().abs_diff(20_000) < 8 * 32, "{}", world.held.len());
    }
}
