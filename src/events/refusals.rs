//! What of a worker's messages could not be used, and why. Whoever sends nonsense sends much of it: of each kind the first is
//! told in the log, then the second, the fourth and so on.

use std::collections::HashMap;
use std::fmt;
use std::mem::{Discriminant, discriminant};

use warmpath_core::ids::Rank;
use warmpath_indexer::codec::DecodeError;
use warmpath_indexer::event::Rejected;

/// Why a message, or an event in it, was left out.
pub(super) enum Refusal {
    /// It cannot be read.
    Undecodable(DecodeError),
    /// It says that it is from another worker than its subject.
    OtherWorker(String),
    /// It says that it is from another rank.
    OtherRank { says: u32, is: Rank },
    /// It lacks its number or its epoch, which the worker's other messages have.
    Unnumbered,
    /// One of its events cannot be understood; the others are taken.
    Rejected(Rejected),
}

/// What is told apart in the log: as many as there are faults that the decoders know, and three.
#[derive(PartialEq, Eq, Hash)]
enum Kind {
    Undecodable(Discriminant<DecodeError>),
    OtherWorker,
    OtherRank,
    Unnumbered,
    Rejected(Discriminant<DecodeError>),
}

impl Refusal {
    fn kind(&self) -> Kind {
        match self {
            Self::Undecodable(error) => Kind::Undecodable(discriminant(error)),
            Self::OtherWorker(_) => Kind::OtherWorker,
            Self::OtherRank { .. } => Kind::OtherRank,
            Self::Unnumbered => Kind::Unnumbered,
            Self::Rejected(rejected) => Kind::Rejected(discriminant(&rejected.reason)),
        }
    }

    /// In one word, for a metric's label.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::Undecodable(_) => "undecodable",
            Self::OtherWorker(_) | Self::OtherRank { .. } | Self::Unnumbered => "foreign",
            Self::Rejected(_) => "rejected",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Undecodable(error) => write!(f, "a batch cannot be read: {error}"),
            Self::OtherWorker(says) => write!(f, "its batches name the worker `{says}`"),
            Self::OtherRank { says, is } => {
                write!(f, "its batches are of rank {says}, not {}: `dp_start_rank`, `dp_ranks`?", is.0)
            }
            Self::Unnumbered => {
                write!(f, "a batch lacks number or epoch, which others have: does somebody else publish for it?")
            }
            Self::Rejected(Rejected { index, reason, .. }) => write!(f, "event {index} of a batch: {reason}"),
        }
    }
}

/// How many refusals there were of each kind.
#[derive(Default)]
pub(super) struct Refusals(HashMap<Kind, u64>);

impl Refusals {
    /// Counts one more; returns how many there were of its kind if that is to be told.
    pub(super) fn count(&mut self, refusal: &Refusal) -> Option<u64> {
        let count = self.0.entry(refusal.kind()).or_insert(0);
        *count += 1;
        Some(*count).filter(|count| count.is_power_of_two())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_kind_the_first_is_told_and_then_ever_fewer() {
        let mut refusals = Refusals::default();
        let rank = |says| Refusal::OtherRank { says, is: Rank(0) };
        let told: Vec<u64> = (0..2000).filter_map(|says| refusals.count(&rank(says))).collect();
        assert_eq!(told, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]);
        let reason = || DecodeError::UnknownMedium { medium: "HBM2".to_owned(), at: 7 };
        let rejected = Refusal::Rejected(Rejected { index: 3, at: 7, reason: reason() });
        assert_eq!(refusals.count(&rejected), Some(1));
        assert_eq!(refusals.count(&Refusal::Undecodable(reason())), Some(1), "a whole batch is another kind");
        assert_eq!(rejected.to_string(), "event 3 of a batch: unknown medium `HBM2` at byte 7");
    }
}
