//! The waiting requests of one band, fair between those who sent them.

use std::collections::{BTreeSet, HashMap};

use super::Ticket;
use super::choice::{ByChoice, Choice, PassedOver};
use crate::shape::{Class, TenantId};

/// A sender; those that are nobody's are one sender together.
pub(super) type Sender = Option<TenantId>;

/// Senders that have been given more than others and do not wait now; further ones are forgiven, the least first.
const RESTED_MAX: usize = 1024;

/// Start-time fair queueing between senders, by the tokens that each has been given; a sender's own requests in the order
/// of their class, then of their arrival. Every step is O(log waiting).
#[derive(Debug, Default)]
pub(super) struct Band {
    /// No sender that waits has been given less than this: whoever comes new begins here.
    clock: u64,
    senders: HashMap<Sender, Share, foldhash::fast::RandomState>,
    /// Those that wait, least given first; among equals the one whose turn was due first.
    ready: BTreeSet<(u64, Ticket, Sender)>,
    /// Those that do not wait and have been given more than `clock`.
    rested: BTreeSet<(u64, Sender)>,
    /// All that wait, in the order of arrival.
    arrivals: BTreeSet<Ticket>,
}

/// What a sender has been given, and what it still wants.
#[derive(Debug)]
struct Share {
    given: u64,
    due: Ticket,
    waiting: ByChoice<(Class, Ticket)>,
}

