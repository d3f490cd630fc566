//! The admin port: health, metrics, what is known of the workers, and what operators do with them.

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwapOption;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use serde::Serialize;
use tokio::sync::{Semaphore, oneshot};
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::desk::Desk;
use crate::decisions::Decisions;
use crate::fleet::Fleet;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;
use bus::BusReport;
use guard::Reader;
use settings::Settings;

pub mod bus;
mod decisions;
mod duty;
mod guard;
mod index;
mod page;
mod query;
pub mod settings;
mod workers;

/// Changes that are made at once: each may wait for an engine, and outlives its connection.
const CHANGES_MAX: usize = 64;

/// What the admin port can be asked about.
pub struct Admin {
    /// The workers.
    pub fleet: Arc<Fleet>,
    /// What is remembered of their caches.
    pub index: Arc<ConcurrentIndex>,
    /// What it has decided.
    pub decisions: Arc<Decisions>,
    /// Who would serve a request.
    pub desk: Desk,
    /// What is measured.
    pub metrics: Metrics,
    /// How the router is.
    pub condition: Condition,
    /// How events come in, and who else there is.
    pub bus: Box<dyn Fn() -> BusReport + Send + Sync>,
    /// Brings gauges up to date that only the app knows.
    pub refresh: Box<dyn Fn() + Send + Sync>,
    /// Asked for as `Authorization: Bearer …` where it is set; liveness and readiness never ask.
    pub token: AdminToken,
    /// The configuration, and the way to a new one.
    pub settings: Arc<dyn Settings>,
    /// Changes under way.
    pub changes: Changes,
}

/// How the router is, which only the app knows.
pub struct Condition {
    /// Why requests cannot be served; none where they can. Balancers ask for it all the time, and without a token: it costs
    /// far less than the whole report.
    pub ready: Box<dyn Fn() -> Option<String> + Send + Sync>,
    /// All of it.
    pub health: Box<dyn Fn() -> HealthReport + Send + Sync>,
}

impl Condition {
    /// What balancers are told.
    fn readiness(&self) -> Response {
        match (self.ready)() {
            None => "ready\n".into_response(),
            Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
        }
    }
}

/// Changes that operators have asked for, a bounded number at once.
pub struct Changes {
    tasks: Tasks,
    room: Arc<Semaphore>,
}

impl Changes {
    /// None so far.
    pub fn new(tasks: Tasks) -> Self {
        Self { tasks, room: Arc::new(Semaphore::new(CHANGES_MAX)) }
    }

    /// What is answered once a change is made. It is made, and leaves its line in the log, though whoever asked for it leaves.
    async fn see_through(&self, change: impl Future<Output = Response> + Send + 'static) -> Response {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            return refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many changes are under way; ask again once they are made",
            );
        };
        let (tell, told) = oneshot::channel();
        self.tasks.spawn(async move {
            drop(tell.send(change.await));
            drop(room);
        });
        told.await.unwrap_or_else(|_| refused(StatusCode::SERVICE_UNAVAILABLE, "the router stopped before it was done"))
    }
}

/// The token of the admin port; none where none is asked for. A clone is the same.
#[derive(Clone, Default)]
pub struct AdminToken(Arc<ArcSwapOption<String>>);

impl AdminToken {
    /// From now on this one is asked for.
    pub fn set(&self, token: Option<String>) {
        self.0.store(token.map(Arc::new));
    }

    fn get(&self) -> Option<Arc<String>> {
        self.0.load_full()
    }
}

/// How the router is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HealthReport {
    /// `ok`, or `degraded` with the reasons.
    pub status: &'static str,
    /// What does not work, in words.
    pub degraded: Vec<String>,
    /// Requests that wait in the router for a worker.
    pub queued: usize,
    /// Workers that their operators have taken out, as `id: draining` or `id: ejected`.
    pub off_duty: Vec<String>,
    /// Whether requests can be served.
    pub ready: bool,
    /// Why not.
    pub not_ready: Option<String>,
    /// The router's version.
    pub version: &'static str,
}

/// How the router and its workers stand, for those who can signal it but not ask it.
pub fn state(admin: &Admin) -> serde_json::Value {
    serde_json::json!({"health": (admin.condition.health)(), "workers": workers::rows(admin)})
}

/// The paths of the admin port.
fn table() -> [(&'static str, MethodRouter<Arc<Admin>>); 15] {
    [
        ("/livez", get(|| async { "ok\n" })),
        ("/readyz", get(ready)),
        ("/healthz", get(health)),
        ("/metrics", get(metrics)),
        ("/api/v1/workers", get(workers::list)),
        ("/api/v1/workers/{id}/{action}", post(duty::act)),
        ("/api/v1/index", get(index::show)),
        ("/api/v1/decisions", get(decisions::list)),
        ("/api/v1/decisions/{id}", get(decisions::one)),
        ("/api/v1/explain", post(decisions::dry)),
        ("/api/v1/history", get(decisions::history)),
        ("/api/v1/bus", get(bus::show)),
        ("/", get(page::show)),
        ("/api/v1/config", get(settings::show)),
        ("/api/v1/reload", post(settings::reload)),
    ]
}

/// What it answers.
pub fn paths() -> impl Iterator<Item = &'static str> {
    table().into_iter().map(|(path, _)| path)
}

/// The admin port.
pub fn routes(admin: Arc<Admin>) -> Router {
    let routes = table().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    routes.fallback(unknown_path).method_not_allowed_fallback(wrong_method).with_state(admin)
}

async fn unknown_path() -> Response {
    let known: Vec<&str> = paths().collect();
    refused(StatusCode::NOT_FOUND, &format!("unknown path (known: {})", known.join(", ")))
}

/// The path exists; the router says which methods it is for.
async fn wrong_method() -> Response {
    refused(StatusCode::METHOD_NOT_ALLOWED, "this path is for another method: `Allow` names it")
}

/// An error as this port says it.
fn refused(status: StatusCode, message: &str) -> Response {
    let body = serde_json::json!({"error": {"message": message, "code": status.as_u16()}});
    (status, Json(body)).into_response()
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    admin.condition.readiness()
}

async fn health(State(admin): State<Arc<Admin>>) -> Response {
    Json((admin.condition.health)()).into_response()
}

async fn metrics(Reader(admin): Reader) -> Response {
    admin.fleet.measure(Instant::now());
    (admin.refresh)();
    let content_type = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, admin.metrics.render()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_whether_it_is_ready_has_no_report_made() {
        let condition = |why: Option<&'static str>| Condition {
            ready: Box::new(move || why.map(str::to_owned)),
            health: Box::new(|| panic!("nobody has asked for it")),
        };
        assert_eq!(condition(None).readiness().status(), StatusCode::OK);
        assert_eq!(condition(Some("cold")).readiness().status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
