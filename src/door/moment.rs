//! A time that others than its owner set and read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A time that may not be set: microseconds since the connection's beginning, and one.
#[derive(Debug, Default)]
pub(super) struct Moment(AtomicU64);

impl Moment {
    pub(super) fn set(&self, origin: Instant, now: Instant) {
        let micros = u64::try_from(now.saturating_duration_since(origin).as_micros()).unwrap_or(u64::MAX - 1);
        self.0.store(micros.saturating_add(1), Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    pub(super) fn get(&self, origin: Instant) -> Option<Instant> {
        let micros = self.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some(origin + Duration::from_micros(micros))
    }
}
