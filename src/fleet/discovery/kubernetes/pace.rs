//! How long to wait before the API server is asked again.

use std::time::Duration;

/// After the first failure.
const FIRST: Duration = Duration::from_millis(200);

/// After many.
const LAST: Duration = Duration::from_secs(30);

/// Waits that double from failure to failure, up to a cap.
#[derive(Debug)]
pub(super) struct Pace {
    cap: Duration,
    next: Duration,
}

impl Pace {
    /// For a list that is asked for every `interval` anyway: waits are no longer than that.
    pub(super) fn new(interval: Duration) -> Self {
        let cap = interval.clamp(FIRST, LAST);
        Self { cap, next: FIRST }
    }

    /// How long to wait after a failure.
    pub(super) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(self.cap);
        wait
    }

    /// It works again.
    pub(super) fn well(&mut self) {
        self.next = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(pace: &mut Pace, count: usize) -> Vec<u128> {
        (0..count).map(|_| pace.wait().as_millis()).collect()
    }

    #[test]
    fn waits_double_up_to_the_cap_and_begin_anew_once_it_works() {
        let mut pace = Pace::new(Duration::from_secs(3600));
        assert_eq!(waits(&mut pace, 10), [200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]);
        pace.well();
        assert_eq!(waits(&mut pace, 2), [200, 400]);
    }

    #[test]
    fn no_wait_is_longer_than_the_interval_of_lists() {
        assert_eq!(waits(&mut Pace::new(Duration::from_secs(1)), 5), [200, 400, 800, 1000, 1000]);
        assert_eq!(waits(&mut Pace::new(Duration::from_millis(1)), 2), [200, 200]);
    }
}
