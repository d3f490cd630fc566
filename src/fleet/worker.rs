//! One routing target as the gateway knows it: how it is reached, what it is measured by, and what its operators want.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use http::HeaderValue;
use tokio::sync::{Notify, watch};
use warmpath_core::ids::{Rank, Slot, WorkerId};
use warmpath_core::trust::{Report, Trust};
use warmpath_core::units::{BlockSize, Blocks};
use warmpath_core::workers::{Limits, Role, Target};

use super::duty::Duty;
use super::engine::Engine;
use super::health::Health;
use super::hits::Telling;
use super::offer::Offer;
use super::packing::Packing;
use crate::link::Link;
use crate::telemetry::hit_rate::HitRate;
use crate::telemetry::metrics::WorkerMetrics;
use crate::tokenize::remote;

/// What stays the same of a routing target while its availability changes: how it is reached, and what it is measured by.
pub struct Worker {
    /// Its place in tables, for as long as anybody holds this.
    pub slot: Slot,
    /// The worker.
    pub id: WorkerId,
    /// The rank inside the worker, as its events call it; none where there is only one, numbered 0.
    pub rank: Option<Rank>,
    /// Whether the engine is told the rank in a header: it has several.
    pub tells_rank: bool,
    /// Whether somebody tells what its cache holds.
    pub tells_events: bool,
    /// The model that it serves.
    pub model: Arc<str>,
    /// The way of requests to it; all its ranks share it.
    pub link: Arc<Link>,
    /// The way of all else that it is asked, on connections of its own.
    pub control: Arc<Link>,
    /// Its metrics.
    pub metrics: WorkerMetrics,
    /// Predicted overlap over prompt tokens.
    pub hit_rate: HitRate,
    pub(super) telling: Telling,
    /// How many tokens its events carry.
    pub packing: Packing,
    /// What its process said of itself.
    pub engine: Engine,
    /// What it said that it serves, whether it is up or down since.
    pub offer: ArcSwapOption<Offer>,
    /// Whether it has answered what it serves, in whatever way.
    asked: AtomicBool,
    /// Whether it refused the key that the router shows it, and has answered nothing since.
    denies: AtomicBool,
    /// Why its last health check failed; none where it passed, and before.
    unwell: ArcSwapOption<String>,
    /// Woken when its view is to be emptied, because an operator had the engine's cache emptied.
    pub view_reset: Notify,
    contract: ArcSwap<Contract>,
    duty: watch::Sender<Duty>,
    health: Mutex<Health>,
    /// Whether it came back while it was to serve nobody: its cache is cold when it serves again.
    cold: AtomicBool,
}

/// What may change of a worker while it stays what it is: what it is shown, how much it is given, and what it does.
#[derive(Clone, Debug)]
pub struct Contract {
    /// Replaces the client's `Authorization`.
    pub authorization: Option<HeaderValue>,
    /// What it holds at once, so far as its operators say: what they leave open, its engine tells.
    pub limits: Limits,
    /// What it does for its model.
    pub role: Role,
}

/// Whether a worker may be chosen, and what keeps it from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It may.
    Active,
    /// Its operators have it finish what it has.
    Draining,
    /// Its operators have taken it out.
    Ejected,
    /// Its health has.
    Down,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Active, Self::Draining, Self::Ejected, Self::Down];

    /// The word for it in answers and labels.
    pub fn label(self) -> &'static str {
        match self {
            Self::Active => Duty::Active.label(),
            Self::Draining => Duty::Draining.label(),
            Self::Ejected => Duty::Ejected.label(),
            Self::Down => "down",
        }
    }
}

/// A routing target that is about to join: all but its slot.
pub struct Newcomer {
    /// See [`Worker::id`].
    pub id: WorkerId,
    /// See [`Worker::rank`].
    pub rank: Option<Rank>,
    /// See [`Worker::tells_rank`].
    pub tells_rank: bool,
    /// See [`Worker::model`].
    pub model: Arc<str>,
    /// See [`Worker::link`].
    pub link: Arc<Link>,
    /// See [`Worker::control`].
    pub control: Arc<Link>,
    /// See [`Worker::metrics`].
    pub metrics: WorkerMetrics,
    /// What may change of it later.
    pub contract: Contract,
    /// Whether it may be tried before its checks pass.
    pub health: Health,
    /// How long its events may be silent while it serves before that is a reason to doubt; none where it sends none.
    pub silence: Option<Duration>,
}

impl Newcomer {
    /// Nothing has spoken for or against it yet.
    pub(super) fn trust(&self) -> Trust {
        self.silence.map_or_else(Trust::default, Trust::expecting_events)
    }
}

/// What people call one rank of a worker: the worker's id, and the rank where there are several.
pub fn place_of(id: &WorkerId, rank: Option<Rank>) -> String {
    rank.map_or_else(|| id.to_string(), |rank| format!("{id}/{}", rank.0))
}

