//! Warmpath: a KV-cache-aware request router for LLM fleets.
//!
//! `router-core` decides, `indexer` remembers, `simulator` imitates, this crate talks to the world. `ARCHITECTURE.md` has the map.
#![forbid(unsafe_code)]
// They panic where nobody hears.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod alarm;
pub mod app;
mod aside;
pub mod bridge;
pub mod calibrate;
pub mod cli;
pub mod config;
pub mod decisions;
pub mod demo;
pub mod doctor;
pub mod door;
pub mod error;
pub mod events;
pub mod fleet;
pub mod http;
mod http1;
pub mod link;
mod lookup;
mod loss;
pub mod mock_engine;
pub mod openai;
pub mod optimize;
pub mod pem;
mod printable;
pub mod processor;
pub mod queue;
pub mod replay;
pub mod report;
mod request_id;
pub mod room;
pub mod shutdown;
mod stride;
pub mod telemetry;
pub mod tokenize;
pub mod tune;
mod turn;
pub mod upstream;
mod wall_clock;
