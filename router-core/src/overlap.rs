//! What each worker's cache holds of one prompt: the answer, and the port through which it is asked for.

use serde::{Deserialize, Serialize};

use crate::ids::{SequenceHash, Slot};
use crate::slot_set::SlotSet;
use crate::units::{Blocks, Tier, Tokens};

/// Leading blocks by the tier in which they lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TierBlocks([u32; 4]);

impl TierBlocks {
    /// All of them on the device.
    pub fn device(blocks: Blocks) -> Self {
        Self([blocks.0, 0, 0, 0])
    }

    /// Blocks whose fastest tier is `tier`.
    pub fn get(&self, tier: Tier) -> Blocks {
        Blocks(self.0[tier.index()])
    }

    /// Adds blocks that lie in `tier`.
    pub fn add(&mut self, tier: Tier, blocks: Blocks) {
        let held = &mut self.0[tier.index()];
        *held = held.saturating_add(blocks.0);
    }

    /// The first `blocks` of the run lie on the device, whatever else is known: which of those below it these were is not, and
    /// the fastest count as them.
    pub fn lead(&mut self, blocks: Blocks) {
        let [device, below @ ..] = &mut self.0;
        let mut raised = blocks.0.saturating_sub(*device);
        *device += raised;
        for held in below {
            let those = raised.min(*held);
            *held -= those;
            raised -= those;
        }
    }

    /// Adds tier by tier.
    pub fn add_all(&mut self, other: TierBlocks) {
        for (held, more) in self.0.iter_mut().zip(other.0) {
            *held = held.saturating_add(more);
        }
    }

    /// Whether none lies below the device.
    pub fn is_on_device(&self) -> bool {
        let [_, host, disk, external] = self.0;
        host | disk | external == 0
    }

    /// The length of the run, whatever the tiers.
    pub fn total(&self) -> Blocks {
        // Asked of every worker for every request, most of which have nothing below the device.
        let [device, host, disk, external] = self.0;
        if self.is_on_device() {
            return Blocks(device);
        }
        Blocks(device.saturating_add(host).saturating_add(disk).saturating_add(external))
    }
}

/// A stretch of a prompt that the same workers hold in the same tier.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Run {
    len: Blocks,
    tier: Tier,
    workers: SlotSet,
}

/// The answer of a [`PrefixIndex`]: runs in the order of the prompt. A worker that is in one run is in a run for every
/// block before it, so that its overlap is the sum of its runs. The caller's buffer: reused from request to request.
#[derive(Debug, Default)]
pub struct Overlaps {
    runs: Vec<Run>,
    used: usize,
}

impl Overlaps {
    /// Forgets the last answer; keeps the memory.
    pub fn clear(&mut self) {
        self.used = 0;
    }

    /// Says that `workers` hold the next `len` blocks of theirs in `tier`. Calls come in the order of the prompt.
    /// Neighbours with equal tier and workers become one run.
    pub fn push(&mut self, len: Blocks, tier: Tier, workers: &SlotSet) {
        if len == Blocks(0) || workers.is_empty() {
            return;
        }
        if let Some(last) = self.used.checked_sub(1).and_then(|last| self.runs.get_mut(last))
            && last.tier == tier
            && last.workers == *workers
        {
            last.len = Blocks(last.len.0.saturating_add(len.0));
            return;
        }
        match self.runs.get_mut(self.used) {
            Some(run) => {
                run.len = len;
                run.tier = tier;
                run.workers.copy_from(workers);
            }
            None => self.runs.push(Run { len, tier, workers: workers.clone() }),
        }
        self.used += 1;
    }

    /// Fills `held` by slot with each worker's leading blocks, up to `cap` of them. Slots beyond `held` are left out.
    /// O(runs + holders + slots).
    pub fn expand(&self, cap: Blocks, held: &mut [TierBlocks]) {
        held.fill(TierBlocks::default());
        let runs = &self.runs[..self.used];
        if runs.iter().all(|run| run.tier == Tier::Device)
            && runs.windows(2).all(|pair| pair[0].workers.contains_all(&pair[1].workers))
        {
            return expand_nested(runs, cap, held);
        }
        for run in runs {
            for slot in run.workers.iter() {
                let Some(held) = held.get_mut(slot.index()) else { break };
                let room = cap.0.saturating_sub(held.total().0);
                held.add(run.tier, Blocks(run.len.0.min(room)));
            }
        }
    }

    /// One worker's raw run.
    pub fn of(&self, slot: Slot) -> TierBlocks {
        let mut held = TierBlocks::default();
        for run in self.runs[..self.used].iter().filter(|run| run.workers.contains(slot)) {
            held.add(run.tier, run.len);
        }
        held
    }

    /// The longest raw run; 0 when nobody holds anything.
    pub fn longest(&self) -> Blocks {
        self.best().map_or(Blocks(0), |(_, blocks)| blocks)
    }

