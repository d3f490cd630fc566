//! Asks every worker how it is.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::{Interval, MissedTickBehavior};

use crate::config::{ReadyWhen, Timeouts};
use crate::fleet::health::Health;
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// What the checks have shown, by slot.
#[derive(Clone)]
pub(super) struct Probes {
    healths: Arc<[Mutex<Health>]>,
    workers: Arc<[Arc<Worker>]>,
}

/// Starts a task for each worker.
pub(super) fn start(fleet: &Arc<Fleet>, timeouts: &Timeouts, tasks: &Tasks) -> Probes {
    let client = reqwest::Client::builder()
        .timeout(timeouts.health_check.get())
        .pool_idle_timeout(timeouts.worker_idle.get())
        .build();
    let client = client.expect("a client without TLS has nothing to fail on");
    let probes =
        Probes { healths: fleet.workers().iter().map(|_| Mutex::default()).collect(), workers: fleet.workers().into() };
    for worker in fleet.workers() {
        let ticks = tokio::time::interval(timeouts.health_interval.get());
        let of = (Arc::clone(fleet), Arc::clone(worker));
        tasks.spawn(watch(client.clone(), ticks, of, probes.clone()));
    }
    probes
}

async fn watch(
    client: reqwest::Client,
    mut ticks: Interval,
    (fleet, worker): (Arc<Fleet>, Arc<Worker>),
    probes: Probes,
) {
    let base = format!("{}://{}", worker.scheme, worker.authority);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = client.get(format!("{base}/health")).send().await;
        let passed = answer.is_ok_and(|answer| answer.status().is_success());
        let health = probes.note(&worker, passed);
        if fleet.set_available(worker.slot, health.is_available()) {
            tracing::warn!(worker = %worker.id, available = health.is_available(), "worker");
        }
    }
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
