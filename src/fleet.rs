//! The workers that the gateway knows, and the pools that they form.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use warmpath_core::admission::OnAllBusy;
use warmpath_core::ids::{Slot, WorkerId};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::queue::Rules;
use warmpath_core::retry::RetryBudget;
use warmpath_core::scheduler::Scheduler;
use warmpath_core::units::{BlockSize, Blocks};
use warmpath_core::workers::{Limits, Pool, Ramp, Target};

use crate::config::Retries;
use crate::queue::{Gate, GateSettings, Seats};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::{Metrics, ModelMetrics};
use crate::tokenize::{TokenizeLimits, TokenizeShared, TokenizerHandle};
pub use duty::{Duty, DutyError};
pub use gauges::kv_load;
pub use health::Conduct;
use roster::Roster;
use slots::Slots;
pub use turns::{RetryTurns, Turn};

pub use worker::{Condition, Contract, Newcomer, Worker, place_of};

mod breaking;
pub mod catalogue;
pub mod discovery;
mod duty;
pub mod engine;
mod gauges;
pub mod health;
mod hits;
mod lacking;
pub mod offer;
pub mod packing;
pub mod prometheus;
mod rest;
pub mod roster;
pub mod scrape;
pub mod slots;
mod turns;
mod worker;

/// Swaps in a whole new [`Roster`] when a worker comes, goes or changes its standing; requests keep the one that they
/// began with.
pub struct Fleet {
    roster: ArcSwap<Roster>,
    /// Changes are made one at a time.
    slots: Mutex<Slots<Worker>>,
    pools: ArcSwap<Pools>,
    conduct: ArcSwap<Conduct>,
    catalogue: catalogue::Kept,
    away: duty::Away,
}

/// Whether a worker may be chosen, where that has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It may, and might not before.
    BroughtBack,
    /// It may not any more.
    TakenOut,
}

/// What the workers of each model share, by the model's name.
type Pools = HashMap<Arc<str>, Arc<PoolState>>;

/// What the workers of one model share.
pub struct PoolState {
    /// The model's name.
    pub model: Arc<str>,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Places its requests.
    pub scheduler: Scheduler,
    /// Where its requests wait for a worker.
    pub gate: Arc<Gate>,
    /// Makes token ids of its prompts.
    pub tokenizer: Arc<TokenizerHandle>,
    /// Its metrics.
    pub metrics: ModelMetrics,
    /// Its retries.
    pub retries: Arc<RetryTurns>,
}

impl PoolState {
    /// A pool of which events are read and in which nothing is placed.
    pub fn listening(model: &str, block_size: BlockSize) -> Self {
        let policy = || Policy::new(PolicyName::RoundRobin, &Weights::default());
        let metrics = Metrics::new("warmpath").model(0, model);
        let rules = Rules { waiting: 0, of_tenant: 0, weights: [NonZeroU32::MIN; 3] };
        let settings = GateSettings { queues: false, rules, timeout: Duration::ZERO };
        let retries = Retries::default();
        Self {
            model: model.into(),
            block_size,
            scheduler: Scheduler::new(policy(), policy(), OnAllBusy::LeastLoaded),
            tokenizer: Arc::new(TokenizerHandle::absent(Arc::new(TokenizeShared::new(TokenizeLimits::default())))),
            gate: Gate::new(settings, &Seats::new(1), metrics.clone(), Tasks::new()),
            retries: Arc::new(RetryTurns::new(RetryBudget::new(retries.budget, retries.budget_min))),
            metrics,
        }
    }
}

/// Why a worker did not join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No pool has the model's name.
    #[error("no model has this name")]
    NoPool,
    /// A number of 16 bits names no more.
    #[error("all 65 536 routing targets are taken")]
    NoSlot,
}

impl Fleet {
    /// A fleet of these pools, in which nobody serves yet.
    pub fn new(pools: Vec<(Pool, Arc<PoolState>)>, conduct: Conduct) -> Self {
        let (pools, states): (Vec<_>, Vec<_>) = pools.into_iter().unzip();
        let states: Pools = states.into_iter().map(|state| (Arc::clone(&state.model), state)).collect();
        let roster = Roster::new(pools);
        let catalogue = catalogue::Kept::default();
        catalogue.outdate();
        let (pools, conduct) = (ArcSwap::from_pointee(states), ArcSwap::from_pointee(conduct));
        let (roster, away) = (ArcSwap::from_pointee(roster), duty::Away::default());
        Self { roster, slots: Mutex::default(), pools, conduct, catalogue, away }
    }

    /// The fleet as it is now.
    pub fn roster(&self) -> Arc<Roster> {
        self.roster.load_full()
    }

