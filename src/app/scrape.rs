//! Reads every engine's metrics: its load, its cache's size, and whether it is still the same process. Nothing waits for
//! any of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;
use warmpath_core::ledger::{InFlight, Said};
use warmpath_core::workers::Target;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::config::{Engines, MetricNames, Timeouts};
use crate::fleet::prometheus::METRICS_MAX;
use crate::fleet::scrape::Scrape;
use crate::fleet::{Fleet, Worker};
use crate::link::Ask;
use crate::shutdown::{Restarts, Tasks};

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
            let text = self.fetch(first).await;
            let mut outcome = "failed";
            for (worker, seen) in ranks.iter().zip(before) {
                outcome = self.take(worker, seen, text.as_deref());
                worker.metrics.belief.scraped(outcome);
            }
            if std::mem::replace(&mut answered, outcome == "ok") && outcome != "ok" {
                tracing::info!(worker = %first.id, outcome, "the engine's metrics cannot be read");
            }
        }
    }

    /// The target, and the router's own account of it, just before the engine is asked.
    fn look(&self, worker: &Worker) -> Option<(Target, InFlight)> {
        let target = self.fleet.roster().table().get(worker.slot).cloned()?;
        target.trust.heard(Instant::now(), worker.metrics.belief.heard());
        let load = target.account.read();
        Some((target, load))
    }

    /// What becomes of an engine's answer.
    fn take(&self, worker: &Worker, seen: Option<(Target, InFlight)>, text: Option<&str>) -> &'static str {
        let (Some((target, before)), Some(text)) = (seen, text) else { return "failed" };
        let Some(scrape) = Scrape::read(text, worker.rank, &self.presets) else { return "unknown_names" };
        let own = before.most(target.account.read());
        target.account.report(Instant::now(), said(&scrape, &target), own);
        self.learn(worker, &target, &scrape);
        "ok"
    }

    fn learn(&self, worker: &Worker, target: &Target, scrape: &Scrape) {
        let now = Instant::now();
        if worker.engine.take(now, scrape.clone()) {
            tracing::info!(worker = %worker.id, "the engine's process is another one");
            target.trust.restarted(now);
        }
        if let (Some(prefix), Some(pool)) = (scrape.prefix(), self.fleet.pool(&worker.model)) {
            target.trust.counters(now, prefix, pool.block_size);
        }
        if let Some(blocks) = scrape.blocks.filter(|_| target.limits.blocks.is_none()) {
            self.fleet.set_capacity(worker, blocks);
            self.index.reserve(worker.slot, usize::try_from(blocks.0).unwrap_or(0));
        }
    }

    async fn fetch(&self, worker: &Worker) -> Option<String> {
        let answer = worker.control.ask(&Ask::get("/metrics"), self.patience, METRICS_MAX).await;
        let (_, text) = answer.ok().filter(|(status, _)| status.is_success())?;
        String::from_utf8(text.into()).ok()
    }
}

fn said(scrape: &Scrape, target: &Target) -> Said {
    Said {
        running: scrape.running.unwrap_or_default(),
        waiting: scrape.waiting.unwrap_or_default(),
        blocks: scrape.blocks_in_use(target.limits.blocks),
    }
}
