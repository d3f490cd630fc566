//! A trace of requests, through a live gateway.

pub mod live;
pub mod reachable;
pub mod record;
pub mod report;
pub mod trace;
pub mod workload;
