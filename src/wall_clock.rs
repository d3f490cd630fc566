//! The time of day, for what is told to others or outlives the process; it may be set back, unlike an `Instant`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Since 1970; nothing where the clock is set before that.
pub(crate) fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The same in milliseconds.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(now().as_millis()).unwrap_or(u64::MAX)
}
