//! A stretch of blocks that follow each other, and who holds which of them.

use smallvec::{SmallVec, smallvec};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::units::Tier;

use super::holders::Holders;

/// The longest chain, in blocks: a removal inside moves at most so many.
pub(super) const CHAIN_BLOCKS: usize = 512;

/// Blocks that follow each other, at most [`CHAIN_BLOCKS`] of them, and their holders as runs.
///
/// A block's offset never changes while the chain lives: what goes at the front moves `base`. The first and the last
/// run have holders; runs between them may have none. Neighbouring runs differ.
pub(super) struct Chain {
    hashes: Vec<SequenceHash>,
    runs: SmallVec<[Run; 1]>,
    /// The offset of the first block.
    base: u16,
}

/// From `start` to the next run's start, or to the chain's end.
#[derive(Clone)]
struct Run {
    start: u16,
    holders: Holders,
}

fn narrow(offset: usize) -> u16 {
    u16::try_from(offset).expect("an offset in a chain is at most 512")
}

impl Chain {
    /// A chain of `blocks`, at least one and at most [`CHAIN_BLOCKS`], that one worker holds.
    pub(super) fn new(blocks: &[SequenceHash], slot: Slot, tier: Tier) -> Self {
        let runs = smallvec![Run { start: 0, holders: Holders::one(slot, tier) }];
        Self { hashes: blocks.to_vec(), runs, base: 0 }
    }

