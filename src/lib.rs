//! Warmpath: a KV-cache-aware request router for LLM fleets.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
