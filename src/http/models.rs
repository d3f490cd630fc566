//! `/v1/models`: what can be asked for, from the configuration and from what the workers say that they serve.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::IntoResponse;
use serde::Serialize;
use serde_json::Value;

use super::arrival::Arrival;
use super::destination::unknown_model;
use super::gateway::Gateway;
use crate::door::Answered;

/// What the access log calls it.
const ENDPOINT: &str = "models";

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<&'a Value>,
}

/// Every model, every alias as a model of its own, and every adapter.
pub async fn list(State(gateway): State<Arc<Gateway>>, headers: HeaderMap) -> Answered {
    let catalogue = gateway.fleet.catalogue();
    let data = catalogue.entries().iter().map(|entry| &entry.json).collect();
    let response = Json(List { object: "list", data }).into_response();
    Arrival::now(&gateway, &headers, ENDPOINT).served(response)
}

/// One of them; ids may contain slashes.
pub async fn one(
    State(gateway): State<Arc<Gateway>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Answered {
    let arrival = Arrival::now(&gateway, &headers, ENDPOINT);
    // What cannot be decoded is nobody's name.
    let id = id.map(|Path(id)| id).unwrap_or_default();
    match gateway.fleet.catalogue().entry(&id) {
        Some(entry) => arrival.served(Json(&entry.json).into_response()),
        None => arrival.refuse(&gateway, unknown_model(&id)),
    }
}
