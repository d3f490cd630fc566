//! What look-ups read.

use std::cell::RefCell;

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::Overlaps;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{Blocks, Tier};

use super::chain::Chain;
use super::holders::Holders;
use super::slab::Slab;
use crate::store::{Above, CHAIN_BLOCKS, Origin, Place, Placed, Pools};
use crate::table::{HashTable, Kept};

/// How finely time is told apart: in so many steps all blocks that there may be are stored once.
const STEPS: usize = 256;

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
    pools: Pools,
    /// Blocks in all chains, also inner ones that nobody holds any more.
    kept: usize,
    kept_max: usize,
    now: u32,
    /// Blocks stored since `now` was reached.
    stored: usize,
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
    /// A core without chains, for at most `kept_max` blocks.
    pub(super) fn new(kept_max: usize) -> Self {
        Self {
            heads: HashTable::with_capacity(0),
            slab: Slab::default(),
            pools: Pools::default(),
            kept: 0,
            kept_max,
            now: 0,
            stored: 0,
        }
    }

    /// Where chains live.
    pub(super) fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Blocks that may be added.
    pub(super) fn room(&self) -> usize {
        self.kept_max - self.kept
    }

    /// The present: it advances as blocks are stored, and where it is ended.
    pub(super) fn now(&self) -> u32 {
        self.now
    }

    /// Who belongs together.
    pub(super) fn set_pools(&mut self, pools: &[SlotSet]) {
        self.pools.set(pools);
    }

    /// The block at a place.
    pub(super) fn hash_at(&self, place: Place) -> Option<SequenceHash> {
        self.slab.get(place.chain)?.at(place.offset)
    }

    /// Replaces `overlaps` by the runs of `prompt`. O(runs on the way × (log blocks of a run + slots / 64)).
    pub(super) fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        overlaps.clear();
        SCRATCH.with_borrow_mut(|scratch| {
            let mut left = prompt;
            while let Some(first) = left.first()
                && let Some(chain) = self.heads.get(first.0).and_then(|head| self.slab.get(head.value))
            {
                chain.touch(self.now);
                let begins = left.len() == prompt.len();
                match scratch.follow((chain, &self.pools), left, begins, overlaps) {
                    0 => break,
                    matched => left = &left[matched..],
                }
            }
        });
    }

    /// Says that a worker holds `blocks`, which follow each other behind `above`, in a tier. Stops early only where the
    /// core is full. O(blocks + runs).
    pub(super) fn store(
        &mut self,
        holder: (Slot, Tier),
        mut above: Above,
        blocks: &[SequenceHash],
        placed: &mut Placed,
    ) {
        self.pass(blocks.len());
        let mut left = blocks;
        while let Some(&first) = left.first() {
            let len = match self.find(above, first) {
                Some(place) => self.mark(place, left, holder, placed),
                None => self.add(above, left, holder, placed),
            };
            let Some(&last) = placed.places.last().filter(|_| len > 0) else { return };
            above = Above::Block(last);
            left = &left[len..];
        }
    }

    /// Time passes by blocks stored.
    fn pass(&mut self, blocks: usize) {
        self.stored += blocks;
        if self.stored >= (self.kept_max / STEPS).max(64) {
            self.end_present();
        }
    }

    /// Ends the present.
    pub(super) fn end_present(&mut self) {
        self.stored = 0;
        self.now = self.now.saturating_add(1);
    }

    /// Where the block that follows `above` is kept: next to it, or as the first of a chain.
    fn find(&self, above: Above, block: SequenceHash) -> Option<Place> {
        if let Above::Block(place) = above
            && self.hash_at(place.next()) == Some(block)
        {
            return Some(place.next());
        }
        let chain = self.heads.get(block.0)?.value;
        Some(Place { chain, offset: self.slab.get(chain)?.start() })
    }

    /// Adds a worker to the first of `blocks` as far as they are kept from `place` on; returns how many that are.
    fn mark(&mut self, place: Place, blocks: &[SequenceHash], holder: (Slot, Tier), placed: &mut Placed) -> usize {
        let Some(chain) = self.slab.get_mut(place.chain) else { return 0 };
        chain.touch(self.now);
        let len = common(chain.blocks_from(place.offset), blocks);
        let before = placed.places.len();
        placed.new += chain.mark((place.offset, place.offset + len), holder, |at| placed.held.push(before + at));
        push_places(placed, place, len);
        len
    }

    /// Keeps the first of `blocks` up to one that is kept already, behind `above` if that is the last of its chain, else
    /// as a chain of their own; returns how many that are.
    fn add(&mut self, above: Above, blocks: &[SequenceHash], holder: (Slot, Tier), placed: &mut Placed) -> usize {
        let head = blocks[1..].iter().position(|block| self.heads.get(block.0).is_some());
        let len = head.map_or(blocks.len(), |head| head + 1).min(self.room()).min(CHAIN_BLOCKS);
        if len == 0 {
            return 0;
        }
        let len = match self.append(above, &blocks[..len], holder, placed) {
            0 => self.begin(above, &blocks[..len], holder, placed),
            appended => appended,
        };
        self.kept += len;
        placed.new += len;
        len
    }

    fn append(&mut self, above: Above, blocks: &[SequenceHash], holder: (Slot, Tier), placed: &mut Placed) -> usize {
        let Above::Block(above) = above else { return 0 };
        let Some(chain) = self.slab.get_mut(above.chain).filter(|chain| chain.end() == above.offset + 1) else {
            return 0;
        };
        let len = blocks.len().min(CHAIN_BLOCKS - chain.end());
        if len > 0 {
            chain.touch(self.now);
            chain.append(&blocks[..len], holder);
            push_places(placed, above.next(), len);
        }
        len
    }

    fn begin(&mut self, above: Above, blocks: &[SequenceHash], holder: (Slot, Tier), placed: &mut Placed) -> usize {
        let origin = match above {
            Above::Root(root) => Origin::Root(root),
            Above::Block(place) => match self.hash_at(place) {
                Some(block) => Origin::Block(block),
                None => return 0,
            },
        };
        let Some(chain) = self.slab.insert(Chain::new(origin, blocks, holder, self.now)) else { return 0 };
        self.heads.insert(blocks[0].0, Kept { value: chain, marks: 0 });
        push_places(placed, Place { chain, offset: 0 }, blocks.len());
        blocks.len()
    }

    /// Adds a worker to a block in one more tier; returns whether that is new.
    pub(super) fn add_tier(&mut self, place: Place, holder: (Slot, Tier)) -> bool {
        let Some(chain) = self.slab.get_mut(place.chain).filter(|chain| chain.at(place.offset).is_some()) else {
            return false;
        };
        let mut new = true;
        chain.mark((place.offset, place.offset + 1), holder, |_| new = false);
        new
    }

    /// Takes a worker out of a tier of a block. Returns whether the worker holds the block nowhere now, but did.
    pub(super) fn unmark(&mut self, place: Place, slot: Slot, tier: Tier) -> bool {
        let Some(chain) = self.slab.get_mut(place.chain).filter(|chain| chain.at(place.offset).is_some()) else {
            return false;
        };
        let (head, len) = (chain.head(), chain.len());
        let gone = chain.unmark(place.offset, slot, tier);
        if gone {
            self.trim(place.chain, head, len);
        }
        gone
    }

    /// Takes a worker out of all blocks of a chain, in one tier or in all; returns how many it holds nowhere now, but
    /// did.
    pub(super) fn unmark_all(&mut self, number: u32, slot: Slot, tier: Option<Tier>) -> usize {
        let Some(chain) = self.slab.get_mut(number) else { return 0 };
        let (head, len) = (chain.head(), chain.len());
        let gone = chain.unmark_all(slot, tier);
        if gone > 0 {
            self.trim(number, head, len);
        }
        gone
    }

    /// Cuts what nobody holds off a chain that had another first block and another length before.
    fn trim(&mut self, number: u32, head: Option<SequenceHash>, len: usize) {
        let Some(chain) = self.slab.get_mut(number) else { return };
        chain.trim();
        self.kept -= len - chain.len();
        if chain.head() == head {
            return;
        }
        if let Some(head) = head {
            self.heads.remove(head.0);
        }
        match chain.head() {
            Some(head) => {
                self.heads.insert(head.0, Kept { value: number, marks: 0 });
            }
            None => self.slab.remove(number),
        }
    }

    /// Bytes of heap of all but the chains, by capacities.
    pub(super) fn bytes(&self) -> usize {
        self.heads.bytes()
    }
}

