//! `GET /api/v1/config`, `POST /api/v1/reload`: the configuration in effect, and another one in its place.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use serde::Serialize;

use super::Admin;
use super::guard::{self, Reader};
use crate::config::{Change, Leaf};
use crate::telemetry::AUDIT;

/// The configuration of a gateway, which can be read again.
pub trait Settings: Send + Sync {
    /// What is in effect.
    fn show(&self) -> Arc<Shown>;

    /// Reads the file again, and follows it if it has no fault.
    fn reload(&self) -> BoxFuture<'_, Reloaded>;
}

/// What is in effect. Fields may be added, never renamed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Shown {
    /// The file that it is from; none where a program made it.
    pub file: Option<String>,
    /// Of the file's text: equal for equal files.
    pub hash: String,
    /// When it was read, in milliseconds since 1970.
    pub loaded_at_ms: u64,
    /// How the last attempt to read it again ended; none before the first.
    pub last_reload: Option<Reloaded>,
    /// What the file says and what waits for a restart.
    pub needs_restart: Vec<Change>,
    /// Every value in effect, and who said so. Secrets are not shown.
    pub values: Vec<Leaf>,
}

/// What came of reading the configuration again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Reloaded {
    /// Whether it is followed.
    pub ok: bool,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who asked: `file`, `signal` or `admin`.
    pub asked_by: &'static str,
    /// What has changed.
    pub changed: Vec<Change>,
    /// Keys whose change waits for a restart.
    pub needs_restart: Vec<String>,
    /// Why it is not followed: a line for each fault.
    pub faults: Vec<String>,
}

/// What is in effect.
pub(super) async fn show(Reader(admin): Reader) -> Response {
    Json(&*admin.settings.show()).into_response()
}

/// Reads the file again: 200 where it is followed, 422 where it has faults.
pub(super) async fn reload(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    let reloading = reload_as(Arc::clone(&admin), headers);
    admin.changes.see_through(reloading).await
}

async fn reload_as(admin: Arc<Admin>, headers: HeaderMap) -> Response {
    let response = match guard::change_refused(&admin, &headers) {
        Some(refusal) => refusal,
        None => {
            let reloaded = admin.settings.reload().await;
            let status = if reloaded.ok { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
            (status, Json(reloaded)).into_response()
        }
    };
    let status = response.status().as_u16();
    tracing::info!(target: AUDIT, action = "reload", status, "operator");
    response
}
