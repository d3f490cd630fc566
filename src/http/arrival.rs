//! A request that has just come: its name, its deadline, and the answer that is made of whatever becomes of it.

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use axum::response::Response;
use http::{HeaderMap, HeaderValue};
use warmpath_core::ids::RequestKey;
use warmpath_core::observe::Side;

use super::gateway::Gateway;
use super::panics::caught;
use super::sender::time_allowed;
use crate::alarm::in_time;
use crate::door::Answered;
use crate::error::GatewayError;
use crate::fleet::PoolState;
use crate::request_id::{self, REQUEST_ID};
use crate::telemetry::access::Access;
use crate::telemetry::trace_context::TraceContext;
use crate::turn::behind_others;

/// What every request has before a byte of its body was read.
pub(super) struct Arrival {
    pub(super) key: RequestKey,
    /// The client's own id, or one of ours.
    pub(super) id: HeaderValue,
    /// The trace that it belongs to, where the log or spans tell it. Otherwise the client's header passes as any other.
    pub(super) trace: Option<TraceContext>,
    /// What is logged of it, if anything is.
    pub(super) access: Option<Arc<Access>>,
    pub(super) at: Instant,
    pub(super) deadline: Instant,
    /// Whom it concerns, once the model is known.
    pool: OnceLock<Arc<PoolState>>,
}

impl Arrival {
    /// One of a client, to this endpoint.
    pub(super) fn now(gateway: &Gateway, headers: &HeaderMap, endpoint: &'static str) -> Self {
        let mut arrival = Self::unlogged(gateway, headers);
        let wanted = (gateway.behaviour.logs_access, gateway.exporter.as_ref());
        let trace = arrival.trace.as_ref();
        arrival.access = trace.and_then(|trace| {
            Access::begin(arrival.at, endpoint, (&arrival.id, trace), wanted, &gateway.metrics.parting)
        });
        arrival
    }

    /// The same for one that no client has sent.
    pub(super) fn unlogged(gateway: &Gateway, headers: &HeaderMap) -> Self {
        let (key, at) = (gateway.next_key(), Instant::now());
        let exports = gateway.exporter.is_some();
        let id = request_id::given(headers).unwrap_or_else(|| request_id::numbered(key.0));
        let trace = (exports || gateway.behaviour.logs_access)
            .then(|| TraceContext::of(headers, exports, gateway.behaviour.sample));
        let deadline = at + gateway.behaviour.total_timeout;
        Self { key, id, trace, access: None, at, deadline, pool: OnceLock::new() }
    }

    /// It is for this pool: what becomes of it is counted there.
    pub(super) fn concerns(&self, pool: &Arc<PoolState>) {
        self.pool.get_or_init(|| Arc::clone(pool));
    }

    /// Its client has left, before it was placed.
    pub(super) fn given_up(&self) {
        self.pool.get().into_iter().for_each(|pool| {
            pool.metrics.given_up(self.at.elapsed());
        });
    }

    /// Tells its worker its name and its trace.
    pub(super) fn name(&self, headers: &mut HeaderMap) {
        headers.insert(REQUEST_ID, self.id.clone());
        if let Some(trace) = &self.trace {
            trace.tell(headers);
        }
    }

    /// Takes note of how much time the client allows.
    ///
    /// # Errors
    /// It says so in no number.
    pub(super) fn hurry(&mut self, gateway: &Gateway, headers: &HeaderMap) -> Result<(), GatewayError> {
        self.deadline = self.at + time_allowed(headers, gateway.behaviour.total_timeout)?;
        Ok(())
    }

    /// The answer of `handled`, or what is said of its failure, or of its being late.
    pub(super) async fn conclude(
        &self,
        gateway: &Gateway,
        handled: impl Future<Output = Result<Response, GatewayError>>,
    ) -> Answered {
        let handled = in_time(self.deadline.into(), caught(handled)).await;
        let answered = self.answered(match handled.unwrap_or(Err(GatewayError::Deadline)) {
            Ok(response) => response,
            Err(error) => self.failed(gateway, error),
        });
        behind_others().await;
        answered
    }

    /// Counts and tells a failure.
    fn failed(&self, gateway: &Gateway, error: GatewayError) -> Response {
        let (outcome, side) = (error.outcome(), error.side());
        // What is told of a client's fault may quote its request.
        let told = (side != Side::Client).then(|| tracing::field::display(&error));
        let (request, worker) = (String::from_utf8_lossy(self.id.as_bytes()), error.worker());
        tracing::info!(
            request = &*request,
            worker = worker.map(tracing::field::display),
            outcome,
            error = told,
            ?side,
            "request failed"
        );
        self.came(outcome);
        let Some(pool) = self.pool.get() else { return gateway.refuse(error) };
        pool.metrics.request(outcome, self.at.elapsed());
        error.into_response()
    }

    /// Refused without a look at its body.
    pub(super) fn refuse(self, gateway: &Gateway, error: GatewayError) -> Answered {
        self.came(error.outcome());
        self.answered(gateway.refuse(error))
    }

    /// Answered at once, by the router itself.
    pub(super) fn served(self, response: Response) -> Answered {
        self.came("ok");
        self.answered(response)
    }

    fn came(&self, outcome: &'static str) {
        self.access.iter().for_each(|access| access.outcome(outcome));
    }

    fn answered(&self, mut response: Response) -> Answered {
        self.access.iter().for_each(|access| access.status(response.status().as_u16()));
        response.headers_mut().insert(REQUEST_ID, self.id.clone());
        Answered { response, until: Some(self.deadline), takes_errors: false }
    }
}
