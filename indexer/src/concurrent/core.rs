//! What look-ups read.

use std::cell::RefCell;

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::Overlaps;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{Blocks, Tier};

use super::chain::{CHAIN_BLOCKS, Chain};
use super::holders::Holders;
use super::slab::{Place, Slab};
use super::table::HashTable;

/// All chains, and which chain begins with which block. A chain has no links: it goes on in whatever chain begins with
/// the next block.
///
/// 1. A block is in one chain at most, and `heads` names the first block of every chain and nothing else.
/// 2. What stands before a block in its chain is what comes before it in every prompt: one comparison at the end of a
///    stretch tells of the whole stretch.
/// 3. A chain that nobody holds any of is freed.
pub(super) struct Core {
    heads: HashTable,
    slab: Slab,
}

/// Sets that a look-up works on.
#[derive(Default)]
struct Scratch {
    alive: SlotSet,
    left: SlotSet,
    here: SlotSet,
}

thread_local! {
    /// One for each thread: sets beyond 128 slots keep their memory from look-up to look-up.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Core {
    /// A core without chains.
    pub(super) fn new() -> Self {
        Self { heads: HashTable::new(), slab: Slab::default() }
    }

    /// Where chains live.
    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Replaces `overlaps` by the runs of `prompt`. O(runs on the way × (log blocks of a run + slots / 64)).
    pub(super) fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
        SCRATCH.with_borrow_mut(|scratch| {
            let mut left = prompt;
            while let Some(first) = left.first()
                && let Some(chain) = self.heads.get(*first).and_then(|number| self.slab.get(number))
            {
                let begins = left.len() == prompt.len();
                match scratch.follow(chain, left, begins, overlaps) {
                    0 => break,
                    matched => left = &left[matched..],
                }
            }
        });
    }

    /// Places blocks that nobody holds behind `below` if that is the last of its chain, else in chains of their own;
    /// hands their places to `placed`. Stops early only where there are too many chains.
    pub(super) fn place(
        &mut self,
        blocks: &[SequenceHash],
        below: Option<Place>,
        (slot, tier): (Slot, Tier),
        placed: &mut Vec<u32>,
    ) {
        let mut left = blocks;
        if let Some(below) = below
            && let Some(chain) = self.slab.get_mut(below.chain)
            && chain.end() == below.offset + 1
        {
            let (here, rest) = left.split_at(left.len().min(CHAIN_BLOCKS - chain.end()));
            if !here.is_empty() {
                chain.append(here, slot, tier);
                push_places(placed, below.next(), here.len());
                left = rest;
            }
        }
        for piece in left.chunks(CHAIN_BLOCKS) {
            let Some(number) = self.slab.insert(Chain::new(piece, slot, tier)) else { return };
            self.heads.insert(piece[0], number);
            push_places(placed, Place { chain: number, offset: 0 }, piece.len());
        }
    }

    /// Says that a worker holds blocks that are next to each other in a chain; returns of how many it held nothing.
    pub(super) fn mark(&mut self, from: Place, blocks: usize, (slot, tier): (Slot, Tier)) -> usize {
        let chain = self.slab.get_mut(from.chain);
        chain.map_or(0, |chain| chain.mark(from.offset, from.offset + blocks, slot, tier))
    }

    /// Takes a worker out of a tier of the block `hash`, if that is at `place`; blocks that are kept no longer go to
    /// `freed`. Returns whether the worker holds the block nowhere now, but did.
    pub(super) fn unmark(
        &mut self,
        (place, hash): (Place, SequenceHash),
        (slot, tier): (Slot, Tier),
        freed: &mut Vec<SequenceHash>,
    ) -> bool {
        let Some(chain) = self.slab.get_mut(place.chain) else { return false };
        if chain.at(place.offset) != Some(hash) || !chain.unmark(place.offset, slot, tier) {
            return false;
        }
        self.trim(place.chain, freed);
        true
    }

    /// Takes a worker out of all blocks of a chain; returns of how many it held any.
    pub(super) fn unmark_all(&mut self, number: u32, slot: Slot, freed: &mut Vec<SequenceHash>) -> usize {
        let Some(chain) = self.slab.get_mut(number) else { return 0 };
        let gone = chain.unmark_all(slot);
        if gone > 0 {
            self.trim(number, freed);
        }
        gone
    }

    fn trim(&mut self, number: u32, freed: &mut Vec<SequenceHash>) {
        let Some(chain) = self.slab.get_mut(number) else { return };
        let Some(head) = chain.head() else { return };
        let other_head = chain.trim(freed);
        if chain.is_empty() {
            self.heads.remove(head);
            self.slab.remove(number);
        } else if other_head {
            self.heads.remove(head);
            self.heads.insert(chain.head().expect("it is not empty"), number);
        }
    }

    /// Bytes of heap of all but the chains, by capacities.
    pub(super) fn bytes(&self) -> usize {
        self.heads.bytes()
    }
}

