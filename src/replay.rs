//! A trace of requests, through a live gateway or a simulated fleet.

pub mod live;
pub mod measured;
pub mod page;
pub mod reachable;
pub mod record;
pub mod report;
pub mod simulated;
pub mod tally;
pub mod trace;
pub mod workload;
