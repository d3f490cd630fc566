//! The configuration that is in effect, and how the last attempt to read it again ended.

use std::sync::Arc;

use warmpath_core::count::real_len;

use metrics::{Counter, Gauge};

use super::{
    CONFIG_FAILURES, CONFIG_HASH, CONFIG_LOADED, CONFIG_RELOADS, CONFIG_SUCCESSFUL, CONFIG_WAITING, Metrics, Registry,
};

/// Handles of the configuration.
#[derive(Clone)]
pub struct ConfigMetrics {
    reloads: Counter,
    failures: Counter,
    loaded: Gauge,
    successful: Gauge,
    hash: Gauge,
    waiting: Gauge,
}

impl Metrics {
    /// The handles of the configuration.
    pub fn config(&self) -> ConfigMetrics {
        let registry: &Arc<Registry> = &self.registry;
        ConfigMetrics {
            reloads: registry.counter(&CONFIG_RELOADS, Vec::new()),
            failures: registry.counter(&CONFIG_FAILURES, Vec::new()),
            loaded: registry.gauge(&CONFIG_LOADED, Vec::new()),
            successful: registry.gauge(&CONFIG_SUCCESSFUL, Vec::new()),
            hash: registry.gauge(&CONFIG_HASH, Vec::new()),
            waiting: registry.gauge(&CONFIG_WAITING, Vec::new()),
        }
    }
}

impl ConfigMetrics {
    /// A configuration is in effect since so many seconds after 1970; of its hash 32 bits are shown.
    pub fn in_effect(&self, since_s: f64, hash: u64) {
        self.loaded.set(since_s);
        self.successful.set(1.0);
        self.hash.set(f64::from(u32::try_from(hash >> 32).unwrap_or(0)));
    }

    /// So many keys of the file that was followed wait for a restart.
    pub fn waiting(&self, keys: usize) {
        self.waiting.set(real_len(keys));
    }

    /// Another one took effect.
    pub fn reloaded(&self) {
        self.reloads.increment(1);
    }

    /// What was read cannot be followed; what was in effect stays.
    pub fn failed(&self) {
        self.failures.increment(1);
        self.successful.set(0.0);
    }
}
