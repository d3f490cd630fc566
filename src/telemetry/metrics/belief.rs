//! What is believed of one worker: how its promises hold, and what it says of its own load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge, Label};
use warmpath_core::trust::{EventsHeard, Reason, Report};

use super::{
    ENGINE_AGE, ENGINE_REPORTS, ENGINE_RUNNING, ENGINE_SCRAPES, ENGINE_USAGE, ENGINE_WAITING, PREDICTION_ERROR,
    Registry, TOKEN_PARITY, TRUST_REASON, TRUST_WEIGHT,
};

/// Handles of one worker.
#[derive(Clone)]
pub struct Belief {
    registry: Arc<Registry>,
    /// The worker's own.
    labels: Vec<Label>,
    weight: Gauge,
    over: Counter,
    under: Counter,
    same_counts: Counter,
    other_counts: Counter,
    heard: Arc<Heard>,
}

/// What its events have come to.
#[derive(Default)]
struct Heard {
    total: AtomicU64,
    wrong_size: AtomicU64,
    /// A size of blocks that was wrong; 0 before there was one.
    carried: AtomicU32,
}

impl Belief {
    pub(super) fn new(registry: &Arc<Registry>, labels: &[Label]) -> Self {
        let counter = |definition, name, value| registry.counter(definition, and(labels, name, value));
        let weight = registry.gauge(&TRUST_WEIGHT, labels.to_vec());
        weight.set(1.0);
        Self {
            weight,
            over: counter(&PREDICTION_ERROR, "direction", "over"),
            under: counter(&PREDICTION_ERROR, "direction", "under"),
            same_counts: counter(&TOKEN_PARITY, "result", "equal"),
            other_counts: counter(&TOKEN_PARITY, "result", "differs"),
            heard: Arc::default(),
            labels: labels.to_vec(),
            registry: Arc::clone(registry),
        }
    }

    /// Cached tokens were promised and reported.
    pub fn predicted(&self, promised: u32, reported: u32) {
        self.over.increment(u64::from(promised.saturating_sub(reported)));
        self.under.increment(u64::from(reported.saturating_sub(promised)));
    }

    /// The tokens of a prompt were counted by both.
    pub fn counted(&self, equally: bool) {
        if equally { &self.same_counts } else { &self.other_counts }.increment(1);
    }

    /// Its metrics were asked for.
    pub fn scraped(&self, outcome: &'static str) {
        self.registry.counter(&ENGINE_SCRAPES, and(&self.labels, "outcome", outcome)).increment(1);
    }

    /// A bridge told its load.
    pub fn reported(&self, outcome: &'static str) {
        self.registry.counter(&ENGINE_REPORTS, and(&self.labels, "outcome", outcome)).increment(1);
    }

    /// What its events have come to so far.
    pub fn heard(&self) -> EventsHeard {
        EventsHeard {
            total: self.heard.total.load(Ordering::Relaxed),
            wrong_size: self.heard.wrong_size.load(Ordering::Relaxed),
        }
    }

    /// An event's blocks had this size, which is not the configured one.
    pub fn carries(&self, block_size: u32) {
        self.heard.carried.store(block_size, Ordering::Relaxed);
    }

    /// A size that events' blocks had where it was wrong.
    pub fn carried(&self) -> Option<u32> {
        Some(self.heard.carried.load(Ordering::Relaxed)).filter(|size| *size > 0)
    }

    /// Events were applied: so many that say what the cache holds, and so many that could not be used for their size.
    pub fn applied(&self, telling: u64, wrong_size: u64) {
        self.heard.total.fetch_add(telling, Ordering::Relaxed);
        self.heard.wrong_size.fetch_add(wrong_size, Ordering::Relaxed);
    }

    /// Brings the gauges of trust up to date.
    pub fn trust(&self, report: &Report) {
        self.weight.set(report.weight);
        for label in Reason::LABELS {
            let holds = report.reasons.iter().any(|reason| reason.label() == label);
            let labels = and(&self.labels, "reason", label);
            self.registry.gauge(&TRUST_REASON, labels).set(if holds { 1.0 } else { 0.0 });
        }
    }

    /// So long ago it told its own load, or joined.
    pub fn engine_age(&self, age: Duration) {
        self.registry.gauge(&ENGINE_AGE, self.labels.clone()).set(age.as_secs_f64());
    }

    /// Brings the gauges of its own load up to date.
    pub fn engine(&self, running: Option<u32>, waiting: Option<u32>, usage: Option<f64>) {
        let gauge = |definition| self.registry.gauge(definition, self.labels.clone());
        let figures = [
            (&ENGINE_RUNNING, running.map(f64::from)),
            (&ENGINE_WAITING, waiting.map(f64::from)),
            (&ENGINE_USAGE, usage),
        ];
        for (definition, figure) in figures {
            if let Some(figure) = figure {
                gauge(definition).set(figure);
            }
        }
    }
}

/// These labels and one more.
pub(super) fn and(labels: &[Label], name: &'static str, value: &'static str) -> Vec<Label> {
    labels.iter().cloned().chain([Label::new(name, value)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Metrics;

    #[test]
    fn events_are_tallied_by_what_became_of_them() {
        let belief = Metrics::new("w").worker("a", None).belief;
        belief.applied(3, 0);
        belief.applied(2, 7);
        assert_eq!(belief.heard(), EventsHeard { total: 5, wrong_size: 7 });
    }

    #[test]
    fn reasons_come_and_go() {
        let metrics = Metrics::new("w");
        let belief = metrics.worker("a", None).belief;
        let report = |reasons| Report {
            view: Default::default(),
            weight: 0.25,
            falls_back: false,
            reasons,
            totals: Default::default(),
            last_event: None,
        };
        belief.trust(&report(vec![Reason::TokenCounts { difference: 7 }]));
        assert!(metrics.render().contains("w_trust_weight{worker=\"a\"} 0.25"));
        assert!(metrics.render().contains("w_trust_reason{worker=\"a\",reason=\"token_counts\"} 1"));
        belief.trust(&report(vec![]));
        assert!(metrics.render().contains("w_trust_reason{worker=\"a\",reason=\"token_counts\"} 0"));
    }
}
