//! The prompts in flight one by one, and the order in which their credits end.

use std::time::Instant;

use crate::ids::Slot;

/// One prompt in flight.
pub(super) struct Flight {
    /// Its last node in the tree.
    pub(super) node: usize,
    /// Where it was sent.
    pub(super) slot: Slot,
    /// The next prompt of the same request.
    pub(super) sibling: Option<usize>,
    /// When its credit ends.
    until: Instant,
    /// Where it waits for that; none once it has no credit.
    pub(super) line: Option<Line>,
    before: Option<usize>,
    behind: Option<usize>,
}

/// Credits of equal length wait in one line, so that the first in it ends first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Those of prompts without a first token.
    Unanswered,
    /// Those of prompts that had one.
    Answered,
}

impl Line {
    pub(super) const ALL: [Line; 2] = [Line::Unanswered, Line::Answered];

    fn index(self) -> usize {
        match self {
            Line::Unanswered => 0,
            Line::Answered => 1,
        }
    }
}

/// All of them. A flight's number is its own until it is taken out.
#[derive(Default)]
pub(super) struct Flights {
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// The first and the last of each line.
    ends: [(Option<usize>, Option<usize>); 2],
}

impl Flights {
    /// A flight without a credit.
    pub(super) fn add(&mut self, node: usize, slot: Slot, sibling: Option<usize>, now: Instant) -> usize {
        let flight = Flight { node, slot, sibling, until: now, line: None, before: None, behind: None };
        if let Some(free) = self.free.pop() {
            self.flights[free] = Some(flight);
            return free;
        }
        self.flights.push(Some(flight));
        self.flights.len() - 1
    }

    pub(super) fn get(&self, number: usize) -> Option<&Flight> {
        self.flights.get(number)?.as_ref()
    }

    /// Takes a flight out, and out of its line.
    pub(super) fn take(&mut self, number: usize) -> Option<Flight> {
        let line = self.unline(number);
        let mut flight = self.flights.get_mut(number)?.take()?;
        flight.line = line;
        self.free.push(number);
        Some(flight)
    }

    /// Lets a flight wait at the end of `line`, until then.
    pub(super) fn line_up(&mut self, number: usize, line: Line, until: Instant) {
        let last = self.ends[line.index()].1;
        if let Some(flight) = self.get_mut(Some(number)) {
            (flight.until, flight.line, flight.before, flight.behind) = (until, Some(line), last, None);
        }
        match self.get_mut(last) {
            Some(last) => last.behind = Some(number),
            None => self.ends[line.index()].0 = Some(number),
        }
        self.ends[line.index()].1 = Some(number);
    }

    /// Takes a flight out of its line, and returns which that was.
    pub(super) fn unline(&mut self, number: usize) -> Option<Line> {
        let flight = self.get_mut(Some(number))?;
        let line = flight.line.take()?;
        let (before, behind) = (flight.before.take(), flight.behind.take());
        match self.get_mut(before) {
            Some(before) => before.behind = behind,
            None => self.ends[line.index()].0 = behind,
        }
        match self.get_mut(behind) {
            Some(behind) => behind.before = before,
            None => self.ends[line.index()].1 = before,
        }
        Some(line)
    }

    /// Takes the first one of `line` out of it if its time is over.
    pub(super) fn overdue(&mut self, line: Line, now: Instant) -> Option<&Flight> {
        let first = self.ends[line.index()].0?;
        if self.get(first)?.until > now {
            return None;
        }
        self.unline(first);
        self.get(first)
    }

    /// The numbers of all that are in flight at `slot`. O(flights).
    pub(super) fn numbers_at(&self, slot: Slot) -> impl Iterator<Item = usize> + '_ {
        let flights = self.flights.iter().enumerate();
        flights.filter(move |(_, flight)| flight.as_ref().is_some_and(|flight| flight.slot == slot)).map(|(at, _)| at)
    }

    pub(super) fn len(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    fn get_mut(&mut self, number: Option<usize>) -> Option<&mut Flight> {
        self.flights.get_mut(number?)?.as_mut()
    }
}

#[cfg(test)]
impl Flights {
    /// How many wait for their credit to end; from both ends of each line.
    pub(super) fn waiting(&self) -> usize {
        let mut waiting = 0;
        for (first, last) in self.ends {
            let mut forth: Vec<usize> = std::iter::successors(first, |&at| self.get(at)?.behind).collect();
            let back: Vec<usize> = std::iter::successors(last, |&at| self.get(at)?.before).collect();
            forth.reverse();
            assert_eq!(forth, back);
            waiting += back.len();
        }
        waiting
    }
}
