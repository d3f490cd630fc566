//! The life of a request: read, understand, tokenise, place, forward, relay.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderName, HeaderValue};
use warmpath_core::blocks::Root;
use warmpath_core::ids::RequestKey;
use warmpath_core::namespace::Namespace;
use warmpath_core::scheduler::{DecidedBy, Placement};
use warmpath_core::shape::{Class, Prompt, Request as PlaceRequest, Shape};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tokens;

use super::gateway::Gateway;
use crate::error::{GatewayError, UpstreamFailure};
use crate::fleet::{PoolState, Worker};
use crate::openai::{Endpoint, RequestView};
use crate::tokenize::Prompts;
use crate::upstream::progress::{Form, Progress, Ticket};
use crate::upstream::relay::Relay;
use crate::upstream::sse::SseScanner;
use crate::upstream::{Answer, Outgoing, end_to_end};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const WORKER: HeaderName = HeaderName::from_static("x-warmpath-worker");
const OVERLAP_TOKENS: HeaderName = HeaderName::from_static("x-warmpath-overlap-tokens");
const DECISION: HeaderName = HeaderName::from_static("x-warmpath-decision");

/// The most of an answer that is no success: an error object is small.
const ERROR_MAX: usize = 1024 * 1024;

/// Bytes of text that make a token, about; only for load, where token ids are unknown.
const BYTES_PER_TOKEN: usize = 4;

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
    let total = gateway.behaviour.total_timeout;
    let mut response = match tokio::time::timeout(total, handle(&gateway, endpoint, key, &id, request)).await {
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

/// A request that was understood.
struct Understood {
    key: RequestKey,
    arrived: Instant,
    pool: Arc<PoolState>,
    shape: Shape,
    root: Root,
    prompts: Prompts,
    outgoing: Outgoing,
    streams: bool,
}

async fn handle(
    gateway: &Arc<Gateway>,
    endpoint: Endpoint,
    key: RequestKey,
    id: &HeaderValue,
    request: Request,
) -> Result<Response, Failure> {
    let arrived = Instant::now();
    let (parts, body) = request.into_parts();
    let body = gateway.read_body(body).await?;
    let view = RequestView::parse(endpoint, &body, gateway.behaviour.messages_max)
        .map_err(|fault| GatewayError::BadRequest { message: fault.message, param: fault.param.map(str::to_owned) })?;
    let pool = find_pool(gateway, view.model.as_deref())?;
    let prompts = pool.tokenizer.prompts(&view).await;
    if let Prompts::Unknown(reason) = &prompts {
        gateway.metrics.untokenized(reason.label());
    }
    let mut headers = end_to_end(parts.headers);
    headers.insert(REQUEST_ID, id.clone());
    let path = parts.uri.into_parts().path_and_query;
    let understood = Understood {
        key,
        arrived,
        shape: shape(&view, &prompts, &pool, body.len()),
        root: root(&view, &pool, gateway.behaviour.index_seed),
        prompts,
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
    let table = gateway.fleet.table();
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

fn shape(view: &RequestView<'_>, prompts: &Prompts, pool: &PoolState, body_len: usize) -> Shape {
    let (tokens, count) = match prompts {
        Prompts::Ids(prompts) => (prompts.iter().map(Vec::len).sum(), prompts.len()),
        Prompts::Unknown(_) => (body_len / BYTES_PER_TOKEN, view.prompt_count()),
    };
    let sequences = u32::try_from(count).unwrap_or(u32::MAX).saturating_mul(view.n.max(1));
    Shape {
        sequences,
        expected_output: view.max_tokens.map(Tokens),
        class: Class(view.priority),
        ..Shape::of(Tokens(u32::try_from(tokens).unwrap_or(u32::MAX)), pool.block_size)
    }
}

fn root(view: &RequestView<'_>, pool: &PoolState, seed: u64) -> Root {
    let mut namespace = Namespace::plain(Arc::clone(&pool.model), pool.block_size);
    namespace.salt = view.cache_salt.as_deref().map(Into::into);
    Root::new(&namespace, seed)
}

/// Places and sends until a worker answers. Nothing has gone to the client yet, so another worker may take over.
async fn forward(gateway: &Gateway, request: &Understood) -> Result<Response, GatewayError> {
    let mut avoid = SlotSet::new();
    let mut retries = gateway.behaviour.retries;
    let mut last: Option<(GatewayError, UpstreamFailure)> = None;
    loop {
        let placement = match place(gateway, request, &avoid) {
            Ok(placement) => placement,
            // What the workers said tells the client more than that none is left.
            Err(error) => return Err(last.map_or(error, |(said, _)| said)),
        };
        if let Some((_, failure)) = last {
            gateway.metrics.retry(failure.label());
        }
        let worker = gateway.fleet.worker(placement.target.slot).cloned().ok_or(GatewayError::NoSuchSlot)?;
        let error = match gateway.upstream.send(&worker, &request.outgoing).await {
            Ok(answer) => return relay(gateway, request, placement, worker, answer).await,
            Err(error) => error,
        };
        let slot = placement.target.slot;
        drop(placement);
        let failure = match &error {
            GatewayError::Upstream { failure, .. } => *failure,
            _ => return Err(error),
        };
        tracing::warn!(worker = %worker.id, request = request.key.0, failure = failure.label(), "attempt failed");
        if retries == 0 {
            return Err(error);
        }
        retries -= 1;
        // Neither a second long silence nor a third full worker is worth the wait.
        if matches!(failure, UpstreamFailure::FirstByteTimeout | UpstreamFailure::TooManyRequests) {
            retries = retries.min(1);
        }
        avoid.insert(slot);
        last = Some((error, failure));
    }
}

fn place(gateway: &Gateway, request: &Understood, avoid: &SlotSet) -> Result<Placement, GatewayError> {
    let table = gateway.fleet.table();
    let pool = table.pool(&request.pool.model).ok_or(GatewayError::NoSuchSlot)?;
    let prompts: Vec<Prompt<'_>> = match &request.prompts {
        Prompts::Ids(prompts) => {
            prompts.iter().map(|tokens| Prompt { root: request.root, tokens, media: &[] }).collect()
        }
        Prompts::Unknown(_) => Vec::new(),
    };
    let place = PlaceRequest { key: request.key, shape: request.shape, prompts: &prompts, avoid };
    let start = Instant::now();
    let placement = gateway.with_scratch(|scratch| {
        request.pool.scheduler.place(start, &place, &*gateway.index, (&table, pool), scratch)
    })?;
    gateway.metrics.routing_latency.record(start.elapsed());
    if let DecidedBy::Fallback(_) = placement.decided_by {
        gateway.metrics.fallback("all_zero");
    }
    if let Some(worker) = gateway.fleet.worker(placement.target.slot)
        && !prompts.is_empty()
    {
        worker.metrics.prompt_tokens.increment(u64::from(request.shape.prompt.0));
        worker.metrics.cached_predicted.increment(u64::from(placement.overlap_tokens.0));
        worker.hit_rate.add(start, request.shape.prompt.0, placement.overlap_tokens.0);
    }
    tracing::debug!(
        request = request.key.0,
        worker = %placement.target.worker,
        prompt_tokens = request.shape.prompt.0,
        overlap_tokens = placement.overlap_tokens.0,
        "placed"
    );
    Ok(placement)
}

async fn relay(
    gateway: &Gateway,
    request: &Understood,
    placement: Placement,
    worker: Arc<Worker>,
    answer: Answer,
) -> Result<Response, GatewayError> {
    let decision = gateway.behaviour.expose_decisions.then(|| decision_headers(&placement));
    let mut response = if answer.parts.status.is_success() {
        let comparable = request.prompts.is_comparable() && request.shape.sequences == 1;
        let ticket = Ticket {
            key: request.key,
            pool: Arc::clone(&request.pool),
            worker,
            arrived: request.arrived,
            predicted: comparable.then_some(placement.overlap_tokens),
        };
        let form = if request.streams && answer.is_event_stream() {
            Form::Events(SseScanner::default())
        } else {
            Form::Whole { pieces: Vec::new(), len: 0 }
        };
        let progress = Progress::new(placement.reservation, ticket, form);
        let relay = Relay::new(answer.first, answer.rest, progress, gateway.upstream.timeouts().idle);
        Response::from_parts(answer.parts, Body::new(relay))
    } else {
        let broken = |source| GatewayError::Upstream {
            worker: worker.id.clone(),
            failure: UpstreamFailure::Broken,
            source: Some(source),
        };
        let (parts, body) = answer.collect(ERROR_MAX).await.map_err(broken)?;
        request.pool.metrics.request("worker_refused");
        Response::from_parts(parts, Body::from(body))
    };
    response.headers_mut().extend(decision.into_iter().flatten());
    Ok(response)
}

fn decision_headers(placement: &Placement) -> HeaderMap {
    let decided_by = match placement.decided_by {
        DecidedBy::Policy => "policy",
        DecidedBy::Fallback(_) => "fallback",
        DecidedBy::Load => "load",
        DecidedBy::LeastLoaded => "least_loaded",
    };
    let mut headers = HeaderMap::new();
    if let Ok(worker) = HeaderValue::from_str(placement.target.worker.as_str()) {
        headers.insert(WORKER, worker);
    }
    headers.insert(OVERLAP_TOKENS, HeaderValue::from(placement.overlap_tokens.0));
    headers.insert(DECISION, HeaderValue::from_static(decided_by));
    headers
}
