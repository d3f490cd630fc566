//! What the router says of its own health, and into its log when SIGUSR1 asks how everything stands.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use warmpath_core::trust::Reason;

use super::StartError;
use super::members::Trouble;
use super::offers;
use super::readiness::{self, Ready};
use super::reload::Reloader;
use super::scrape;
use super::sources::Sources;
use crate::door::Tls;
use crate::fleet::{Duty, Fleet, PoolState};
use crate::http::admin::{self, Admin, HealthReport};
use crate::replay::record::Obstacle;
use crate::shutdown::Tasks;
use crate::telemetry::STATE;
use crate::tokenize::TokenizerState;

/// How it is.
pub(super) fn report(
    (fleet, unread_after): (&Fleet, Duration),
    (ready, sources): (&Ready, &Sources),
    (trouble, obstacle, reloader): (&Trouble, &Obstacle, &Reloader),
    certificates: &[Arc<Tls>],
) -> HealthReport {
    let mut degraded = sources.complaints();
    degraded.extend(reloader.complaint());
    degraded.extend(obstacle.told());
    degraded.extend(certificates.iter().flat_map(|tls| tls.complaints()));
    degraded.extend(readiness::unserved(fleet));
    degraded.extend(readiness::complaints(fleet));
    degraded.extend(misfits(fleet, Instant::now()));
    degraded.extend(misnamed(fleet));
    degraded.extend(twins(fleet));
    degraded.extend(scrape::complaints(fleet, unread_after, Instant::now()));
    degraded.extend(trouble.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned());
    degraded.extend(fleet.pools().filter_map(|pool| untokenized(&pool)));
    let waiting = |pool: &Arc<PoolState>| pool.gate.lengths().iter().sum::<usize>();
    let full = fleet.pools().filter(|pool| pool.gate.is_full());
    degraded.extend(
        full.map(|pool| {
            format!("the queue of `{}` is full: {} requests wait for a worker", pool.model, waiting(&pool))
        }),
    );
    let queued = fleet.pools().map(|pool| waiting(&pool)).sum();
    let status = if degraded.is_empty() { "ok" } else { "degraded" };
    let roster = fleet.roster();
    let off_duty = roster.workers().filter(|worker| worker.duty() != Duty::Active);
    let mut off_duty: Vec<String> =
        off_duty.map(|worker| format!("{}: {}", worker.id, worker.duty().label())).collect();
    off_duty.sort_unstable();
    off_duty.dedup();
    let not_ready = ready().err().map(|why| why.to_string());
    let ready = not_ready.is_none();
    HealthReport { status, degraded, queued, off_duty, ready, not_ready, version: env!("CARGO_PKG_VERSION") }
}

/// Workers whose blocks are of another size than their model's, in words: nothing of their caches is ever found.
fn misfits(fleet: &Fleet, now: Instant) -> Vec<String> {
    let roster = fleet.roster();
    let misfits = roster.table().iter().filter_map(|target| {
        let worker = roster.worker(target.slot)?;
        let reasons = worker.trust(now, target, fleet.pool(&worker.model)?.block_size).reasons;
        let size = reasons.iter().find(|reason| matches!(reason, Reason::BlockSize { .. }))?;
        Some(format!("worker `{}`: {size}", worker.id))
    });
    let mut misfits: Vec<String> = misfits.collect();
    // Ranks have theirs in common.
    misfits.sort_unstable();
    misfits.dedup();
    misfits
}

/// Workers that do not list their model, in words: they refuse its requests.
fn misnamed(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let mut misnamed: Vec<_> =
        roster.workers().filter_map(|worker| Some((worker.id.clone(), offers::misnamed(fleet, worker)?))).collect();
    // Ranks are one engine.
    misnamed.sort_unstable();
    misnamed.dedup();
    misnamed.iter().map(|(id, what)| format!("worker `{id}` {what}")).collect()
}

/// Workers at the address of another one, in words: each shows half of its load. Only ranks may share one.
fn twins(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let mut there = HashMap::new();
    let twins = roster.workers().filter_map(|worker| {
        let (address, rank) = (worker.link.authority(), worker.rank.unwrap_or_default());
        let first = *there.entry((address, rank)).or_insert(&worker.id);
        (*first != worker.id).then(|| format!("worker `{}` is at the address of `{first}`, {address}", worker.id))
    });
    let mut twins: Vec<String> = twins.collect();
    twins.sort_unstable();
    twins.dedup();
    twins
}

/// What a model's prompts are routed by though its policy wants to know their tokens, in words; none where it knows them.
fn untokenized(pool: &PoolState) -> Option<String> {
    let policy = pool.scheduler.policy();
    let model = &pool.model;
    let what = match pool.tokenizer.state() {
        TokenizerState::Ready => return None,
        // Policies that go by history read characters as well, and baselines read nothing.
        TokenizerState::Absent if policy.history.is_some() || policy.name.is_baseline() => return None,
        TokenizerState::Absent if pool.tokenizer.asks_engines() => return None,
        TokenizerState::Absent => format!("`{model}` has no tokenizer"),
        TokenizerState::Loading => format!("the tokenizer of `{model}` is still being loaded"),
        TokenizerState::Failed(reason) => format!("the tokenizer of `{model}` could not be loaded ({reason})"),
    };
    let by = if policy.history.is_some() { "their characters" } else { "load" };
    Some(format!("{what}: its prompts sent as text are routed by {by}"))
}

/// Says once in the log of which models' prompts nobody knows the tokens, as soon as that is known.
pub(super) fn tell_untokenized(fleet: &Fleet, tasks: &Tasks) {
    for pool in fleet.pools() {
        tasks.spawn(async move {
            pool.tokenizer.settled().await;
            if let Some(complaint) = untokenized(&pool) {
                tracing::warn!("{complaint}");
            }
        });
    }
}

/// Writes into the log how everything stands, whenever SIGUSR1 comes.
pub(super) fn tell_on_signal(admin: Arc<Admin>, tasks: &Tasks) -> Result<(), StartError> {
    let asked = signal(SignalKind::user_defined1());
    let mut asked = asked.map_err(|source| StartError::Setup { what: "SIGUSR1".to_owned(), source: source.into() })?;
    tasks.spawn(async move {
        while asked.recv().await.is_some() {
            tracing::info!(target: STATE, state = %admin::state(&admin), "asked by SIGUSR1");
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::build;
    use crate::config::Config;
    use crate::telemetry::metrics::Metrics;

    #[tokio::test]
    async fn models_are_told_of_in_the_order_of_their_names() {
        let models = ["f", "b", "h", "a", "e", "c", "g", "d"].map(|name| format!("{{name: {name}}}")).join(", ");
        let text = format!("models: [{models}]\nworkers: [{{id: w, url: 'http://w:1', model: a}}]\n");
        let config = Config::parse("f", text).unwrap();
        let fleet = build::fleet(&config, &Metrics::new("w"), &Tasks::new());
        let told: Vec<String> = fleet.pools().filter_map(|pool| untokenized(&pool)).collect();
        assert!(told.len() == 8 && told.is_sorted(), "{told:?}");
    }
}
