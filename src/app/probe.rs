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
            if asked {
                self.note(&ranks, fault.as_deref());
            }
            // Whoever is out needs two passed checks to come back: asked twice as often, it is back within one interval.
            let is_out = ranks.iter().any(|worker| !worker.health().is_available());
            let interval = if is_out { self.interval / 2 } else { self.interval };
            tokio::time::sleep_until((began + interval).into()).await;
        }
    }

    /// Takes note of what is wrong with a worker, if anything is.
    fn note(&self, ranks: &[Arc<Worker>], why: Option<&str>) {
        let news: Vec<bool> = ranks.iter().map(|worker| worker.note_check(why)).collect();
        let changes = self.fleet.checked(ranks, why.is_none(), Instant::now());
        for ((worker, is_news), change) in ranks.iter().zip(news).zip(changes) {
            let rank = worker.rank.map(|rank| rank.0);
            match change {
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

#[cfg(test)]
mod tests {
    use warmpath_core::ids::Slot;

    use super::*;
    use crate::app::build;
    use crate::config::Config;
    use crate::fleet::health::Health;
    use crate::fleet::roster::MADE;
    use crate::telemetry::metrics::Metrics;

    const TEXT: &str = "models: [{name: m}]\nworkers:\n- {id: a, url: 'http://a:1', model: m, dp_ranks: 8}\n\
                        - {id: b, url: 'http://b:1', model: m}\n- {id: c, url: 'http://c:1', model: m}\n";

    /// Who is up, by slot.
    fn up(fleet: &Fleet) -> Vec<u16> {
        let roster = fleet.roster();
        let up = roster.table().iter().filter(|target| target.available).map(|target| target.slot);
        up.map(|Slot(slot)| slot).collect()
    }

    #[tokio::test]
    async fn a_roster_is_made_once_for_all_ranks_and_for_no_rest_that_there_is_no_room_for() {
        let config = Config::parse("f", TEXT.to_owned()).unwrap();
        let (metrics, tasks) = (Metrics::new("w"), Tasks::new());
        let (fleet, links) =
            (Arc::new(build::fleet(&config, &metrics, &tasks)), build::links(&config, &tasks).unwrap());
        let join = |place: usize| {
            let described = &config.workers[place];
            let newcomers = build::newcomers(&config, described, (Health::presumed(), &links), &metrics).unwrap();
            fleet.join(&described.id.value, &newcomers).unwrap()
        };
        let [a, b, c] = [0, 1, 2].map(join);
        let probes = Probes::new(&fleet, &config.timeouts);
        let made = |what: &dyn Fn()| {
            let before = MADE.get();
            what();
            MADE.get() - before
        };
        let checks = |passed: bool, times: usize| {
            let why = (!passed).then_some("gone");
            made(&|| (0..times).for_each(|_| probes.note(&a, why)))
        };
        assert_eq!(up(&fleet), (0..10).collect::<Vec<_>>());
        assert_eq!((checks(false, 5), up(&fleet)), (1, vec![8, 9]));
        // Of two one may rest, and the other has to go on.
        let now = Instant::now();
        assert_eq!([&b[0], &c[0], &c[0]].map(|worker| made(&|| fleet.rest(worker, now, None))), [1, 0, 0]);
        assert_eq!((checks(true, 5), up(&fleet)), (1, (0..10).collect()));
    }
}
