//! The engine's HTTP: what vLLM answers, and SGLang's own endpoint, as far as routers and their tests care.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use warmpath_core::count::real;
use warmpath_core::ids::TokenId;
use warmpath_simulator::{RequestId, SimRequest};
use xxhash_rust::xxh3::xxh3_64;

use super::Shared;
use super::answer::{Answer, Answering, Native, OpenAi, Part};
use super::driver::{Command, NotQueued, Submission};
use super::native::{Asked, as_completion};
use super::ranks::Seat;
use crate::events::publish::faults::EventFaults;
use crate::events::publish::zmq::ReplayFault;
use crate::openai::{Endpoint, RequestView};

const BODY_MAX: usize = 64 * 1024 * 1024;

/// Tokens when the request does not say, as in OpenAI's completions.
const MAX_TOKENS: u32 = 16;

/// Entries of a list of prompts or messages.
const ITEMS_MAX: usize = 4096;

/// Sequences of one request: prompts times `n`.
const SEQUENCES_MAX: usize = 4096;

pub(super) fn routes(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat_completions))
        .route("/generate", post(generate_natively))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/version", get(version))
        .route("/metrics", get(metrics))
        .route("/tokenize", post(tokenize))
        .route("/reset_prefix_cache", post(reset))
        .route("/faults", post(faults))
        .route("/restart", post(restart))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(shared)
}

/// An error in vLLM's shape.
fn refuse(status: StatusCode, message: &str) -> Response {
    let kind = status.canonical_reason().unwrap_or("error");
    let error = json!({"message": message, "type": kind, "param": null, "code": status.as_u16()});
    (status, Json(json!({ "error": error }))).into_response()
}

/// The vLLM whose answers, events and metrics these are.
async fn version() -> Response {
    Json(json!({"version": concat!("0.32.0+warmpath.", env!("CARGO_PKG_VERSION"))})).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], shared.exposition.render()).into_response()
}

async fn models(State(shared): State<Arc<Shared>>) -> Response {
    let model = json!({"id": shared.model, "object": "model", "created": 0, "owned_by": "warmpath",
        "root": shared.model, "parent": null, "max_model_len": shared.longest});
    Json(json!({"object": "list", "data": [model]})).into_response()
}

async fn reset(State(shared): State<Arc<Shared>>) -> Response {
    if shared.ranks.command(Command::Reset).await.into_iter().all(|emptied| emptied == Some(true)) {
        StatusCode::OK.into_response()
    } else {
        refuse(StatusCode::INTERNAL_SERVER_ERROR, "requests are running")
    }
}

/// What goes wrong, as `POST /faults` has it: with events, with requests (`errors`, the share that is answered with 500), and
/// with metrics, which stay as they are while they are `stale_metrics`. What is left out goes right.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    drop: f64,
    duplicate: f64,
    reorder: f64,
    delay_ms: u64,
    replay: ReplayAnswer,
    errors: f64,
    stale_metrics: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplayAnswer {
    #[default]
    Whole,
    Refused,
    MissingStart,
}

