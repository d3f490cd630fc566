//! The second half of a request's life: place, send, relay; another worker where the first one fails before the client
//! has seen anything.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header, response};
use warmpath_core::blocks::Root;
use warmpath_core::ids::RequestKey;
use warmpath_core::observe::{Event, Observation, Side};
use warmpath_core::retry::{Failure, Next};
use warmpath_core::scheduler::Placement;
use warmpath_core::shape::Shape;

use super::gateway::Gateway;
use super::place::Placed;
use super::retrying::Retrying;
use super::timing::{SERVER_TIMING, Timing};
use crate::decisions::{Course, Standing};
use crate::error::{GatewayError, Retry, SHOULD_RETRY};
use crate::fleet::{Duty, PoolState, Worker};
use crate::link::{Outgoing, Way};
use crate::telemetry::access::Access;
use crate::tokenize::Prompts;
use crate::turn::behind_others;
use crate::upstream::progress::{Form, Progress, Promise, Ticket};
use crate::upstream::record::Recording;
use crate::upstream::relay::Relay;
use crate::upstream::sse::SseScanner;
use crate::upstream::without_usage::WithoutUsage;
use crate::upstream::{Answer, Content, disowns_model};

const WORKER: HeaderName = HeaderName::from_static("x-warmpath-worker");
const OVERLAP_TOKENS: HeaderName = HeaderName::from_static("x-warmpath-overlap-tokens");
const DECISION: HeaderName = HeaderName::from_static("x-warmpath-decision");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A request that was understood.
pub(super) struct Understood {
    pub(super) key: RequestKey,
    /// Its name, as its client and its worker see it.
    pub(super) id: HeaderValue,
    /// What is logged of it, if anything is.
    pub(super) access: Option<Arc<Access>>,
    pub(super) arrived: Instant,
    pub(super) deadline: Instant,
    pub(super) pool: Arc<PoolState>,
    pub(super) shape: Shape,
    pub(super) root: Root,
    pub(super) prompts: Prompts,
    /// Characters in the place of tokens, and where their chains begin; only where token ids are unknown and the policy
    /// can go by them.
    pub(super) texts: (Root, Vec<Vec<u32>>),
    pub(super) outgoing: Outgoing,
    pub(super) relayed: Relayed,
    /// The LoRA adapter that was asked for: only workers that have it will do.
    pub(super) adapter: Option<Arc<str>>,
    /// The alias of the model that was asked for: only workers that go by it will do, where any does.
    pub(super) alias: Option<Arc<str>>,
    /// Whether every reader of the body finds the name of the model that was found here.
    pub(super) names_model: bool,
}

impl Understood {
    /// Its name in observations; none where nothing is to be learned of it.
    fn observed(&self) -> Option<RequestKey> {
        (!self.shape.unread).then_some(self.key)
    }
}

/// What becomes of an answer on its way to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relayed {
    /// A stream of events.
    Events,
    /// The same, without the chunk of usage that the router has asked for.
    EventsButUsage,
    /// One document.
    Whole,
    /// Whatever it is: it passes unread.
    Unread,
}

/// Places and sends until a worker answers. Nothing has gone to the client yet, so another worker may take over. Where 500 is
/// all that they say, the last of them is the answer.
pub(super) async fn forward(gateway: &Gateway, request: &Understood) -> Result<Response, GatewayError> {
    let mut retrying = Retrying::new(gateway, request)?;
    match answered(&mut retrying, gateway, request).await {
        Err(GatewayError::Upstream { failure: Failure::ServerError, .. }) if let Some(said) = retrying.take_said() => {
            Ok(refusal(request, said, outcome(StatusCode::INTERNAL_SERVER_ERROR)))
        }
        answered => answered,
    }
}

