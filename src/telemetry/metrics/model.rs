//! What is measured of one model.

use std::time::Duration;

use metrics::{Gauge, Histogram, Label};

use super::reasons::Reasons;
use super::{BALANCE, DURATION, MODELS_MAX, Metrics, OBJECTIVES, QueueMetrics, REQUESTS, TTFT};
use crate::shutdown::Restarts;

/// Handles of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    pub(super) metrics: Metrics,
    pub(super) model: String,
    pub(super) requests: Reasons,
    pub(super) ttft_objectives: Reasons,
    pub(super) itl_objectives: Reasons,
    /// Arrival to first token.
    pub ttft: Histogram,
    pub(super) duration: Histogram,
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
        let objectives = |name| {
            let labels = labels().into_iter().chain([Label::new("objective", name)]);
            Reasons::new(&self.registry, &OBJECTIVES, "result", labels.collect())
        };
        ModelMetrics {
            ttft: self.registry.histogram(&TTFT, labels()),
            duration: self.registry.histogram(&DURATION, labels()),
            balance: self.registry.gauge(&BALANCE, labels()),
            queue: QueueMetrics::new(&self.registry, model),
            requests: Reasons::new(&self.registry, &REQUESTS, "outcome", labels()),
            ttft_objectives: objectives("ttft"),
            itl_objectives: objectives("itl"),
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

    /// A request was given up before its end, so long after it came. Returns the outcome.
    pub fn given_up(&self, after: Duration) -> &'static str {
        let outcome = self.metrics.parting.outcome();
        self.request(outcome, after);
        outcome
    }

    /// The first token of a stream came after so long, to which `limit` was promised.
    pub fn first_token(&self, after: Duration, limit: Option<Duration>) {
        self.ttft.record(after);
        limit.iter().for_each(|limit| self.ttft_objectives.count(kept(after <= *limit)));
    }

    /// No first token came in such a time: a promise of less is broken.
    pub fn no_first_token(&self, waited: Duration, limit: Option<Duration>) {
        limit.iter().filter(|limit| waited > **limit).for_each(|_| self.ttft_objectives.count(kept(false)));
    }

    /// The tokens of a stream were so far apart, on average, to which `limit` was promised.
    pub fn gaps(&self, mean: Duration, limit: Duration) {
        self.itl_objectives.count(kept(mean <= limit));
    }

    /// A request ended, so long after it came.
    pub fn request(&self, outcome: &'static str, after: Duration) {
        self.duration.record(after);
        self.requests.count(outcome);
    }
}

fn kept(is_met: bool) -> &'static str {
    if is_met { "met" } else { "missed" }
}
