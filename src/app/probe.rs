//! Asks every worker how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use warmpath_core::units::Blocks;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::config::{ReadyWhen, Timeouts};
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// The most of an engine's metrics that is read: vLLM's are 56 kB.
const METRICS_MAX: usize = 4 * 1024 * 1024;

/// How workers are asked, and whom it is told.
#[derive(Clone)]
pub(super) struct Probes {
    client: reqwest::Client,
    interval: Duration,
    fleet: Arc<Fleet>,
    index: Arc<ConcurrentIndex>,
}

impl Probes {
    pub(super) fn new((fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>), timeouts: &Timeouts) -> Self {
        let client = reqwest::Client::builder()
            .timeout(timeouts.health_check.get())
            .pool_idle_timeout(timeouts.worker_idle.get())
            .build();
        let client = client.expect("a client without TLS has nothing to fail on");
        let interval = timeouts.health_interval.get();
        Self { client, interval, fleet: Arc::clone(fleet), index: Arc::clone(index) }
    }

    /// Starts to ask one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, tasks: &Tasks) {
        tasks.spawn(self.clone().watch(ranks));
    }

    async fn watch(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let base = first.base();
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut asked_for_capacity = false;
        loop {
            ticks.tick().await;
            let answer = self.client.get(format!("{base}/health")).send().await;
            let passed = answer.is_ok_and(|answer| answer.status().is_success());
            for worker in &ranks {
                if let Some(available) = self.fleet.checked(worker, passed, Instant::now()) {
                    tracing::warn!(worker = %worker.id, rank = worker.rank.map(|rank| rank.0), available, "worker");
                }
            }
            if passed && !std::mem::replace(&mut asked_for_capacity, true) && self.fleet.wants_capacity(first.slot) {
                let Some(blocks) = capacity(&self.client, &base).await else { continue };
                for worker in &ranks {
                    self.fleet.set_capacity(worker, blocks);
                    self.index.reserve(worker.slot, usize::try_from(blocks.0).unwrap_or(0));
                }
            }
        }
    }
}

/// Whether enough workers of every model have passed their checks.
pub(super) fn ready(fleet: &Fleet, when: ReadyWhen) -> bool {
    let roster = fleet.roster();
    fleet.pools().all(|pool| {
        let mut of_pool = roster.workers().filter(|worker| worker.model == pool.model);
        match when {
            ReadyWhen::Any => of_pool.any(|worker| worker.health().is_ready()),
            ReadyWhen::All => of_pool.all(|worker| worker.health().is_ready()),
        }
    })
}

/// Workers that do not answer, in words.
pub(super) fn complaints(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let mut out: Vec<_> = roster.workers().filter(|worker| !worker.health().is_available()).collect();
    // Ranks are asked together.
    out.dedup_by(|a, b| a.id == b.id);
    out.iter().map(|worker| format!("worker `{}` does not answer its health check", worker.id)).collect()
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