impl Worker {
    /// The newcomer, in `slot`.
    pub fn new(slot: Slot, newcomer: &Newcomer) -> Self {
        let now = Instant::now();
        Self {
            slot,
            id: newcomer.id.clone(),
            rank: newcomer.rank,
            tells_rank: newcomer.tells_rank,
            tells_events: newcomer.silence.is_some(),
            model: Arc::clone(&newcomer.model),
            link: Arc::clone(&newcomer.link),
            control: Arc::clone(&newcomer.control),
            metrics: newcomer.metrics.clone(),
            hit_rate: HitRate::new(now),
            telling: Telling::default(),
            packing: Packing::default(),
            engine: Engine::new(now),
            offer: ArcSwapOption::empty(),
            asked: AtomicBool::new(false),
            denies: AtomicBool::new(false),
            unwell: ArcSwapOption::empty(),
            view_reset: Notify::new(),
            contract: ArcSwap::from_pointee(newcomer.contract.clone()),
            duty: watch::Sender::new(Duty::Active),
            health: Mutex::new(newcomer.health),
            cold: AtomicBool::new(false),
        }
    }

    /// Takes note of why its health check failed, if it did. Returns whether that is news.
    pub fn note_check(&self, fault: Option<&str>) -> bool {
        let before = self.unwell.swap(fault.map(|fault| Arc::new(fault.to_owned())));
        before.as_deref().map(String::as_str) != fault
    }

    /// Why its last health check failed; none where it passed, and before.
    pub fn unwell(&self) -> Option<Arc<String>> {
        self.unwell.load_full()
    }

    /// What people call it: its id, and which of several ranks it is.
    pub fn place(&self) -> String {
        place_of(&self.id, self.rank)
    }

    /// What replaces the client's `Authorization`, as it is now.
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.contract.load().authorization.clone()
    }

    /// The size of its cache, where operators have set it.
    pub(super) fn capacity(&self) -> Option<Blocks> {
        self.contract.load().limits.blocks
    }

    /// From now on it serves so.
    pub(super) fn set_contract(&self, contract: Contract) {
        self.contract.store(Arc::new(contract));
    }

    /// What its operators want of it.
    pub fn duty(&self) -> Duty {
        *self.duty.borrow()
    }

    /// Sets what they want. Returns whether that is new.
    pub(super) fn set_duty(&self, duty: Duty) -> bool {
        self.duty.send_if_modified(|now| std::mem::replace(now, duty) != duty)
    }

    /// Waits until it is ejected.
    pub async fn ejected(&self) {
        // The sender lives in `self`: waiting ends with the ejection or never.
        let _ = self.duty.subscribe().wait_for(|duty| *duty == Duty::Ejected).await;
    }

    /// What its checks and requests have shown.
    pub fn health(&self) -> Health {
        *self.lock_health()
    }

    /// What its requests have made of its breaker: `closed`, `trial` or `open`.
    pub fn breaker(&self) -> &'static str {
        self.health().breaker()
    }

    /// Whether it refuses the key that the router shows it.
    pub fn denies(&self) -> bool {
        self.denies.load(Ordering::Relaxed)
    }

    /// Whether it has answered what it serves, if only that it does not tell.
    pub fn was_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// It has.
    pub fn set_asked(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    pub(super) fn set_denies(&self, denies: bool) {
        self.denies.store(denies, Ordering::Relaxed);
    }

    /// Whether it may be chosen: it is up, and its operators want it to serve.
    pub fn may_serve(&self) -> bool {
        self.duty() == Duty::Active && self.health().is_available()
    }

    /// Since when it is back where it may serve: from `returned` on, or from now if it came back while it might not.
    pub(super) fn begins(&self, available: bool, returned: Option<Instant>) -> Option<Instant> {
        if !available {
            self.cold.fetch_or(returned.is_some(), Ordering::Relaxed);
            return None;
        }
        let was_cold = self.cold.swap(false, Ordering::Relaxed);
        returned.or_else(|| was_cold.then(Instant::now))
    }

    /// Whether it may be chosen, and what keeps it from that.
    pub fn condition(&self) -> Condition {
        match self.duty() {
            Duty::Active if !self.health().is_available() => Condition::Down,
            Duty::Active => Condition::Active,
            Duty::Draining => Condition::Draining,
            Duty::Ejected => Condition::Ejected,
        }
    }

    pub(super) fn lock_health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is believed of it, and why. `target` is the one in its slot.
    pub fn trust(&self, now: Instant, target: &Target, configured: BlockSize) -> Report {
        let says = || self.engine.last().and_then(|(_, scrape)| scrape.block_size);
        let carried = self.metrics.belief.carried().or_else(says);
        target.trust.report(now, (carried, configured))
    }

    pub(super) fn measure_engine(&self, now: Instant) {
        self.metrics.belief.engine_age(self.engine.unread_for(now));
        if let Some((_, scrape)) = self.engine.last() {
            self.metrics.belief.engine(scrape.running, scrape.waiting, scrape.kv_usage);
        }
    }
}

/// Whoever gets no requests is asked for no token ids either.
impl remote::Engine for Worker {
    fn serves(&self) -> bool {
        self.may_serve()
    }

    fn way(&self) -> &Arc<Link> {
        &self.control
    }

    fn authorization(&self) -> Option<HeaderValue> {
        Worker::authorization(self)
    }
}
