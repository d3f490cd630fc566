//! What an answer has told so far: the reservation goes back in its two parts, policies and metrics learn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderValue;
use warmpath_core::ids::RequestKey;
use warmpath_core::ledger::Reservation;
use warmpath_core::observe::{Event, Observation, Side, Usage};
use warmpath_core::retry::Failure;
use warmpath_core::shape::{Objectives, TenantId};
use warmpath_core::trust::Trust;
use warmpath_core::units::Tokens;

use super::guard::{Fingerprint, Guard};
use super::record::Recording;
use super::sse::{ErrorEvent, SseScanner};
use super::usage;
use crate::decisions::{Course, Standing};
use crate::fleet::packing::Counter;
use crate::fleet::{Fleet, PoolState, Worker};
use crate::telemetry::access::Access;

mod promises;

/// One answered request, from its first data to its end. Dropping it gives back what is reserved: a client that hangs up
/// is no special case.
pub struct Progress {
    reservation: Option<Reservation>,
    ticket: Ticket,
    form: Form,
    tokens: Counter,
    /// When its first data came, unless it is an error.
    started: Option<Instant>,
    ended: bool,
}

/// Who the request is, and whom it concerns.
pub struct Ticket {
    /// Its name in observations; none where nothing is to be learned of it.
    pub key: Option<RequestKey>,
    /// Its name as its client sees it.
    pub id: HeaderValue,
    /// Its pool.
    pub pool: Arc<PoolState>,
    /// Its worker.
    pub worker: Arc<Worker>,
    /// Whom it tells how the worker did.
    pub fleet: Arc<Fleet>,
    /// Whom it tells whether the worker survived it.
    pub guard: Arc<Guard>,
    /// By what equal requests are known; none where no worker can break under it any more, and nothing is suspected.
    pub fingerprint: Option<Fingerprint>,
    /// When it arrived.
    pub arrived: Instant,
    /// When it was sent to its worker.
    pub sent: Instant,
    /// What was promised, where its token ids are known.
    pub promise: Option<Promise>,
    /// How it is recorded if it finishes, where requests are.
    pub recording: Option<Box<Recording>>,
    /// Where what came of its decision is written down.
    pub course: Option<Arc<Course>>,
    /// What its class was promised.
    pub objectives: Objectives,
    /// Sequences that are decoded for it.
    pub sequences: u32,
    /// What is logged of it, if anything is.
    pub access: Option<Arc<Access>>,
}

/// What the router promised of one request, and to whom it matters whether that holds.
pub struct Promise {
    /// Whom.
    pub sender: Option<TenantId>,
    /// Tokens of its prompts.
    pub prompt: Tokens,
    /// Of these, tokens in the worker's cache.
    pub cached: Tokens,
    /// What is believed of the worker, where what the engine says can be compared: of one prompt and one sequence.
    pub trust: Option<Arc<Trust>>,
}

/// How the answer is built.
pub enum Form {
    /// Server-sent events.
    Events(SseScanner),
    /// One JSON document, by reference; none where it is too large to be whole before it goes on.
    Whole(Option<Bytes>),
    /// Anything: it passes unread, ends when it ends, and its times are nobody's first token.
    Unread,
    /// An error that is too long to be whole before it goes on: it passes unread, tells against this side, and is counted
    /// as this outcome.
    Error(Side, &'static str),
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Complete,
    /// The worker broke off.
    Broken,
    /// The worker fell silent.
    Silent,
    /// It did not end in time, which is nobody's fault.
    Late,
    /// The client left.
    ClientLeft,
}

/// What an answer that has ended was.
enum Verdict {
    /// The work was done.
    Answered,
    /// The engine said that it does not serve the request.
    Refused,
    /// The worker failed.
    Failed(Failure),
    /// See [`Ending::Late`].
    Late,
    /// See [`Ending::ClientLeft`].
    ClientLeft,
}

impl Progress {
    /// The progress of an answer of which nothing was seen yet.
    pub fn new(reservation: Reservation, ticket: Ticket, form: Form) -> Self {
        let tokens = ticket.worker.packing.counter(ticket.sequences);
        Self { reservation: Some(reservation), ticket, form, tokens, started: None, ended: false }
    }

