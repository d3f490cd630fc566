//! What lies behind a gate's lock: who waits, and whose turn it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use warmpath_core::queue::{Choice, Entry, Lane, Queue, Refusal, Rules, Ticket};
use warmpath_core::units::Tokens;

/// What a request that waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// It may try to be placed.
    Turn,
    /// It is in the queue no longer.
    Out(Refusal),
}

/// The label of `queue_refusals_total` of a request whose own time is over.
pub(super) const LATE: &str = "deadline";

/// That of one that is refused.
pub(super) fn label(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Full => "full",
        Refusal::TenantFull => "tenant_full",
        Refusal::Displaced => "displaced",
        Refusal::Expired => "expired",
    }
}

/// The queue, and the way to those who wait in it.
///
/// One has the turn at a time: it tries to be placed, and while that succeeds the next one gets the turn. So a worker that
/// has become free wakes one request and not all, they go in the queue's order, and one that fails to find room says so
/// for all of its choice: those that may go elsewhere have their turn after it, each choice once. What changes in the
/// meantime makes another round follow; where somebody has failed it does not begin this one again, or the last would never
/// have a turn where the first ones take longer than workers need to finish something. While nobody has the turn, everyone
/// who waits has been told so that there is no room; whatever may have changed that calls [`Line::room`].
#[derive(Debug)]
pub(super) struct Line {
    queue: Queue,
    callers: HashMap<Ticket, oneshot::Sender<Call>, foldhash::fast::RandomState>,
    turn: Option<Ticket>,
    /// Something has changed since the round began.
    again: bool,
    /// When a worker that came back is given more.
    pub(super) alarm: Option<Instant>,
}

impl Line {
    pub(super) fn new(rules: Rules) -> Self {
        Self { queue: Queue::new(rules), callers: HashMap::default(), turn: None, again: false, alarm: None }
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Whether it is nobody's turn.
    pub(super) fn rests(&self) -> bool {
        self.turn.is_none()
    }

    /// Whether a request of this choice may try before it waits: everyone who waits wants something that it does not, and has
    /// not found it.
    pub(super) fn lets_by(&self, choice: Choice) -> bool {
        self.rests() && !self.queue.is_ahead_of(choice)
    }

    /// Lets a request wait.
    pub(super) fn enter(&mut self, now: Instant, entry: Entry) -> Result<(Ticket, oneshot::Receiver<Call>), Refusal> {
        let entered = self.queue.enter(now, entry)?;
        let (caller, call) = oneshot::channel();
        self.callers.insert(entered.ticket, caller);
        if let Some(displaced) = entered.displaced {
            self.is_out(displaced, Refusal::Displaced);
        }
        Ok((entered.ticket, call))
    }

    /// There may be room where there was none.
    pub(super) fn room(&mut self) {
        self.again = true;
        if self.turn.is_none() {
            self.next_round();
        }
    }

    /// Workers serve something else: each of those that may not go everywhere tries for itself, and says among whom it may
    /// choose now. O(waiting).
    pub(super) fn regroup(&mut self) {
        self.queue.tell_apart();
        self.room();
    }

    /// Whoever has the turn found no room: then there is none for anybody of its choice, nor, if it may go anywhere, at all.
    pub(super) fn park(&mut self, ticket: Ticket, choice: Choice) -> oneshot::Receiver<Call> {
        let (caller, call) = oneshot::channel();
        // Something more urgent may have taken its place while it tried: then nobody keeps its caller, and it hears so.
        if self.queue.rechoose(ticket, choice) {
            self.callers.insert(ticket, caller);
        }
        if self.turn == Some(ticket) {
            self.turn = None;
            self.queue.passed_over.add(choice);
            if choice == Choice::ANY { self.next_round() } else { self.call_next() }
        }
        call
    }

    /// Whoever had the turn was placed; there may be room for more.
    pub(super) fn admitted(&mut self, now: Instant, ticket: Ticket, tokens: Tokens) -> Option<(Lane, Duration)> {
        let waited = self.queue.admit(now, ticket, tokens);
        self.end_turn(ticket);
        waited
    }

    /// A request waits no longer.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.callers.remove(&ticket);
        self.queue.withdraw(ticket);
        self.end_turn(ticket);
    }

