//! What an engine shows of itself.

use warmpath_core::ids::EngineHash;

use super::Engine;
use crate::blocks::BlockEvent;
use crate::check::Replica;
use crate::engine_config::EngineConfig;
use crate::sequence::PromptText;
use crate::stats::{EngineStats, Levels};
use crate::tiers::SharedTier;

impl Engine {
    /// What ran, waited and was in use during the last step, which the step's end may have changed.
    pub fn scheduled(&self) -> Levels {
        self.scheduled
    }

    pub(super) fn levels(&self) -> Levels {
        Levels { running: self.running.len(), waiting: self.waiting.len(), kv_usage: self.cache.usage() }
    }

    /// The counters.
    pub fn stats(&self) -> EngineStats {
        EngineStats { levels: self.levels(), kv_blocks: self.cache.used(), totals: self.totals }
    }

    /// How it is set up.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// All pages that the tier below the cache holds, in no particular order.
    pub fn cached_in_host(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.tiers.iter().flat_map(|tiers| tiers.host_pages())
    }

    /// All cached blocks with their numbers of copies, in no particular order: the truth that events tell of.
    pub fn cached(&self) -> impl Iterator<Item = (EngineHash, usize)> + '_ {
        self.cache.cached()
    }

    /// Checks all that must hold between two steps; `replica` is what its events have told. O(blocks).
    pub(crate) fn check(&self, replica: &mut Replica, events: &[BlockEvent]) {
        let sequences = self.running.iter().chain(self.waiting.values()).map(|request| &request.sequence);
        self.cache.check(replica, events, &sequences.collect::<Vec<_>>());
        replica.follow_host(events, &self.cached_in_host().collect());
    }

    /// What this engine would call the full blocks of a prompt, and what storage that a fleet shares would. O(prompt).
    pub fn names_of(&self, prompt: PromptText) -> (Vec<EngineHash>, Vec<EngineHash>) {
        let shared = SharedTier::names(&self.cache.sequence(prompt.clone(), None, None), self.config.block_size);
        (self.cache.names_of(prompt), shared)
    }
}
