//! A request that is only asked about: read, understood, tokenized and matched as it would be, and sent nowhere.
use axum::extract::Request;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::arrival::Arrival;
use super::completions::{Sought, understand};
use super::gateway::Gateway;
use super::place::{DryRun, dry_run};
use crate::aside::in_place;
use crate::decisions::told::{Told, told_dry};
use crate::error::GatewayError;
use crate::openai::Endpoint;

/// What tells a chat from a completion.
#[derive(Deserialize)]
struct Kind {
    messages: Option<IgnoredAny>,
}

/// What would become of `request`, a chat or a completion by its body, if it came now. Reserves nothing and sends nothing.
pub(super) async fn explain(gateway: &Gateway, request: Request) -> Result<Told, GatewayError> {
    let arrival = Arrival::unlogged(gateway, request.headers());
    let (parts, body) = request.into_parts();
    let body = gateway.read_body(body, arrival.at).await?;
    // What is no JSON is told so by whoever reads it as a completion.
    let kind = in_place(body.len(), || serde_json::from_slice(&body));
    let is_chat = kind.is_ok_and(|kind: Kind| kind.messages.is_some());
    let endpoint = if is_chat { Endpoint::Chat } else { Endpoint::Completions };
    let understood = understand(gateway, endpoint, &arrival, (parts, body), Sought::All).await?;
    let DryRun { explanation, asked: (question, chance), names } = dry_run(gateway, &understood)?;
    let name = arrival.id.to_str().unwrap_or_default().to_owned();
    Ok(told_dry((&understood.pool.model, name), &explanation, (&question, &chance), &names))
}
