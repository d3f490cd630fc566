//! The first half of a request's life: read, understand, tokenise. The second is [`forward`](super::forward).

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use warmpath_core::blocks::Root;
use warmpath_core::ids::RequestKey;
use warmpath_core::namespace::Namespace;
use warmpath_core::shape::{Class, Shape, TenantId};
use warmpath_core::units::{BlockSize, Tokens};

use super::forward::{Understood, forward};
use super::gateway::Gateway;
use super::panics::caught;
use super::sender::time_allowed;
use crate::error::GatewayError;
use crate::fleet::PoolState;
use crate::openai::{Endpoint, RequestView};
use crate::tokenize::Prompts;
use crate::tokenize::characters::characters;
use crate::upstream::{Outgoing, end_to_end};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Bytes of text that make a token, about; only for load, where token ids are unknown.
const BYTES_PER_TOKEN: usize = 4;

/// Characters in a block, for each token in a block of the engines: what the endpoint picker of the Gateway API inference
/// extension reckons with.
const CHARACTERS_PER_TOKEN: u32 = 4;

/// `POST /v1/completions`.
pub async fn completions(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    answer(gateway, Endpoint::Completions, request).await
}

/// `POST /v1/chat/completions`.
pub async fn chat_completions(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    answer(gateway, Endpoint::Chat, request).await
}

async fn answer(gateway: Arc<Gateway>, endpoint: Endpoint, request: Request) -> Response {
    let key = gateway.next_key();
    let id = request_id(request.headers(), key);
    let arrived = Instant::now();
    let deadline = match time_allowed(request.headers(), gateway.behaviour.total_timeout) {
        Ok(time) => arrived + time,
        Err(error) => return gateway.refuse(error),
    };
    let handled = caught(handle(&gateway, endpoint, (key, &id), (arrived, deadline), request));
    let mut response = match tokio::time::timeout_at(deadline.into(), handled).await {
        Ok(Ok(response)) => response,
        Ok(Err(Failure { error, pool })) => {
            tracing::info!(request = %key.0, error = %error, side = ?error.side(), "request failed");
            match pool {
                Some(pool) => {
                    pool.metrics.request(error.outcome());
                    error.into_response()
                }
                None => gateway.refuse(error),
            }
        }
        Err(_) => gateway.refuse(GatewayError::Deadline),
    };
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// The client's own id, or one of ours.
fn request_id(headers: &HeaderMap, key: RequestKey) -> HeaderValue {
    let own = || HeaderValue::from_str(&format!("wp-{:x}-{}", std::process::id(), key.0));
    match headers.get(REQUEST_ID) {
        Some(id) if !id.is_empty() && id.len() <= 128 => id.clone(),
        _ => own().expect("digits and letters make a header"),
    }
}

/// An error, and the pool that it concerns where the model is known.
struct Failure {
    error: GatewayError,
    pool: Option<Arc<PoolState>>,
}

impl From<GatewayError> for Failure {
    fn from(error: GatewayError) -> Self {
        Self { error, pool: None }
    }
}

async fn handle(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    (key, id): (RequestKey, &HeaderValue),
    (arrived, deadline): (Instant, Instant),
    request: Request,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let body = gateway.read_body(body).await?;
    let parsed = RequestView::parse(endpoint, &body, gateway.behaviour.messages_max);
    let mut view = parsed.map_err(|fault| GatewayError::bad_request(fault.message, fault.param))?;
    let pool = find_pool(gateway, view.model.as_deref())?;
    let root = root(&view, &pool, pool.block_size, gateway.behaviour.index_seed);
    let prompts = pool.tokenizer.prompts(&body, &mut view, &root).await;
    if let Prompts::Unknown(reason) = &prompts {
        gateway.metrics.untokenized(reason.label());
    }
    let texts = texts(&view, &prompts, &pool, gateway.behaviour.index_seed);
    let senders = &gateway.behaviour.senders;
    let standing = (senders.class(&parts.headers, view.priority)?, senders.tenant(&parts.headers));
    let mut headers = end_to_end(parts.headers);
    headers.insert(REQUEST_ID, id.clone());
    let path = parts.uri.into_parts().path_and_query;
    let understood = Understood {
        key,
        arrived,
        deadline,
        shape: shape(&view, standing, &prompts, &pool, body.len()),
        root,
        prompts,
        texts,
        streams: view.stream,
        pool: Arc::clone(&pool),
        outgoing: Outgoing {
            method: parts.method,
            path: path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")),
            headers,
            body: body.clone(),
        },
    };
    forward(gateway, &understood).await.map_err(|error| Failure { error, pool: Some(pool) })
}

fn find_pool(gateway: &Gateway, model: Option<&str>) -> Result<Arc<PoolState>, GatewayError> {
    let roster = gateway.fleet.roster();
    let table = roster.table();
    let pool = match (model, table.pools()) {
        (Some(model), _) => table.pool(model),
        // As engines do: with one model there is nothing to choose.
        (None, [only]) => Some(only),
        (None, _) => return Err(GatewayError::bad_request("`model` is missing", Some("model"))),
    };
    let state = pool.and_then(|pool| gateway.fleet.pool(&pool.model));
    let unknown = || GatewayError::UnknownModel { model: model.unwrap_or_default().chars().take(200).collect() };
    state.cloned().ok_or_else(unknown)
}

fn shape(
    view: &RequestView<'_>,
    (class, tenant): (Class, Option<TenantId>),
    prompts: &Prompts,
    pool: &PoolState,
    body_len: usize,
) -> Shape {
    let estimate = || Tokens(u32::try_from(body_len / BYTES_PER_TOKEN).unwrap_or(u32::MAX));
    let count = prompts.count().unwrap_or_else(|| view.prompt_count());
    let sequences = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(view.n.max(1));
    Shape {
        sequences,
        expected_output: view.max_tokens.map(Tokens),
        class,
        tenant,
        ..Shape::of(prompts.tokens().unwrap_or_else(estimate), pool.block_size)
    }
}

/// What a policy that goes by history sees where token ids are unknown. The larger blocks keep characters apart from
/// tokens: a root is made of its block size, too.
fn texts(view: &RequestView<'_>, prompts: &Prompts, pool: &PoolState, seed: u64) -> (Root, Vec<Vec<u32>>) {
    let block = pool.block_size.get().saturating_mul(CHARACTERS_PER_TOKEN);
    let root = root(view, pool, BlockSize::new(block).unwrap_or(pool.block_size), seed);
    let wanted = matches!(prompts, Prompts::Unknown(_)) && pool.scheduler.policy().history.is_some();
    (root, if wanted { characters(view) } else { Vec::new() })
}

fn root(view: &RequestView<'_>, pool: &PoolState, block_size: BlockSize, seed: u64) -> Root {
    let mut namespace = Namespace::plain(Arc::clone(&pool.model), block_size);
    namespace.salt = view.cache_salt.as_deref().map(Into::into);
    Root::new(&namespace, seed)
}
