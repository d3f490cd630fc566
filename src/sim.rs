//! The simulated engine, in virtual time: single-threaded, deterministic by seed, without clock, I/O or tasks. Time is
//! an argument, so one core serves behind HTTP in scaled real time and inside a trace replay at full speed.
//!
//! - [`Engine`]: vLLM's scheduler. [`Engine::submit`] queues a request, [`Engine::step`] runs one forward pass and says
//!   how long it lasts, which tokens it gave and which cache events it caused.
//! - [`BlockPool`]: vLLM's block manager, which decides what is cached, what is evicted and which events are sent.
//! - [`Timing`]: how long a step lasts.
//! - [`NanoPool`]: the block manager of nano-vllm, with its own hash and append rule.
//!
//! - [`fleet`]: many engines behind the real scheduler and index, driven by a trace.
//!
//! A driver's loop: `while let Some(step) = engine.step(now) { now += step.duration; deliver(step); }`, submitting what
//! arrives before `now` between the steps. The cache events of a step are known when it begins, as in the real engine: it
//! announces a block when it schedules it.

mod announce;
pub mod blocks;
mod check;
pub mod clock;
pub mod engine_config;
pub mod fleet;
pub mod free_queue;
pub mod nano;
pub mod request;
pub mod scheduler;
pub mod sequence;
pub mod timing;

pub use blocks::{BlockEvent, BlockPool, CacheInUse, OutOfBlocks, PoolConfig, Reuse};
pub use clock::Ms;
pub use engine_config::{ConfigError, EngineConfig, Realism};
pub use free_queue::{BlockId, FreeQueue};
pub use nano::{NanoError, NanoPool, NanoSequence};
pub use request::{FinishReason, FirstToken, Refused, RequestId, SimRequest, TokenOut, output_token};
pub use scheduler::{Engine, EngineStats, Step};
pub use sequence::{Naming, PromptText, Sequence};
pub use timing::{Timing, TimingError};