async fn answered(
    retrying: &mut Retrying<'_>,
    gateway: &Gateway,
    request: &Understood,
) -> Result<Response, GatewayError> {
    loop {
        let placed = retrying.place().await?;
        let mut attempt = Attempt::new(request, placed, retrying.waited());
        retrying.begin(&mut attempt).await?;
        let mut way = Way::Kept;
        let failed = loop {
            // In a box of its own: it is large, and the futures around it are moved about.
            let sending = Box::pin(send(gateway, request, &attempt.worker, way));
            let error = match retrying.attend(sending).await {
                Ok(mut answer) => match refused(gateway, request, &attempt.worker, &answer) {
                    None => {
                        retrying.settle();
                        return relay(gateway, attempt, answer);
                    }
                    Some(failure) => {
                        attempt.tell(gateway, &mut answer.parts.headers);
                        retrying.keep(answer);
                        GatewayError::upstream(&attempt.worker.id, failure, None)
                    }
                },
                Err(error) => error,
            };
            match retrying.judge(&mut attempt, &error) {
                Next::Fresh => (way, attempt.side, attempt.began) = (Way::Fresh, Side::Client, Instant::now()),
                next => break (error, next),
            }
        };
        retrying.go_on(attempt, failed)?;
    }
}

/// One attempt, given up if an operator ejects the worker before it has answered.
async fn send(gateway: &Gateway, request: &Understood, worker: &Worker, way: Way) -> Result<Answer, GatewayError> {
    behind_others().await;
    // What became too late meanwhile, broke others, or lost its worker, is not begun.
    if Instant::now() >= request.deadline {
        return Err(GatewayError::Deadline);
    }
    if gateway.guard.blocks(&request.outgoing) {
        return Err(GatewayError::Suspect);
    }
    if worker.duty() == Duty::Ejected {
        return Err(GatewayError::upstream(&worker.id, Failure::Ejected, None));
    }
    request.access.iter().for_each(|access| access.sent());
    let mut sending = pin!(gateway.upstream.send(worker, &request.outgoing, way, gateway.answers()));
    tokio::select! {
        biased;
        sent = &mut sending => sent,
        () = worker.ejected() => Err(GatewayError::upstream(&worker.id, Failure::Ejected, None)),
    }
}

/// Why another worker is to be asked after this answer, if one is.
fn refused(gateway: &Gateway, request: &Understood, worker: &Worker, answer: &Answer) -> Option<Failure> {
    let refused = match answer.parts.status {
        StatusCode::INTERNAL_SERVER_ERROR if gateway.behaviour.retries.server_errors => Failure::ServerError,
        // The client's own key was never shown.
        StatusCode::UNAUTHORIZED if worker.authorization().is_some() => Failure::Denied,
        // Of a name that was not read here it says nothing.
        StatusCode::NOT_FOUND if request.names_model && answer.whole().is_some_and(|body| disowns_model(&body)) => {
            Failure::NotServed
        }
        _ => return None,
    };
    Some(refused)
}

/// A placement that is being tried. Unless it is answered, the policies hear that it failed: by the worker's fault where
/// `side` was set so or the deadline came, else because the client has left and this was dropped.
pub(super) struct Attempt<'a> {
    request: &'a Understood,
    placement: Option<Placement>,
    /// Where what comes of the decision is written down.
    course: Option<Arc<Course>>,
    /// Whoever holds it holds its slot, too: it goes last.
    pub(super) worker: Arc<Worker>,
    pub(super) side: Side,
    pub(super) began: Instant,
    /// How long the request has waited for workers to have room.
    waited: Duration,
}

impl<'a> Attempt<'a> {
    fn new(request: &'a Understood, Placed { placement, worker, course, .. }: Placed, waited: Duration) -> Self {
        let (placement, side, began) = (Some(placement), Side::Client, Instant::now());
        Self { request, placement, course, worker, side, began, waited }
    }

