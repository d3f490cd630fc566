//! Which life of the engine's process its events are from, as a number that only rises.
//!
//! It is the time at which the process started, in milliseconds since 1970, where the engine's metrics tell it: so it is
//! the same after the bridge itself was restarted, and higher after the engine was. Where they do not, the time stamp of
//! the first batch that is seen of a process takes its place. A clock that stepped back cannot lower it.

/// The epoch of one (worker, rank)'s stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    number: u64,
    /// When the process started, where that is known.
    started: Option<u64>,
    /// When the one before it did: metrics that are a moment old may still say so.
    before: Option<u64>,
}

impl Epoch {
    /// The number; 0 before there was any process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Takes note of when the process started. Returns whether this is another process than before.
    pub(super) fn seen(&mut self, started: u64) -> bool {
        let seen = Some(started);
        if seen == self.started || seen == self.before {
            return false;
        }
        // The number was taken from a batch of the same process, which came after its start.
        if self.number > 0 && self.started.is_none() && started <= self.number {
            self.started = seen;
            return false;
        }
        self.raise(started);
        self.started = seen;
        true
    }

    /// Another process speaks, whose first batch is from `at`; when it started is not known yet.
    pub(super) fn restarted(&mut self, at: u64) {
        self.raise(at);
    }

    /// The stream has batches up to this epoch already: a lower one would be dropped by whoever reads it.
    pub(super) fn at_least(&mut self, known: u64) {
        if known > self.number {
            self.number = known.saturating_add(1);
        }
    }

    fn raise(&mut self, to: u64) {
        self.before = self.started.take().or(self.before);
        self.number = to.max(self.number.saturating_add(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_the_process_is_its_epoch_whoever_asks() {
        let mut epoch = Epoch::default();
        assert_eq!((epoch.seen(1000), epoch.number()), (true, 1000));
        assert_eq!((epoch.seen(1000), epoch.number()), (false, 1000));
        assert_eq!((epoch.seen(5000), epoch.number()), (true, 5000));
    }

    #[test]
    fn a_restart_seen_in_the_events_first_is_not_counted_again() {
        let mut epoch = Epoch::default();
        epoch.seen(1000);
        epoch.restarted(6000);
        assert_eq!(epoch.number(), 6000);
        // Metrics from before the restart, then those of the new process.
        assert_eq!((epoch.seen(1000), epoch.seen(5000), epoch.seen(5000)), (false, false, false));
        assert_eq!((epoch.number(), epoch.seen(9000), epoch.number()), (6000, true, 9000));
    }

    #[test]
    fn a_clock_that_stepped_back_does_not_lower_it() {
        let mut epoch = Epoch::default();
        epoch.seen(1000);
        assert_eq!((epoch.seen(400), epoch.number()), (true, 1001));
        epoch.restarted(300);
        assert_eq!(epoch.number(), 1002);
    }

    #[test]
    fn what_the_stream_has_already_is_exceeded_and_never_repeated() {
        let mut epoch = Epoch::default();
        epoch.seen(1000);
        epoch.at_least(1000);
        assert_eq!(epoch.number(), 1000);
        epoch.at_least(7000);
        assert_eq!((epoch.number(), epoch.seen(1000)), (7001, false));
    }
}
