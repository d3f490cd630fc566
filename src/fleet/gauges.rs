//! What the fleet is measured by.

use std::time::Instant;

use warmpath_core::cost::load_balance_score;
use warmpath_core::workers::Target;

use super::{Condition, Fleet};

impl Fleet {
    /// How uneven the load of all workers is.
    pub fn load_balance_score(&self) -> f64 {
        let roster = self.roster.load();
        load_balance_score(roster.table().iter().map(kv_load).collect::<Vec<_>>().into_iter())
    }

    /// Brings the gauges up to date; called when somebody looks.
    pub fn measure(&self, now: Instant) {
        let roster = self.roster();
        let table = roster.table();
        for (target, worker) in table.iter().filter_map(|target| Some((target, roster.worker(target.slot)?))) {
            let load = target.account.read();
            worker.metrics.in_flight.set(f64::from(load.requests));
            worker.metrics.kv_load.set(kv_load(target));
            worker.metrics.prefill.set(f64::from(load.prefill_tokens.0));
            worker.metrics.up.set(if target.available { 1.0 } else { 0.0 });
            worker.metrics.state(worker.condition().label(), &Condition::ALL.map(Condition::label));
            worker.metrics.hit_rate.set(worker.hit_rate.read(now));
            worker.measure_engine(now);
            let Some(pool) = self.pool(&worker.model) else { continue };
            worker.metrics.belief.trust(&worker.trust(now, target, pool.block_size));
            let history = pool.scheduler.policy().history.as_ref();
            worker.metrics.history(history.map(|history| history.measure(target.slot)));
            worker.metrics.credit.set(f64::from(pool.scheduler.overlay().credited(now, target.slot).0));
        }
        for pool in table.pools() {
            let serving = pool.targets.iter().filter_map(|slot| table.get(*slot)).filter(|target| target.available);
            let loads: Vec<f64> = serving.map(kv_load).collect();
            let Some(state) = self.pool(&pool.model) else { continue };
            state.metrics.balance.set(load_balance_score(loads.into_iter()));
            state.metrics.tokenizer(&state.tokenizer.figures(now));
            state.gate.measure();
        }
    }
}

/// Share of a target's cache that requests in flight take, by the router's own account.
pub fn kv_load(target: &Target) -> f64 {
    let load = target.account.read();
    let total = warmpath_core::admission::total_blocks(&target.limits, &load);
    if total.0 == 0 { 0.0 } else { f64::from(load.active_blocks.0) / f64::from(total.0) }
}
