//! The queue of one model: how many wait, how long, and who did not get through.

use std::sync::Arc;
use std::time::Duration;

use metrics::{Gauge, Histogram, Label};
use warmpath_core::count::real_len;
use warmpath_core::queue::Lane;

use super::{QUEUE_LENGTH, QUEUE_REFUSALS, QUEUE_WAIT, Registry};

/// Handles of one model's queue.
#[derive(Clone)]
pub struct QueueMetrics {
    registry: Arc<Registry>,
    model: String,
    lengths: [Gauge; 4],
    waits: [Histogram; 4],
}

impl QueueMetrics {
    pub(super) fn new(registry: &Arc<Registry>, model: &str) -> Self {
        let labels = |lane: Lane| vec![Label::new("model", model.to_owned()), Label::new("class", lane.label())];
        Self {
            lengths: Lane::ALL.map(|lane| registry.gauge(&QUEUE_LENGTH, labels(lane))),
            waits: Lane::ALL.map(|lane| registry.histogram(&QUEUE_WAIT, labels(lane))),
            model: model.to_owned(),
            registry: Arc::clone(registry),
        }
    }

    /// So many wait, by lane.
    pub fn lengths(&self, lengths: [usize; 4]) {
        for (gauge, length) in self.lengths.iter().zip(lengths) {
            gauge.set(real_len(length));
        }
    }

    /// A request was admitted after it had waited.
    pub fn waited(&self, lane: Lane, waited: Duration) {
        self.waits[lane.index()].record(waited);
    }

    /// A request left the queue without a worker, or did not get in.
    pub fn left(&self, reason: &'static str) {
        let labels = vec![Label::new("model", self.model.clone()), Label::new("reason", reason)];
        self.registry.counter(&QUEUE_REFUSALS, labels).increment(1);
    }
}
