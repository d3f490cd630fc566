//! Whose caches a simulated fleet has: its engines', and the storage that they share.

use std::sync::Arc;

use warmpath_core::ids::Slot;
use warmpath_indexer::concurrent::ConcurrentIndex;

use super::agenda::Message;
use super::hearing::Hearing;
use super::{Scenario, ScenarioError};
use crate::clock::Ms;
use crate::engine_config::EngineConfig;
use crate::request::TokenOut;
use crate::scheduler::Engine;
use crate::tiers::SharedTier;

/// An engine, its step at hand, and how the router hears of it.
pub(super) struct Member {
    pub(super) engine: Engine,
    /// What the step at hand gives at its end; none while there is none.
    pub(super) step: Option<Ending>,
    pub(super) hearing: Hearing,
    /// Time spent in steps.
    pub(super) busy: Ms,
}

/// What a step gives at its end.
#[derive(Debug)]
pub(super) struct Ending {
    /// When that is.
    pub(super) at: Ms,
    pub(super) tokens: Vec<TokenOut>,
    /// Its events, unless they have left already.
    pub(super) message: Option<Message>,
}

/// What all engines share, and how the router hears of it: from the storage itself, once for all.
pub(super) struct Storage {
    pub(super) tier: SharedTier,
    pub(super) hearing: Hearing,
}

impl Member {
    pub(super) fn new(scenario: &Scenario, slot: Slot, index: &Arc<ConcurrentIndex>) -> Result<Self, ScenarioError> {
        let seed = scenario.seed.wrapping_add(u64::from(slot.0)).wrapping_add(1);
        let config = EngineConfig { seed, ..scenario.engine.clone() };
        let hearing = Hearing::new(index, slot, config.block_size, scenario.wire);
        Ok(Self { engine: Engine::new(config)?, step: None, hearing, busy: Ms::ZERO })
    }

    /// Its process dies at `now`, with all that it held and computed, and the next one is as it was at first. Returns how
    /// often requests had lost their blocks to others in it.
    pub(super) fn restart(&mut self, now: Ms) -> Result<usize, ScenarioError> {
        let next = Engine::new(self.engine.config().clone())?;
        let preemptions = std::mem::replace(&mut self.engine, next).stats().totals.preemptions;
        if let Some(step) = self.step.take() {
            self.busy = self.busy - (step.at - now);
        }
        self.hearing.restart();
        Ok(preemptions)
    }
}

impl Storage {
    /// None where the scenario has none.
    pub(super) fn new(scenario: &Scenario, index: &Arc<ConcurrentIndex>) -> Option<Self> {
        if scenario.shared_pages == 0 {
            return None;
        }
        let eviction = scenario.engine.tiers.map(|tiers| tiers.eviction).unwrap_or_default();
        let tier = SharedTier::with(scenario.shared_pages, eviction, scenario.seed);
        // One more of the pool than there are workers, which never is a candidate.
        let slot = Slot(scenario.workers);
        index.set_pools(&[(0..=slot.0).map(Slot).collect()]);
        Some(Self { tier, hearing: Hearing::new(index, slot, scenario.engine.block_size, scenario.wire) })
    }
}
