//! What becomes of a request whose attempt failed: `router-core` decides, this waits, counts and tells.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{StatusCode, response};
use tokio::time::timeout;
use warmpath_core::ids::Slot;
use warmpath_core::observe::Side;
use warmpath_core::retry::{Course, Failure, Next};
use warmpath_core::scheduler::PlaceError;
use warmpath_core::slot_set::SlotSet;

use super::between::Between;
use super::forward::{Attempt, Understood};
use super::gateway::Gateway;
use super::place::Placed;
use crate::error::GatewayError;
use crate::fleet::{Turn, Worker};
use crate::upstream::Answer;

/// A retry that has lived for so long is being served: a worker that cannot says so, or breaks, at once.
const SETTLED: Duration = Duration::from_millis(200);

/// The attempts of one request so far.
pub(super) struct Retrying<'a> {
    gateway: &'a Gateway,
    request: &'a Understood,
    course: Course,
    /// Who has failed it.
    failed: SlotSet,
    /// These, and the other ranks of the same workers: what fails one rank is seldom its own.
    avoid: SlotSet,
    /// All of these: a slot that somebody holds is given to nobody else, who has failed nothing.
    held: Vec<Arc<Worker>>,
    /// The failure that comes closest to an answer.
    last: Option<GatewayError>,
    /// The last 500 that was whole: what its client is told where no worker does better.
    said: Option<(response::Parts, Bytes)>,
    /// The soonest that a worker said to come back.
    soonest: Option<Duration>,
    /// Who may be asked again from when on, where nobody else is left.
    here_after: Vec<(Instant, Slot)>,
    /// A kept connection ended under the request: when it was sent, and when that was. What comes of the new connection
    /// shows whether the worker has died.
    ended: Option<(Instant, Instant)>,
    /// How long it has waited for workers to have room.
    waited: Duration,
    /// Whether the budget has to allow the next attempt.
    budgeted: bool,
    /// Held until a retry that the budget had to allow is being served.
    turn: Option<Turn<'a>>,
}

impl<'a> Retrying<'a> {
    /// Before the first attempt.
    ///
    /// # Errors
    /// [`GatewayError::Suspect`].
    pub(super) fn new(gateway: &'a Gateway, request: &'a Understood) -> Result<Self, GatewayError> {
        if gateway.guard.blocks(&request.outgoing) {
            return Err(GatewayError::Suspect);
        }
        Ok(Self {
            gateway,
            request,
            course: Course::new(gateway.behaviour.retries),
            failed: SlotSet::new(),
            avoid: SlotSet::new(),
            held: Vec::new(),
            last: None,
            said: None,
            soonest: None,
            here_after: Vec::new(),
            ended: None,
            waited: Duration::ZERO,
            budgeted: false,
            turn: None,
        })
    }

    /// A worker that has not failed the request yet; where none is left, one that asked for a short pause, after it, or
    /// another rank of one that has.
    ///
    /// # Errors
    /// No worker is left. What the workers said tells the client more than that.
    pub(super) async fn place(&mut self) -> Result<Placed, GatewayError> {
        let waits = Waits(Some(self.request));
        let placed = self.find().await;
        waits.over();
        placed.map_err(|error| self.told(error))
    }

    async fn find(&mut self) -> Result<Placed, GatewayError> {
        let mut placed = self.admit().await;
        if is_nobody(&placed)
            && let Some(slot) = self.pause().await
        {
            self.avoid.remove(slot);
            self.failed.remove(slot);
            placed = self.admit().await;
        }
        if is_nobody(&placed) && self.avoid.len() > self.failed.len() {
            self.avoid.copy_from(&self.failed);
            placed = self.admit().await;
        }
        placed
    }

    async fn admit(&mut self) -> Result<Placed, GatewayError> {
        let asked = Instant::now();
        let placed = self.gateway.admit(self.request, &self.avoid, self.last.is_some()).await?;
        self.waited += placed.at.saturating_duration_since(asked);
        Ok(placed)
    }

    /// How long the request has waited for workers to have room.
    pub(super) fn waited(&self) -> Duration {
        self.waited
    }

    /// Waits for the first of those that may be asked again after a pause.
    async fn pause(&mut self) -> Option<Slot> {
        let (next, (at, slot)) = self.here_after.iter().copied().enumerate().min_by_key(|(_, (at, _))| *at)?;
        self.here_after.swap_remove(next);
        let Understood { pool, arrived, deadline, .. } = self.request;
        let between = Between::new(*deadline, || {
            pool.metrics.given_up(arrived.elapsed());
        });
        tokio::time::sleep_until(at.into()).await;
        between.over();
        // Whatever failed last, this is asked again because it was not there.
        self.budgeted = true;
        Some(slot)
    }

    /// Begins a retry that has its worker, which it holds while it waits for its turn, if the budget has to allow it. One
    /// that has yet to find a worker is no load, and takes nobody's turn.
    ///
    /// # Errors
    /// [`GatewayError::NoTurn`]: the worker is not to blame.
    pub(super) async fn begin(&mut self, attempt: &mut Attempt<'_>) -> Result<(), GatewayError> {
        let Some(GatewayError::Upstream { worker, failure, .. }) = &self.last else { return Ok(()) };
        if std::mem::take(&mut self.budgeted) {
            let (fleet, pool) = (&self.gateway.fleet, &self.request.pool);
            self.turn = pool.retries.begin(|| fleet.active(&pool.model)).await;
            if self.turn.is_none() {
                attempt.side = Side::Router;
                return Err(GatewayError::NoTurn { worker: worker.clone() });
            }
            attempt.began = Instant::now();
        }
        self.gateway.metrics.retry(failure.label());
        Ok(())
    }

