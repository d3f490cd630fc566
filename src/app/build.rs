//! Config -> Fleet, and a worker's description -> what joins it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::policy::PolicyName;
use warmpath_core::queue::Rules;
use warmpath_core::retry::RetryBudget;
use warmpath_core::scheduler::{Keeps, Scheduler};
use warmpath_core::units::Blocks;
use warmpath_core::workers::{Limits, Pool};
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::StartError;
use crate::config::{Config, EventSource, Model, Queue, TokenizerSource, Worker as WorkerConfig};
use crate::decisions::Decisions;
use crate::fleet::health::Health;
use crate::fleet::{Conduct, Contract, Fleet, Newcomer, PoolState, RetryTurns};
use crate::link::{Link, Links};
use crate::queue::{Gate, GateSettings, Seats};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::{Metrics, ModelMetrics};
use crate::tokenize::remote::RemoteTokenizer;
use crate::tokenize::{TokenizeLimits, TokenizeShared, TokenizerHandle};

/// The pools that the configuration describes, in which nobody serves yet.
///
/// Requests that wait for a worker are woken by `tasks`, where time alone wakes them.
pub(super) fn fleet(config: &Config, metrics: &Metrics, tasks: &Tasks) -> Fleet {
    let seats = Seats::new(config.limits.in_flight.get());
    let shared = Arc::new(TokenizeShared::new(tokenize_limits(config)));
    let pools = config.models.iter().enumerate().map(|(place, model)| {
        let pool = Pool {
            model: model.name.value.as_str().into(),
            aliases: model.aliases.iter().map(|alias| alias.value.as_str().into()).collect(),
            block_size: model.block_size,
            targets: Vec::new(),
        };
        let tokenizer = tokenizer(config, model, &shared);
        let metrics = metrics.model(place, &model.name.value);
        let gate = Gate::new(gate_settings(config), &seats, metrics.clone(), tasks.clone());
        (pool, Arc::new(pool_state(config, tokenizer, model, (metrics, gate))))
    });
    Fleet::new(pools.collect(), conduct(config))
}

/// How workers are taken out and brought back.
pub(super) fn conduct(config: &Config) -> Conduct {
    Conduct {
        strikes_max: config.health.request_failures.get(),
        ramp: config.health.ramp.get(),
        ramp_from: config.health.ramp_from.get(),
    }
}

/// An index that holds as much as the configuration allows, still empty.
pub(super) fn index(config: &Config) -> ConcurrentIndex {
    ConcurrentIndex::new(usize::try_from(config.index.max_entries.get()).unwrap_or(usize::MAX))
}

/// What is written down of decisions: none yet.
pub(super) fn decisions(config: &Config) -> Decisions {
    let kept = usize::try_from(config.decisions.kept).unwrap_or(usize::MAX);
    Decisions::new(kept, config.decisions.memory.as_usize())
}

/// The ways to workers, whose connections are tasks of `tasks`.
pub(super) fn links(config: &Config, tasks: &Tasks) -> Result<Links, StartError> {
    Links::configured(config, tasks).map_err(|error| setup("`upstream_tls` cannot be used", error))
}

/// The routing targets of one worker, ready to join; their series begin.
pub(super) fn newcomers(
    config: &Config,
    described: &WorkerConfig,
    (health, links): (Health, &Links),
    metrics: &Metrics,
) -> Result<Vec<Newcomer>, StartError> {
    let contract = contract(described)?;
    let (requests, control) = (link(links, described)?, link(links, described)?);
    let silence = match config.event_source(described) {
        EventSource::None => None,
        _ => Some(config.routing.trust.event_silence.get()),
    };
    // What was counted of whoever had its id is not its own.
    metrics.forget_worker(described.id.value.as_str());
    let newcomer = |rank| {
        let rank = described.rank(rank);
        Newcomer {
            id: described.id.value.clone(),
            rank,
            tells_rank: described.dp_ranks.get() > 1,
            model: described.model.value.as_str().into(),
            link: Arc::clone(&requests),
            control: Arc::clone(&control),
            metrics: metrics.worker(described.id.value.as_str(), rank),
            contract: contract.clone(),
            health,
            silence,
        }
    };
    Ok(described.ranks().map(newcomer).collect())
}

/// What of a worker's description may change while it stays.
///
/// # Errors
/// When its key can be in no header.
pub(super) fn contract(described: &WorkerConfig) -> Result<Contract, StartError> {
    let limits = Limits {
        blocks: described.capacity_blocks.map(|blocks| Blocks(blocks.get())),
        sequences: described.max_num_seqs.get(),
    };
    Ok(Contract { authorization: authorization(described)?, limits, role: described.role })
}

/// Whether two descriptions are of the same worker, under one contract or another.
pub(super) fn is_same_worker(one: &WorkerConfig, other: &WorkerConfig) -> bool {
    let WorkerConfig { api_key, capacity_blocks, max_num_seqs, role, .. } = one.clone();
    *one == WorkerConfig { api_key, capacity_blocks, max_num_seqs, role, ..other.clone() }
}

