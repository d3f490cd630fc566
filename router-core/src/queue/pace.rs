//! How fast a queue moves.

use std::time::{Duration, Instant};

/// How fast the queue moves.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// The last admission, if somebody has been waiting ever since.
    last: Option<Instant>,
    /// Between two admissions, the latest counting an eighth.
    between: Option<Duration>,
}

impl Pace {
    pub(super) fn admitted(&mut self, now: Instant, was_last: bool) {
        if let Some(last) = self.last {
            let gap = now.saturating_duration_since(last);
            self.between = Some(self.between.map_or(gap, |between| (between * 7 + gap) / 8));
        }
        self.last = (!was_last).then_some(now);
    }

    /// Nobody waits any more, so time passes without admissions for no other reason.
    pub(super) fn rests_if(&mut self, nobody_waits: bool) {
        if nobody_waits {
            self.last = None;
        }
    }

    pub(super) fn between(&self, now: Instant) -> Option<Duration> {
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.between.map(|between| between.max(since))
    }
}