fn push_places(placed: &mut Placed, first: Place, blocks: usize) {
    placed.places.extend((0..blocks).map(|block| Place { offset: first.offset + block, ..first }));
}

impl Scratch {
    /// Matches `prompt` along a chain that begins with its first block; `begins` if nothing was matched before. Returns
    /// the blocks matched; 0 once nobody is left.
    fn follow(
        &mut self,
        (chain, pools): (&Chain, &Pools),
        prompt: &[SequenceHash],
        begins: bool,
        overlaps: &mut Overlaps,
    ) -> usize {
        let mut matched = 0;
        for run in 0..chain.runs() {
            let (blocks, holders) = chain.run(run);
            let here = common(blocks, &prompt[matched..]);
            if here == 0 {
                return matched;
            }
            let first = begins && matched == 0;
            match holders.in_tier(Tier::External).filter(|tellers| !tellers.is_empty()) {
                None => self.keep(first, holders.anywhere()),
                Some(tellers) => {
                    let mut anywhere = std::mem::take(&mut self.here);
                    anywhere.copy_from(tellers);
                    pools.join(&mut anywhere);
                    anywhere.union_with(holders.anywhere());
                    self.keep(first, &anywhere);
                    self.here = anywhere;
                }
            }
            if self.alive.is_empty() {
                return 0;
            }
            self.book(here, (holders, pools), overlaps);
            matched += here;
            if here < blocks.len() {
                return matched;
            }
        }
        matched
    }

