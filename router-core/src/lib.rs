//! Decides. Given a prompt, what each worker's cache holds and what is in flight, chooses a worker. Synchronous,
//! deterministic, without I/O: time and chance are arguments.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod cost;
pub mod ids;
pub mod namespace;
pub mod overlap;
pub mod slot_set;
pub mod units;
