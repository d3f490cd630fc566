//! The workers that the gateway knows, and the pools that they form.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use http::uri::{Authority, Scheme};
use warmpath_core::cost::load_balance_score;
use warmpath_core::ids::{Rank, Slot, WorkerId};
use warmpath_core::scheduler::Scheduler;
use warmpath_core::trust::Report;
use warmpath_core::units::{BlockSize, Blocks};
use warmpath_core::workers::{Pool, Target, WorkerTable};

use engine::Engine;

use crate::telemetry::hit_rate::HitRate;
use crate::telemetry::metrics::{ModelMetrics, WorkerMetrics};
use crate::tokenize::TokenizerHandle;

pub mod discovery;
pub mod engine;
pub mod health;
pub mod prometheus;
pub mod scrape;

/// Swaps in a whole new [`WorkerTable`] when a worker comes or goes; requests keep the table that they began with.
pub struct Fleet {
    table: ArcSwap<WorkerTable>,
    changes: Mutex<()>,
    pools: HashMap<Arc<str>, Arc<PoolState>>,
    workers: Vec<Arc<Worker>>,
}

/// What stays the same of a routing target while its availability changes: how it is reached, and what it is measured by.
pub struct Worker {
    /// Its place in tables.
    pub slot: Slot,
    /// The worker.
    pub id: WorkerId,
    /// The rank inside the worker; engines with several ranks are told it in a header.
    pub rank: Option<Rank>,
    /// The model that it serves.
    pub model: Arc<str>,
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Host and port.
    pub authority: Authority,
    /// Replaces the client's `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// Its metrics.
    pub metrics: WorkerMetrics,
    /// Predicted overlap over prompt tokens.
    pub hit_rate: HitRate,
    /// What its process said of itself.
    pub engine: Engine,
}

/// What the workers of one model share.
pub struct PoolState {
    /// The model's name.
    pub model: Arc<str>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Places its requests.
    pub scheduler: Scheduler,
    /// Makes token ids of its prompts.
    pub tokenizer: TokenizerHandle,
    /// Its metrics.
    pub metrics: ModelMetrics,
}

impl Worker {
    /// What is believed of it, and why. `target` is the one in its slot.
    pub fn trust(&self, now: Instant, target: &Target, configured: BlockSize) -> Report {
        let carried = self.engine.last().and_then(|(_, scrape)| scrape.block_size);
        target.trust.report(now, (carried, configured))
    }

    fn measure_engine(&self, now: Instant) {
        if let Some((at, scrape)) = self.engine.last() {
            let age = now.saturating_duration_since(at);
            self.metrics.belief.engine(age, scrape.running, scrape.waiting, scrape.kv_usage);
        }
    }
}

impl Fleet {
    /// A fleet of these pools. `workers[i]` is the target in slot `i`.
    pub fn new(targets: Vec<Target>, pools: Vec<(Pool, Arc<PoolState>)>, workers: Vec<Arc<Worker>>) -> Self {
        let mut by_name = HashMap::new();
        let mut table_pools = Vec::new();
        for (pool, state) in pools {
            by_name.insert(Arc::clone(&pool.model), state);
            table_pools.push(pool);
        }
        let table = ArcSwap::from_pointee(WorkerTable::new(targets, table_pools));
        Self { table, changes: Mutex::new(()), pools: by_name, workers }
    }

    /// The fleet as it is now.
    pub fn table(&self) -> Arc<WorkerTable> {
        self.table.load_full()
    }

    /// What the pool of this model (by its name, not an alias) shares.
    pub fn pool(&self, model: &str) -> Option<&Arc<PoolState>> {
        self.pools.get(model)
    }

    /// Every pool.
    pub fn pools(&self) -> impl Iterator<Item = &Arc<PoolState>> {
        self.pools.values()
    }

    /// The worker in `slot`.
    pub fn worker(&self, slot: Slot) -> Option<&Arc<Worker>> {
        self.workers.get(slot.index())
    }

    /// Every worker, ascending by slot.
    pub fn workers(&self) -> &[Arc<Worker>] {
        &self.workers
    }

    /// Lets requests go to `slot`, or keeps them away and forgets what it was sent. Returns whether that changed anything. O(workers).
    pub fn set_available(&self, slot: Slot, available: bool) -> bool {
        if self.table.load().get(slot).is_none_or(|target| target.available == available) {
            return false;
        }
        self.change(slot, |target| target.available = available);
        if !available && let Some(pool) = self.worker(slot).and_then(|worker| self.pool(&worker.model)) {
            // Whatever made it fail, its cache is not to be counted upon.
            pool.scheduler.forget(slot);
        }
        true
    }

    /// Takes note of how many blocks the cache of `slot` has. O(workers).
    pub fn set_capacity(&self, slot: Slot, blocks: Blocks) {
        self.change(slot, |target| target.limits.blocks = Some(blocks));
    }

    fn change(&self, slot: Slot, change: impl Fn(&mut Target)) {
        let _one_at_a_time = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let table = self.table.load();
        let mut targets: Vec<_> = table.iter().cloned().collect();
        targets.iter_mut().filter(|target| target.slot == slot).for_each(change);
        self.table.store(Arc::new(WorkerTable::new(targets, table.pools().to_vec())));
    }

    /// How uneven the load of all workers is.
    pub fn load_balance_score(&self) -> f64 {
        let table = self.table.load();
        load_balance_score(table.iter().map(kv_load).collect::<Vec<_>>().into_iter())
    }

    /// Brings the gauges up to date; called when somebody looks.
    pub fn measure(&self, now: Instant) {
        let table = self.table.load();
        for target in table.iter() {
            let Some(worker) = self.worker(target.slot) else { continue };
            let load = target.account.read();
            worker.metrics.in_flight.set(f64::from(load.requests));
            worker.metrics.kv_load.set(kv_load(target));
            worker.metrics.prefill.set(f64::from(load.prefill_tokens.0));
            worker.metrics.up.set(if target.available { 1.0 } else { 0.0 });
            worker.metrics.hit_rate.set(worker.hit_rate.read(now));
            worker.measure_engine(now);
            if let Some(pool) = self.pool(&worker.model) {
                worker.metrics.belief.trust(&worker.trust(now, target, pool.block_size));
            }
            if let Some(history) = self.pool(&worker.model).and_then(|pool| pool.scheduler.policy().history.as_ref()) {
                worker.metrics.history(&history.measure(target.slot));
            }
        }
        for pool in table.pools() {
            let loads: Vec<f64> = pool.targets.iter().filter_map(|slot| table.get(*slot)).map(kv_load).collect();
            let Some(state) = self.pool(&pool.model) else { continue };
            state.metrics.balance.set(load_balance_score(loads.into_iter()));
            state.metrics.tokenizer(&state.tokenizer.figures(now));
            for worker in pool.targets.iter().filter_map(|slot| self.worker(*slot)) {
                let credited = state.scheduler.overlay().credited(now, worker.slot);
                worker.metrics.credit.set(f64::from(credited.0));
            }
        }
    }
}

fn kv_load(target: &Target) -> f64 {
    let load = target.account.read();
    let total = warmpath_core::admission::total_blocks(target, &load);
    if total.0 == 0 { 0.0 } else { f64::from(load.active_blocks.0) / f64::from(total.0) }
}
