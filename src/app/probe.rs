//! Asks every worker how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{ReadyWhen, Timeouts};
use crate::fleet::{Fleet, Worker};
use crate::link::{Ask, AskError, SendError, Stage};
use crate::shutdown::{Restarts, Tasks};

/// The most of an answer that is read; only its status counts.
const ANSWER_MAX: usize = 64 * 1024;

/// How workers are asked, and whom it is told.
#[derive(Clone)]
pub(super) struct Probes {
    patience: Duration,
    interval: Duration,
    fleet: Arc<Fleet>,
}

impl Probes {
    pub(super) fn new(fleet: &Arc<Fleet>, timeouts: &Timeouts) -> Self {
        let (patience, interval) = (timeouts.health_check.get(), timeouts.health_interval.get());
        Self { patience, interval, fleet: Arc::clone(fleet) }
    }

    /// Starts to ask one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, (tasks, restarts): (&Tasks, Restarts)) {
        let this = self.clone();
        tasks.supervise(restarts, move || this.clone().watch(ranks.clone()));
    }

    async fn watch(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let health = Ask::get("/health");
        loop {
            let began = Instant::now();
            let answer = first.control.ask(&health, self.patience, ANSWER_MAX).await;
            // What the router lacks says nothing of the worker.
            let asked = !matches!(answer, Err(AskError::Send(SendError { stage: Stage::Starved, .. })));
            let passed = answer.is_ok_and(|(status, _)| status.is_success());
            for worker in ranks.iter().filter(|_| asked) {
                if let Some(available) = self.fleet.checked(worker, passed, Instant::now()) {
                    tracing::warn!(worker = %worker.id, rank = worker.rank.map(|rank| rank.0), available, "worker");
                }
            }
            // Whoever is out needs two passed checks to come back: asked twice as often, it is back within one interval.
            let is_out = ranks.iter().any(|worker| !worker.health().is_available());
            let interval = if is_out { self.interval / 2 } else { self.interval };
            tokio::time::sleep_until((began + interval).into()).await;
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
