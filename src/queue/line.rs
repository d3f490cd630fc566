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
    /// For whom there has been no room in this round.
    closed: Vec<Choice>,
    /// Something has changed since the round began.
    again: bool,
    /// When a worker that came back is given more.
    pub(super) alarm: Option<Instant>,
}

impl Line {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            queue: Queue::new(rules),
            callers: HashMap::default(),
            turn: None,
            closed: Vec::new(),
            again: false,
            alarm: None,
        }
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
            self.closed.push(choice);
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
        match self.queue.first_but(&self.closed) {
            None => self.next_round(),
            next => self.call(next),
        }
    }

    /// Everybody has been told that there is no room. If something has changed since then, there may be.
    fn next_round(&mut self) {
        self.closed.clear();
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
