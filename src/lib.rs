//! Warmpath: a KV-cache-aware request router for LLM fleets.
//!
//! `router-core` decides, `indexer` remembers, this crate talks to the world. `ARCHITECTURE.md` has the map.
#![forbid(unsafe_code)]

pub mod openai;
pub mod sim;
pub mod tokenize;
