//! What happens next in a simulated fleet.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::world::Stage;
use crate::clock::Ms;
use crate::request::TokenOut;

/// What happens at one moment. Of things that happen at the same moment, the kinds go in this order.
#[derive(Debug)]
pub(super) enum Happening {
    /// An engine's step is over.
    End(usize),
    /// A message of an engine's events reaches the router.
    Events(usize, Message),
    /// One of the storage that all engines share does.
    Storage(Message),
    /// A worker that restarts comes a step further.
    Restart(Stage),
    /// The engines' metrics are read.
    Report,
    /// The fleet is looked at, for the report.
    Sample,
    /// A token that has travelled reaches the client, and the router on its way.
    Token(usize, TokenOut),
    /// A request arrives.
    Arrival(usize),
    /// One that has waited at its client is sent.
    Sent(usize),
    /// An engine that had nothing to do looks for work: after all that arrives at the same moment.
    Start(usize),
}

/// A batch of events on its way.
#[derive(Debug)]
pub(super) struct Message {
    /// Whose it is: of the processes that have had the cache, from 0.
    pub(super) process: u32,
    /// Which one of its process it is, from 0.
    pub(super) seq: u64,
    pub(super) form: Form,
}

/// How it travels.
#[derive(Debug)]
pub(super) enum Form {
    /// As it is after decoding.
    Decoded(Box<warmpath_indexer::event::EventBatch>),
    /// As bytes.
    Bytes(Vec<u8>),
}

impl Happening {
    fn kind(&self) -> u8 {
        match self {
            Self::End(_) => 0,
            Self::Events(..) => 1,
            Self::Storage(_) => 2,
            Self::Token(..) => 3,
            Self::Restart(_) => 4,
            Self::Report => 5,
            Self::Sample => 6,
            Self::Sent(_) => 7,
            Self::Arrival(_) => 8,
            Self::Start(_) => 9,
        }
    }
}

/// All that is going to happen, in order of time, of kind, and of when it was entered: always the same.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    entries: BinaryHeap<Entry>,
    entered: u64,
}

#[derive(Debug)]
struct Entry {
    at: Ms,
    number: u64,
    happening: Happening,
}

impl Agenda {
    pub(super) fn enter(&mut self, at: Ms, happening: Happening) {
        self.entries.push(Entry { at, number: self.entered, happening });
        self.entered += 1;
    }

    pub(super) fn next(&mut self) -> Option<(Ms, Happening)> {
        let Entry { at, happening, .. } = self.entries.pop()?;
        Some((at, happening))
    }
}

/// The heap gives out the greatest: whatever is sooner is greater.
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        let sooner = self.at.0.total_cmp(&other.at.0);
        let sooner = sooner.then(self.happening.kind().cmp(&other.happening.kind()));
        sooner.then(self.number.cmp(&other.number)).reverse()
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sooner_comes_first_then_ends_before_arrivals_before_starts() {
        let mut agenda = Agenda::default();
        agenda.enter(Ms(2.0), Happening::End(0));
        agenda.enter(Ms(1.0), Happening::Start(1));
        agenda.enter(Ms(1.0), Happening::Arrival(2));
        agenda.enter(Ms(1.0), Happening::Arrival(3));
        agenda.enter(Ms(1.0), Happening::End(4));
        let order: Vec<String> = std::iter::from_fn(|| agenda.next()).map(|(_, what)| format!("{what:?}")).collect();
        assert_eq!(order, ["End(4)", "Arrival(2)", "Arrival(3)", "Start(1)", "End(0)"]);
    }
}
