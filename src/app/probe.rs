//! Asks every worker how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use crate::config::{ReadyWhen, Timeouts};
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// How workers are asked, and whom it is told.
#[derive(Clone)]
pub(super) struct Probes {
    client: reqwest::Client,
    interval: Duration,
    fleet: Arc<Fleet>,
}

impl Probes {
    pub(super) fn new(fleet: &Arc<Fleet>, timeouts: &Timeouts) -> Self {
        let client = reqwest::Client::builder()
            .timeout(timeouts.health_check.get())
            .pool_idle_timeout(timeouts.worker_idle.get())
            .build();
        let client = client.expect("a client without TLS has nothing to fail on");
        Self { client, interval: timeouts.health_interval.get(), fleet: Arc::clone(fleet) }
    }

    /// Starts to ask one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, tasks: &Tasks) {
        tasks.spawn(self.clone().watch(ranks));
    }

    async fn watch(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let url = format!("{}/health", first.base());
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = self.client.get(&url).send().await;
            let passed = answer.is_ok_and(|answer| answer.status().is_success());
            for worker in &ranks {
                if let Some(available) = self.fleet.checked(worker, passed, Instant::now()) {
                    tracing::warn!(worker = %worker.id, rank = worker.rank.map(|rank| rank.0), available, "worker");
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