    /// The worker with the longest raw run, the lowest slot among equals; none when nobody holds anything.
    pub fn best(&self) -> Option<(Slot, Blocks)> {
        let mut holders = SlotSet::new();
        for run in &self.runs[..self.used] {
            holders.union_with(&run.workers);
        }
        let runs = holders.iter().map(|slot| (slot, self.of(slot).total()));
        runs.max_by_key(|&(slot, blocks)| (blocks, std::cmp::Reverse(slot)))
    }
}

/// Where all lies on the device, as it mostly does: every worker is written once, for the last run that it is in.
fn expand_nested(runs: &[Run], cap: Blocks, held: &mut [TierBlocks]) {
    let mut len = Blocks(0);
    let beyond = runs.iter().skip(1).map(|next| Some(&next.workers)).chain([None]);
    for (run, next) in runs.iter().zip(beyond) {
        len = Blocks(len.0.saturating_add(run.len.0)).min(cap);
        for stretch in run.workers.stretches_without(next) {
            let end = stretch.end.min(held.len());
            held.get_mut(stretch.start..end).into_iter().for_each(|held| held.fill(TierBlocks::device(len)));
        }
    }
}

/// What each worker's cache holds, as far as its events have told us.
///
/// 1. A worker's overlap counts *leading* blocks: `n` means that it holds blocks `0..n` of the prompt, each in some
///    tier; a block counts under its fastest.
/// 2. An answer may be stale. That costs speed, never correctness: any worker can serve any prompt.
/// 3. Once a worker is forgotten, no match that starts later names it.
/// 4. Readers never wait for a whole batch of writes. One worker's events come from one task, in order.
pub trait PrefixIndex: Send + Sync {
    /// Replaces `overlaps` by the runs of `prompt`. Stops at the first block that nobody holds.
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps);
}

/// Of `prompt` tokens, those that are not covered by `overlap`; never below zero.
pub fn new_tokens(prompt: Tokens, overlap: Tokens) -> Tokens {
    prompt.saturating_sub(overlap)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(slots: &[u16]) -> SlotSet {
        slots.iter().copied().map(Slot).collect()
    }

    /// Tiers D,D,H,D,– give device 3, host 1, total 4; the cap takes from the end.
    #[test]
    fn a_block_counts_under_its_tier_and_the_cap_takes_from_the_end() {
        let mut overlaps = Overlaps::default();
        overlaps.push(Blocks(2), Tier::Device, &set(&[0]));
        overlaps.push(Blocks(1), Tier::Host, &set(&[0]));
        overlaps.push(Blocks(1), Tier::Device, &set(&[0]));
        let raw = overlaps.of(Slot(0));
        assert_eq!((raw.get(Tier::Device), raw.get(Tier::Host), raw.total()), (Blocks(3), Blocks(1), Blocks(4)));
        let mut held = [TierBlocks::default(); 2];
        overlaps.expand(Blocks(3), &mut held);
        assert_eq!((held[0].get(Tier::Device), held[0].get(Tier::Host)), (Blocks(2), Blocks(1)));
        assert_eq!(held[1].total(), Blocks(0));
    }

    ///
    #[test]
    fn best_and_longest() {
        let mut overlaps = Overlaps::default();
        assert_eq!((overlaps.best(), overlaps.longest()), (None, Blocks(0)));
        overlaps.push(Blocks(1), Tier::Device, &set(&[0, 1]));
        overlaps.push(Blocks(2), Tier::Device, &set(&[1]));
        assert_eq!((overlaps.best(), overlaps.longest()), (Some((Slot(1), Blocks(3))), Blocks(3)));
        overlaps.clear();
        assert_eq!(overlaps.best(), None);
    }

    #[test]
    fn each_worker_has_what_its_runs_add_up_to_whether_they_are_nested_or_not() {
        let far = 130;
        let nested = [vec![0, 1, 3, 64, far], vec![1, 3, far], vec![3, far], vec![far]];
        let apart = [vec![0, 1, far], vec![64], vec![1, 64, far], vec![0]];
        for sets in [nested, apart] {
            let mut overlaps = Overlaps::default();
            for (slots, len) in sets.iter().zip(2..) {
                overlaps.push(Blocks(len), Tier::Device, &set(slots));
            }
            for cap in [0, 1, 6, 9, 100].map(Blocks) {
                // The last slot is beyond what is asked for.
                let mut held = vec![TierBlocks::device(Blocks(77)); usize::from(far)];
                overlaps.expand(cap, &mut held);
                for (held, slot) in held.iter().zip(0..) {
                    let expected = TierBlocks::device(overlaps.of(Slot(slot)).total().min(cap));
                    assert_eq!(*held, expected, "{sets:?} {slot} {cap:?}");
                }
            }
        }
    }

    #[test]
    fn equal_neighbours_join_into_one_run() {
        let mut overlaps = Overlaps::default();
        overlaps.push(Blocks(1), Tier::Device, &set(&[3]));
        overlaps.push(Blocks(1), Tier::Device, &set(&[3]));
        assert_eq!((overlaps.used, overlaps.longest()), (1, Blocks(2)));
    }
}
