//! The routes of the data port. Every path that is not here is 404 in the OpenAI shape: control paths of engines never
//! go through.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};

use super::gateway::Gateway;
use super::{completions, models};
use crate::error::GatewayError;

/// The data port.
pub fn data(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions).fallback(wrong_method))
        .route("/v1/chat/completions", post(completions::chat_completions).fallback(wrong_method))
        .route("/v1/models", get(models::list).fallback(wrong_method))
        .route("/v1/models/{*id}", get(models::one).fallback(wrong_method))
        .fallback(any(unknown_path))
        .with_state(gateway)
}

async fn unknown_path(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    gateway.refuse(GatewayError::UnknownPath { path: request.uri().path().chars().take(200).collect() })
}

async fn wrong_method(State(gateway): State<Arc<Gateway>>) -> Response {
    gateway.refuse(GatewayError::Method)
}
