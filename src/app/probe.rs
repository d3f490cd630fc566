//! Asks every worker how it is.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::StatusCode;

use crate::config::{ReadyWhen, Timeouts};
use crate::error::chain;
use crate::fleet::{Change, Duty, Fleet, Worker};
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

/// Workers of a model that are told by name.
const NAMED: usize = 4;

/// Why requests for a model cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} serves `{model}`: {why}")]
pub(super) struct Unserved {
    who: &'static str,
    model: Arc<str>,
    why: String,
}

impl Unserved {
    fn new(model: &Arc<str>, workers: &[&Arc<Worker>]) -> Self {
        let mut said: Vec<String> =
            workers.iter().map(|worker| format!("{} is {}", worker.id, state(worker))).collect();
        // Ranks have one duty and are asked together.
        said.dedup();
        let more = said.len().saturating_sub(NAMED);
        said.truncate(NAMED);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        let why = if said.is_empty() { "no worker was found".to_owned() } else { said.join(", ") };
        let serves = |worker: &&Arc<Worker>| worker.duty() == Duty::Active && worker.health().is_ready();
        let who = if workers.iter().any(serves) { "not every worker" } else { "nobody" };
        Self { who, model: Arc::clone(model), why }
    }
}

fn state(worker: &Worker) -> &'static str {
    match worker.condition() {
        "active" if worker.health().is_ready() => "well",
        "active" => "not checked yet",
        condition => condition,
    }
}

/// Whether enough workers of every model have passed their checks and are to serve. Those that operators have taken out are
/// not waited for, but do not serve either.
///
/// # Errors
/// The first model that nobody, or not everybody, serves.
pub(super) fn ready(fleet: &Fleet, when: ReadyWhen) -> Result<(), Unserved> {
    let roster = fleet.roster();
    let unready = fleet.pools().find_map(|pool| {
        let of_pool: Vec<_> = roster.workers().filter(|worker| worker.model == pool.model).collect();
        let mut on_duty = of_pool.iter().filter(|worker| worker.duty() == Duty::Active).peekable();
        let is_ready = match when {
            ReadyWhen::Any => on_duty.any(|worker| worker.health().is_ready()),
            ReadyWhen::All => on_duty.peek().is_some() && on_duty.all(|worker| worker.health().is_ready()),
        };
        (!is_ready).then(|| Unserved::new(&pool.model, &of_pool))
    });
    unready.map_or(Ok(()), Err)
}

/// Models that no worker was found for, or whose workers are all out, some of them because their operators want it so, in
/// words.
pub(super) fn unserved(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let unserved = fleet.pools().filter_map(|pool| {
        let of_pool: Vec<_> = roster.workers().filter(|worker| worker.model == pool.model).collect();
        let is_off_duty = of_pool.is_empty() || of_pool.iter().any(|worker| worker.duty() != Duty::Active);
        let is_served = of_pool.iter().any(|worker| worker.may_serve());
        (is_off_duty && !is_served).then(|| Unserved::new(&pool.model, &of_pool).to_string())
    });
    unserved.collect()
}

/// Workers that are out, or refuse the router's key, in words.
pub(super) fn complaints(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let trouble = |worker: &Arc<Worker>| {
        if worker.denies() {
            return Some((worker.id.clone(), "refuses the router's key (`api_key`)".to_owned()));
        }
        let what = worker.health().trouble()?;
        let why = worker.unwell().map_or_else(String::new, |why| format!(" ({why})"));
        Some((worker.id.clone(), format!("{what}{why}")))
    };
    let mut amiss: Vec<_> = roster.workers().filter_map(trouble).collect();
    // Ranks are asked together.
    amiss.dedup_by(|a, b| a.0 == b.0);
    amiss.iter().map(|(id, what)| format!("worker `{id}` {what}")).collect()
}
