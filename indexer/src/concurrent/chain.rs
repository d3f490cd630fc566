//! A stretch of blocks that follow each other, and who holds which of them.

use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::{SmallVec, smallvec};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::units::Tier;

use super::holders::Holders;
use crate::store::{CHAIN_BLOCKS, Origin};

/// Blocks that follow each other, at most [`CHAIN_BLOCKS`] of them, and their holders as runs.
///
/// A block's offset never changes while the chain lives: what goes at the front moves `base`. The first and the last
/// run have holders; runs between them may have none. Neighbouring runs differ.
pub(super) struct Chain {
    hashes: Vec<SequenceHash>,
    runs: SmallVec<[Run; 1]>,
    /// What comes before the first block.
    above: Origin,
    /// When it was last stored into or matched. Look-ups write it, which never waits: all that is at stake is the order
    /// in which chains are shed.
    used: AtomicU32,
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
    pub(super) fn new(above: Origin, blocks: &[SequenceHash], (slot, tier): (Slot, Tier), now: u32) -> Self {
        let runs = smallvec![Run { start: 0, holders: Holders::one(slot, tier) }];
        Self { hashes: blocks.to_vec(), runs, above, used: AtomicU32::new(now), base: 0 }
    }

    /// What a freed chain leaves behind.
    pub(super) fn vacant() -> Self {
        let above = Origin::Block(SequenceHash(0));
        Self { hashes: Vec::new(), runs: SmallVec::new(), above, used: AtomicU32::new(0), base: 0 }
    }

    /// What comes before the first block.
    pub(super) fn above(&self) -> Origin {
        self.above
    }

    /// When it was last used.
    pub(super) fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// It is used now.
    pub(super) fn touch(&self, now: u32) {
        // Everybody reads a popular chain; only the first writes.
        if self.used() != now {
            self.used.store(now, Ordering::Relaxed);
        }
    }