    /// Those that are left are the holders of the first block, and later those of them that hold the next ones too.
    fn keep(&mut self, first: bool, holders: &SlotSet) {
        if first {
            self.alive.copy_from(holders);
        } else {
            self.alive.intersect_with(holders);
        }
    }

    /// Books blocks for those that are left, each worker under the fastest tier in which it holds them.
    fn book(&mut self, blocks: usize, (holders, pools): (&Holders, &Pools), overlaps: &mut Overlaps) {
        let blocks = Blocks(u32::try_from(blocks).unwrap_or(u32::MAX));
        if holders.on_devices_only() {
            overlaps.push(blocks, Tier::Device, &self.alive);
            return;
        }
        self.left.copy_from(&self.alive);
        for tier in Tier::ALL {
            let Some(slots) = holders.in_tier(tier) else { continue };
            self.here.copy_from(slots);
            if tier == Tier::External {
                pools.join(&mut self.here);
            }
            self.here.intersect_with(&self.left);
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
        /// The invariants, in full; returns every (worker, tier, place) that is held.
        pub(in super::super) fn check(&self) -> HashSet<(Slot, Tier, Place)> {
            let mut held = HashSet::new();
            let mut all = Vec::new();
            let mut heads = 0;
            for number in 0..self.slab.numbers() {
                let Some(chain) = self.slab.get(number).filter(|chain| chain.head().is_some()) else { continue };
                heads += 1;
                assert_eq!(self.heads.get(chain.head().unwrap().0).map(|head| head.value), Some(number));
                let runs: Vec<_> = (0..chain.runs()).map(|run| chain.run(run)).collect();
                assert!(runs.iter().all(|(blocks, _)| !blocks.is_empty()));
                assert!(!runs[0].1.is_empty() && !runs[runs.len() - 1].1.is_empty());
                assert!(runs.windows(2).all(|pair| pair[0].1 != pair[1].1));
                let blocks: Vec<SequenceHash> = runs.iter().flat_map(|(blocks, _)| blocks.iter().copied()).collect();
                let mut offset = chain.start();
                for (blocks, holders) in &runs {
                    for _ in *blocks {
                        let place = Place { chain: number, offset };
                        let in_tier = |tier| holders.in_tier(tier).into_iter().flat_map(SlotSet::iter);
                        held.extend(
                            Tier::ALL.into_iter().flat_map(|tier| in_tier(tier).map(move |slot| (slot, tier, place))),
                        );
                        offset += 1;
                    }
                }
                assert_eq!(offset, chain.end());
                all.extend(blocks);
            }
            assert_eq!((heads, heads), (self.heads.len(), self.slab.len()));
            let different: HashSet<u64> = all.iter().map(|hash| hash.0).collect();
            assert_eq!(different.len(), all.len(), "a block is in one chain at most");
            assert_eq!(self.kept, all.len());
            held
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
