//! Imitates. The simulated engine, in virtual time: single-threaded, deterministic by seed, without clock, I/O or tasks. Time is
//! an argument, so one core serves behind HTTP in scaled real time and inside a trace replay at full speed.
//!
//! - [`Engine`]: vLLM's scheduler. [`Engine::submit`] queues a request, [`Engine::step`] runs one forward pass and says
//!   how long it lasts, which tokens it gave and which cache events it caused.
//! - [`BlockPool`]: vLLM's block manager, which decides what is cached, what is evicted and which events are sent.
//! - [`Tiers`]: host memory below the cache, and below it a [`SharedTier`] that engines of a fleet refer to.
//! - [`Timing`]: how long a step lasts.
//! - [`RadixCache`]: SGLang's radix cache. [`NanoPool`]: nano-vllm's block manager, with its own hash and append rule.
//! - [`Cache`]: the one of the three that an engine has, as its [`Profile`] says.
//!
//! - [`fleet`]: many engines behind the real scheduler and index, driven by a trace.
//!
//! A driver's loop: `while let Some(step) = engine.step(now) { now += step.duration; deliver(step); }`, submitting what
//! arrives before `now` between the steps. The cache events of a step are known when it begins, as in the real engine: it
//! announces a block when it schedules it.
#![forbid(unsafe_code)]

mod announce;
pub mod blocks;
pub mod cache;
mod check;
pub mod clock;
pub mod engine_config;
pub mod fleet;
pub mod free_queue;
mod job;
mod naming;
pub mod nano;
pub mod radix;
pub mod request;
pub mod scheduler;
pub mod sequence;
pub mod stats;
pub mod tiers;
pub mod timing;

pub use blocks::{BlockEvent, BlockPool, CacheInUse, OutOfBlocks, PoolConfig, Reuse};
pub use cache::{Cache, Profile};
pub use clock::Ms;
pub use engine_config::{ConfigError, EngineConfig, Realism};
pub use free_queue::{BlockId, FreeQueue};
pub use naming::{Digest, Naming, Scheme};
pub use nano::{NanoError, NanoPool};
pub use radix::RadixCache;
pub use request::{FinishReason, FirstToken, Refused, RequestId, SimRequest, TokenOut, output_token};
pub use scheduler::{Engine, Step};
pub use sequence::{PromptText, Sequence};
pub use stats::{EngineStats, Levels, Totals};
pub use tiers::{Eviction, LinkSpec, PrefetchPolicy, SharedTier, Tiers, WritePolicy};
pub use timing::{DecodePoint, FitError, PrefillPoint, Roofline, Timing, TimingError};