    /// Looks at data on its way to the client. Returns how many of its bytes there are up to the end of its last line: all, where
    /// it is no stream.
    pub fn on_data(&mut self, now: Instant, data: &Bytes) -> usize {
        if self.ended {
            return data.len();
        }
        let (whole, events) = match &mut self.form {
            Form::Events(scanner) => {
                let before = scanner.seen().events;
                let whole = scanner.scan(data);
                (whole, scanner.seen().events - before)
            }
            Form::Whole(_) | Form::Unread | Form::Error(..) => (data.len(), 0),
        };
        if self.is_error() {
            return whole;
        }
        if self.started.is_none() {
            self.begin(now);
        }
        let (generated, tokens) = self.tokens.pass(events);
        if let Some(reservation) = self.reservation.as_mut().filter(|_| generated > Tokens(0)) {
            reservation.generated(generated);
        }
        if tokens > Tokens(0) {
            self.observe(now, Event::Progress { tokens });
        }
        whole
    }

    /// Its first data came.
    fn begin(&mut self, now: Instant) {
        self.started = Some(now);
        if let Some(Promise { prompt, cached, .. }) = &self.ticket.promise {
            self.ticket.worker.promised(now, *prompt, *cached);
        }
        // An answer in one piece has no first token of its own: its data comes when all of it was generated.
        if matches!(self.form, Form::Events(_)) {
            let after = now.saturating_duration_since(self.ticket.arrived);
            self.ticket.pool.metrics.first_token(after, self.ticket.objectives.ttft);
            self.ticket.course.iter().for_each(|course| course.first_token(after));
            self.ticket.access.iter().for_each(|access| access.first_token(after));
        }
        if let Some(reservation) = &mut self.reservation {
            reservation.first_token(now);
        }
        self.observe(now, Event::FirstToken);
    }

    /// Whether nothing was generated: it is an error from its beginning.
    fn is_error(&self) -> bool {
        matches!(self.form, Form::Error(..)) || self.told().is_some_and(|error| error.is_first)
    }

    /// Whether an answer that ends here ends whole: a stream without `[DONE]` was cut, though its framing may be clean. Of
    /// one that the engine refuses nothing more is to come.
    pub fn may_end(&self) -> bool {
        match &self.form {
            Form::Events(scanner) => scanner.seen().done || self.refuses(),
            Form::Whole(_) | Form::Unread | Form::Error(..) => true,
        }
    }

    /// Whether a stream has said that it is over: whatever follows is nobody's answer.
    pub fn is_closed(&self) -> bool {
        matches!(&self.form, Form::Events(scanner) if scanner.seen().closed)
    }

    /// No more will come. Returns what a stream that is whole still lacks, so that its last line is an event; none for one
    /// that is cut, and for what is no stream.
    pub fn finish(&mut self) -> Option<&'static str> {
        let refuses = self.refuses();
        let Form::Events(scanner) = &mut self.form else { return None };
        scanner.finish().or(refuses.then_some("\n\n"))
    }

    /// The error that the engine has told in its stream.
    fn told(&self) -> Option<ErrorEvent> {
        match &self.form {
            Form::Events(scanner) => scanner.seen().error,
            Form::Whole(_) | Form::Unread | Form::Error(..) => None,
        }
    }

    /// Whether that says that the request is at fault.
    fn refuses(&self) -> bool {
        self.told().is_some_and(|error| error.failure().is_none())
    }

    fn verdict(&self, ending: Ending) -> Verdict {
        match ending {
            Ending::Complete if matches!(self.form, Form::Error(..)) => Verdict::Refused,
            Ending::Complete => match self.told().map(ErrorEvent::failure) {
                None => Verdict::Answered,
                Some(None) => Verdict::Refused,
                Some(Some(failure)) => Verdict::Failed(failure),
            },
            Ending::Broken => Verdict::Failed(Failure::Broken),
            Ending::Silent => Verdict::Failed(Failure::Silent),
            Ending::Late => Verdict::Late,
            Ending::ClientLeft => Verdict::ClientLeft,
        }
    }

    /// Whether the answer is a stream of events.
    pub fn is_stream(&self) -> bool {
        matches!(self.form, Form::Events(_))
    }

    /// Whether the answer is a stream that ends whole if it ends here.
    pub fn is_whole_stream(&self) -> bool {
        self.is_stream() && self.may_end()
    }

