//! What is known of an engine's process.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::scrape::Scrape;

/// What the process behind a routing target last said of itself.
#[derive(Debug)]
pub struct Engine {
    joined: Instant,
    last: Mutex<Option<(Instant, Scrape)>>,
    /// Why it could not be read when that was tried last.
    fault: Mutex<Option<String>>,
    process: watch::Sender<Option<Process>>,
}

/// A life of an engine's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// When it began, in milliseconds since 1970 by its own clock.
    pub start_ms: u64,
}

/// Starts of one process may differ by so much: by how a number was rounded on its way, and by the ticks that it is counted in.
const ROUNDING_MS: u64 = 10;

impl Process {
    /// Whether this is the same life as the other.
    pub fn is(self, other: Self) -> bool {
        self.start_ms.abs_diff(other.start_ms) <= ROUNDING_MS
    }
}

impl Engine {
    /// One of which nothing was heard yet.
    pub fn new(joined: Instant) -> Self {
        Self { joined, last: Mutex::default(), fault: Mutex::default(), process: watch::Sender::new(None) }
    }

    /// Takes note of a reading. True if the process is another than before.
    pub fn take(&self, now: Instant, scrape: Scrape) -> bool {
        let process = scrape.process();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, scrape));
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let Some(process) = process else { return false };
        let before = *self.process.borrow();
        if before.is_some_and(|before| before.is(process)) {
            return false;
        }
        self.process.send_replace(Some(process));
        before.is_some()
    }

    /// The last reading, and when it was made.
    pub fn last(&self) -> Option<(Instant, Scrape)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It could not be read, for this reason.
    pub fn failed(&self, why: &str) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
    }

    /// Why it could not be read when that was tried last; none if it could.
    pub fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How long ago the last reading was made, or it joined.
    pub fn unread_for(&self, now: Instant) -> Duration {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(last.as_ref().map_or(self.joined, |(at, _)| *at))
    }

    /// Tells of the process that answers: none until one said when it began, and another one after each restart that was
    /// noticed in its metrics.
    pub fn process(&self) -> watch::Receiver<Option<Process>> {
        self.process.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_start_is_a_restart_and_the_first_is_none() {
        let now = Instant::now();
        let engine = Engine::new(now);
        let mut process = engine.process();
        let scrape = |process_start_ms| Scrape { process_start_ms, ..Scrape::default() };
        let seen =
            [None, Some(500), Some(500), None, Some(700), Some(600)].map(|start| engine.take(now, scrape(start)));
        assert_eq!(seen, [false, false, false, false, true, true]);
        assert!(process.has_changed().unwrap());
        assert_eq!(*process.borrow_and_update(), Some(Process { start_ms: 600 }));
        // As somebody else rounds it.
        assert!(!engine.take(now, scrape(Some(601))));
        assert!(!process.has_changed().unwrap());
        assert_eq!(engine.last(), Some((now, scrape(Some(601)))));
    }

    #[test]
    fn an_engine_that_was_never_read_is_unread_since_it_joined() {
        let joined = Instant::now();
        let at = |seconds| joined + Duration::from_secs(seconds);
        let engine = Engine::new(joined);
        engine.failed("404");
        assert_eq!((engine.unread_for(at(70)).as_secs(), engine.fault().as_deref()), (70, Some("404")));
        engine.take(at(80), Scrape::default());
        assert_eq!((engine.unread_for(at(90)).as_secs(), engine.fault()), (10, None));
    }
}