    /// Tells the client, with an answer that has come just now, where the time went, and what it may know of the decision.
    fn tell(&self, gateway: &Gateway, headers: &mut HeaderMap) {
        let Self { request, began, waited, .. } = self;
        let router = began.saturating_duration_since(request.arrived).saturating_sub(*waited);
        let timing = Timing { queue: *waited, route: router, worker: began.elapsed() };
        // The worker may have told its own.
        headers.append(SERVER_TIMING, timing.told());
        if let Some(placement) = self.placement.as_ref().filter(|_| gateway.behaviour.expose_decisions) {
            tell_decision(placement, headers);
        }
    }

    /// The worker answers: what follows is told by the relay.
    fn answered(mut self) -> Option<Placement> {
        self.placement.take()
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.placement.take().is_none() {
            return;
        }
        let Understood { pool, arrived, deadline, .. } = self.request;
        let at = Instant::now();
        // Whoever enforces the deadline drops this as a client does that leaves, and counts the request itself.
        let side = if self.side == Side::Client && at >= *deadline { Side::Worker } else { self.side };
        // A panic is told of by who catches it.
        let lasted = at.saturating_duration_since(*arrived);
        if self.side == Side::Client && !std::thread::panicking() {
            pool.metrics.no_first_token(lasted, self.request.shape.objectives.ttft);
            if side == Side::Client {
                pool.metrics.given_up(lasted);
            }
        }
        if let Some(course) = &self.course {
            let standing = if self.side == Side::Client { Standing::GivenUp } else { Standing::Failed };
            course.ended(standing, None);
        }
        if let Some(request) = self.request.observed() {
            let (slot, event) = (self.worker.slot, Event::Failed { side });
            pool.scheduler.observe(&Observation { at, request, slot, event });
        }
    }
}

fn relay(gateway: &Gateway, mut attempt: Attempt<'_>, mut answer: Answer) -> Result<Response, GatewayError> {
    let request = attempt.request;
    let status = answer.parts.status;
    let error =
        (!status.is_success() && status != StatusCode::NOT_MODIFIED).then(|| blame(gateway, &mut attempt, status));
    attempt.tell(gateway, &mut answer.parts.headers);
    if let (Some((_, outcome)), Some(body)) = (error, answer.whole()) {
        return Ok(refusal(request, (answer.parts, body), outcome));
    }
    let worker = Arc::clone(&attempt.worker);
    let (attempt_began, course) = (attempt.began, attempt.course.take());
    let placement = attempt.answered().ok_or(GatewayError::NoSuchSlot)?;
    // What is whole breaks no more. Of others it is reckoned now, since the request's body is let go.
    let is_watched = !answer.is_whole() || gateway.guard.suspects_any();
    let promise = promise(request, &placement, &worker);
    let ticket = Ticket {
        promise,
        key: request.observed(),
        id: request.id.clone(),
        pool: Arc::clone(&request.pool),
        worker,
        fleet: Arc::clone(&gateway.fleet),
        guard: Arc::clone(&gateway.guard),
        fingerprint: is_watched.then(|| gateway.guard.fingerprint(&request.outgoing)),
        arrived: request.arrived,
        sent: attempt_began,
        recording: recording(gateway, request),
        course,
        objectives: request.shape.objectives,
        sequences: request.shape.sequences,
        access: request.access.clone(),
    };
    let form = form(&answer, request.relayed, error);
    let is_stream = answer.content != Content::Other;
    let progress = Progress::new(placement.reservation, ticket, form);
    let idle = gateway.upstream.timeouts().idle;
    let relay = Relay::new(answer.first, answer.rest, progress, idle, request.deadline);
    let body = if is_stream && request.relayed == Relayed::EventsButUsage {
        Body::new(WithoutUsage::new(relay))
    } else {
        Body::new(relay)
    };
    let mut response = Response::from_parts(answer.parts, body);
    if is_stream {
        pass_at_once(response.headers_mut());
    }
    if error.is_some() {
        discourage(&mut response);
    }
    Ok(response)
}

