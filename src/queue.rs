//! Requests that wait for a worker: the asynchronous side of [`warmpath_core::queue`]. Nothing polls; a request that need
//! not wait meets no lock, only two readings.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use warmpath_core::ledger::Release;
use warmpath_core::queue::{Choice, Entry, Refusal, Rules, Ticket};
use warmpath_core::scheduler::PlaceError;
use warmpath_core::shape::{Class, TenantId};
use warmpath_core::units::Tokens;

use crate::error::GatewayError;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::ModelMetrics;
use line::{Call, LATE, Line, label};
pub use seats::Seats;

mod line;
mod seats;
#[cfg(test)]
mod tests;

/// The bounds of what a client is told to wait before it tries again, where that is reckoned from the queue's pace.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(30);

/// The same where there is no pace to reckon with.
const RETRY_BLIND: Duration = Duration::from_secs(1);

/// Where the requests of one model pass or wait.
pub struct Gate {
    line: Mutex<Line>,
    /// Requests in the line.
    waiting: AtomicUsize,
    /// How often there may have been room where there was none.
    openings: AtomicU64,
    /// How often requests may have had other workers to choose among.
    regroupings: AtomicU64,
    /// Whether it is to be told of a free seat.
    hungry: AtomicBool,
    seats: Arc<Seats>,
    settings: GateSettings,
    metrics: ModelMetrics,
    tasks: Tasks,
}

/// How a gate behaves.
#[derive(Clone, Copy, Debug)]
pub struct GateSettings {
    /// Whether requests may wait at all.
    pub queues: bool,
    /// How many, and in which order.
    pub rules: Rules,
    /// How long.
    pub timeout: Duration,
}

/// What a request's waiting depends on.
#[derive(Clone, Copy, Debug)]
pub struct Asking {
    /// When it came.
    pub arrived: Instant,
    /// Its urgency.
    pub class: Class,
    /// Who sent it.
    pub tenant: Option<TenantId>,
    /// When it is of no use any more.
    pub deadline: Instant,
    /// Whether it was admitted before and looks for another worker.
    pub returned: bool,
}

/// What a gate tries while it has a request's turn.
pub trait Placing {
    /// A decision with its reservation.
    type Placed;

    /// Tries to place the request; the tokens are those that the worker has to compute.
    ///
    /// # Errors
    /// [`PlaceError::AllBusy`] is a reason to wait, everything else an answer.
    fn place(&mut self) -> Result<(Self::Placed, Tokens), GatewayError>;

    /// Among whom it may choose now; asked only where somebody waits.
    fn choice(&self) -> Choice;

    /// When time alone will make room.
    fn next_growth(&self, now: Instant) -> Option<Instant>;
}

impl Gate {
    /// A gate at which nobody waits. `tasks` run its alarms.
    pub fn new(settings: GateSettings, seats: &Arc<Seats>, metrics: ModelMetrics, tasks: Tasks) -> Arc<Self> {
        let gate = Arc::new(Self {
            line: Mutex::new(Line::new(settings.rules)),
            waiting: AtomicUsize::new(0),
            openings: AtomicU64::new(0),
            regroupings: AtomicU64::new(0),
            hungry: AtomicBool::new(false),
            seats: Arc::clone(seats),
            settings,
            metrics,
            tasks,
        });
        seats.join(&gate);
        gate
    }

    /// There may be room where there was none. Wakes the one that is next, if anybody waits: O(log waiting).
    pub fn room(&self) {
        // The order of both is what keeps a wake-up from being lost: see `enter`.
        self.openings.fetch_add(1, Ordering::SeqCst);
        if self.has_waiting() {
            self.line().room();
        }
    }

    /// Workers serve something else: whoever waits for some of them may find another. Each tries once: O(waiting).
    pub fn regroup(&self) {
        self.regroupings.fetch_add(1, Ordering::SeqCst);
        self.openings.fetch_add(1, Ordering::SeqCst);
        if self.has_waiting() {
            self.line().regroup();
        }
    }

    fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Requests that wait, by lane.
    pub fn lengths(&self) -> [usize; 4] {
        self.line().queue().lengths()
    }

