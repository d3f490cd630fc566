//! What happened to requests: all that policies learn from. The gateway and the simulator report the same things.

use std::time::Instant;

use crate::ids::{Rank, RequestKey, Roll, SequenceHash, Slot, WorkerId};
use crate::overlap::TierBlocks;
use crate::shape::Shape;
use crate::slot_set::SlotSet;
use crate::units::Tokens;

/// Whose fault a failure was. Only a worker's faults count against the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The client left or sent nonsense.
    Client,
    /// The worker failed.
    Worker,
    /// The router failed.
    Router,
}

/// What an engine said a request had cost it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt tokens as the engine counted them.
    pub prompt: Option<Tokens>,
    /// Of these, taken from its cache.
    pub cached: Option<Tokens>,
    /// Tokens that it generated.
    pub completion: Option<Tokens>,
}

impl Usage {
    /// The same of one of so many sequences, which are generated side by side: the tokens of each, on average.
    #[must_use]
    pub fn of_each(self, sequences: u32) -> Self {
        let completion = self.completion.map(|tokens| Tokens(tokens.0.div_ceil(sequences.max(1))));
        Self { completion, ..self }
    }
}

/// One thing that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// When.
    pub at: Instant,
    /// To which request.
    pub request: RequestKey,
    /// On which target.
    pub slot: Slot,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// It was sent there.
    Placed {
        /// Its shape, with all that policies look at.
        shape: Shape,
        /// What the index and what was in flight promised.
        overlap: TierBlocks,
        /// Tokens that the worker will have to compute, by that promise as far as it is believed.
        new_tokens: Tokens,
    },
    /// Its first token came.
    FirstToken,
    /// More tokens came.
    Progress {
        /// How many of each sequence, as far as the stream tells.
        tokens: Tokens,
    },
    /// It ended as it should.
    Finished {
        /// What the engine reported, of its sequences as of one: see [`Usage::of_each`].
        usage: Usage,
    },
    /// It ended otherwise.
    Failed {
        /// Through whose fault.
        side: Side,
    },
}

/// Something that learns from observations. Everything that a policy remembers comes through here, except for the prompts
/// themselves, which only a [`History`](crate::history::History) is told of.
pub trait Learn: Send + Sync {
    /// Takes note. Cheap: it is called for every chunk of every stream.
    fn observe(&self, observation: &Observation);

    /// The place in `path`, the blocks that a prompt has in common with others, of the last before its end at which prompts
    /// parted that came before; none for who does not remember such.
    fn trunk(&self, _path: &[SequenceHash]) -> Option<usize> {
        None
    }

    /// The place in `path`, the same as far as it is not the whole prompt, of the end of the last prompt that came before; none
    /// for who does not remember such.
    fn before(&self, _path: &[SequenceHash]) -> Option<usize> {
        None
    }
}

/// A target by its name.
#[derive(Clone, Copy, Debug)]
pub struct Enrolled<'a> {
    /// Its dense index.
    pub slot: Slot,
    /// The worker.
    pub worker: &'a WorkerId,
    /// The rank inside the worker.
    pub rank: Rank,
}

/// Something that goes by the names of targets, and so by what outlives slots and restarts.
pub trait Enrol: Send + Sync {
    /// Says who the targets are, before every placement. Whoever knows the roll already returns at once.
    fn enrol(&self, roll: Roll, targets: &mut dyn Iterator<Item = Enrolled<'_>>);
}

/// Who has each slot, as was said last.
#[derive(Debug, Default)]
pub struct Occupants {
    roll: Option<Roll>,
    names: Vec<Option<(WorkerId, Rank)>>,
    present: SlotSet,
    count: u32,
}

impl Occupants {
    /// How many targets there were by the last roll.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The slots of the targets that there were by the last roll.
    pub fn present(&self) -> &SlotSet {
        &self.present
    }

    /// One more than the largest slot that a target has had.
    pub fn slots(&self) -> usize {
        self.names.len()
    }

    /// Takes note of who has them, and tells the slots that another target had before. O(1) for a roll that is known.
    pub fn renew(
        &mut self,
        roll: Roll,
        targets: &mut dyn Iterator<Item = Enrolled<'_>>,
        mut changed: impl FnMut(Slot),
    ) {
        if self.roll.replace(roll) == Some(roll) {
            return;
        }
        (self.count, self.present) = (0, SlotSet::new());
        for Enrolled { slot, worker, rank } in targets {
            self.count += 1;
            self.present.insert(slot);
            if self.names.len() <= slot.index() {
                self.names.resize(slot.index() + 1, None);
            }
            let name = &mut self.names[slot.index()];
            if name.as_ref().is_some_and(|(known, number)| known == worker && *number == rank) {
                continue;
            }
            if name.replace((worker.clone(), rank)).is_some() {
                changed(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sequences_have_together_each_has_a_part_of() {
        let of_each = |tokens, sequences| {
            let usage = Usage { prompt: Some(Tokens(9)), cached: Some(Tokens(4)), completion: Some(Tokens(tokens)) };
            let of_each = usage.of_each(sequences);
            assert_eq!((of_each.prompt, of_each.cached), (usage.prompt, usage.cached));
            of_each.completion.map(|tokens| tokens.0)
        };
        // Who says that some have none has the others all the same.
        assert_eq!([of_each(4_800, 16), of_each(7, 1), of_each(3, 16), of_each(5, 0)], [300, 7, 1, 5].map(Some));
        assert_eq!(Usage::default().of_each(4), Usage::default());
    }
}
