//! Reads every engine's metrics: its load, its cache's size, and whether it is still the same process. Nothing waits for
//! any of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use warmpath_core::ids::Rank;
use warmpath_core::ledger::{InFlight, Said};
use warmpath_core::workers::Target;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::aside::aside;
use crate::config::{Engines, MetricNames, Timeouts};
use crate::error::chain;
use crate::fleet::prometheus::METRICS_MAX;
use crate::fleet::scrape::Scrape;
use crate::fleet::{Fleet, Worker};
use crate::link::Outgoing;
use crate::shutdown::{Restarts, Tasks};

/// Readings that are further apart than this can not have overtaken each other: an engine's process may have been started
/// with its clock set back, and counters may begin anew.
const OVERTAKES_WITHIN: Duration = Duration::from_secs(2);

/// Readings that have to fail in a row before that is complained of: an engine that starts is given the time.
const UNREAD: u32 = 10;

/// How long an engine that serves may go unread before that is complained of.
pub(super) fn unread_after(engines: &Engines) -> Duration {
    engines.metrics_interval.get().saturating_mul(UNREAD)
}

/// Workers that serve, and of whose load nobody has heard for so long, in words.
pub(super) fn complaints(fleet: &Fleet, unread_after: Duration, now: Instant) -> Vec<String> {
    let roster = fleet.roster();
    let is_unread = |worker: &&Arc<Worker>| worker.may_serve() && worker.engine.unread_for(now) > unread_after;
    let mut unread: Vec<_> = roster.workers().filter(is_unread).collect();
    // Ranks are asked together.
    unread.dedup_by(|a, b| a.id == b.id);
    let said = unread.iter().map(|worker| {
        let why = worker.engine.fault().unwrap_or_else(|| "no answer yet".to_owned());
        format!("metrics of worker `{}` cannot be read ({why}): what others send there is not seen", worker.id)
    });
    said.collect()
}

/// A target, and what was in flight there at some moment.
pub(super) type Seen = (Target, InFlight);

/// How engines' metrics are read, and whom they are told.
#[derive(Clone)]
pub(super) struct Readers {
    patience: Duration,
    interval: Duration,
    fleet: Arc<Fleet>,
    index: Arc<ConcurrentIndex>,
    presets: Arc<[MetricNames]>,
}

impl Readers {
    pub(super) fn new(
        (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
        (engines, timeouts): (&Engines, &Timeouts),
    ) -> Self {
        let (patience, interval) = (timeouts.health_check.get(), engines.metrics_interval.get());
        let presets = engines.presets.as_slice().into();
        Self { patience, interval, fleet: Arc::clone(fleet), index: Arc::clone(index), presets }
    }

    /// Starts to read the metrics of one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, (tasks, restarts): (&Tasks, Restarts)) {
        let this = self.clone();
        tasks.supervise(restarts, move || this.clone().read(ranks.clone()));
    }

    async fn read(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answered = true;
        loop {
            ticks.tick().await;
            let before: Vec<_> = ranks.iter().map(|worker| self.look(worker)).collect();
            let read = match self.fetch(first).await {
                Ok(text) => Ok(self.parsed(text, ranks.iter().map(|worker| worker.rank).collect()).await),
                Err(why) => Err(why),
            };
            for (place, (worker, seen)) in ranks.iter().zip(before).enumerate() {
                let outcome = match (seen, &read) {
                    (Some(seen), Ok(read)) => self.take(worker, &seen, read.get(place).and_then(Option::as_ref)),
                    (None, _) => "failed",
                    (_, Err(why)) => {
                        worker.engine.failed(why);
                        "failed"
                    }
                };
                worker.metrics.belief.scraped(outcome);
            }
            let fault = first.engine.fault();
            if let (true, Some(why)) = (answered, &fault) {
                tracing::warn!(worker = %first.id, why, "the engine's metrics cannot be read");
            }
            answered = fault.is_none();
        }
    }

    /// The target, and the router's own account of it, just before the engine is asked.
    pub(super) fn look(&self, worker: &Worker) -> Option<Seen> {
        let target = self.fleet.roster().table().get(worker.slot).cloned()?;
        target.trust.heard(Instant::now(), worker.metrics.belief.heard());
        let load = target.account.read();
        Some((target, load))
    }

