//! Where batches stand in a stream, and how long they may overtake each other.

use std::time::Duration;

/// Where a batch stands in its stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stamp {
    /// Its number: 0 for the first of a process, then one more for each. For JSON events their `event_id`. The last
    /// number of all marks the end of a replay; no batch has it.
    pub seq: u64,
    /// Raised by a bridge whenever the engine's process changed; none straight from an engine.
    pub epoch: Option<u64>,
    /// The engine's wall clock, in seconds; none in JSON events.
    pub ts: Option<f64>,
}

impl Stamp {
    /// Whether nothing but the number tells one life from the next.
    pub fn is_bare(&self) -> bool {
        self.epoch.is_none() && self.ts.is_none()
    }
}

/// How far a stream was applied: what a view that is written down needs, so that the stream goes on where it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Position {
    /// The epoch of what was applied, where a bridge tells it.
    pub epoch: Option<u64>,
    /// The number of the batch that comes next.
    pub next: u64,
    /// The latest time stamp that was applied, in seconds of the engine's wall clock. Without an epoch, it is what tells
    /// a restart.
    pub newest: Option<f64>,
}

/// Where a view began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Began {
    /// With its engine's process, as far as anybody knows: all that was said is in it.
    #[default]
    AtStart,
    /// Empty, in the middle: what was said before is not in it.
    InTheMiddle,
}

/// How long to wait for batches that are overtaken on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// The most batches that are held back.
    pub batches: usize,
    /// The longest time that one is held back.
    pub wait: Duration,
}

impl Patience {
    /// For paths that keep the order, as one ZMQ connection does: whatever is missing is lost.
    pub const NONE: Self = Self { batches: 0, wait: Duration::ZERO };
    /// For NATS, whose redelivery may reorder.
    pub const NATS: Self = Self { batches: 64, wait: Duration::from_millis(50) };
}
