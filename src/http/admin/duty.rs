//! What operators do with a worker: `POST /api/v1/workers/{id}/{drain,undrain,eject,reset_breaker,reset_cache}`.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use warmpath_core::ids::WorkerId;

use super::{Admin, guard, refused};
use crate::fleet::{Duty, DutyError, Worker};
use crate::link::Outgoing;
use crate::telemetry::AUDIT;

/// How long an engine may take to empty its cache.
const PATIENCE: Duration = Duration::from_secs(10);

/// The most of its answer that is read; only its status counts.
const ANSWER_MAX: usize = 64 * 1024;

/// What can be done with a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Drain,
    Undrain,
    Eject,
    ResetBreaker,
    ResetCache,
}

impl Action {
    fn named(name: &str) -> Option<Self> {
        match name {
            "drain" => Some(Self::Drain),
            "undrain" => Some(Self::Undrain),
            "eject" => Some(Self::Eject),
            "reset_breaker" => Some(Self::ResetBreaker),
            "reset_cache" => Some(Self::ResetCache),
            _ => None,
        }
    }
}

/// Carries out an action, and leaves a line of it in the log.
pub(super) async fn act(
    State(admin): State<Arc<Admin>>,
    what: Result<Path<(String, String)>, PathRejection>,
    headers: HeaderMap,
) -> Response {
    // What cannot be decoded is nobody's name.
    let what = what.map(|Path(what)| what).unwrap_or_default();
    let acting = act_on(Arc::clone(&admin), what, headers);
    admin.changes.see_through(acting).await
}

async fn act_on(admin: Arc<Admin>, (id, name): (String, String), headers: HeaderMap) -> Response {
    let shown: String = id.chars().take(128).collect();
    let answer = match (guard::may_change(&admin, &headers), Action::named(&name)) {
        (Err(refusal), _) => (refusal.status(), refusal.message().to_owned()),
        (Ok(()), None) => (
            StatusCode::NOT_FOUND,
            "unknown action (known: drain, undrain, eject, reset_breaker, reset_cache)".to_owned(),
        ),
        (Ok(()), Some(action)) => carry_out(&admin, &WorkerId::from(shown.as_str()), action).await,
    };
    let (status, message) = answer;
    let action: String = name.chars().take(32).collect();
    tracing::info!(target: AUDIT, worker = shown, action, status = status.as_u16(), "operator");
    let mut response = if status.is_success() {
        (status, Json(json!({"worker": shown, "state": message}))).into_response()
    } else {
        refused(status, &message)
    };
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
    }
    response
}

async fn carry_out(admin: &Admin, id: &WorkerId, action: Action) -> (StatusCode, String) {
    let duty = match action {
        Action::Drain => Duty::Draining,
        Action::Undrain => Duty::Active,
        Action::Eject => Duty::Ejected,
        Action::ResetBreaker => return said(admin.fleet.reset_breaker(id), "closed"),
        Action::ResetCache => return reset_cache(admin, id).await,
    };
    said(admin.fleet.set_duty(id, duty), duty.label())
}

fn said(done: Result<(), DutyError>, state: &str) -> (StatusCode, String) {
    match done {
        Ok(()) => (StatusCode::OK, state.to_owned()),
        Err(error @ DutyError::Unknown(_)) => (StatusCode::NOT_FOUND, error.to_string()),
        Err(error @ DutyError::Already(..)) => (StatusCode::CONFLICT, error.to_string()),
    }
}

/// Has the engine empty its cache, and then forgets what it held: in this order, since a view that is emptied while the
/// engine keeps its blocks would never learn of them again.
async fn reset_cache(admin: &Admin, id: &WorkerId) -> (StatusCode, String) {
    let roster = admin.fleet.roster();
    let Some(worker) = roster.ranks_of(id).next() else {
        return (StatusCode::NOT_FOUND, DutyError::Unknown(id.clone()).to_string());
    };
    match ask_engine(worker).await {
        Ok(()) => {
            admin.fleet.reset_view(id);
            (StatusCode::OK, worker.condition().label().to_owned())
        }
        Err(reason) => (StatusCode::BAD_GATEWAY, format!("worker `{id}` did not empty its cache: {reason}")),
    }
}

/// Where engines are asked to empty their caches: vLLM, SGLang.
const RESETS: [&str; 2] = ["/reset_prefix_cache", "/flush_cache"];

async fn ask_engine(worker: &Worker) -> Result<(), String> {
    for path in RESETS {
        let mut ask = Outgoing::post(path, "");
        if let Some(authorization) = worker.authorization() {
            ask.headers.insert(header::AUTHORIZATION, authorization);
        }
        return match worker.control.ask(&ask, PATIENCE, ANSWER_MAX).await {
            Ok((status, _)) if status.is_success() => Ok(()),
            Ok((StatusCode::NOT_FOUND, _)) => continue,
            Ok((status, _)) => Err(format!("{path} answers {status}")),
            Err(error) => Err(error.to_string()),
        };
    }
    Err("it has neither /reset_prefix_cache (vLLM needs VLLM_SERVER_DEV_MODE=1) nor /flush_cache (SGLang)".to_owned())
}
