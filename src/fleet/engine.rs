//! What is known of an engine's process.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::watch;

use super::scrape::Scrape;

/// What the process behind a routing target last said of itself.
#[derive(Debug)]
pub struct Engine {
    last: Mutex<Option<(Instant, Scrape)>>,
    process: watch::Sender<Option<Process>>,
}

/// A life of an engine's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// When it began, in milliseconds since 1970 by its own clock. Only equality means something.
    pub start_ms: u64,
}

impl Default for Engine {
    fn default() -> Self {
        Self { last: Mutex::default(), process: watch::Sender::new(None) }
    }
}

impl Engine {
    /// Takes note of a reading. True if the process is another than before.
    pub fn take(&self, now: Instant, scrape: Scrape) -> bool {
        let start_ms = scrape.process_start_ms;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, scrape));
        let Some(start_ms) = start_ms else { return false };
        let process = Some(Process { start_ms });
        let before = *self.process.borrow();
        self.process.send_if_modified(|known| std::mem::replace(known, process) != process);
        before.is_some() && before != process
    }

    /// The last reading, and when it was made.
    pub fn last(&self) -> Option<(Instant, Scrape)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let engine = Engine::default();
        let mut process = engine.process();
        let now = Instant::now();
        let scrape = |process_start_ms| Scrape { process_start_ms, ..Scrape::default() };
        let seen = [None, Some(5), Some(5), None, Some(7), Some(6)].map(|start| engine.take(now, scrape(start)));
        assert_eq!(seen, [false, false, false, false, true, true]);
        assert!(process.has_changed().unwrap());
        assert_eq!(*process.borrow_and_update(), Some(Process { start_ms: 6 }));
        engine.take(now, scrape(Some(6)));
        assert!(!process.has_changed().unwrap());
        assert_eq!(engine.last(), Some((now, scrape(Some(6)))));
    }
}
