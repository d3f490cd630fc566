//! Reads every engine's metrics: its load, its cache's size, and whether it is still the same process. Nothing waits for
//! any of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{Interval, MissedTickBehavior};
use warmpath_core::ledger::Said;
use warmpath_core::workers::Target;
use warmpath_indexer::concurrent::ConcurrentIndex;

use crate::config::{Engines, Timeouts};
use crate::fleet::prometheus::METRICS_MAX;
use crate::fleet::scrape::Scrape;
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// Starts a task for each worker.
pub(super) fn start(
    (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
    (engines, timeouts): (&Engines, &Timeouts),
    tasks: &Tasks,
) {
    let client = reqwest::Client::builder()
        .timeout(timeouts.health_check.get())
        .pool_idle_timeout(timeouts.worker_idle.get())
        .build();
    let client = client.expect("a client without TLS has nothing to fail on");
    for worker in fleet.workers() {
        let reader = Reader {
            fleet: Arc::clone(fleet),
            index: Arc::clone(index),
            worker: Arc::clone(worker),
            client: client.clone(),
            url: format!("{}://{}/metrics", worker.scheme, worker.authority),
        };
        tasks.spawn(reader.run(interval(engines.metrics_interval.get())));
    }
}

fn interval(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Reads one engine's metrics, over and over.
struct Reader {
    fleet: Arc<Fleet>,
    index: Arc<ConcurrentIndex>,
    worker: Arc<Worker>,
    client: reqwest::Client,
    url: String,
}

impl Reader {
    async fn run(self, mut ticks: Interval) {
        let mut answered = true;
        loop {
            ticks.tick().await;
            let Some(target) = self.fleet.table().get(self.worker.slot).cloned() else { continue };
            target.trust.heard(Instant::now(), self.worker.metrics.belief.heard());
            let before = target.account.read();
            let text = self.fetch().await;
            let scrape = text.as_deref().map(|text| Scrape::read(text, self.worker.rank));
            let outcome = match scrape {
                Some(Some(scrape)) => {
                    let own = before.most(target.account.read());
                    target.account.report(Instant::now(), said(&scrape, &target), own);
                    self.learn(&target, scrape);
                    "ok"
                }
                Some(None) => "unknown_names",
                None => "failed",
            };
            self.worker.metrics.belief.scraped(outcome);
            if std::mem::replace(&mut answered, outcome == "ok") && outcome != "ok" {
                tracing::info!(worker = %self.worker.id, outcome, "the engine's metrics cannot be read");
            }
        }
    }

    fn learn(&self, target: &Target, scrape: Scrape) {
        let now = Instant::now();
        if self.worker.engine.take(now, scrape) {
            tracing::info!(worker = %self.worker.id, "the engine's process is another one");
            target.trust.restarted(now);
        }
        if let (Some(prefix), Some(pool)) = (scrape.prefix(), self.fleet.pool(&self.worker.model)) {
            target.trust.counters(now, prefix, pool.block_size);
        }
        if let Some(blocks) = scrape.blocks.filter(|_| target.limits.blocks.is_none()) {
            self.fleet.set_capacity(self.worker.slot, blocks);
            self.index.reserve(self.worker.slot, usize::try_from(blocks.0).unwrap_or(0));
        }
    }

    async fn fetch(&self) -> Option<String> {
        let mut answer = self.client.get(&self.url).send().await.ok()?.error_for_status().ok()?;
        let mut text = Vec::new();
        while let Some(chunk) = answer.chunk().await.ok()? {
            if text.len() + chunk.len() > METRICS_MAX {
                return None;
            }
            text.extend_from_slice(&chunk);
        }
        String::from_utf8(text).ok()
    }
}

fn said(scrape: &Scrape, target: &Target) -> Said {
    Said {
        running: scrape.running.unwrap_or_default(),
        waiting: scrape.waiting.unwrap_or_default(),
        blocks: scrape.blocks_in_use(target.limits.blocks),
    }
}
