//! The clock, and what many readings of it say.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::draws::{real, wide};

/// The time.
#[expect(clippy::disallowed_methods, reason = "measuring is the only thing that this program is for")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// How long `work` takes.
pub(crate) fn timed(work: impl FnOnce()) -> Duration {
    let start = now();
    work();
    start.elapsed()
}

/// Nanoseconds as a real number.
pub(crate) fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

/// How long all threads of this process ran on a processor; none where the system does not tell. A reading may be some
/// milliseconds old, so only sums over many mean something.
pub(crate) fn on_processor() -> Option<Duration> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir("/proc/self/task").ok()? {
        let told = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        sum += Duration::from_nanos(told.split(' ').next()?.parse().ok()?);
    }
    Some(sum)
}

/// What one reading of the clock costs, in nanoseconds.
pub(crate) fn reading_ns() -> f64 {
    let readings = 100_000_u32;
    let taken = timed(|| {
        for _ in 0..readings {
            std::hint::black_box(now());
        }
    });
    nanoseconds(taken) / f64::from(readings)
}

/// Times in nanoseconds, to be told by their percentiles.
#[derive(Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Adds one.
    pub(crate) fn push(&mut self, nanoseconds: f64) {
        self.0.push(nanoseconds);
    }

    /// Adds all of `other`.
    pub(crate) fn append(&mut self, mut other: Times) {
        self.0.append(&mut other.0);
    }

    /// The smallest time that at least `percent` of all do not exceed; none without times.
    pub(crate) fn percentile(&mut self, percent: usize) -> Option<f64> {
        self.0.sort_unstable_by(f64::total_cmp);
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied()
    }

    /// Median, 99th percentile and number.
    pub(crate) fn told(mut self) -> Value {
        json!({ "p50_ns": self.percentile(50), "p99_ns": self.percentile(99), "times": self.0.len() })
    }
}

/// `count` things in `time`, a second.
pub(crate) fn rate(count: usize, time: Duration) -> f64 {
    real(wide(count)) / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_occurred() {
        let mut times = Times((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (times.percentile(50), times.percentile(99), times.percentile(100)),
            (Some(100.0), Some(198.0), Some(200.0))
        );
        assert_eq!(Times::default().percentile(50), None);
    }
}
