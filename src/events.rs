//! Events of the workers' caches: one task for each (worker, rank), which receives, decodes, orders and applies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::sync::mpsc;

pub mod local;
pub mod nats;
pub mod publish;
pub mod subject;

/// One batch as it came off a bus.
#[derive(Clone, Debug)]
pub struct Message {
    /// What the engine sent, unchanged.
    pub payload: Bytes,
    /// The batch's number, where the bus tells it.
    pub seq: Option<u64>,
    /// Which life of the engine's process it is from, where the bus tells it.
    pub epoch: Option<u64>,
}
