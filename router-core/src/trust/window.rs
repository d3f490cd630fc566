//! The last verdicts on one question, good or bad.

use std::time::{Duration, Instant};

/// Bad ones of the last 32 that mean nothing: a restart, an eviction between promise and admission.
pub(super) const FORGIVEN: u32 = 8;

/// Bad ones at which nothing is believed any more.
pub(super) const HOPELESS: u32 = 24;

/// After such a pause what was seen before is no evidence.
const LIFE: Duration = Duration::from_secs(600);

/// The last 32 verdicts. Those that are missing count as good, so that few never weigh.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    bad: u32,
    last: Option<Instant>,
}

impl Window {
    /// Takes note of a verdict; the oldest one goes.
    pub(super) fn push(&mut self, now: Instant, bad: bool) {
        if !self.is_evidence(now) {
            self.bad = 0;
        }
        self.last = Some(now);
        self.bad = (self.bad << 1) | u32::from(bad);
    }

    /// Whether what was seen before still says something.
    pub(super) fn is_evidence(&self, now: Instant) -> bool {
        self.last.is_none_or(|last| now.saturating_duration_since(last) <= LIFE)
    }

    /// Bad ones among them.
    pub(super) fn bad(&self) -> u32 {
        self.bad.count_ones()
    }

    /// 1 while at most 8 of the last 32 are bad, then less by a 16th for each, 0 from 24 on.
    pub(super) fn weight(&self) -> f64 {
        let beyond = self.bad().clamp(FORGIVEN, HOPELESS) - FORGIVEN;
        1.0 - f64::from(beyond) / f64::from(HOPELESS - FORGIVEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn after(verdicts: &[(u32, bool)]) -> f64 {
        let (mut window, now) = (Window::default(), origin());
        for (times, bad) in verdicts {
            (0..*times).for_each(|_| window.push(now, *bad));
        }
        window.weight()
    }

    #[test]
    fn eight_bad_ones_are_forgiven_and_twenty_four_are_hopeless() {
        let seen = [0, 8, 9, 12, 16, 24, 40].map(|bad| after(&[(bad, true)]));
        assert_eq!(seen, [1.0, 1.0, 0.9375, 0.75, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn good_ones_push_the_bad_ones_out() {
        assert_eq!(after(&[(32, true), (8, false)]), 0.0);
        assert_eq!(after(&[(32, true), (16, false)]), 0.5);
        assert_eq!(after(&[(32, true), (24, false)]), 1.0);
        assert_eq!(after(&[(8, true), (100, false), (8, true)]), 1.0);
    }

    #[test]
    fn what_lies_ten_minutes_back_is_no_evidence() {
        let (mut window, now) = (Window::default(), origin());
        (0..32).for_each(|_| window.push(now, true));
        window.push(now + LIFE, true);
        assert_eq!(window.bad(), 32);
        window.push(now + LIFE * 2 + Duration::from_secs(1), true);
        assert_eq!((window.bad(), window.weight()), (1, 1.0));
    }
}