async fn faults(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let faults: Faults = match serde_json::from_slice(&body) {
        Ok(faults) => faults,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    if [faults.drop, faults.duplicate, faults.reorder, faults.errors].iter().any(|share| !(0.0..=1.0).contains(share)) {
        return refuse(StatusCode::BAD_REQUEST, "a share is from 0 to 1");
    }
    *shared.errors.lock().unwrap_or_else(PoisonError::into_inner) = faults.errors;
    shared.exposition.set_stale(faults.stale_metrics);
    let events = EventFaults {
        drop: faults.drop,
        duplicate: faults.duplicate,
        reorder: faults.reorder,
        delay: Duration::from_millis(faults.delay_ms),
    };
    let replay = match faults.replay {
        ReplayAnswer::Whole => ReplayFault::None,
        ReplayAnswer::Refused => ReplayFault::Refused,
        ReplayAnswer::MissingStart => ReplayFault::MissingStart,
    };
    if shared.ranks.command(|answer| Command::Fault(events, replay, answer)).await.iter().all(Option::is_some) {
        StatusCode::OK.into_response()
    } else {
        refuse(StatusCode::SERVICE_UNAVAILABLE, "the engine is shutting down")
    }
}

async fn restart(State(shared): State<Arc<Shared>>) -> Response {
    if shared.ranks.command(Command::Restart).await.iter().all(Option::is_some) {
        StatusCode::OK.into_response()
    } else {
        refuse(StatusCode::SERVICE_UNAVAILABLE, "the engine is shutting down")
    }
}

/// A body may be a chat or a completion, as the engines' own endpoint has it.
async fn tokenize(State(shared): State<Arc<Shared>>, body: Bytes) -> Response {
    let chat = RequestView::parse(Endpoint::Chat, &body, ITEMS_MAX);
    let mut view = match chat.or_else(|_| RequestView::parse(Endpoint::Completions, &body, ITEMS_MAX)) {
        Ok(view) => view,
        Err(fault) => return refuse(StatusCode::BAD_REQUEST, &fault.message),
    };
    match shared.voice.ids(&body, &mut view).await {
        Ok(prompts) => {
            let tokens = prompts.into_iter().next().unwrap_or_default();
            Json(json!({"count": tokens.len(), "max_model_len": shared.longest, "tokens": tokens})).into_response()
        }
        Err(reason) => refuse(StatusCode::BAD_REQUEST, reason.label()),
    }
}

/// In whose words the answer is wanted.
enum Form {
    OpenAi(Endpoint),
    Native(Asked),
}

async fn completions(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    generate(shared, Form::OpenAi(Endpoint::Completions), &headers, body).await
}

async fn chat_completions(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    generate(shared, Form::OpenAi(Endpoint::Chat), &headers, body).await
}

async fn generate_natively(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Response {
    match as_completion(&body) {
        Ok((completion, asked)) => generate(shared, Form::Native(asked), &headers, completion).await,
        Err(fault) => refuse(StatusCode::BAD_REQUEST, &fault),
    }
}

async fn generate(shared: Arc<Shared>, form: Form, headers: &HeaderMap, body: Bytes) -> Response {
    let endpoint = match form {
        Form::OpenAi(endpoint) => endpoint,
        Form::Native(_) => Endpoint::Completions,
    };
    let mut view = match RequestView::parse(endpoint, &body, ITEMS_MAX) {
        Ok(view) => view,
        Err(fault) => return refuse(StatusCode::BAD_REQUEST, &fault.message),
    };
    if view.model.as_deref().is_some_and(|model| model != shared.model) {
        let message = format!("The model `{}` does not exist.", view.model.unwrap_or_default());
        let error = json!({"message": message, "type": "NotFoundError", "param": "model", "code": 404});
        return (StatusCode::NOT_FOUND, Json(json!({ "error": error }))).into_response();
    }
    // Whatever it is, it is answered; only its tokens may be made up.
    let made_up = |_| vec![body.iter().map(|byte| TokenId::from(*byte)).collect()];
    let prompts = shared.voice.ids(&body, &mut view).await.unwrap_or_else(made_up);
    let sequences = prompts.len().saturating_mul(usize::try_from(view.n).unwrap_or(usize::MAX));
    if sequences > SEQUENCES_MAX {
        let message = format!("prompts times `n` are {sequences} sequences; one request may have {SEQUENCES_MAX}");
        return refuse(StatusCode::BAD_REQUEST, &message);
    }
    let seat = match shared.ranks.choose(headers) {
        Ok(seat) => seat,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    if shared.is_broken(number) {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "a fault that was asked for");
    }
    let name = headers.get("x-request-id").and_then(|id| id.to_str().ok()).map_or(number.to_string(), str::to_owned);
    let answer = match form {
        Form::OpenAi(_) => Answer::OpenAi(OpenAi::new(endpoint, &name, &shared.model, &view, &prompts)),
        Form::Native(asked) => Answer::Native(Native::new(&asked, &name, view.n, &prompts)),
    };
    let submitted = submit((seat, shared.longest), &view, prompts, number).await;
    match submitted {
        Ok(parts) if view.stream => {
            let body = Body::new(Answering::new(shared, answer, parts));
            ([(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")], body).into_response()
        }
        Ok(parts) => Json(Answering::new(shared, answer, parts).whole().await).into_response(),
        Err(error @ NotQueued::Refused(_)) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
        Err(error) => refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string()),
    }
}

impl Shared {
    /// Whether the request of this number is answered with an error: of so many the same each time.
    fn is_broken(&self, number: u64) -> bool {
        let share = *self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        real(xxh3_64(&number.to_le_bytes()) >> 11) / real(1 << 53) < share
    }
}

/// Queues every sequence of every prompt, all before the first answer, so that they can run side by side.
async fn submit(
    (seat, longest): (&Seat, usize),
    view: &RequestView<'_>,
    prompts: Vec<Vec<TokenId>>,
    number: u64,
) -> Result<Vec<Part>, NotQueued> {
    let max_tokens = usize::try_from(view.max_tokens.unwrap_or(MAX_TOKENS)).unwrap_or(usize::MAX);
    let (mut parts, mut results) = (Vec::new(), Vec::new());
    for prompt in prompts {
        for _ in 0..view.n {
            let place = u64::try_from(parts.len()).unwrap_or(0);
            let id = RequestId((number << 20) | place);
            let room = longest.saturating_sub(prompt.len()).min(max_tokens).max(1);
            let (tokens, out) = mpsc::channel(room);
            let (queued, result) = oneshot::channel();
            let request = SimRequest {
                seed: number.wrapping_mul(31).wrapping_add(place),
                priority: i32::try_from(view.priority).unwrap_or(0),
                salt: view.cache_salt.as_deref().map(Into::into),
                ..SimRequest::new(id, prompt.clone(), max_tokens)
            };
            let submission = Box::new(Submission { request, tokens, queued });
            // Dropped on the way out, it aborts what was queued.
            parts.push(Part::new(id, out, seat));
            results.push(result);
            seat.commands.send(Command::Submit(submission)).await.map_err(|_| NotQueued::Gone)?;
        }
    }
    for result in results {
        result.await.map_err(|_| NotQueued::Gone)??;
    }
    Ok(parts)
}