    /// What the pool of this model (by its name, not an alias) shares.
    pub fn pool(&self, model: &str) -> Option<Arc<PoolState>> {
        self.pools.load().get(model).cloned()
    }

    /// Every pool, in the order of the models' names: what is told of them is told in the same order each time.
    pub fn pools(&self) -> impl Iterator<Item = Arc<PoolState>> {
        let mut pools: Vec<_> = self.pools.load().values().cloned().collect();
        pools.sort_unstable_by(|one, other| one.model.cmp(&other.model));
        pools.into_iter()
    }

    /// These pools take the places of those of the same models, for the requests to come; others stay.
    pub fn replace_pools(&self, pools: impl Iterator<Item = Arc<PoolState>>) {
        // Whoever joins or leaves meanwhile is forgotten in one of both.
        let _one_at_a_time = self.lock();
        let mut now = Pools::clone(&self.pools.load());
        for pool in pools.filter(|pool| self.pools.load().contains_key(&pool.model)) {
            now.insert(Arc::clone(&pool.model), pool);
        }
        self.pools.store(Arc::new(now));
    }

    /// From now on workers are taken out and brought back so.
    pub fn set_conduct(&self, conduct: Conduct) {
        self.conduct.store(Arc::new(conduct));
    }

    /// The fleet is `roster` from now on. Whoever waits for a worker may find one now, or has to learn that there is none.
    fn publish(&self, roster: Roster) {
        self.roster.store(Arc::new(rest::roused(roster, Instant::now())));
        for pool in self.pools() {
            pool.gate.room();
        }
    }

