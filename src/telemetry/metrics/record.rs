//! Finished requests that were to be recorded, by what became of them.

use std::sync::Arc;

use metrics::Label;

use super::{Metrics, RECORDED, Registry};

/// Counts what becomes of finished requests that are recorded.
#[derive(Clone)]
pub struct RecordMetrics {
    registry: Arc<Registry>,
}

impl Metrics {
    /// Handles of the recorder.
    pub fn record(&self) -> RecordMetrics {
        RecordMetrics { registry: Arc::clone(&self.registry) }
    }
}

impl RecordMetrics {
    /// A request more: `written`, `dropped`, `failed` or `unknown_tokens`.
    pub fn count(&self, outcome: &'static str) {
        self.add(outcome, 1);
    }

    /// So many more.
    pub fn add(&self, outcome: &'static str, count: u64) {
        self.registry.counter(&RECORDED, vec![Label::new("outcome", outcome)]).increment(count);
    }
}
