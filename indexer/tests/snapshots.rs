//! A worker's blocks out of one index and into another: the same answers to every question and event, and no harm from any
//! bytes.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "snapshots/faults.rs"]
mod faults;
#[path = "snapshots/form.rs"]
mod form;
#[path = "contract/paths.rs"]
mod paths;
#[path = "snapshots/worlds.rs"]
mod worlds;