    /// What becomes of an engine's answer.
    fn take(&self, worker: &Worker, seen: &Seen, scrape: Option<&Scrape>) -> &'static str {
        let Some(scrape) = scrape else {
            worker.engine.failed("no known engine's names are in them");
            return "unknown_names";
        };
        self.note(worker, seen, scrape)
    }

    /// Takes note of what an engine said after its target was `seen`. Returns what became of that: `ok`, or `late` where
    /// something newer has overtaken it on another way.
    pub(super) fn note(&self, worker: &Worker, (target, before): &Seen, scrape: &Scrape) -> &'static str {
        let now = Instant::now();
        if worker.engine.last().is_some_and(|last| is_overtaken(scrape, now, &last)) {
            return "late";
        }
        let own = before.most(target.account.read());
        target.account.report(now, said(scrape, target), own);
        self.learn(now, worker, target, scrape);
        "ok"
    }

    fn learn(&self, now: Instant, worker: &Worker, target: &Target, scrape: &Scrape) {
        if worker.engine.take(now, scrape.clone()) {
            tracing::info!(worker = %worker.id, "the engine's process is another one");
            target.trust.restarted(now);
        }
        if let (Some(prefix), Some(pool)) = (scrape.prefix(), self.fleet.pool(&worker.model)) {
            target.trust.counters(now, prefix, pool.block_size);
        }
        if let Some(blocks) = scrape.blocks.filter(|blocks| self.fleet.reported_capacity(worker, *blocks)) {
            self.index.reserve(worker.slot, usize::try_from(blocks.0).unwrap_or(0));
        }
    }

    /// What they say of each of these ranks.
    async fn parsed(&self, text: String, numbers: Vec<Option<Rank>>) -> Vec<Option<Scrape>> {
        let presets = Arc::clone(&self.presets);
        aside(text.len(), move || Scrape::read_ranks(&text, &numbers, &presets)).await
    }

    /// What an engine's metrics say, or why they cannot be had.
    async fn fetch(&self, worker: &Worker) -> Result<String, String> {
        let answer = worker.control.ask(&Outgoing::get("/metrics"), self.patience, METRICS_MAX).await;
        let (status, text) = answer.map_err(|error| chain(&error))?;
        if !status.is_success() {
            return Err(format!("/metrics answers {status}"));
        }
        String::from_utf8(text.into()).map_err(|_| "they are no text".to_owned())
    }
}

/// Whether `last`, which was heard before, says more: of a later process, or of later totals of the same one. What came over
/// NATS may have been asked for before what was read here.
fn is_overtaken(scrape: &Scrape, now: Instant, (at, last): &(Instant, Scrape)) -> bool {
    let says_less = scrape.prefix_queries.zip(last.prefix_queries).is_some_and(|(new, known)| new < known);
    let is_older = match (scrape.process(), last.process()) {
        (Some(new), Some(known)) if !new.is(known) => new.start_ms < known.start_ms,
        (Some(_), None) | (None, Some(_)) => false,
        _ => says_less,
    };
    now.saturating_duration_since(*at) < OVERTAKES_WITHIN && is_older
}

fn said(scrape: &Scrape, target: &Target) -> Said {
    Said {
        running: scrape.running.unwrap_or_default(),
        waiting: scrape.waiting.unwrap_or_default(),
        blocks: scrape.blocks_in_use(target.limits.blocks),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said_at(process_start_ms: Option<u64>, prefix_queries: Option<u64>) -> Scrape {
        Scrape { process_start_ms, prefix_queries, ..Scrape::default() }
    }

    #[test]
    fn what_is_older_by_the_engines_own_reckoning_was_overtaken() {
        let at = Instant::now();
        let last = (at, said_at(Some(500), Some(100)));
        let overtaken = |scrape: Scrape| is_overtaken(&scrape, at + Duration::from_millis(1999), &last);
        assert!(overtaken(said_at(Some(400), Some(900))) && overtaken(said_at(Some(500), Some(99))));
        assert!(!overtaken(said_at(Some(500), Some(100))) && !overtaken(said_at(Some(600), Some(0))));
        assert!(!overtaken(said_at(None, None)) && !overtaken(said_at(Some(500), None)));
        // As somebody else rounds it.
        assert!(!overtaken(said_at(Some(499), Some(100))) && overtaken(said_at(Some(501), Some(99))));
    }

    #[test]
    fn what_comes_after_a_pause_is_a_new_beginning() {
        let at = Instant::now();
        let last = (at, said_at(Some(500), Some(100)));
        assert!(!is_overtaken(&said_at(Some(400), Some(0)), at + Duration::from_secs(2), &last));
    }
}