    /// The first block.
    pub(super) fn head(&self) -> Option<SequenceHash> {
        self.hashes.first().copied()
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    /// The offset of the first block.
    pub(super) fn start(&self) -> usize {
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

    /// The blocks from an offset on.
    pub(super) fn blocks_from(&self, offset: usize) -> &[SequenceHash] {
        self.hashes.get(offset.saturating_sub(self.start())..).unwrap_or_default()
    }

    /// Puts blocks that one worker holds behind the last; there is room for them.
    pub(super) fn append(&mut self, blocks: &[SequenceHash], (slot, tier): (Slot, Tier)) {
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

    /// Says that a worker holds the blocks from `from` to before `to` in a tier; hands those that it held there already
    /// to `held`, counted from `from`. Returns of how many it held nothing. O(runs).
    pub(super) fn mark(
        &mut self,
        (from, to): (usize, usize),
        (slot, tier): (Slot, Tier),
        mut held: impl FnMut(usize),
    ) -> usize {
        let run = self.split(from);
        let behind = self.split(to);
        let mut new = 0;
        for at in run..behind {
            let start = usize::from(self.runs[at].start);
            let end = self.run_end(at);
            if self.runs[at].holders.contains_in(slot, tier) {
                (start - from..end - from).for_each(&mut held);
            } else {
                new += (end - start) * usize::from(self.runs[at].holders.insert(slot, tier));
            }
        }
        self.join(run, behind);
        new
    }

    /// Says that a worker does not hold a block in a tier any more; returns whether it holds it nowhere now, but did.
    /// Follow it by [`Chain::trim`]. O(runs).
    pub(super) fn unmark(&mut self, offset: usize, slot: Slot, tier: Tier) -> bool {
        if self.pop(offset, slot, tier) {
            return true;
        }
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

    /// Cuts off the last of several blocks of a run, if that is the one and nobody else holds it: engines remove most
    /// blocks so, the tails of prompts first.
    fn pop(&mut self, offset: usize, slot: Slot, tier: Tier) -> bool {
        let Some(last) = self.runs.last() else { return false };
        let goes = offset + 1 == self.end() && usize::from(last.start) < offset && last.holders.are_only(slot, tier);
        if goes {
            self.hashes.pop();
        }
        goes
    }

    /// Takes a worker out of every block, in one tier or in all; returns how many it holds nowhere now, but did. Follow it
    /// by [`Chain::trim`]. O(runs).
    pub(super) fn unmark_all(&mut self, slot: Slot, tier: Option<Tier>) -> usize {
        let mut gone = 0;
        for run in 0..self.runs.len() {
            let len = self.run_end(run) - usize::from(self.runs[run].start);
            let holders = &mut self.runs[run].holders;
            gone += len
                * usize::from(match tier {
                    Some(tier) => holders.remove(slot, tier),
                    None => holders.remove_all(slot),
                });
        }
        self.join(0, self.runs.len());
        gone
    }

    /// Cuts off what nobody holds at both ends. The first block may be another then. O(blocks) when something goes at the front, else O(blocks that go).
    pub(super) fn trim(&mut self) {
        while let Some(last) = self.runs.last()
            && last.holders.is_empty()
        {
            self.hashes.truncate(usize::from(last.start) - usize::from(self.base));
            self.runs.pop();
        }
        let cut = match self.runs.first() {
            Some(first) if first.holders.is_empty() => self.run_end(0) - self.start(),
            _ => 0,
        };
        if let Some(last) = cut.checked_sub(1) {
            self.above = Origin::Block(self.hashes[last]);
            self.base = narrow(self.start() + cut);
            self.hashes.drain(..cut);
            self.runs.remove(0);
        }
        if self.hashes.capacity() > 8 && self.hashes.len() * 3 < self.hashes.capacity() * 2 {
            self.hashes.shrink_to(self.hashes.len() + self.hashes.len() / 4);
        }
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

    const ONE: (Slot, Tier) = (Slot(1), Tier::Device);

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range.map(SequenceHash).collect()
    }

    /// The runs as lengths.
    fn lengths(chain: &Chain) -> Vec<usize> {
        (0..chain.runs()).map(|run| chain.run(run).0.len()).collect()
    }

    #[test]
    fn runs_split_and_join_as_workers_come_and_go() {
        let mut chain = Chain::new(Origin::Root(SequenceHash(99)), &hashes(0..10), (Slot(0), Tier::Device), 0);
        assert_eq!(chain.mark((2, 6), ONE, |_| {}), 4);
        assert_eq!(lengths(&chain), [2, 4, 4]);
        let mut held = Vec::new();
        assert_eq!(chain.mark((0, 4), ONE, |at| held.push(at)), 2);
        assert_eq!((lengths(&chain), held), (vec![6, 4], vec![2, 3]));
        assert_eq!((chain.mark((1, 5), ONE, |_| {}), chain.mark((6, 10), ONE, |_| {})), (0, 4));
        assert_eq!(lengths(&chain), [10]);
        assert!(chain.unmark(3, Slot(1), Tier::Device) && !chain.unmark(3, Slot(1), Tier::Device));
        assert_eq!(lengths(&chain), [3, 1, 6]);
        assert_eq!(chain.unmark_all(Slot(1), None), 9);
        assert_eq!(lengths(&chain), [10]);
    }

    #[test]
    fn both_ends_are_cut_and_offsets_stay() {
        let mut chain = Chain::new(Origin::Root(SequenceHash(99)), &hashes(0..10), (Slot(0), Tier::Device), 0);
        let mut cut = |offset: usize| {
            let before = chain.len();
            assert!(chain.unmark(offset, Slot(0), Tier::Device));
            chain.trim();
            before - chain.len()
        };
        assert_eq!([cut(8), cut(9), cut(1)], [0, 2, 0]);
        assert_eq!((chain.end(), chain.above()), (8, Origin::Root(SequenceHash(99))));
        assert!(chain.unmark(0, Slot(0), Tier::Device));
        chain.trim();
        assert_eq!((chain.head(), chain.at(1), chain.at(2)), (Some(SequenceHash(2)), None, chain.head()));
        assert_eq!(chain.above(), Origin::Block(SequenceHash(1)));
        chain.append(&hashes(50..51), (Slot(3), Tier::Host));
        assert_eq!((lengths(&chain), chain.end(), chain.at(8)), (vec![6, 1], 9, Some(SequenceHash(50))));
        assert_eq!((chain.unmark_all(Slot(3), Some(Tier::Host)), chain.unmark_all(Slot(0), None)), (1, 6));
        chain.trim();
        assert!(chain.head().is_none() && chain.runs() == 0);
    }
}