    /// Whether new requests are refused, unless they are more urgent than one that waits.
    pub fn is_full(&self) -> bool {
        self.line().queue().is_full()
    }

    /// Brings the gauges up to date; called when somebody looks.
    pub fn measure(&self) {
        self.metrics.queue.lengths(self.lengths());
    }

    /// Places a request, at once or when it is its turn. Dropping the future gives the place in the queue up at once.
    ///
    /// # Errors
    /// What `placing` says but that all are busy; [`GatewayError::Queue`] where the request may not wait, or not any
    /// longer; [`GatewayError::Deadline`].
    pub async fn admit<P: Placing>(
        self: &Arc<Self>,
        asking: &Asking,
        placing: &mut P,
    ) -> Result<P::Placed, GatewayError> {
        if now() >= asking.deadline {
            return Err(GatewayError::Deadline);
        }
        let seen = self.openings.load(Ordering::SeqCst);
        // Those that wait are not overtaken, unless they wait for what this one does not want; but what was admitted before
        // goes before them all.
        let lets_by = || {
            let choice = placing.choice();
            self.line().lets_by(choice)
        };
        let tries = asking.returned || !self.has_waiting() || lets_by();
        if tries {
            match self.attempt(placing) {
                Err(GatewayError::Place { source: PlaceError::AllBusy }) if self.settings.queues => {}
                tried => return tried.map(|(placed, _)| placed),
            }
        }
        let mut waiter = self.enter(asking, placing, tries.then_some(seen))?;
        waiter.watch(placing);
        loop {
            waiter.called().await?;
            let tried = if now() < asking.deadline { self.attempt(placing) } else { Err(GatewayError::Deadline) };
            match tried {
                Ok((placed, tokens)) => {
                    waiter.admitted(tokens);
                    return Ok(placed);
                }
                Err(GatewayError::Place { source: PlaceError::AllBusy }) => waiter.park(placing),
                Err(error) => {
                    waiter.leave();
                    return Err(error);
                }
            }
        }
    }

    fn attempt<P: Placing>(&self, placing: &mut P) -> Result<(P::Placed, Tokens), GatewayError> {
        if !self.seats.is_free_for(&self.hungry) {
            // Where nothing waits, the fleet is not said to be busy: it may be idle.
            let busy = || PlaceError::AllBusy.into();
            return Err(if self.settings.queues { busy() } else { GatewayError::TooManyInFlight });
        }
        placing.place()
    }

    /// `seen` is the count of openings before the request was tried; none if it was not.
    fn enter(
        self: &Arc<Self>,
        asking: &Asking,
        placing: &impl Placing,
        seen: Option<u64>,
    ) -> Result<Waiter<'_>, GatewayError> {
        let now = now();
        let Asking { class, tenant, deadline, returned, .. } = *asking;
        let expires = deadline.min(now + self.settings.timeout);
        let (mut line, choice) = self.line_and_choice(placing);
        let entry = Entry { class, tenant, expires, returned, choice };
        // Then nobody who waits tells it whether there is room.
        let is_let_by = line.lets_by(choice);
        let (ticket, call) = line.enter(now, entry).map_err(|why| self.refuse(&line, why))?;
        self.count(&line);
        // Who gave something back before the count was made is seen here, and everyone after it has seen the count.
        let missed = seen.map_or(is_let_by, |seen| self.openings.load(Ordering::SeqCst) != seen);
        if missed {
            line.room();
        }
        drop(line);
        Ok(Waiter { gate: self, ticket, call, expires, asking: *asking, is_in: true })
    }

    /// The line, and among whom a request may choose as long as nobody else has the line: what changes later finds it there.
    fn line_and_choice(&self, placing: &impl Placing) -> (MutexGuard<'_, Line>, Choice) {
        let before = self.regroupings.load(Ordering::SeqCst);
        // Nearly always this holds, and nobody has to wait for it.
        let choice = placing.choice();
        let line = self.line();
        let is_true = self.regroupings.load(Ordering::SeqCst) == before;
        (line, if is_true { choice } else { placing.choice() })
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, line: &Line) {
        self.waiting.store(line.queue().len(), Ordering::SeqCst);
    }

    fn refuse(&self, line: &Line, refusal: Refusal) -> GatewayError {
        self.metrics.queue.left(label(refusal));
        let wait = line.queue().expected_wait(now()).map_or(RETRY_BLIND, |wait| wait.clamp(RETRY_MIN, RETRY_MAX));
        // All that are refused at one moment should not come back at one moment.
        let retry = wait + wait.mul_f64(rand::random_range(0.0..0.5));
        GatewayError::Queue { refusal, retry }
    }

    /// Wakes the one that is next at `at`, when a worker that came back is given more.
    fn set_alarm(self: &Arc<Self>, at: Instant) {
        let mut line = self.line();
        if line.alarm.is_some_and(|alarm| alarm <= at) {
            return;
        }
        line.alarm = Some(at);
        drop(line);
        let gate = Arc::downgrade(self);
        self.tasks.spawn(async move {
            tokio::time::sleep_until(at.into()).await;
            let Some(gate) = gate.upgrade() else { return };
            gate.line().alarm.take_if(|alarm| *alarm == at);
            gate.room();
        });
    }
}

