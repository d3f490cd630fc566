//! What an engine says of its own load. The router's own account decides first; this only corrects it upward, for what
//! others than this router have sent.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::units::Blocks;

/// Load beyond what the router has in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beyond {
    /// Sequences, running or waiting.
    pub sequences: u32,
    /// Of these, sequences that wait.
    pub waiting: u32,
    /// Blocks in use.
    pub blocks: Blocks,
}

impl Beyond {
    fn least(self, other: Self) -> Self {
        Self {
            sequences: self.sequences.min(other.sequences),
            waiting: self.waiting.min(other.waiting),
            blocks: self.blocks.min(other.blocks),
        }
    }
}

/// The load beyond the router's own, as of the last reports. Two in a row must show it, and the smaller counts: a request
/// that ends between the engine's count and ours is no load.
///
/// It *fades*: what is `age` old counts `2^(−age / half_life)` of itself, rounded. So a report that never comes again is
/// forgotten, and one that is stuck keeps nobody away for ever. Each figure is exact by itself; together they may be one
/// report apart for a moment.
#[derive(Debug, Default)]
#[repr(C)]
pub struct EngineLoad {
    // What is asked most comes first: see [`Account`](crate::ledger::Account).
    /// Whether the last reports showed any.
    any: AtomicBool,
    sequences: AtomicU32,
    waiting: AtomicU32,
    blocks: AtomicU32,
    first: OnceLock<Instant>,
    /// Milliseconds from `first` to the last report.
    at: AtomicU64,
    last: Mutex<Beyond>,
}

impl EngineLoad {
    /// Takes note of a report.
    pub fn report(&self, now: Instant, beyond: Beyond) {
        let first = *self.first.get_or_init(|| now);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = beyond.least(std::mem::replace(&mut *last, beyond));
        let at = now.saturating_duration_since(first).as_millis();
        self.at.store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.sequences.store(shown.sequences, Ordering::Relaxed);
        self.waiting.store(shown.waiting, Ordering::Relaxed);
        self.blocks.store(shown.blocks.0, Ordering::Relaxed);
        self.any.store(shown != Beyond::default(), Ordering::Relaxed);
    }

    /// Whether the last reports showed any. Asked of every worker for every request, most of which have none.
    #[inline]
    pub fn has_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// What is left of the last report.
    pub fn read(&self, now: Instant, half_life: Duration) -> Beyond {
        let Some(first) = self.first.get() else { return Beyond::default() };
        let at = Duration::from_millis(self.at.load(Ordering::Relaxed));
        let age = now.saturating_duration_since(*first).saturating_sub(at);
        let [sequences, waiting, blocks] = self.shown().map(|count| faded(count, age, half_life));
        Beyond { sequences, waiting, blocks: Blocks(blocks) }
    }

    #[inline]
    fn shown(&self) -> [u32; 3] {
        [&self.sequences, &self.waiting, &self.blocks].map(|count| count.load(Ordering::Relaxed))
    }
}

/// `count · 2^(−age / half_life)`, rounded.
fn faded(count: u32, age: Duration, half_life: Duration) -> u32 {
    let halvings = age.as_secs_f64() / half_life.as_secs_f64().max(f64::MIN_POSITIVE);
    let left = (f64::from(count) * (-halvings).exp2()).round();
    #[expect(clippy::as_conversions, reason = "a product of a u32 and a factor from 0 to 1")]
    let left = left as u32;
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF_LIFE: Duration = Duration::from_secs(5);

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn beyond(sequences: u32, waiting: u32, blocks: u32) -> Beyond {
        Beyond { sequences, waiting, blocks: Blocks(blocks) }
    }

    #[test]
    fn what_two_reports_show_counts_and_half_of_it_after_a_half_life() {
        let (load, now) = (EngineLoad::default(), origin());
        assert_eq!(load.read(now, HALF_LIFE), Beyond::default());
        load.report(now, beyond(8, 4, 100));
        assert_eq!(load.read(now, HALF_LIFE), Beyond::default());
        let later = now + Duration::from_secs(1);
        load.report(later, beyond(6, 9, 200));
        assert_eq!(load.read(later, HALF_LIFE), beyond(6, 4, 100));
        assert_eq!(load.read(later + HALF_LIFE, HALF_LIFE), beyond(3, 2, 50));
        assert_eq!(load.read(later + HALF_LIFE * 3, HALF_LIFE), beyond(1, 1, 13));
        assert_eq!(load.read(later + HALF_LIFE * 9, HALF_LIFE), beyond(0, 0, 0));
        load.report(later + HALF_LIFE, beyond(0, 0, 0));
        assert_eq!(load.read(later + HALF_LIFE, HALF_LIFE), Beyond::default());
    }

    #[test]
    fn a_time_before_the_report_is_its_own() {
        let (load, now) = (EngineLoad::default(), origin());
        let later = now + Duration::from_secs(10);
        [now, later].into_iter().for_each(|at| load.report(at, beyond(8, 8, 8)));
        assert_eq!(load.read(now, HALF_LIFE), beyond(8, 8, 8));
    }
}