    /// Tells those that have waited long enough.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(expired) = self.queue.expire(now, self.turn) {
            self.is_out(expired, Refusal::Expired);
        }
    }

    fn is_out(&mut self, ticket: Ticket, why: Refusal) {
        if let Some(caller) = self.callers.remove(&ticket) {
            // Who does not listen any more is just leaving.
            let _ = caller.send(Call::Out(why));
        }
        self.end_turn(ticket);
    }

    fn end_turn(&mut self, ticket: Ticket) {
        if self.turn == Some(ticket) {
            self.turn = None;
            if self.again { self.next_round() } else { self.call_next() }
        }
    }

    fn call_next(&mut self) {
        match self.queue.first_open() {
            None => self.next_round(),
            next => self.call(next),
        }
    }

    /// Everybody has been told that there is no room. If something has changed since then, there may be.
    fn next_round(&mut self) {
        self.queue.passed_over.clear();
        let next = if std::mem::take(&mut self.again) { self.queue.first() } else { None };
        self.call(next);
    }

    fn call(&mut self, ticket: Option<Ticket>) {
        self.turn = ticket;
        if let Some(caller) = ticket.and_then(|ticket| self.callers.remove(&ticket)) {
            // Who does not listen any more withdraws, and so passes the turn on.
            let _ = caller.send(Call::Turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use tokio::sync::oneshot::error::TryRecvError;
    use warmpath_core::shape::{Class, TenantId};

    use super::*;

    fn line(waiting: usize) -> Line {
        Line::new(Rules { waiting, of_tenant: waiting, weights: [NonZeroU32::MIN; 3] })
    }

    fn entry(returned: bool, choice: Choice) -> Entry {
        let expires = Instant::now() + Duration::from_secs(10);
        Entry { class: Class(0), tenant: None, expires, returned, choice }
    }

    /// Whoever finds no room speaks for its own choice only, and whoever may go anywhere for all.
    #[test]
    fn each_choice_has_its_turn_once_for_each_room() {
        let mut line = line(9);
        let mut enter = |returned, choice| line.enter(Instant::now(), entry(returned, choice)).unwrap();
        let [one, two, three] = [1, 2, 3].map(Choice::some);
        // Two of one choice that were admitted before, one of another, and new ones.
        let (first, mut first_call) = enter(true, one);
        let (_, mut same_call) = enter(true, one);
        let (second, mut second_call) = enter(true, two);
        let (adapter, mut adapter_call) = enter(false, three);
        let (later, mut later_call) = enter(false, three);
        assert!(line.lets_by(Choice::ANY) && !line.lets_by(three), "nobody who waits may go anywhere");
        line.room();
        assert!(!line.lets_by(Choice::ANY), "somebody is trying");
        assert_eq!(first_call.try_recv(), Ok(Call::Turn));
        let mut first_call = line.park(first, one);
        assert_eq!((second_call.try_recv(), same_call.try_recv().is_err()), (Ok(Call::Turn), true));
        let _second_call = line.park(second, two);
        assert_eq!(adapter_call.try_recv(), Ok(Call::Turn));
        // It goes, and nothing has changed for those of the other choices.
        line.admitted(Instant::now(), adapter, Tokens(1));
        assert_eq!((later_call.try_recv(), first_call.try_recv().is_err()), (Ok(Call::Turn), true));
        line.room();
        let _later_call = line.park(later, three);
        assert_eq!(first_call.try_recv(), Ok(Call::Turn), "there may be room again");
    }

    /// What comes free while the first one tries begins nothing anew: where workers finish faster than it tries, others would
    /// never have their turn.
    #[test]
    fn room_that_comes_in_every_turn_keeps_nobody_from_its_own() {
        let mut line = line(9);
        let choices = [1, 2, 3].map(Choice::some);
        let mut waiting = choices.map(|choice| line.enter(Instant::now(), entry(false, choice)).unwrap());
        line.room();
        for _ in 0..3 {
            for (choice, (ticket, call)) in choices.into_iter().zip(&mut waiting) {
                assert_eq!(call.try_recv(), Ok(Call::Turn), "{choice:?}");
                line.room();
                *call = line.park(*ticket, choice);
            }
        }
        let (first, call) = &mut waiting[0];
        assert_eq!(call.try_recv(), Ok(Call::Turn));
        // It may go anywhere by now, and so speaks for all; but there was room after its turn had begun.
        line.room();
        *call = line.park(*first, Choice::ANY);
        assert_eq!(call.try_recv(), Ok(Call::Turn));
        *call = line.park(*first, Choice::ANY);
        assert!(line.rests() && waiting.iter_mut().all(|(_, call)| call.try_recv().is_err()));
    }

    #[test]
    fn whoever_is_displaced_while_it_tries_is_told_when_it_has_found_nothing() {
        let mut line = line(1);
        let (low, mut low_call) =
            line.enter(Instant::now(), Entry { class: Class(1), ..entry(false, Choice::ANY) }).unwrap();
        line.room();
        assert_eq!(low_call.try_recv(), Ok(Call::Turn));
        let urgent = Entry { class: Class(-1), tenant: Some(TenantId(1)), ..entry(false, Choice::ANY) };
        let (_, mut urgent_call) = line.enter(Instant::now(), urgent).unwrap();
        assert_eq!(urgent_call.try_recv(), Ok(Call::Turn));
        low_call = line.park(low, Choice::ANY);
        assert_eq!(low_call.try_recv(), Err(TryRecvError::Closed));
        assert!(!line.rests(), "nobody else's turn has ended");
    }

    /// Two that could go to the same workers, until one of those serves what the second wants.
    #[test]
    fn where_workers_serve_something_else_nobody_speaks_for_another() {
        let mut line = line(9);
        let [one, two] = [1, 2].map(Choice::some);
        let (first, mut first_call) = line.enter(Instant::now(), entry(false, one)).unwrap();
        let (second, mut second_call) = line.enter(Instant::now(), entry(false, one)).unwrap();
        line.room();
        assert_eq!(first_call.try_recv(), Ok(Call::Turn));
        first_call = line.park(first, one);
        assert!(line.rests() && second_call.try_recv().is_err());
        line.regroup();
        assert_eq!(first_call.try_recv(), Ok(Call::Turn));
        first_call = line.park(first, one);
        assert_eq!(second_call.try_recv(), Ok(Call::Turn));
        second_call = line.park(second, two);
        // From now on each speaks for its own.
        line.room();
        assert_eq!(first_call.try_recv(), Ok(Call::Turn));
        let _first_call = line.park(first, one);
        assert_eq!(second_call.try_recv(), Ok(Call::Turn));
    }
}
