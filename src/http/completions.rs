//! The first half of a request's life: read, understand, tokenise. The second is [`forward`](super::forward).

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use http::header::ACCEPT_ENCODING;
use http::request::Parts;
use http::uri::PathAndQuery;
use warmpath_core::blocks::Root;
use warmpath_core::shape::{AffinityKey, Class, Objectives, Shape, TenantId};
use warmpath_core::units::{BlockSize, Tokens};

use super::arrival::Arrival;
use super::between::Between;
use super::bulk;
use super::coding::unencoded;
use super::destination::Destination;
use super::forward::{Relayed, Understood, forward};
use super::gateway::{Behaviour, Gateway};
use super::sender::SessionNames;
use super::usage;
use crate::aside::in_place;
use crate::door::Answered;
use crate::error::GatewayError;
use crate::fleet::PoolState;
use crate::link::Outgoing;
use crate::openai::{Endpoint, Input, Prompt, RequestView, opening};
use crate::telemetry::access::Access;
use crate::tokenize::Prompts;
use crate::tokenize::characters::characters;
use crate::upstream::end_to_end;

/// Characters in a block, for each token in a block of the engines: what the endpoint picker of the Gateway API inference
/// extension reckons with.
const CHARACTERS_PER_TOKEN: u32 = 4;

/// The answer to a `POST` to one of the two generating routes.
pub(super) async fn answer(gateway: Arc<Gateway>, endpoint: Endpoint, request: Request) -> Answered {
    let name = match endpoint {
        Endpoint::Completions => "completions",
        Endpoint::Chat => "chat_completions",
    };
    let mut arrival = Arrival::now(&gateway, request.headers(), name);
    if let Err(error) = arrival.hurry(&gateway, request.headers()) {
        return arrival.refuse(&gateway, error);
    }
    let handled = pin!(handle(&gateway, endpoint, &arrival, request));
    Answered { takes_errors: true, ..arrival.conclude(&gateway, handled).await }
}

async fn handle(
    gateway: &Gateway,
    endpoint: Endpoint,
    arrival: &Arrival,
    request: Request,
) -> Result<Response, GatewayError> {
    let (parts, body) = request.into_parts();
    let body = gateway.read_body(body, arrival.at).await?;
    let between = Between::new(arrival.deadline, || arrival.given_up());
    let understood = understand(gateway, endpoint, arrival, (parts, body), Sought::Needed).await;
    between.over();
    let understood = understood?;
    if let Prompts::Unknown(reason) = &understood.prompts {
        gateway.metrics.untokenized(reason.label());
    }
    let answer = forward(gateway, &understood).await;
    if let Err(GatewayError::Queue { .. } | GatewayError::NoTurn { .. } | GatewayError::Deadline) = &answer {
        let waited = understood.arrived.elapsed();
        understood.pool.metrics.no_first_token(waited, understood.shape.objectives.ttft);
    }
    answer
}

/// What is found out about a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sought {
    /// What the policies here look at.
    Needed,
    /// What any would: others may be asked about it.
    All,
}

/// What the request asks for, of which tokens its prompts are made, and who it is from. Nothing is decided yet.
pub(super) async fn understand(
    gateway: &Gateway,
    endpoint: Endpoint,
    arrival: &Arrival,
    (parts, body): (Parts, Bytes),
    sought: Sought,
) -> Result<Understood, GatewayError> {
    unencoded(&parts.headers)?;
    let reads_prompts = gateway.behaviour.reads_prompts || sought == Sought::All;
    let parse = if reads_prompts { RequestView::parse } else { RequestView::sketch };
    let mut view = in_place(body.len(), || parse(endpoint, &body, gateway.behaviour.messages_max))?;
    let destination = Destination::of(gateway, view.model.as_deref())?.adapted(gateway, view.lora_path.as_deref());
    let pool = Arc::clone(&destination.pool);
    arrival.concerns(&pool);
    let seed = gateway.behaviour.index_seed;
    view.read_as(gateway.fleet.roster().dialect(&pool.model));
    let root = destination.root(view.salt().as_deref(), pool.block_size, seed);
    let prompts = if reads_prompts {
        // In a box of its own: it is large, and many requests do without.
        Box::pin(prompts(&pool, &body, &mut view, &root)).await
    } else {
        Prompts::Unread(estimate(&view, &body))
    };
    let standing = Standing::of(gateway, &parts.headers, &view)?;
    let (relayed, asking) = relayed(gateway, &view, &body);
    let characters = (sought == Sought::All).then_some(gateway.behaviour.opening_characters);
    let characters = pool.scheduler.needs().opening.or(characters);
    let opening = characters.and_then(|characters| {
        let characters = usize::try_from(characters.get()).unwrap_or(usize::MAX);
        opening(&view, destination.adapter.as_deref(), characters)
    });
    let understood = Understood {
        access: arrival.access.clone(),
        key: arrival.key,
        id: arrival.id.clone(),
        arrived: arrival.at,
        deadline: arrival.deadline,
        shape: Shape {
            opening,
            opening_characters: characters.filter(|_| opening.is_some()),
            ..shape(&view, standing, &prompts, &pool, &body)
        },
        root,
        texts: texts(&view, &prompts, &destination, (root, seed)),
        prompts,
        relayed,
        adapter: destination.adapter,
        alias: destination.alias,
        names_model: view.model.is_some(),
        pool: Arc::clone(&pool),
        outgoing: outgoing(parts, arrival, asking, &body),
    };
    let asks = |access: &Arc<Access>| access.asks(&pool.model, understood.shape.prompt);
    arrival.access.iter().for_each(asks);
    Ok(understood)
}