    /// The same where nothing has changed but for this model.
    fn publish_in(&self, model: &str, roster: Roster) {
        self.roster.store(Arc::new(rest::roused(roster, Instant::now())));
        if let Some(pool) = self.pool(model) {
            pool.gate.room();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots<Worker>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in the ranks of a worker, all or none, in the place of those that have its id: nobody finds neither. Operators
    /// want of it what they wanted of those, or of those that left. O(workers).
    ///
    /// # Errors
    /// When there is no pool or no slot for them.
    pub fn join(&self, id: &WorkerId, newcomers: &[Newcomer]) -> Result<Vec<Arc<Worker>>, JoinError> {
        if newcomers.iter().any(|newcomer| !self.pools.load().contains_key(&newcomer.model)) {
            return Err(JoinError::NoPool);
        }
        let mut slots = self.lock();
        let mut joined = Vec::new();
        for newcomer in newcomers {
            let worker = slots.give(|slot| Arc::new(Worker::new(slot, newcomer))).ok_or(JoinError::NoSlot)?;
            self.forget(worker.slot);
            joined.push(worker);
        }
        let roster = self.roster.load_full();
        let before = roster.ranks_of(id).next().map(|left| left.duty());
        let duty = before.or_else(|| self.away.came(Instant::now(), id)).unwrap_or_default();
        for worker in &joined {
            worker.set_duty(duty);
        }
        self.publish(roster.without(id).with(joined.iter().zip(newcomers)));
        drop(slots);
        self.catalogue.outdate();
        roster.ranks_of(id).for_each(|left| self.forget(left.slot));
        self.tell_tokenizers();
        Ok(joined)
    }

    /// Lets a worker go. Requests that are on their way there keep it, and its slots stay taken until the last of them
    /// has ended. O(workers).
    pub fn leave(&self, id: &WorkerId) {
        let slots = self.lock();
        let roster = self.roster.load_full();
        if let Some(worker) = roster.ranks_of(id).next() {
            self.away.went(Instant::now(), id, worker.duty());
        }
        self.publish(roster.without(id));
        if let Some(worker) = roster.ranks_of(id).next() {
            self.rescue(&worker.model);
        }
        drop(slots);
        self.catalogue.outdate();
        roster.ranks_of(id).for_each(|left| self.forget(left.slot));
        self.tell_tokenizers();
    }

    /// Forgets all that is remembered of what was sent to `slot`, whoever was there.
    fn forget(&self, slot: Slot) {
        for pool in self.pools() {
            pool.scheduler.forget(slot);
            pool.scheduler.overlay().withdraw(slot);
        }
    }

    fn tell_tokenizers(&self) {
        let roster = self.roster();
        for served in roster.table().pools() {
            let engines = served.targets.iter().filter_map(|slot| roster.worker(*slot));
            if let Some(pool) = self.pool(&served.model) {
                pool.tokenizer.set_engines(engines.cloned());
            }
        }
    }

    /// Takes note of a health check of a worker, on all these ranks of it. Returns what that has changed of each.
    pub fn checked(&self, ranks: &[Arc<Worker>], passed: bool, now: Instant) -> Vec<Option<Change>> {
        let returned = ranks.iter().map(|worker| {
            let (before, after) = {
                let mut health = worker.lock_health();
                let before = health.is_available();
                health.checked(passed);
                (before, health.is_available())
            };
            if before && !after {
                self.distrust(worker);
            }
            (worker, (!before && after).then_some(now))
        });
        let returned: Vec<_> = returned.collect();
        let _one_at_a_time = self.lock();
        let changes = self.settle_locked(&returned);
        // Only such a one may be brought back before its time: the others are not looked at for every check.
        if let Some(worker) = ranks.iter().find(|worker| passed && worker.health().is_out_by_requests()) {
            self.rescue(&worker.model);
        }
        changes
    }

    /// Whatever made it fail, its cache is not to be counted upon.
    fn distrust(&self, worker: &Worker) {
        if let Some(pool) = self.pool(&worker.model) {
            pool.scheduler.forget(worker.slot);
        }
    }

    /// Makes the table say of the ranks of a worker what their health and their duty say; since when each is back, if it is.
    /// Returns what that has changed. For whoever makes changes already. O(workers) where it has, however many ranks.
    fn settle_locked(&self, ranks: &[(&Arc<Worker>, Option<Instant>)]) -> Vec<Option<Change>> {
        let roster = self.roster.load_full();
        let Conduct { ramp: over, ramp_from: from, .. } = **self.conduct.load();
        let ramp = |since| Ramp { since, over, from };
        let mut news: HashMap<Slot, (bool, Option<Ramp>)> = HashMap::new();
        let changes = ranks.iter().map(|(worker, returned)| {
            let available = worker.may_serve();
            // It may have left; its slot is never another's while somebody holds it.
            let before = roster.table().get(worker.slot)?.available;
            let returned = worker.begins(available, *returned);
            if before == available && returned.is_none() {
                return None;
            }
            news.insert(worker.slot, (available, returned.map(ramp)));
            (before != available).then_some(if available { Change::BroughtBack } else { Change::TakenOut })
        });
        let changes = changes.collect();
        if let Some((worker, _)) = ranks.first().filter(|_| !news.is_empty()) {
            let settle = |target: &mut Target| {
                if let Some((available, ramp)) = news.get(&target.slot) {
                    (target.available, target.ramp) = (*available, ramp.or(target.ramp));
                }
            };
            self.publish_in(&worker.model, roster.changed_where(|target| news.contains_key(&target.slot), settle));
            if news.values().any(|(available, _)| !available) {
                self.rescue(&worker.model);
            }
        }
        changes
    }

    /// Takes note of how many blocks the cache of a worker has, as its engine says; what operators have set counts more.
    /// Returns whether that is new. O(workers) if so.
    pub fn reported_capacity(&self, worker: &Worker, blocks: Blocks) -> bool {
        let _one_at_a_time = self.lock();
        let roster = self.roster.load_full();
        let known = roster.table().get(worker.slot).map(|target| target.limits.blocks);
        let is_new = worker.capacity().is_none() && known.is_some_and(|known| known != Some(blocks));
        if is_new {
            let changed = roster.changed(worker.slot, |target| target.limits.blocks = Some(blocks));
            self.publish_in(&worker.model, changed);
        }
        is_new
    }

    /// From now on a worker serves so, on all its ranks: requests that wait find the room that there is now, and those that
    /// it has keep what they began with. Its health, its duty and all that is known of it stay. O(workers).
    pub fn change(&self, id: &WorkerId, contract: &Contract) {
        let _one_at_a_time = self.lock();
        let roster = self.roster.load_full();
        for worker in roster.ranks_of(id) {
            worker.set_contract(contract.clone());
            worker.set_denies(false);
        }
        let said = |slot| roster.worker(slot).and_then(|worker| worker.engine.last()?.1.blocks);
        let changed = roster.changed_where(
            |target| target.worker == *id,
            |target| {
                let blocks = contract.limits.blocks.or_else(|| said(target.slot));
                target.limits = Limits { blocks, ..contract.limits };
                target.role = contract.role;
            },
        );
        self.publish(changed);
    }

    /// Requests of a model that workers have and have not finished. O(its targets).
    pub fn active(&self, model: &str) -> u32 {
        let roster = self.roster.load();
        let table = roster.table();
        let targets = table.pool(model).into_iter().flat_map(|pool| &pool.targets);
        targets.filter_map(|slot| table.get(*slot)).map(|target| target.account.read().requests).sum()
    }
}
