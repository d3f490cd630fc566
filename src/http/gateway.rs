//! What every handler of the data port shares.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;
use warmpath_core::ids::RequestKey;
use warmpath_core::overlap::PrefixIndex;
use warmpath_core::scheduler::Scratch;

use crate::config::PassedPath;
use crate::error::GatewayError;
use crate::fleet::Fleet;
use crate::telemetry::metrics::Metrics;
use crate::upstream::Upstream;

/// Scratch buffers that are kept; more requests than this are seldom placed at one instant.
const SCRATCHES: usize = 64;

/// One gateway at work.
pub struct Gateway {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// What they hold.
    pub index: Arc<dyn PrefixIndex>,
    /// The way to them.
    pub upstream: Upstream,
    /// What is measured.
    pub metrics: Metrics,
    /// How it behaves.
    pub behaviour: Behaviour,
    /// Paths that are passed through, beside those with a handler of their own.
    pub passthrough: Vec<PassedPath>,
    keys: AtomicU64,
    scratches: Mutex<Vec<Scratch>>,
}

/// How a gateway behaves.
#[derive(Clone, Copy, Debug)]
pub struct Behaviour {
    /// Bytes of a request's body.
    pub body_max: u64,
    /// Messages of a chat, or prompts of a completion.
    pub messages_max: usize,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// Time for a whole request, retries included.
    pub total_timeout: Duration,
    /// Attempts on other workers, after the first.
    pub retries: u32,
    /// Seed of `index.seed`.
    pub index_seed: u64,
    /// Seed of chance in decisions.
    pub seed: u64,
    /// Whether answers carry `x-warmpath-*` headers.
    pub expose_decisions: bool,
    /// Whether streams whose clients do not ask for usage get the wish.
    pub asks_usage: bool,
}

impl Gateway {
    /// A gateway to `fleet`.
    pub fn new(
        fleet: Arc<Fleet>,
        index: Arc<dyn PrefixIndex>,
        upstream: Upstream,
        metrics: Metrics,
        behaviour: Behaviour,
    ) -> Self {
        let (keys, scratches) = (AtomicU64::new(0), Mutex::default());
        Self { fleet, index, upstream, metrics, behaviour, passthrough: Vec::new(), keys, scratches }
    }

    /// The same, with these paths passed through.
    pub fn with_passthrough(self, passthrough: Vec<PassedPath>) -> Self {
        Self { passthrough, ..self }
    }

    /// A name for the next request.
    pub fn next_key(&self) -> RequestKey {
        RequestKey(self.keys.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs `place` with warm buffers of its own; nobody waits for another's placement.
    pub fn with_scratch<T>(&self, place: impl FnOnce(&mut Scratch) -> T) -> T {
        let pooled = self.scratches().pop();
        let mut scratch = pooled.unwrap_or_else(|| {
            // Equal seeds would make concurrent requests draw alike.
            Scratch::new(self.behaviour.seed.wrapping_add(self.keys.load(Ordering::Relaxed)))
        });
        let result = place(&mut scratch);
        let mut scratches = self.scratches();
        if scratches.len() < SCRATCHES {
            scratches.push(scratch);
        }
        result
    }

    fn scratches(&self) -> std::sync::MutexGuard<'_, Vec<Scratch>> {
        self.scratches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The whole body, within its limits.
    ///
    /// # Errors
    /// When it is too large, too slow or broken.
    pub async fn read_body(&self, body: Body) -> Result<Bytes, GatewayError> {
        let limit = self.behaviour.body_max;
        let too_large = || GatewayError::BodyTooLarge { limit };
        if http_body::Body::size_hint(&body).lower() > limit {
            return Err(too_large());
        }
        let limited = Limited::new(body, usize::try_from(limit).unwrap_or(usize::MAX));
        let collected = timeout(self.behaviour.body_timeout, limited.collect());
        match collected.await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(GatewayError::Body),
            Err(_) => Err(GatewayError::BodyTimeout),
        }
    }

    /// The answer to a request that never had a pool.
    pub fn refuse(&self, error: GatewayError) -> Response {
        self.metrics.refused(error.outcome());
        error.into_response()
    }
}