impl Release for Gate {
    fn reserved(&self) {
        self.seats.take();
    }

    fn released(&self) {
        self.seats.give_back();
        self.room();
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("waiting", &self.waiting).field("seats", &self.seats).finish_non_exhaustive()
    }
}

/// As the runtime's timers have it, which tests may stop.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A place in the line. Dropping it gives the place up, and the turn on.
struct Waiter<'a> {
    gate: &'a Arc<Gate>,
    ticket: Ticket,
    call: oneshot::Receiver<Call>,
    expires: Instant,
    asking: Asking,
    is_in: bool,
}

impl Waiter<'_> {
    /// Waits for the turn.
    async fn called(&mut self) -> Result<(), GatewayError> {
        let call = loop {
            match tokio::time::timeout_at(self.expires.into(), &mut self.call).await {
                Ok(call) => break call,
                Err(_) => {
                    let mut line = self.gate.line();
                    line.expire(now());
                    self.gate.count(&line);
                }
            }
        };
        let refusal = match call {
            Ok(Call::Turn) => return Ok(()),
            Ok(Call::Out(refusal)) => refusal,
            // Callers are dropped only unheard.
            Err(_) => Refusal::Displaced,
        };
        self.is_in = false;
        if now() >= self.asking.deadline {
            self.gate.metrics.queue.left(LATE);
            return Err(GatewayError::Deadline);
        }
        Err(self.gate.refuse(&self.gate.line(), refusal))
    }

    /// There was no room: back to where it was.
    fn park(&mut self, placing: &impl Placing) {
        let (mut line, choice) = self.gate.line_and_choice(placing);
        self.call = line.park(self.ticket, choice);
        let rests = line.rests();
        drop(line);
        if rests {
            // Others may have use for what this one had not.
            self.gate.seats.offer();
            self.watch(placing);
        }
    }

    /// Sees to it that somebody is woken when time alone makes room.
    fn watch(&self, placing: &impl Placing) {
        if let Some(at) = placing.next_growth(now()) {
            self.gate.set_alarm(at);
        }
    }

    fn admitted(mut self, tokens: Tokens) {
        self.is_in = false;
        let mut line = self.gate.line();
        let waited = line.admitted(now(), self.ticket, tokens);
        self.after(line);
        if let Some((lane, waited)) = waited {
            self.gate.metrics.queue.waited(lane, waited);
        }
    }

    fn leave(mut self) {
        self.is_in = false;
        let mut line = self.gate.line();
        line.withdraw(self.ticket);
        self.after(line);
    }

    fn after(&self, line: MutexGuard<'_, Line>) {
        self.gate.count(&line);
        let rests = line.rests();
        drop(line);
        if rests {
            self.gate.seats.offer();
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if !self.is_in {
            return;
        }
        let mut line = self.gate.line();
        line.withdraw(self.ticket);
        self.after(line);
        // Whoever enforces the deadline drops this as a client does that leaves, and counts the request itself.
        let (metrics, Asking { arrived, deadline, .. }) = (&self.gate.metrics, self.asking);
        let is_late = now() >= deadline;
        metrics.queue.left(if is_late { LATE } else { metrics.given_up(arrived.elapsed()) });
    }
}
