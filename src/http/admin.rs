//! The admin port: health, metrics and what is known of the workers.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Serialize;
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::workers;
use crate::fleet::Fleet;
use crate::telemetry::metrics::Metrics;

/// What the admin port can be asked about.
pub struct Admin {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// What is remembered of their caches.
    pub index: Arc<ConcurrentIndex>,
    /// What is measured.
    pub metrics: Metrics,
    /// What only the app knows.
    pub health: Box<dyn Fn() -> HealthReport + Send + Sync>,
    /// Brings gauges up to date that only the app knows.
    pub refresh: Box<dyn Fn() + Send + Sync>,
    /// Asked for as `Authorization: Bearer …` where it is set; liveness and readiness never ask.
    pub token: Option<String>,
}

/// How the router is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    /// `ok`, or `degraded` with the reasons.
    pub status: &'static str,
    /// What does not work, in words.
    pub degraded: Vec<String>,
    /// Whether requests can be served.
    pub ready: bool,
    /// The router's version.
    pub version: &'static str,
}

/// The admin port.
pub fn routes(admin: Arc<Admin>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics))
        .route("/api/v1/workers", get(workers::list))
        .with_state(admin)
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    if (admin.health)().ready {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n").into_response()
    }
}

async fn health(State(admin): State<Arc<Admin>>) -> Response {
    Json((admin.health)()).into_response()
}

async fn metrics(State(admin): State<Arc<Admin>>, headers: axum::http::HeaderMap) -> Response {
    if let Some(refusal) = admin.refusal(&headers) {
        return refusal;
    }
    admin.fleet.measure(Instant::now());
    (admin.refresh)();
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, admin.metrics.render()).into_response()
}

impl Admin {
    /// What whoever has no token is told; none for whoever needs none or has it.
    pub(super) fn refusal(&self, headers: &axum::http::HeaderMap) -> Option<Response> {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        let refusal = (StatusCode::UNAUTHORIZED, challenge, "an admin token is needed\n");
        (!self.admits(headers)).then(|| refusal.into_response())
    }

    fn admits(&self, headers: &axum::http::HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
        given.is_some_and(|given| equal_in_constant_time(given, token.as_bytes()))
    }
}

/// Compares secrets without telling by the time where they differ.
fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_equal_only_when_every_byte_is() {
        assert!(equal_in_constant_time(b"secret", b"secret"));
        assert!(!equal_in_constant_time(b"secret", b"secreT"));
        assert!(!equal_in_constant_time(b"secret", b"secret2"));
    }
}
