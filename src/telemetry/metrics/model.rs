//! What is measured of one model.

use metrics::{Gauge, Histogram, Label};

use super::*;

/// Handles of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    pub(super) metrics: Metrics,
    pub(super) model: String,
    pub(super) requests: Reasons,
    /// Arrival to first token.
    pub ttft: Histogram,
    /// Arrival to end.
    pub duration: Histogram,
    /// How uneven the pool's load is.
    pub balance: Gauge,
    /// Its queue.
    pub queue: QueueMetrics,
}

impl Metrics {
    /// Handles of the `place`-th model.
    pub fn model(&self, place: usize, model: &str) -> ModelMetrics {
        let model = if place < MODELS_MAX { model } else { "other" };
        let labels = || vec![Label::new("model", model.to_owned())];
        ModelMetrics {
            ttft: self.registry.histogram(&TTFT, labels()),
            duration: self.registry.histogram(&DURATION, labels()),
            balance: self.registry.gauge(&BALANCE, labels()),
            queue: QueueMetrics::new(&self.registry, model),
            requests: Reasons::new(&self.registry, &REQUESTS, "outcome", labels()),
            model: model.to_owned(),
            metrics: self.clone(),
        }
    }
}

impl ModelMetrics {
    /// See [`Metrics::restarts`].
    pub fn restarts(&self, task: &'static str) -> Restarts {
        self.metrics.restarts(task)
    }

    /// A request was given up before its end. Returns the outcome.
    pub fn given_up(&self) -> &'static str {
        let outcome = self.metrics.parting.outcome();
        self.request(outcome);
        outcome
    }

    /// A request ended.
    pub fn request(&self, outcome: &'static str) {
        self.requests.count(outcome);
    }
}