    /// What a freed chain leaves behind.
    pub(super) fn vacant() -> Self {
        Self { hashes: Vec::new(), runs: SmallVec::new(), base: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The first block.
    pub(super) fn head(&self) -> Option<SequenceHash> {
        self.hashes.first().copied()
    }

    fn start(&self) -> usize {
        usize::from(self.base)
    }

    /// The offset behind the last block.
    pub(super) fn end(&self) -> usize {
        self.start() + self.hashes.len()
    }

    /// The block at an offset.
    pub(super) fn at(&self, offset: usize) -> Option<SequenceHash> {
        self.hashes.get(offset.checked_sub(self.start())?).copied()
    }

    /// How many runs there are.
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The blocks of a run and its holders.
    pub(super) fn run(&self, run: usize) -> (&[SequenceHash], &Holders) {
        let from = usize::from(self.runs[run].start) - self.start();
        (&self.hashes[from..self.run_end(run) - self.start()], &self.runs[run].holders)
    }

    fn run_end(&self, run: usize) -> usize {
        self.runs.get(run + 1).map_or(self.end(), |next| usize::from(next.start))
    }

    /// Whether the worker holds any of it.
    pub(super) fn names(&self, slot: Slot) -> bool {
        self.runs.iter().any(|run| run.holders.contains(slot))
    }

    /// Puts blocks that one worker holds behind the last; there is room for them.
    pub(super) fn append(&mut self, blocks: &[SequenceHash], slot: Slot, tier: Tier) {
        let start = narrow(self.end());
        let len = self.hashes.len() + blocks.len();
        if len > self.hashes.capacity() {
            // By a quarter: doubling would cost up to 8 bytes a block.
            let room = (len + len / 4).max(4).min(CHAIN_BLOCKS - self.start()).max(len);
            self.hashes.reserve_exact(room - self.hashes.len());
        }
        self.hashes.extend_from_slice(blocks);
        let holders = Holders::one(slot, tier);
        if self.runs.last().is_none_or(|last| last.holders != holders) {
            self.runs.push(Run { start, holders });
        }
    }

    /// Says that a worker holds the blocks from `from` to before `to` in a tier; returns of how many it held nothing.
    /// O(runs).
    pub(super) fn mark(&mut self, from: usize, to: usize, slot: Slot, tier: Tier) -> usize {
        let mut run = self.run_of(from);
        if self.run_end(run) >= to && self.runs[run].holders.contains_in(slot, tier) {
            return 0;
        }
        run = self.split(from);
        let behind = self.split(to);
        let mut new = 0;
        for at in run..behind {
            let len = self.run_end(at) - usize::from(self.runs[at].start);
            new += len * usize::from(self.runs[at].holders.insert(slot, tier));
        }
        self.join(run, behind);
        new
    }

    /// Says that a worker does not hold a block in a tier any more; returns whether it holds it nowhere now, but did.
    /// Follow it by [`Chain::trim`]. O(runs).
    pub(super) fn unmark(&mut self, offset: usize, slot: Slot, tier: Tier) -> bool {
        let run = self.run_of(offset);
        if !self.runs[run].holders.contains_in(slot, tier) {
            return false;
        }
        let run = self.split(offset);
        let behind = self.split(offset + 1);
        let gone = self.runs[run].holders.remove(slot, tier);
        self.join(run, behind);
        gone
    }

    /// Takes a worker out of every block; returns of how many it held any. Follow it by [`Chain::trim`]. O(runs).
    pub(super) fn unmark_all(&mut self, slot: Slot) -> usize {
        let mut gone = 0;
        for run in 0..self.runs.len() {
            let len = self.run_end(run) - usize::from(self.runs[run].start);
            gone += len * usize::from(self.runs[run].holders.remove_all(slot));
        }
        self.join(0, self.runs.len());
        gone
    }

    /// Cuts off what nobody holds at both ends and hands it to `freed`. Returns whether the first block is another.
    /// O(blocks) when something goes at the front, else O(blocks that go).
    pub(super) fn trim(&mut self, freed: &mut Vec<SequenceHash>) -> bool {
        while let Some(last) = self.runs.last()
            && last.holders.is_empty()
        {
            let keep = usize::from(last.start) - self.start();
            freed.extend(self.hashes.drain(keep..));
            self.runs.pop();
        }
        let cut = match self.runs.first() {
            Some(first) if first.holders.is_empty() => self.run_end(0) - self.start(),
            _ => 0,
        };
        if cut > 0 {
            self.base = narrow(self.start() + cut);
            freed.extend(self.hashes.drain(..cut));
            self.runs.remove(0);
        }
        if self.hashes.capacity() > 8 && self.hashes.len() * 3 < self.hashes.capacity() * 2 {
            self.hashes.shrink_to(self.hashes.len() + self.hashes.len() / 4);
        }
        cut > 0
    }

    /// The run of an offset inside the chain.
    fn run_of(&self, offset: usize) -> usize {
        self.runs.partition_point(|run| usize::from(run.start) <= offset) - 1
    }

    /// Makes a run begin at `offset`; returns which. Behind the end there is none.
    fn split(&mut self, offset: usize) -> usize {
        if offset >= self.end() {
            return self.runs.len();
        }
        let run = self.run_of(offset);
        if usize::from(self.runs[run].start) == offset {
            return run;
        }
        let holders = self.runs[run].holders.clone();
        self.runs.insert(run + 1, Run { start: narrow(offset), holders });
        run + 1
    }

    /// Makes one of neighbours that are equal, from the run before `from` to run `to`.
    fn join(&mut self, from: usize, to: usize) {
        let first = from.max(1);
        for run in (first..=to).rev() {
            if run < self.runs.len() && self.runs[run].holders == self.runs[run - 1].holders {
                self.runs.remove(run);
            }
        }
    }

    /// Bytes of heap, by capacities.
    pub(super) fn bytes(&self) -> usize {
        let runs = if self.runs.spilled() { self.runs.capacity() * size_of::<Run>() } else { 0 };
        let holders: usize = self.runs.iter().map(|run| run.holders.bytes()).sum();
        self.hashes.capacity() * size_of::<SequenceHash>() + runs + holders
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range.map(SequenceHash).collect()
    }

    /// The runs as lengths.
    fn lengths(chain: &Chain) -> Vec<usize> {
        (0..chain.runs()).map(|run| chain.run(run).0.len()).collect()
    }

    #[test]
    fn runs_split_and_join_as_workers_come_and_go() {
        let mut chain = Chain::new(&hashes(0..10), Slot(0), Tier::Device);
        assert_eq!(chain.mark(2, 6, Slot(1), Tier::Device), 4);
        assert_eq!(lengths(&chain), [2, 4, 4]);
        assert_eq!(chain.mark(0, 4, Slot(1), Tier::Device), 2);
        assert_eq!(lengths(&chain), [6, 4]);
        assert_eq!((chain.mark(1, 5, Slot(1), Tier::Device), chain.mark(6, 10, Slot(1), Tier::Device)), (0, 4));
        assert_eq!(lengths(&chain), [10]);
        assert!(chain.unmark(3, Slot(1), Tier::Device) && !chain.unmark(3, Slot(1), Tier::Device));
        assert_eq!(lengths(&chain), [3, 1, 6]);
        assert_eq!(chain.unmark_all(Slot(1)), 9);
        assert_eq!(lengths(&chain), [10]);
    }

    #[test]
    fn both_ends_are_cut_and_offsets_stay() {
        let mut chain = Chain::new(&hashes(0..10), Slot(0), Tier::Device);
        let mut freed = Vec::new();
        assert!(chain.unmark(8, Slot(0), Tier::Device) && !chain.trim(&mut freed));
        assert!(chain.unmark(9, Slot(0), Tier::Device) && !chain.trim(&mut freed));
        assert_eq!((chain.end(), freed.len()), (8, 2));
        assert!(chain.unmark(1, Slot(0), Tier::Device) && !chain.trim(&mut freed));
        assert!(chain.unmark(0, Slot(0), Tier::Device) && chain.trim(&mut freed));
        assert_eq!(
            (chain.head(), chain.at(1), chain.at(2), freed.len()),
            (Some(SequenceHash(2)), None, chain.head(), 4)
        );
        chain.append(&hashes(50..51), Slot(3), Tier::Host);
        assert_eq!((lengths(&chain), chain.end(), chain.at(8)), (vec![6, 1], 9, Some(SequenceHash(50))));
        assert_eq!((chain.unmark_all(Slot(3)), chain.unmark_all(Slot(0))), (1, 6));
        chain.trim(&mut freed);
        assert!(chain.is_empty() && chain.runs() == 0);
    }
}