fn push_places(placed: &mut Vec<u32>, first: Place, blocks: usize) {
    placed.extend((0..blocks).map(|block| Place { offset: first.offset + block, ..first }.packed()));
}

impl Scratch {
    /// Matches `prompt` along a chain that begins with its first block; `begins` if nothing was matched before. Returns
    /// the blocks matched; 0 once nobody is left.
    fn follow(&mut self, chain: &Chain, prompt: &[SequenceHash], begins: bool, overlaps: &mut Overlaps) -> usize {
        let mut matched = 0;
        for run in 0..chain.runs() {
            let (blocks, holders) = chain.run(run);
            let here = common(blocks, &prompt[matched..]);
            if here == 0 {
                return matched;
            }
            if begins && matched == 0 {
                self.alive.copy_from(holders.anywhere());
            } else {
                self.alive.intersect_with(holders.anywhere());
            }
            if self.alive.is_empty() {
                return 0;
            }
            self.book(here, holders, overlaps);
            matched += here;
            if here < blocks.len() {
                return matched;
            }
        }
        matched
    }

    /// Books blocks for those that are left, each worker under the fastest tier in which it holds them.
    fn book(&mut self, blocks: usize, holders: &Holders, overlaps: &mut Overlaps) {
        let blocks = Blocks(u32::try_from(blocks).unwrap_or(u32::MAX));
        if holders.on_devices_only() {
            overlaps.push(blocks, Tier::Device, &self.alive);
            return;
        }
        self.left.copy_from(&self.alive);
        for tier in Tier::ALL {
            let Some(slots) = holders.in_tier(tier) else { continue };
            self.here.copy_from(&self.left);
            self.here.intersect_with(slots);
            overlaps.push(blocks, tier, &self.here);
            self.left.subtract(&self.here);
        }
    }
}

/// How many blocks a run and a prompt have in common from their beginnings. Sequence hashes name all before them, so
/// that the last one decides, and only where it differs the place is searched.
fn common(run: &[SequenceHash], prompt: &[SequenceHash]) -> usize {
    let len = run.len().min(prompt.len());
    let (run, prompt) = (&run[..len], &prompt[..len]);
    if len == 0 || run[len - 1] == prompt[len - 1] {
        return len;
    }
    let (mut equal, mut differs) = (0, len - 1);
    while equal < differs {
        let middle = equal.midpoint(differs);
        if run[middle] == prompt[middle] { equal = middle + 1 } else { differs = middle }
    }
    equal
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    impl Core {
        /// The invariants, in full; returns every block with its place.
        pub(in super::super) fn check(&self) -> Vec<(SequenceHash, Place)> {
            let mut all = Vec::new();
            let mut heads = 0;
            for number in 0..self.slab.numbers() {
                let Some(chain) = self.slab.get(number).filter(|chain| !chain.is_empty()) else { continue };
                heads += 1;
                assert_eq!(self.heads.get(chain.head().unwrap()), Some(number));
                let runs: Vec<_> = (0..chain.runs()).map(|run| chain.run(run)).collect();
                assert!(runs.iter().all(|(blocks, _)| !blocks.is_empty()));
                assert!(!runs[0].1.is_empty() && !runs[runs.len() - 1].1.is_empty());
                assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1));
                let blocks: Vec<SequenceHash> = runs.iter().flat_map(|(blocks, _)| blocks.iter().copied()).collect();
                let first = chain.end() - blocks.len();
                all.extend(blocks.iter().zip(first..).map(|(&hash, offset)| (hash, Place { chain: number, offset })));
            }
            assert_eq!((heads, heads), (self.heads.len(), self.slab.len()));
            let different: HashSet<u64> = all.iter().map(|(hash, _)| hash.0).collect();
            assert_eq!(different.len(), all.len(), "a block is in one chain at most");
            all
        }
    }

    #[test]
    fn the_end_of_a_run_decides_and_else_the_place_is_found() {
        let run: Vec<SequenceHash> = (0..100).map(SequenceHash).collect();
        for equal in 0..=100_u64 {
            let prompt: Vec<SequenceHash> =
                (0..120).map(|at| SequenceHash(if at < equal { at } else { at + 1000 })).collect();
            assert_eq!(common(&run, &prompt), usize::try_from(equal).unwrap());
        }
        assert_eq!((common(&run, &run[..7]), common(&run, &[])), (7, 0));
    }
}