/// Of which tokens its prompts are made, as far as that is of use.
async fn prompts(pool: &PoolState, body: &Bytes, view: &mut RequestView<'_>, root: &Root) -> Prompts {
    let prompts = pool.tokenizer.prompts(body, view, root).await;
    match prompts.tokens() {
        // To look for somebody who holds it would be in vain, and to be told that nobody did would be no broken promise.
        Some(tokens) if view.scores_prompt => Prompts::Unread(tokens),
        _ => prompts,
    }
}

/// What goes to the worker: as it came, or with the body that asks for more.
fn outgoing(parts: Parts, arrival: &Arrival, asking: Option<Bytes>, body: &Bytes) -> Outgoing {
    let is_asking = asking.is_some();
    let body = asking.unwrap_or_else(|| body.clone());
    let mut headers = end_to_end(parts.headers);
    arrival.name(&mut headers);
    if is_asking {
        // What is to be kept from the client must be readable.
        headers.remove(ACCEPT_ENCODING);
    }
    let path = parts.uri.into_parts().path_and_query;
    Outgoing { method: parts.method, path: path.unwrap_or_else(|| PathAndQuery::from_static("/")), headers, body }
}

/// What becomes of the answer on its way, and the body that makes the worker answer so, where it is not the client's.
fn relayed(gateway: &Gateway, view: &RequestView<'_>, body: &[u8]) -> (Relayed, Option<Bytes>) {
    if !view.stream {
        return (Relayed::Whole, None);
    }
    let asks = gateway.behaviour.asks_usage && !view.include_usage;
    // Where there is no room for a second body, the first must do: less is learned.
    let asking = if asks { usage::asking(body).and_then(|body| gateway.room().take(body)) } else { None };
    (if asking.is_some() { Relayed::EventsButUsage } else { Relayed::Events }, asking)
}

/// About how many tokens a request has whose ids are not known: of ids that were only counted just as many.
fn estimate(view: &RequestView<'_>, body: &[u8]) -> Tokens {
    match view.input {
        Input::Completion(Prompt::Unread { tokens: Some(tokens), .. }) => bulk::count(tokens),
        _ => bulk::of_json(body),
    }
}

/// What is known of the sender.
struct Standing {
    class: Class,
    tenant: Option<TenantId>,
    affinity: Option<AffinityKey>,
    objectives: Objectives,
}

impl Standing {
    fn of(gateway: &Gateway, headers: &HeaderMap, view: &RequestView<'_>) -> Result<Self, GatewayError> {
        let Behaviour { senders, objectives, .. } = &gateway.behaviour;
        let class = senders.class(headers, view.priority)?;
        let names = SessionNames { prompt_cache_key: view.prompt_cache_key.as_deref(), user: view.user.as_deref() };
        Ok(Self {
            class,
            tenant: senders.tenant(headers),
            affinity: senders.session(headers, names),
            // Of an answer in one piece nobody sees when its tokens come.
            objectives: if view.stream { objectives.of(class) } else { Objectives::default() },
        })
    }
}

fn shape(
    view: &RequestView<'_>,
    Standing { class, tenant, affinity, objectives }: Standing,
    prompts: &Prompts,
    pool: &PoolState,
    body: &[u8],
) -> Shape {
    let count = prompts.count().unwrap_or_else(|| view.prompt_count());
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    Shape {
        prompts: NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN),
        sequences: count.saturating_mul(view.n.max(1)),
        expected_output: view.max_tokens.map(Tokens),
        class,
        tenant,
        affinity,
        objectives,
        whole: !view.stream,
        ..Shape::of(prompts.tokens().unwrap_or_else(|| estimate(view, body)), pool.block_size)
    }
}

/// What a policy that goes by history sees where token ids are unknown; nothing, below the root of tokens, where they are
/// known. The larger blocks keep characters apart from tokens: a root is made of its block size, too.
fn texts(
    view: &RequestView<'_>,
    prompts: &Prompts,
    destination: &Destination,
    (root, seed): (Root, u64),
) -> (Root, Vec<Vec<u32>>) {
    let pool = &destination.pool;
    if !matches!(prompts, Prompts::Unknown(_)) || !pool.scheduler.goes_by_history() {
        return (root, Vec::new());
    }
    let block = pool.block_size.get().saturating_mul(CHARACTERS_PER_TOKEN);
    let block = BlockSize::new(block).unwrap_or(pool.block_size);
    (destination.root(view.salt().as_deref(), block, seed), characters(view))
}