/// What was promised of the request; none where its token ids are not known. That is held against the worker where somebody
/// tells what it holds.
fn promise(request: &Understood, placement: &Placement, worker: &Worker) -> Option<Promise> {
    request.prompts.count().filter(|count| *count > 0)?;
    let comparable = worker.tells_events && request.prompts.is_comparable() && request.shape.sequences == 1;
    let trust = comparable.then(|| Arc::clone(&placement.target.trust));
    Some(Promise {
        sender: request.shape.tenant,
        prompt: request.shape.prompt,
        cached: placement.overlap_tokens,
        trust,
    })
}

/// How an answer is to be looked at: an error that is not all here against whoever's fault it is.
fn form(answer: &Answer, relayed: Relayed, error: Option<(Side, &'static str)>) -> Form {
    match (answer.content, relayed) {
        _ if let Some((side, outcome)) = error => Form::Error(side, outcome),
        (Content::Refusal, _) | (Content::Events, Relayed::Events | Relayed::EventsButUsage) => {
            Form::Events(SseScanner::default())
        }
        (_, Relayed::Unread) => Form::Unread,
        _ => Form::Whole(answer.whole()),
    }
}

/// Keeps proxies from holding back or keeping a stream, unless its worker has said what they may.
fn pass_at_once(headers: &mut HeaderMap) {
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache"));
    headers.entry(ACCEL_BUFFERING).or_insert(HeaderValue::from_static("no"));
}

/// How the request is recorded, where requests are; what passes unread is none.
fn recording(gateway: &Gateway, request: &Understood) -> Option<Box<Recording>> {
    let recorder = gateway.recorder.as_ref().filter(|_| request.relayed != Relayed::Unread)?;
    let prompts = request.prompts.below(request.root);
    let pool = &request.pool;
    recorder.recording(request.arrived, &pool.model, pool.block_size.get(), &prompts)
}

/// Whose fault it is that a worker does not serve a request: the client's or its own, never worth a retry. Only 500 tells
/// against the worker: others say what it cannot do, and it is alive. Told with what it is counted as.
fn blame(gateway: &Gateway, attempt: &mut Attempt<'_>, status: StatusCode) -> (Side, &'static str) {
    let is_fault = status == StatusCode::INTERNAL_SERVER_ERROR;
    attempt.side = if is_fault { Side::Worker } else { Side::Router };
    if is_fault {
        gateway.fleet.request_failed(&attempt.worker, attempt.began, Failure::ServerError);
    } else if !status.is_server_error() {
        gateway.fleet.request_answered(&attempt.worker, attempt.began);
    }
    (attempt.side, outcome(status))
}

/// What an error that passes on is counted as: clients cause 4xx, and engines the rest.
fn outcome(status: StatusCode) -> &'static str {
    if status.is_server_error() { "worker_error" } else { "worker_refused" }
}

/// Passes such an error on, of which all is here.
fn refusal(request: &Understood, (parts, body): (response::Parts, Bytes), outcome: &'static str) -> Response {
    request.pool.metrics.request(outcome, request.arrived.elapsed());
    request.access.iter().for_each(|access| access.outcome(outcome));
    let mut response = Response::from_parts(parts, Body::from(body));
    discourage(&mut response);
    response
}

/// A prompt that breaks one engine would break the next: what the router does not do, clients had better not do.
fn discourage(response: &mut Response) {
    if response.status() == StatusCode::INTERNAL_SERVER_ERROR && !response.headers().contains_key(SHOULD_RETRY) {
        Retry::Never.tell(response.headers_mut());
    }
}

fn tell_decision(placement: &Placement, headers: &mut HeaderMap) {
    if let Ok(worker) = HeaderValue::from_str(placement.target.worker.as_str()) {
        headers.insert(WORKER, worker);
    }
    headers.insert(OVERLAP_TOKENS, HeaderValue::from(placement.overlap_tokens.0));
    headers.insert(DECISION, HeaderValue::from_static(placement.decided_by.as_str()));
}
