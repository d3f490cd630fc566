//! `/v1/models`: what can be asked for, from the configuration.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::gateway::Gateway;
use crate::error::GatewayError;

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

fn model(id: &str) -> Model {
    Model { id: id.to_owned(), object: "model", created: 0, owned_by: "warmpath" }
}

/// Every model, and every alias as a model of its own.
pub async fn list(State(gateway): State<Arc<Gateway>>) -> Response {
    let roster = gateway.fleet.roster();
    let table = roster.table();
    let names = table.pools().iter().flat_map(|pool| std::iter::once(&pool.model).chain(&pool.aliases));
    Json(List { object: "list", data: names.map(|name| model(name)).collect() }).into_response()
}

/// One model; ids may contain slashes.
pub async fn one(State(gateway): State<Arc<Gateway>>, Path(id): Path<String>) -> Response {
    match gateway.fleet.roster().table().pool(&id) {
        Some(_) => Json(model(&id)).into_response(),
        None => gateway.refuse(GatewayError::UnknownModel { model: id.chars().take(200).collect() }),
    }
}