fn authorization(described: &WorkerConfig) -> Result<Option<HeaderValue>, StartError> {
    let Some(key) = &described.api_key else { return Ok(None) };
    let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
    let mut value = value
        .map_err(|error| setup(&format!("the api_key of worker `{}` is no header value", described.id.value), error))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn link(links: &Links, described: &WorkerConfig) -> Result<Arc<Link>, StartError> {
    let (id, url) = (&described.id.value, &described.url.value);
    let authority = url.authority().parse();
    let authority = authority
        .map_err(|error: http::uri::InvalidUri| setup(&format!("the url of worker `{id}` has no host"), error))?;
    links.link(url.scheme(), &authority).map_err(|error| setup(&format!("worker `{id}` cannot be reached"), error))
}

/// How long an engine's `/tokenize` may take; one that is slower costs more than it saves.
const REMOTE_PATIENCE: Duration = Duration::from_millis(500);

/// The most of its answer that is read: a million ids with their commas.
const REMOTE_ANSWER_MAX: usize = 16 * 1024 * 1024;

fn tokenize_limits(config: &Config) -> TokenizeLimits {
    let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    TokenizeLimits {
        cache_bytes: config.tokenize.cache_bytes.as_usize(),
        body_bytes_max: config.tokenize.body_bytes.as_usize(),
        jobs_max: count(config.tokenize.jobs.get()),
        waiting_max: count(config.tokenize.queue),
        wait_max: config.tokenize.wait.get(),
        ..TokenizeLimits::default()
    }
}

fn tokenizer(config: &Config, model: &Model, shared: &Arc<TokenizeShared>) -> TokenizerHandle {
    let check_every = NonZeroU32::new(config.tokenize.check_every);
    let handle = TokenizerHandle::configured(model, Arc::clone(shared), check_every);
    let handle = match &model.tokenizer {
        // Without engines: the fleet tells it of those that join.
        Some(TokenizerSource::Remote) => handle.with_remote(RemoteTokenizer::new(REMOTE_PATIENCE, REMOTE_ANSWER_MAX)),
        _ => handle,
    };
    handle.giving_ids(gives_ids(config))
}

/// The trees of one policy are made of ids.
fn gives_ids(config: &Config) -> bool {
    let mut policies = config.routing.shadow.iter().chain([&config.routing.policy]);
    policies.any(|policy| *policy == PolicyName::ApproxTree)
}

fn gate_settings(config: &Config) -> GateSettings {
    let Queue { requests, requests_per_tenant, weights, timeout, .. } = &config.queue;
    let count = |number: NonZeroU32| usize::try_from(number.get()).unwrap_or(usize::MAX);
    GateSettings {
        queues: config.routing.on_all_busy == OnAllBusy::Queue,
        rules: Rules {
            waiting: count(*requests),
            of_tenant: count(*requests_per_tenant),
            weights: [weights.high, weights.normal, weights.low],
        },
        timeout: timeout.get(),
    }
}

fn pool_state(
    config: &Config,
    tokenizer: TokenizerHandle,
    model: &Model,
    (metrics, gate): (ModelMetrics, Arc<Gate>),
) -> PoolState {
    PoolState {
        model: model.name.value.as_str().into(),
        block_size: model.block_size,
        scheduler: scheduler(config, &gate),
        tokenizer: Arc::new(tokenizer),
        metrics,
        gate,
        retries: Arc::new(retries(config)),
    }
}

fn scheduler(config: &Config, gate: &Arc<Gate>) -> Scheduler {
    let routing = &config.routing;
    let (credit, half_life) = (config.index.in_flight_credit.get(), config.engines.half_life.get());
    routing.scheduler(routing.policy, credit, half_life).with_release(gate.clone())
}

fn retries(config: &Config) -> RetryTurns {
    RetryTurns::new(RetryBudget::new(config.retries.budget, config.retries.budget_min))
}

/// A pool in the place of `old`: what is in flight and what was learned stays, unless `config` sets it otherwise than
/// `before` did.
pub(super) fn succeeding(config: &Config, before: &Config, old: &PoolState) -> PoolState {
    old.tokenizer.set_giving_ids(gives_ids(config));
    let policies: Vec<PolicyName> =
        PolicyName::ALL.into_iter().filter(|policy| config.routing.sets_alike(&before.routing, *policy)).collect();
    let (limits, limits_before) = (config.routing.approx_limits(), before.routing.approx_limits());
    let bounded_alike = [
        (PolicyName::ApproxTree, limits.tree == limits_before.tree),
        (PolicyName::ApproxLru, limits.lru == limits_before.lru),
    ];
    let histories: Vec<PolicyName> =
        bounded_alike.into_iter().filter_map(|(name, alike)| alike.then_some(name)).collect();
    let keeps = Keeps {
        policies: &policies,
        histories: &histories,
        sessions: config.routing.sessions == before.routing.sessions,
        sent: limits.lru == limits_before.lru,
    };
    let same_budget =
        (config.retries.budget, config.retries.budget_min) == (before.retries.budget, before.retries.budget_min);
    PoolState {
        model: Arc::clone(&old.model),
        block_size: old.block_size,
        scheduler: scheduler(config, &old.gate).succeeding(&old.scheduler, keeps),
        tokenizer: Arc::clone(&old.tokenizer),
        metrics: old.metrics.clone(),
        gate: Arc::clone(&old.gate),
        retries: if same_budget { Arc::clone(&old.retries) } else { Arc::new(retries(config)) },
    }
}

pub(super) fn setup(what: &str, source: impl Into<crate::error::BoxError>) -> StartError {
    StartError::Setup { what: what.to_owned(), source: source.into() }
}
