//! Decides. Given a prompt, what each worker's cache holds and what is in flight, chooses a worker. Synchronous,
//! deterministic, without I/O: time and chance are arguments.
#![forbid(unsafe_code)]

pub mod admission;
pub mod blocks;
pub mod cost;
pub mod count;
pub mod engine_load;
pub mod history;
pub mod ids;
pub mod ledger;
pub mod namespace;
pub mod observe;
pub mod overlap;
pub mod overlay;
pub mod pick;
pub mod policy;
pub mod queue;
pub mod rates;
mod real;
mod recent;
pub mod retry;
pub mod scheduler;
pub mod session;
pub mod shape;
pub mod slot_set;
pub mod trust;
pub mod units;
pub mod workers;
