//! Config -> Fleet.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderValue;
use http::uri::Authority;
use warmpath_core::ids::{Rank, Slot};
use warmpath_core::policy::{Policy, PolicyName};
use warmpath_core::scheduler::Scheduler;
use warmpath_core::trust::Trust;
use warmpath_core::units::Blocks;
use warmpath_core::workers::{Limits, Pool, Target};
use warmpath_indexer::approx::{ApproxLru, history_of};

use super::StartError;
use crate::config::{Config, EventSource, Model, TokenizerSource, Worker as WorkerConfig};
use crate::fleet::engine::Engine;
use crate::fleet::{Fleet, PoolState, Worker};
use crate::telemetry::hit_rate::HitRate;
use crate::telemetry::metrics::Metrics;
use crate::tokenize::hf::{self, TokenizerFiles};
use crate::tokenize::remote::RemoteTokenizer;
use crate::tokenize::{TokenizeLimits, TokenizeShared, TokenizerHandle, bytes};

/// The fleet that the configuration describes: slots in the order of `workers`, ranks of one worker side by side.
pub(super) fn fleet(config: &Config, metrics: &Metrics) -> Result<Fleet, StartError> {
    let mut targets = Vec::new();
    let mut workers = Vec::new();
    for described in &config.workers {
        let ranks = u32::from(described.dp_ranks.value.get());
        for rank in 0..ranks {
            let slot = next_slot(workers.len())?;
            targets.push(target(config, described, slot, Rank(rank)));
            workers.push(Arc::new(worker(described, slot, (ranks > 1).then_some(Rank(rank)), metrics)?));
        }
    }
    let mut pools = Vec::new();
    let shared = Arc::new(TokenizeShared::new(tokenize_limits(config)));
    for (place, model) in config.models.iter().enumerate() {
        let of_model = workers.iter().filter(|worker| *worker.model == *model.name.value);
        let pool = Pool {
            model: model.name.value.as_str().into(),
            aliases: model.aliases.iter().map(|alias| alias.value.as_str().into()).collect(),
            block_size: model.block_size,
            targets: of_model.clone().map(|worker| worker.slot).collect(),
        };
        let engines: Vec<String> = of_model.map(|worker| format!("{}://{}", worker.scheme, worker.authority)).collect();
        let state = pool_state(config, (place, model), tokenizer(config, model, &engines, &shared), metrics)?;
        pools.push((pool, Arc::new(state)));
    }
    Ok(Fleet::new(targets, pools, workers))
}

fn next_slot(used: usize) -> Result<Slot, StartError> {
    let slot = u16::try_from(used);
    slot.map(Slot).map_err(|error| setup("too many workers: at most 65 536 routing targets", error))
}

fn target(config: &Config, described: &WorkerConfig, slot: Slot, rank: Rank) -> Target {
    let trust = match config.event_source(described) {
        EventSource::None => Trust::default(),
        _ => Trust::expecting_events(config.routing.trust.event_silence.get()),
    };
    Target {
        slot,
        worker: described.id.value.clone(),
        rank,
        role: described.role,
        limits: Limits {
            blocks: described.capacity_blocks.map(|blocks| Blocks(blocks.get())),
            sequences: described.max_num_seqs.get(),
        },
        available: true,
        account: Arc::default(),
        trust: Arc::new(trust),
    }
}

fn worker(described: &WorkerConfig, slot: Slot, rank: Option<Rank>, metrics: &Metrics) -> Result<Worker, StartError> {
    let authorization = described.api_key.as_ref().map(|key| {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
        if let Ok(value) = &mut value {
            value.set_sensitive(true);
        }
        value.map_err(|error| {
            setup(&format!("the api_key of worker `{}` is no header value", described.id.value), error)
        })
    });
    Ok(Worker {
        slot,
        id: described.id.value.clone(),
        rank,
        model: described.model.value.as_str().into(),
        scheme: http::uri::Scheme::HTTP,
        authority: authority(described)?,
        authorization: authorization.transpose()?,
        metrics: metrics.worker(slot.index(), described.id.value.as_str()),
        hit_rate: HitRate::new(Instant::now()),
        engine: Engine::default(),
    })
}

fn authority(described: &WorkerConfig) -> Result<Authority, StartError> {
    let authority = described.url.value.authority().parse();
    authority.map_err(|error: http::uri::InvalidUri| {
        setup(&format!("the url of worker `{}` has no host", described.id.value), error)
    })
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

fn tokenizer(config: &Config, model: &Model, engines: &[String], shared: &Arc<TokenizeShared>) -> TokenizerHandle {
    let shared = Arc::clone(shared);
    let handle = match &model.tokenizer {
        None => TokenizerHandle::absent(shared),
        Some(TokenizerSource::Bytes) => TokenizerHandle::ready(bytes::model(), shared),
        Some(TokenizerSource::Remote) => TokenizerHandle::absent(shared).with_remote(remote(config, model, engines)),
        Some(TokenizerSource::File(file)) => {
            let files = TokenizerFiles {
                tokenizer: file.clone(),
                chat_template: model.chat_template.clone(),
                model_tokens_max: None,
                check_every: NonZeroU32::new(config.tokenize.check_every),
            };
            TokenizerHandle::load(move || hf::load(&files), shared)
        }
    };
    // Its trees are made of ids.
    handle.giving_ids(config.routing.policy == PolicyName::ApproxTree)
}

fn remote(config: &Config, model: &Model, engines: &[String]) -> RemoteTokenizer {
    let client = reqwest::Client::builder().pool_idle_timeout(config.timeouts.worker_idle.get()).build();
    let client = client.expect("a client without TLS has nothing to fail on");
    let of_model = config.workers.iter().filter(|worker| worker.model.value == model.name.value);
    let key = of_model.filter_map(|worker| worker.api_key.as_ref()).map(|key| key.expose().to_owned()).next();
    RemoteTokenizer::new(client, engines, REMOTE_PATIENCE, REMOTE_ANSWER_MAX).with_api_key(key)
}

fn pool_state(
    config: &Config,
    (place, model): (usize, &Model),
    tokenizer: TokenizerHandle,
    metrics: &Metrics,
) -> Result<PoolState, StartError> {
    let routing = &config.routing;
    let weights = routing.weights();
    let history = history_of(routing.policy, &routing.approx_limits());
    // A history knows by itself what was sent where.
    let credit = if history.is_some() { Duration::ZERO } else { config.index.in_flight_credit.get() };
    let scheduler = Scheduler::new(
        Policy::new(routing.policy, &weights).with_history(history),
        Policy::new(routing.fallback, &weights),
        routing.on_all_busy,
    )
    .with_in_flight_credit(credit)
    .with_tiers(routing.tiers)
    .with_half_life(config.engines.half_life.get())
    .with_sent(Arc::new(ApproxLru::new(routing.approx_limits().lru)));
    Ok(PoolState {
        model: model.name.value.as_str().into(),
        block_size: model.block_size,
        scheduler,
        tokenizer,
        metrics: metrics.model(place, &model.name.value),
    })
}

pub(super) fn setup(what: &str, source: impl Into<crate::error::BoxError>) -> StartError {
    StartError::Setup { what: what.to_owned(), source: source.into() }
}
