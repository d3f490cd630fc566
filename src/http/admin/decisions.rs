//! `GET /api/v1/decisions`, `GET /api/v1/decisions/{id}`, `POST /api/v1/explain`: why requests went where they went, and
//! where one would go.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::guard::{self, Reader};
use super::query::Query;
use super::{Admin, refused};
use crate::decisions::history::POINTS_MAX;
use crate::decisions::told::Row;
use crate::decisions::{Decision, Filter};
use crate::http::explain::explain;
use crate::wall_clock;

/// Decisions in one answer, unless fewer are asked for, and at most.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 1_000;

/// Ten minutes, unless something else is asked for.
const STEP_MS: u64 = 5_000;
const POINTS: usize = 120;

#[derive(Serialize)]
struct List {
    /// When this process began to count them: another one counts anew.
    since_ms: u64,
    /// The number of the last decision: ask for those after it next time.
    last: u64,
    decisions: Vec<Row>,
}

/// The last decisions, the newest first: `?model=`, `?worker=`, `?request=` (a part of its name), `?after=` (a number) and
/// `?limit=`.
pub(super) async fn list(Reader(admin): Reader, uri: Uri) -> Response {
    let filter = match filter(&uri) {
        Ok(filter) => filter,
        Err(message) => return refused(StatusCode::BAD_REQUEST, &message),
    };
    // What is decided while others are told is told to who asks next.
    let last = admin.decisions.last();
    let found = admin.decisions.find(&filter);
    let rows = found.iter().filter(|decision| decision.number <= last);
    let rows = rows.filter_map(|decision| Some(decision.row(&admin.fleet.pool(&decision.model)?.scheduler)));
    Json(List { since_ms: admin.decisions.since_ms(), last, decisions: rows.collect() }).into_response()
}

fn filter(uri: &Uri) -> Result<Filter, String> {
    let mut filter = Filter { limit: LIMIT, ..Filter::default() };
    for (key, value) in Query::of(uri) {
        let number = || value.parse::<u64>().map_err(|_| format!("`{key}` must be a whole number"));
        match key.as_str() {
            "model" => filter.model = Some(value),
            "worker" => filter.worker = Some(value),
            "request" => filter.request = Some(value),
            "after" => filter.after = number()?,
            "limit" => filter.limit = usize::try_from(number()?).unwrap_or(LIMIT_MAX).min(LIMIT_MAX),
            _ => return Err("unknown filter (known: model, worker, request, after, limit)".to_owned()),
        }
    }
    Ok(filter)
}

/// What the decisions that are kept say of the last minutes: `?step_ms=` and `?points=`.
pub(super) async fn history(Reader(admin): Reader, uri: Uri) -> Response {
    let (mut step_ms, mut points) = (STEP_MS, POINTS);
    for (key, value) in Query::of(&uri) {
        match (key.as_str(), value.parse::<u64>()) {
            ("step_ms", Ok(number)) => step_ms = number.clamp(100, 3_600_000),
            ("points", Ok(number)) => points = usize::try_from(number).unwrap_or(POINTS_MAX),
            _ => return refused(StatusCode::BAD_REQUEST, "known: step_ms and points, whole numbers"),
        }
    }
    Json(admin.decisions.history(wall_clock::now_ms(), step_ms, points)).into_response()
}

/// One decision with every term of every candidate, by its request's name or else by its number; with `?by=number` by this
/// alone.
pub(super) async fn one(Reader(admin): Reader, id: Result<Path<String>, PathRejection>, uri: Uri) -> Response {
    // What cannot be decoded is nobody's name.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    let told = |decision: Arc<Decision>| Some(decision.told(&admin.fleet.pool(&decision.model)?.scheduler));
    let found = match Query::of(&uri).next() {
        None => admin.decisions.get(&id),
        Some((key, value)) if key == "by" && value == "number" => {
            id.parse().ok().and_then(|number| admin.decisions.numbered(number))
        }
        Some(_) => return refused(StatusCode::BAD_REQUEST, "known: by=number"),
    };
    match found.and_then(told) {
        Some(told) => Json(told).into_response(),
        None => refused(StatusCode::NOT_FOUND, "no decision that is kept has this number or request id"),
    }
}

/// What would become of the request in the body. It changes nothing, but costs what reading a prompt costs, so whoever
/// asks needs what whoever changes something needs.
pub(super) async fn dry(State(admin): State<Arc<Admin>>, request: Request) -> Response {
    if let Some(refusal) = guard::change_refused(&admin, request.headers()) {
        return refusal;
    }
    match Box::pin(explain(&admin.desk.gateway(), request)).await {
        Ok(told) => Json(told).into_response(),
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_whatever_it_is_and_has_a_most() {
        for (asked, limit) in [("", 100), ("?limit=0", 0), ("?limit=1", 1), ("?limit=1001", 1_000)] {
            let uri = format!("/api/v1/decisions{asked}").parse().unwrap();
            assert_eq!(filter(&uri).map(|filter| filter.limit), Ok(limit), "{asked}");
        }
    }
}
