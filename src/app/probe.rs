//! Asks every worker how it is.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::{Interval, MissedTickBehavior};
use warmpath_core::units::Blocks;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::config::{ReadyWhen, Timeouts};
use crate::fleet::health::Health;
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// The most of an engine's metrics that is read: vLLM's are 56 kB.
const METRICS_MAX: usize = 4 * 1024 * 1024;

/// What the checks have shown, by slot.
#[derive(Clone)]
pub(super) struct Probes {
    healths: Arc<[Mutex<Health>]>,
    workers: Arc<[Arc<Worker>]>,
}

/// Starts a task for each worker.
pub(super) fn start(
    (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
    timeouts: &Timeouts,
    tasks: &Tasks,
) -> Probes {
    let client = reqwest::Client::builder()
        .timeout(timeouts.health_check.get())
        .pool_idle_timeout(timeouts.worker_idle.get())
        .build();
    let client = client.expect("a client without TLS has nothing to fail on");
    let probes =
        Probes { healths: fleet.workers().iter().map(|_| Mutex::default()).collect(), workers: fleet.workers().into() };
    for worker in fleet.workers() {
        let ticks = tokio::time::interval(timeouts.health_interval.get());
        let of = (Arc::clone(fleet), Arc::clone(index), Arc::clone(worker));
        tasks.spawn(watch(client.clone(), ticks, of, probes.clone()));
    }
    probes
}

async fn watch(
    client: reqwest::Client,
    mut ticks: Interval,
    (fleet, index, worker): (Arc<Fleet>, Arc<ConcurrentIndex>, Arc<Worker>),
    probes: Probes,
) {
    let base = format!("{}://{}", worker.scheme, worker.authority);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut asked_for_capacity = false;
    loop {
        ticks.tick().await;
        let answer = client.get(format!("{base}/health")).send().await;
        let passed = answer.is_ok_and(|answer| answer.status().is_success());
        let health = probes.note(&worker, passed);
        if fleet.set_available(worker.slot, health.is_available()) {
            tracing::warn!(worker = %worker.id, available = health.is_available(), "worker");
        }
        if passed && !std::mem::replace(&mut asked_for_capacity, true) && fleet.wants_capacity(worker.slot) {
            let blocks = capacity(&client, &base).await;
            if let Some(blocks) = blocks {
                fleet.set_capacity(worker.slot, blocks);
                index.reserve(worker.slot, usize::try_from(blocks.0).unwrap_or(0));
            }
        }
    }
}

/// Blocks of the engine's cache, as `vllm:cache_config_info` has them.
async fn capacity(client: &reqwest::Client, base: &str) -> Option<Blocks> {
    let mut answer = client.get(format!("{base}/metrics")).send().await.ok()?;
    let mut text = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        if text.len() + chunk.len() > METRICS_MAX {
            return None;
        }
        text.extend_from_slice(&chunk);
    }
    blocks_in(std::str::from_utf8(&text).ok()?)
}

fn blocks_in(metrics: &str) -> Option<Blocks> {
    let line = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info{"))?;
    let (_, rest) = line.split_once("num_gpu_blocks=\"")?;
    let (blocks, _) = rest.split_once('"')?;
    blocks.parse().ok().map(Blocks)
}

impl Probes {
    fn note(&self, worker: &Worker, passed: bool) -> Health {
        let mut health = self.of(worker);
        health.checked(passed);
        if let Some(kept) = self.healths.get(worker.slot.index()) {
            *kept.lock().unwrap_or_else(PoisonError::into_inner) = health;
        }
        health
    }

    fn of(&self, worker: &Worker) -> Health {
        let health = self.healths.get(worker.slot.index());
        health.map(|health| *health.lock().unwrap_or_else(PoisonError::into_inner)).unwrap_or_default()
    }

    /// Whether enough workers of every model have passed a check.
    pub(super) fn ready(&self, fleet: &Fleet, when: ReadyWhen) -> bool {
        fleet.pools().all(|pool| {
            let mut of_pool = self.workers.iter().filter(|worker| worker.model == pool.model);
            match when {
                ReadyWhen::Any => of_pool.any(|worker| self.of(worker).is_ready()),
                ReadyWhen::All => of_pool.all(|worker| self.of(worker).is_ready()),
            }
        })
    }

    /// Workers that do not answer, in words.
    pub(super) fn complaints(&self) -> Vec<String> {
        let out = self.workers.iter().filter(|worker| !self.of(worker).is_available());
        out.map(|worker| format!("worker `{}` does not answer its health check", worker.id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_size_is_read_from_the_engines_metrics() {
        let metrics = include_str!("../../tests/data/engines/metrics-0.32.0.txt");
        assert_eq!(blocks_in(metrics), Some(Blocks(129)));
        assert_eq!(blocks_in("vllm:cache_config_info{num_gpu_blocks=\"None\"} 1.0"), None);
        assert_eq!(blocks_in(""), None);
    }
}
