//! Where the time before an answer went, as its client is told (W3C Server Timing).

use std::fmt::Write;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

pub(super) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

/// The parts of a request's time up to the beginning of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    /// It waited for workers to have room.
    pub(super) queue: Duration,
    /// All else before it was sent to the worker that answers: it was read, tokenised and placed, and others failed it.
    pub(super) route: Duration,
    /// From then on to the answer's beginning.
    pub(super) worker: Duration,
}

impl Timing {
    /// As the header has it: in milliseconds, to the tenth. The queue is left out where the request did not wait, or for less.
    pub(super) fn told(self) -> HeaderValue {
        let parts = [("queue", self.queue), ("route", self.route), ("worker", self.worker)];
        let mut text = String::with_capacity(64);
        for (name, span) in parts {
            let tenths = span.as_micros() / 100;
            if name == "queue" && tenths == 0 {
                continue;
            }
            let comma = if text.is_empty() { "" } else { ", " };
            // A text grows where it must.
            let _ = write!(text, "{comma}{name};dur={}.{}", tenths / 10, tenths % 10);
        }
        HeaderValue::try_from(text).expect("it is made of letters and digits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_is_told_only_where_it_took_time() {
        let micros = Duration::from_micros;
        let timing = Timing { queue: micros(99), route: micros(1_234), worker: Duration::from_secs(12) };
        assert_eq!(timing.told(), "route;dur=1.2, worker;dur=12000.0");
        let queued = Timing { queue: micros(150_060), ..timing };
        assert_eq!(queued.told(), "queue;dur=150.0, route;dur=1.2, worker;dur=12000.0");
    }
}