    /// Waits for what becomes of an attempt. Once that is being served, the next retry has its turn.
    pub(super) async fn attend<T>(&mut self, mut attempt: impl Future<Output = T> + Unpin) -> T {
        if self.turn.is_some() {
            if let Ok(ended) = timeout(SETTLED, &mut attempt).await {
                return ended;
            }
            self.turn = None;
        }
        attempt.await
    }

    /// Whatever comes now is no retry any more.
    pub(super) fn settle(&mut self) {
        self.turn = None;
    }

    /// Keeps what may be told if no worker does better.
    pub(super) fn keep(&mut self, answer: Answer) {
        let body = answer.whole().filter(|_| answer.parts.status == StatusCode::INTERNAL_SERVER_ERROR);
        self.said = body.map(|body| (answer.parts, body));
    }

    /// What was kept.
    pub(super) fn take_said(&mut self) -> Option<(response::Parts, Bytes)> {
        self.said.take()
    }

    /// Takes note of a failed attempt, and says what to do about it.
    pub(super) fn judge(&mut self, attempt: &mut Attempt<'_>, error: &GatewayError) -> Next {
        self.request.access.iter().for_each(|access| access.failed());
        let GatewayError::Upstream { failure, retry_after, source, .. } = error else {
            attempt.side = Side::Router;
            return Next::Stop;
        };
        let (worker, failure) = (&attempt.worker, *failure);
        let (request, cause) = (self.request.id.as_bytes(), source.as_ref().map(tracing::field::display));
        let request = &*String::from_utf8_lossy(request);
        tracing::warn!(worker = %worker.id, request, failure = failure.label(), cause, "attempt failed");
        attempt.side = match failure {
            Failure::Ejected | Failure::Starved => Side::Router,
            _ => Side::Worker,
        };
        let fleet = &self.gateway.fleet;
        match failure {
            Failure::TooManyRequests => fleet.rest(worker, Instant::now(), *retry_after),
            // Adapters come and go while their worker serves its model, and an alias is the router's word.
            Failure::NotServed if self.request.adapter.is_some() || self.request.alias.is_some() => {}
            _ => fleet.request_failed(worker, attempt.began, failure),
        }
        self.soonest = [self.soonest, *retry_after].into_iter().flatten().min();
        self.suspect(worker.slot, failure, attempt.began);
        match self.course.after(failure, *retry_after) {
            Next::Fresh | Next::Elsewhere { .. } if self.gateway.guard.blocks(&self.request.outgoing) => Next::Stop,
            Next::Fresh => {
                self.gateway.metrics.retry(failure.label());
                Next::Fresh
            }
            next => next,
        }
    }

    fn suspect(&mut self, slot: Slot, failure: Failure, sent: Instant) {
        let (guard, now) = (&self.gateway.guard, Instant::now());
        let before = self.ended.take().filter(|_| failure.confirms_death());
        if failure == Failure::Stale {
            self.ended = Some((sent, now));
        }
        for at in before.into_iter().chain(failure.may_be_death().then_some((sent, now))) {
            guard.broke(guard.fingerprint(&self.request.outgoing), slot, at);
        }
    }

    /// Gives up the attempt's worker.
    ///
    /// # Errors
    /// No other may be tried: what the client is told.
    pub(super) fn go_on(
        &mut self,
        attempt: Attempt<'_>,
        (error, next): (GatewayError, Next),
    ) -> Result<(), GatewayError> {
        let worker = Arc::clone(&attempt.worker);
        let slot = worker.slot;
        drop(attempt);
        self.turn = None;
        self.failed.insert(slot);
        self.avoid.insert(slot);
        for rank in self.gateway.fleet.roster().ranks_of(&worker.id) {
            self.avoid.insert(rank.slot);
            self.held.push(Arc::clone(rank));
        }
        self.held.push(worker);
        let Next::Elsewhere { budgeted, or_here_after } = next else {
            let is_suspect = self.gateway.guard.blocks(&self.request.outgoing);
            return Err(if is_suspect { GatewayError::Suspect } else { self.told_of(error) });
        };
        self.budgeted = budgeted;
        self.here_after.extend(or_here_after.map(|pause| (Instant::now() + pause, slot)));
        self.last = Some(error);
        Ok(())
    }

    /// The last failure of a worker, else `error`.
    fn told(&mut self, error: GatewayError) -> GatewayError {
        let last = self.last.take().unwrap_or(error);
        self.told_of(last)
    }

    /// The error with the soonest time that any worker has named.
    fn told_of(&self, mut error: GatewayError) -> GatewayError {
        if let GatewayError::Upstream { retry_after, .. } = &mut error {
            *retry_after = self.soonest;
        }
        error
    }
}

/// A request that has no worker, and was not refused either. If it ends so, its client has left or its time was over.
struct Waits<'a>(Option<&'a Understood>);

impl Waits<'_> {
    /// It has one, or was refused: of that others tell.
    fn over(mut self) {
        self.0 = None;
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        // A panic is told of by who catches it.
        if let Some(Understood { pool, arrived, shape, .. }) = self.0.filter(|_| !std::thread::panicking()) {
            pool.metrics.no_first_token(arrived.elapsed(), shape.objectives.ttft);
        }
    }
}

/// Whether nobody is left to be asked.
fn is_nobody(placed: &Result<Placed, GatewayError>) -> bool {
    matches!(placed, Err(GatewayError::Place { source: PlaceError::NoWorker }))
}
