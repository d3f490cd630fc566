//! The routes of the data port. Every path that is neither here nor configured to be passed through is 404 in the OpenAI
//! shape: control paths of engines never go through.

use std::ops::ControlFlow;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::routing::{MethodRouter, any, get};
use http::Method;

use super::arrival::Arrival;
use super::desk::Desk;
use super::gateway::Gateway;
use super::{completions, models, passthrough};
use crate::door::{Answered, Answering, Front};
use crate::error::GatewayError;
use crate::openai::Endpoint;

const COMPLETIONS: &str = "/v1/completions";
const CHAT_COMPLETIONS: &str = "/v1/chat/completions";

/// The paths of the data port, but for those that are passed through.
fn table() -> [(&'static str, MethodRouter<Desk>); 4] {
    [
        (COMPLETIONS, any(only_post)),
        (CHAT_COMPLETIONS, any(only_post)),
        ("/v1/models", get(models::list).fallback(only_get)),
        ("/v1/models/{*id}", get(models::one).fallback(only_get)),
    ]
}

/// What it answers by itself.
pub fn paths() -> impl Iterator<Item = &'static str> {
    table().into_iter().map(|(path, _)| path)
}

/// The data port.
pub fn data(desk: Desk) -> Front {
    let own = table().into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods));
    let others = own.fallback(any(passthrough::pass)).with_state(desk.clone());
    Front::with_first(others, move |request| generating(&desk, request))
}

/// The two routes that nearly all requests come on.
fn generating(desk: &Desk, request: Request) -> ControlFlow<Answering, Request> {
    let endpoint = match (request.method(), request.uri().path()) {
        (&Method::POST, COMPLETIONS) => Endpoint::Completions,
        (&Method::POST, CHAT_COMPLETIONS) => Endpoint::Chat,
        _ => return ControlFlow::Continue(request),
    };
    ControlFlow::Break(Box::pin(completions::answer(desk.gateway(), endpoint, request)))
}

async fn only_post(State(gateway): State<Arc<Gateway>>, request: Request) -> Answered {
    Arrival::now(&gateway, request.headers(), "refused").refuse(&gateway, GatewayError::Method { allow: "POST" })
}

async fn only_get(State(gateway): State<Arc<Gateway>>, request: Request) -> Answered {
    Arrival::now(&gateway, request.headers(), "refused").refuse(&gateway, GatewayError::Method { allow: "GET, HEAD" })
}
