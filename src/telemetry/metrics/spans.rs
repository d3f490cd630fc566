//! Requests whose spans were to be sent, by what became of them.

use std::sync::Arc;

use metrics::Label;

use super::{Metrics, Registry, TRACED};

/// Counts what becomes of requests' spans.
#[derive(Clone)]
pub struct SpanMetrics {
    registry: Arc<Registry>,
}

impl Metrics {
    /// Handles of the exporter.
    pub fn spans(&self) -> SpanMetrics {
        SpanMetrics { registry: Arc::clone(&self.registry) }
    }
}

impl SpanMetrics {
    /// So many requests more: `sent`, `failed` or `dropped`.
    pub fn add(&self, outcome: &'static str, count: u64) {
        self.registry.counter(&TRACED, vec![Label::new("outcome", outcome)]).increment(count);
    }
}

impl std::fmt::Debug for SpanMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpanMetrics").finish_non_exhaustive()
    }
}
