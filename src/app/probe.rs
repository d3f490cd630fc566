//! Asks every worker how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;

use crate::config::Timeouts;
use crate::error::chain;
use crate::fleet::{Change, Fleet, Worker};
use crate::link::{AskError, Outgoing, SendError, Stage};
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
        let health = Outgoing::get("/health");
        loop {
            let began = Instant::now();
            let answer = first.control.ask(&health, self.patience, ANSWER_MAX).await;
            // What the router lacks says nothing of the worker.
            let asked = !matches!(answer, Err(AskError::Send(SendError { stage: Stage::Starved, .. })));
            let fault = fault(answer);
            for worker in ranks.iter().filter(|_| asked) {
                let (rank, why) = (worker.rank.map(|rank| rank.0), fault.as_deref());
                let is_news = worker.note_check(why);
                match self.fleet.checked(worker, why.is_none(), Instant::now()) {
                    Some(Change::BroughtBack) => {
                        tracing::info!(worker = %worker.id, rank, "brought back: its health checks pass")
                    }
                    Some(Change::TakenOut) => {
                        tracing::warn!(worker = %worker.id, rank, why, "taken out: its health checks fail")
                    }
                    None if is_news && why.is_some() && !worker.health().is_available() => {
                        tracing::warn!(worker = %worker.id, rank, why, "its health checks fail");
                    }
                    None => {}
                }
            }
            // Whoever is out needs two passed checks to come back: asked twice as often, it is back within one interval.
            let is_out = ranks.iter().any(|worker| !worker.health().is_available());
            let interval = if is_out { self.interval / 2 } else { self.interval };
            tokio::time::sleep_until((began + interval).into()).await;
        }
    }
}

/// What is wrong with an answer to a health check, in words; nothing with any success.
fn fault(answer: Result<(StatusCode, Bytes), AskError>) -> Option<String> {
    match answer {
        Ok((status, _)) if status.is_success() => None,
        Ok((status, _)) => Some(format!("/health answers {status}")),
        Err(error) => Some(chain(&error)),
    }
}
