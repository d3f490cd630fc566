//! A whole fleet in virtual time: simulated engines, and before them the real scheduler, ledger, index and decoder, which
//! see what they would see in a gateway, when they would see it. Requests arrive as a trace says, whatever became of those
//! before them. Equal scenarios give equal outcomes, on any machine.
//!
//! `Prepared` is a trace made ready once, [`Scenario`] what is tried on it, and [`run`] tries it:
//! a few seconds for millions of tokens, on one thread, so that others can try something else beside it.
//!
//! What is modelled, each of which can be left out ([`Effect`]): a step's events leave the engine when the step ends and
//! arrive a network later; engines' metrics are read now and then; all that [`Engine`](super::Engine) does; and the
//! [`Conditions`] under which clients and engines meet, a worker that dies and comes back among them. What is not: the
//! router's own work, which takes microseconds; requests that wait in the router; the bound on retries at once.

mod agenda;
mod audit;
mod conditions;
mod effects;
mod hearing;
mod member;
mod outcome;
mod prepared;
mod router;
mod seen;
mod world;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::Scheduler;
use warmpath_core::shape::Objectives;

use super::cache::Profile;
use super::clock::Ms;
use super::engine_config::MAX_BLOCKS;
use super::engine_config::{ConfigError, EngineConfig};
pub use conditions::Conditions;
pub use effects::{Effect, UnknownEffect};
pub use outcome::{Decided, Failure, Outcome, RequestOutcome, Sample};
pub use prepared::{Arrival, MODEL, Prepared, unnamed_block};

/// What is tried on a trace.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// How requests are placed.
    pub router: RouterSettings,
    /// Engines.
    pub workers: u16,
    /// How each of them is set up; its `seed` follows from the scenario's, its block size is the trace's.
    pub engine: EngineConfig,
    /// Pages of storage below the engines' host memory that all of them share; 0 is none. The router hears of it once.
    pub shared_pages: u32,
    /// How many times as long the first worker's steps take as the others'.
    pub slow: f64,
    /// How much faster than recorded requests arrive.
    pub speed: f64,
    /// Seed of every chance.
    pub seed: u64,
    /// When events reach the router.
    pub events: EventWay,
    /// When the engines' metrics do.
    pub reports: Reports,
    /// What else lies between clients and engines.
    pub conditions: Conditions,
    /// Whether events travel as bytes, through encoder and decoder, and prompts as token ids. It changes no figure.
    pub wire: bool,
    /// Whether all that must hold is checked after every step. Slow.
    pub check: bool,
    /// Requests whose decisions are told with all that led to them, in rising order. It changes no figure.
    pub explained: Vec<usize>,
}

impl Scenario {
    /// Whether prompts are given as token ids: bytes tell of nothing else, and neither trees of token ids nor nano-vllm's
    /// cache have any use for hashes.
    fn by_tokens(&self) -> bool {
        self.wire || self.router.policy == PolicyName::ApproxTree || self.engine.profile == Profile::Nano
    }

    /// Blocks that can be cached in the whole fleet, in all tiers together.
    pub fn capacity(&self) -> u64 {
        let host = self.engine.tiers.map_or(0, |tiers| tiers.host_pages);
        let own = u64::from(self.engine.usable_blocks()) + u64::from(host);
        own * u64::from(self.workers) + u64::from(self.shared_pages)
    }
}

/// How requests are placed: the part of the router's configuration that a simulation goes by.
#[derive(Clone, Debug)]
pub struct RouterSettings {
    /// The policy.
    pub policy: PolicyName,
    /// What makes a scheduler of it.
    pub routing: Arc<dyn Routing>,
    /// How long a prompt without a first token counts as cached where it was sent.
    pub in_flight_credit: Duration,
    /// What engines say of their load counts half after this.
    pub half_life: Duration,
    /// Blocks that the index remembers at most, over all workers.
    pub index_entries: usize,
    /// How a worker that fails is taken out and brought back.
    pub breaker: Breaker,
}

/// How a worker that fails is taken out and brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breaker {
    /// Requests in a row that fail through its fault before it is taken out.
    pub strikes: u32,
    /// Between two checks of its health, two of which take it out or bring it back.
    pub interval: Duration,
    /// How long it is given less than it could take when it is back.
    pub ramp: Duration,
    /// Sequences that it is given at first.
    pub ramp_from: u32,
}

/// The weights and bounds of all policies, as a router is configured with them.
pub trait Routing: Debug + Send + Sync {
    /// A scheduler by `policy`, with fresh state, which takes the least loaded worker while every one is full. Prompts in
    /// flight count as cached for `in_flight_credit`, what engines say of their load counts half after `half_life`.
    fn scheduler(&self, policy: PolicyName, in_flight_credit: Duration, half_life: Duration) -> Scheduler;

    /// What requests of the default class were promised.
    fn objectives(&self) -> Objectives;

    /// How long a worker may answer without events before its view is doubted.
    fn event_silence(&self) -> Duration;
}

/// When a step's events reach the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EventWay {
    /// When the step begins, which is when the engine knows them.
    AtOnce,
    /// So long after the step's end, which is when engines send them, all of a step together.
    AfterStep(Ms),
    /// Each by itself, so long after it happened.
    Singly(Ms),
}

/// When the engines' metrics reach the router.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reports {
    /// Never.
    Never,
    /// Once in a while.
    Every(Ms),
    /// Before every placement.
    Fresh,
}

/// Why a scenario cannot be tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The engines cannot be set up so.
    #[error("the engines cannot be set up")]
    Engine(#[from] ConfigError),
    /// There are none, or too many.
    #[error("a simulated fleet has 1 to {WORKERS_MAX} workers, got {0}")]
    Workers(u16),
    /// Time would stand still.
    #[error("the speed must be a number above 0")]
    Speed,
    /// Nobody would ever send anything.
    #[error("at least one request must be allowed in flight")]
    Clients,
    /// Shared storage is reached by way of the hosts' memory, and kept in this process.
    #[error("a fleet shares at most {MAX_BLOCKS} pages of storage, below host memory, got {0}")]
    Storage(u32),
    /// A batch of events did not survive being encoded and decoded.
    #[error("events got lost on the wire: {0}")]
    Wire(String),
}

/// Workers of a simulated fleet at most.
pub const WORKERS_MAX: u16 = 1024;

/// Tries a scenario on a trace. `ended` is called for each request that ends, for whoever shows progress.
///
/// # Errors
/// [`ScenarioError`] where it makes no sense.
///
/// # Panics
/// Where the scenario asks for checks and one fails: that is a fault of the simulation.
pub fn run(prepared: &Prepared, scenario: &Scenario, ended: &dyn Fn()) -> Result<Outcome, ScenarioError> {
    if !(1..=WORKERS_MAX).contains(&scenario.workers) {
        return Err(ScenarioError::Workers(scenario.workers));
    }
    if !(scenario.speed.is_finite() && scenario.speed > 0.0) {
        return Err(ScenarioError::Speed);
    }
    if scenario.shared_pages > MAX_BLOCKS || (scenario.shared_pages > 0 && scenario.engine.tiers.is_none()) {
        return Err(ScenarioError::Storage(scenario.shared_pages));
    }
    if scenario.conditions.clients == Some(0) {
        return Err(ScenarioError::Clients);
    }
    world::World::new(prepared, &scenario.fitted(prepared), ended)?.run()
}