impl Band {
    pub(super) fn len(&self) -> usize {
        self.arrivals.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// Who came last.
    pub(super) fn newest(&self) -> Option<Ticket> {
        self.arrivals.last().copied()
    }

    /// Who goes next.
    pub(super) fn first(&self) -> Option<Ticket> {
        self.ready.iter().find_map(|(_, _, sender)| Some(self.senders.get(sender)?.waiting.first()?.1))
    }

    /// Who goes next of those that are of none of these choices. O(senders that are passed over), and O(choices) once in a
    /// round for each.
    pub(super) fn first_but(&mut self, passed_over: &PassedOver) -> Option<Ticket> {
        let Self { ready, senders, .. } = self;
        let mut first = |sender| Some(senders.get_mut(sender)?.waiting.first_but(passed_over)?.1);
        ready.iter().find_map(|(_, _, sender)| first(sender))
    }

    pub(super) fn enter(&mut self, ticket: Ticket, sender: Sender, (class, choice): (Class, Choice)) {
        let clock = self.clock;
        let fresh = || Share { given: clock, due: ticket, waiting: ByChoice::default() };
        let share = self.senders.entry(sender).or_insert_with(fresh);
        if share.waiting.is_empty() {
            self.rested.remove(&(share.given, sender));
            share.given = share.given.max(clock);
            share.due = ticket;
            self.ready.insert((share.given, ticket, sender));
        }
        share.waiting.insert(choice, (class, ticket));
        self.arrivals.insert(ticket);
    }

    /// A request may choose among others. Its place stays.
    pub(super) fn rechoose(&mut self, ticket: Ticket, sender: Sender, class: Class, (from, to): (Choice, Choice)) {
        let Some(share) = self.senders.get_mut(&sender) else { return };
        if share.waiting.remove(from, (class, ticket)) {
            share.waiting.insert(to, (class, ticket));
        }
    }

    /// Takes a request out; where it was admitted, its sender has been given `tokens`.
    pub(super) fn remove(
        &mut self,
        ticket: Ticket,
        sender: Sender,
        (class, choice): (Class, Choice),
        tokens: Option<u64>,
    ) {
        let Some(share) = self.senders.get_mut(&sender) else { return };
        if !share.waiting.remove(choice, (class, ticket)) {
            return;
        }
        self.arrivals.remove(&ticket);
        if self.arrivals.is_empty() {
            // Nobody is short of anything: what was given before matters no more.
            *self = Self::default();
            return;
        }
        if let Some((least, _, _)) = self.ready.first().filter(|_| tokens.is_some()) {
            self.clock = self.clock.max(*least);
        }
        self.ready.remove(&(share.given, share.due, sender));
        share.given = share.given.saturating_add(tokens.unwrap_or(0));
        match share.waiting.first() {
            Some((_, next)) => {
                if tokens.is_some() {
                    share.due = next;
                }
                self.ready.insert((share.given, share.due, sender));
            }
            None => {
                self.rested.insert((share.given, sender));
            }
        }
        self.forgive();
    }

    /// Forgets those that would begin at the clock anyway, and the least of too many.
    fn forgive(&mut self) {
        while let Some((given, sender)) = self.rested.first().copied() {
            if given > self.clock && self.rested.len() <= RESTED_MAX {
                return;
            }
            self.rested.pop_first();
            self.senders.remove(&sender);
        }
    }

    /// Senders that are remembered.
    #[cfg(test)]
    fn known(&self) -> usize {
        self.senders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Sender = Some(TenantId(1));
    const B: Sender = Some(TenantId(2));

    fn serve(band: &mut Band, senders: &[(u64, Sender)], tokens: u64) -> u64 {
        let ticket = band.first().unwrap();
        let (_, sender) = senders.iter().find(|(number, _)| Ticket(*number) == ticket).unwrap();
        band.remove(ticket, *sender, (Class(0), Choice::ANY), Some(tokens));
        ticket.0
    }

    #[test]
    fn equal_requests_of_two_senders_alternate_whoever_came_first() {
        let mut band = Band::default();
        let senders = [(0, A), (1, A), (2, A), (3, B), (4, B), (5, None)];
        senders.iter().for_each(|(ticket, sender)| band.enter(Ticket(*ticket), *sender, (Class(0), Choice::ANY)));
        assert_eq!([(); 6].map(|()| serve(&mut band, &senders, 10)), [0, 3, 5, 1, 4, 2]);
        assert_eq!((band.first(), band.known()), (None, 0));
    }

    #[test]
    fn a_senders_own_requests_go_by_class_and_then_by_arrival() {
        let mut band = Band::default();
        for (ticket, class) in [(0, 5), (1, 2), (2, 2), (3, 9)] {
            band.enter(Ticket(ticket), A, (Class(class), Choice::ANY));
        }
        let order = [(1, 2), (2, 2), (0, 5), (3, 9)].map(|(ticket, class)| {
            let first = band.first();
            band.remove(Ticket(ticket), A, (Class(class), Choice::ANY), Some(1));
            first
        });
        assert_eq!(order, [1, 2, 0, 3].map(|ticket| Some(Ticket(ticket))));
    }

    /// One that always waits for one request only is not forgiven what it has got.
    #[test]
    fn what_a_sender_was_given_counts_when_it_comes_back() {
        let mut band = Band::default();
        let senders: Vec<(u64, Sender)> =
            (0..20).map(|ticket| (ticket, if ticket % 10 == 0 { A } else { B })).collect();
        senders
            .iter()
            .take(10)
            .for_each(|(ticket, sender)| band.enter(Ticket(*ticket), *sender, (Class(0), Choice::ANY)));
        assert_eq!(serve(&mut band, &senders, 35), 0);
        band.enter(Ticket(10), A, (Class(0), Choice::ANY));
        // B is given 4 × 10 before A, with its 35, is due.
        assert_eq!([(); 5].map(|()| serve(&mut band, &senders, 10)), [1, 2, 3, 4, 10]);
    }

    #[test]
    fn who_has_left_without_being_served_owes_nothing_and_is_forgotten() {
        let mut band = Band::default();
        band.enter(Ticket(0), A, (Class(0), Choice::ANY));
        band.enter(Ticket(1), B, (Class(0), Choice::ANY));
        band.remove(Ticket(0), A, (Class(0), Choice::ANY), None);
        assert_eq!((band.first(), band.known(), band.len()), (Some(Ticket(1)), 1, 1));
        band.remove(Ticket(7), A, (Class(0), Choice::ANY), None);
        assert_eq!(band.newest(), Some(Ticket(1)));
    }

    #[test]
    fn a_bounded_number_of_senders_is_remembered() {
        let mut band = Band::default();
        band.enter(Ticket(0), None, (Class(0), Choice::ANY));
        for number in 1..5_000 {
            let sender = Some(TenantId(number));
            band.enter(Ticket(u64::from(number)), sender, (Class(0), Choice::ANY));
            band.remove(Ticket(u64::from(number)), sender, (Class(0), Choice::ANY), Some(u64::from(number)));
        }
        assert_eq!(band.known(), RESTED_MAX + 1);
    }
}
