//! The routes of the data port. Every path that is neither here nor configured to be passed through is 404 in the OpenAI
//! shape: control paths of engines never go through.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::response::Response;
use axum::routing::{any, get, post};

use super::arrival::Arrival;
use super::desk::Desk;
use super::gateway::Gateway;
use super::{completions, models, passthrough};
use crate::error::GatewayError;

/// The data port.
pub fn data(desk: Desk) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions).fallback(only_post))
        .route("/v1/chat/completions", post(completions::chat_completions).fallback(only_post))
        .route("/v1/models", get(models::list).fallback(only_get))
        .route("/v1/models/{*id}", get(models::one).fallback(only_get))
        .fallback(any(passthrough::pass))
        .with_state(desk)
}

async fn only_post(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    Arrival::now(&gateway, request.headers(), "refused").refuse(&gateway, GatewayError::Method { allow: "POST" })
}

async fn only_get(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    Arrival::now(&gateway, request.headers(), "refused").refuse(&gateway, GatewayError::Method { allow: "GET, HEAD" })
}