    /// Whether it was told how the answer ended.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The answer ended. Only the first call counts.
    pub fn end(&mut self, now: Instant, ending: Ending) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.reservation = None;
        match self.verdict(ending) {
            Verdict::Answered => {
                let usage = self.ticket.worker.meant(self.usage());
                self.compare(now, usage);
                if let (Form::Events(scanner), Some(tokens)) = (&self.form, usage.completion) {
                    self.ticket.worker.packing.learn(scanner.seen().events, tokens);
                }
                if let Some(recording) = self.ticket.recording.take() {
                    recording.finished(self.output(usage));
                }
                self.judge_gaps(now, usage);
                self.came(now, "ok", usage);
                self.ticket.fleet.request_answered(&self.ticket.worker, self.ticket.sent);
                self.ticket.fingerprint.iter().for_each(|print| self.ticket.guard.answered(*print));
                self.note(Standing::Answered, usage.cached);
                self.observe(now, Event::Finished { usage: usage.of_each(self.ticket.sequences) });
            }
            Verdict::Refused => {
                let (side, outcome) = match self.form {
                    // The fleet was told of the worker when its head came.
                    Form::Error(side, outcome) => (side, outcome),
                    _ => {
                        self.ticket.fleet.request_answered(&self.ticket.worker, self.ticket.sent);
                        (Side::Router, "worker_refused")
                    }
                };
                self.came(now, outcome, Usage::default());
                self.note(Standing::Failed, None);
                self.observe(now, Event::Failed { side });
            }
            Verdict::Failed(failure) => {
                if failure.may_be_death() {
                    let Ticket { guard, fingerprint, worker, sent, .. } = &self.ticket;
                    fingerprint.iter().for_each(|print| guard.broke(*print, worker.slot, (*sent, now)));
                }
                self.came(now, "broken", Usage::default());
                let request = &*String::from_utf8_lossy(self.ticket.id.as_bytes());
                tracing::warn!(worker = %self.ticket.worker.id, request, "answer broke off");
                self.cut_short(now, Standing::Failed);
                self.ticket.fleet.request_failed(&self.ticket.worker, self.ticket.sent, failure);
                self.observe(now, Event::Failed { side: Side::Worker });
            }
            Verdict::Late => {
                self.came(now, "deadline", Usage::default());
                self.cut_short(now, Standing::GivenUp);
                self.observe(now, Event::Failed { side: Side::Router });
            }
            Verdict::ClientLeft => {
                let outcome = self.ticket.pool.metrics.given_up(self.lasted(now));
                self.ticket.access.iter().for_each(|access| access.ended(now, outcome, Usage::default()));
                self.cut_short(now, Standing::GivenUp);
                self.observe(now, Event::Failed { side: Side::Client });
            }
        }
    }

    fn usage(&self) -> Usage {
        match &self.form {
            Form::Events(scanner) => scanner.seen().usage.as_deref().map(usage::read).unwrap_or_default(),
            Form::Whole(document) => document.as_deref().map(usage::read).unwrap_or_default(),
            Form::Unread | Form::Error(..) => Usage::default(),
        }
    }

    /// Tokens that were generated: as the engine says, or else one an event.
    fn output(&self, usage: Usage) -> u32 {
        let events = match &self.form {
            Form::Events(scanner) => scanner.seen().events,
            Form::Whole(_) | Form::Unread | Form::Error(..) => 1,
        };
        usage.completion.map_or(events, |tokens| tokens.0)
    }

    /// Counts and logs it.
    fn came(&self, now: Instant, outcome: &'static str, usage: Usage) {
        self.ticket.pool.metrics.request(outcome, self.lasted(now));
        self.ticket.access.iter().for_each(|access| access.ended(now, outcome, usage));
    }

    /// How long after the request's arrival it is.
    fn lasted(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.ticket.arrived)
    }

    /// It has ended before its end.
    fn cut_short(&self, now: Instant, standing: Standing) {
        self.judge_what_came(now);
        self.note(standing, None);
    }

    fn note(&self, standing: Standing, cached: Option<Tokens>) {
        self.ticket.course.iter().for_each(|course| course.ended(standing, cached));
    }

    fn observe(&self, at: Instant, event: Event) {
        let Ticket { key, pool, worker, .. } = &self.ticket;
        if let Some(request) = *key {
            pool.scheduler.observe(&Observation { at, request, slot: worker.slot, event });
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // Clients may close as soon as they read `[DONE]`: they have all of it.
        self.end(Instant::now(), if self.is_whole_stream() { Ending::Complete } else { Ending::ClientLeft });
    }
}
