//! What is measured of one worker, or of one of its ranks.

use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Label};
use warmpath_core::count::real;
use warmpath_core::history::Measured;

use super::belief::{self, Belief};
use super::reasons::Reasons;
use super::{
    CACHED_TOKENS, COLD, CREDIT, EVENT_GAPS, EVENT_LAG, EVENT_RESTARTS, EVENTS, EVENTS_HELD, HISTORY_EVICTED,
    HISTORY_SWEPT, HISTORY_UNITS, HIT_RATE, IN_FLIGHT, INDEX_BLOCKS, INDEX_WORKER_BYTES, KV_LOAD, PLACED, PREDICTIONS,
    PREFILL, PROMPT_REPORTED, PROMPT_TOKENS, REPAIRS, RESTORED, Registry, SUSPECT, UP, WORKER_STATE,
};

/// Handles of one worker.
#[derive(Clone)]
pub struct WorkerMetrics {
    registry: Arc<Registry>,
    labels: Vec<Label>,
    events: Reasons,
    repairs: Reasons,
    predictions: Reasons,
    /// What its history had evicted when it was last measured; none where it never had one.
    history_evicted: Arc<Mutex<Option<u64>>>,
    /// Hit rate over five minutes.
    pub hit_rate: Gauge,
    /// Share of its cache in flight.
    pub kv_load: Gauge,
    /// Requests that it was chosen for.
    pub placed: Counter,
    /// Requests in flight.
    pub in_flight: Gauge,
    /// Uncached prompt tokens of requests without a first token.
    pub prefill: Gauge,
    /// Whether it may be chosen.
    pub up: Gauge,
    /// Prompt tokens of answers that began.
    pub prompt_tokens: Counter,
    /// Prompt tokens of answers that told their cached tokens.
    pub prompt_reported: Counter,
    /// Cached tokens, as the index promised.
    pub cached_predicted: Counter,
    /// Cached tokens, as the engine reported.
    pub cached_reported: Counter,
    /// Losses of events.
    pub event_gaps: Counter,
    /// Engine restarts.
    pub event_restarts: Counter,
    /// Whether something is thought to be missing in its view.
    pub suspect: Gauge,
    /// Whether its view began empty in the middle.
    pub cold: Gauge,
    /// Event batches that wait for others.
    pub events_held: Gauge,
    /// Age of events when they are applied.
    pub event_lag: Histogram,
    /// Blocks in the index.
    pub index_blocks: Gauge,
    /// Bytes of its own names of them.
    pub index_worker_bytes: Gauge,
    /// Blocks that count as cached because they are in flight.
    pub credit: Gauge,
    /// Blocks that were known before the first event.
    pub restored: Counter,
    /// How its promises hold, and what it says of its load.
    pub belief: Belief,
}

impl WorkerMetrics {
    /// Handles of the series with these labels.
    pub(super) fn new(registry: Arc<Registry>, labels: Vec<Label>) -> Self {
        let cached = |source: &'static str| {
            let labels = labels.iter().cloned().chain([Label::new("source", source)]).collect();
            registry.counter(&CACHED_TOKENS, labels)
        };
        let told_apart = |definition, label| Reasons::new(&registry, definition, label, labels.clone());
        Self {
            events: told_apart(&EVENTS, "outcome"),
            repairs: told_apart(&REPAIRS, "outcome"),
            predictions: told_apart(&PREDICTIONS, "result"),
            history_evicted: Arc::default(),
            hit_rate: registry.gauge(&HIT_RATE, labels.clone()),
            kv_load: registry.gauge(&KV_LOAD, labels.clone()),
            placed: registry.counter(&PLACED, labels.clone()),
            in_flight: registry.gauge(&IN_FLIGHT, labels.clone()),
            prefill: registry.gauge(&PREFILL, labels.clone()),
            up: registry.gauge(&UP, labels.clone()),
            prompt_tokens: registry.counter(&PROMPT_TOKENS, labels.clone()),
            prompt_reported: registry.counter(&PROMPT_REPORTED, labels.clone()),
            cached_predicted: cached("predicted"),
            cached_reported: cached("reported"),
            event_gaps: registry.counter(&EVENT_GAPS, labels.clone()),
            event_restarts: registry.counter(&EVENT_RESTARTS, labels.clone()),
            suspect: registry.gauge(&SUSPECT, labels.clone()),
            cold: registry.gauge(&COLD, labels.clone()),
            events_held: registry.gauge(&EVENTS_HELD, labels.clone()),
            event_lag: registry.histogram(&EVENT_LAG, labels.clone()),
            index_blocks: registry.gauge(&INDEX_BLOCKS, labels.clone()),
            index_worker_bytes: registry.gauge(&INDEX_WORKER_BYTES, labels.clone()),
            credit: registry.gauge(&CREDIT, labels.clone()),
            restored: registry.counter(&RESTORED, labels.clone()),
            belief: Belief::new(&registry, &labels),
            registry,
            labels,
        }
    }

    /// The worker's labels and one more.
    fn labels_and(&self, name: &'static str, value: &'static str) -> Vec<Label> {
        belief::and(&self.labels, name, value)
    }

    /// `count` events met this end.
    pub fn events(&self, outcome: &'static str, count: u64) {
        if count > 0 {
            self.events.add(outcome, count);
        }
    }

    /// What the worker is now, of all that it could be.
    pub fn state(&self, now: &'static str, all: &[&'static str]) {
        for state in all {
            let value = if *state == now { 1.0 } else { 0.0 };
            self.registry.gauge(&WORKER_STATE, self.labels_and("state", state)).set(value);
        }
    }

    /// A repair of its view ended like this.
    pub fn repair(&self, outcome: &'static str) {
        self.repairs.count(outcome);
    }

    /// What the policy's history remembers of the worker, if it has one. Who never had one has no such series.
    pub fn history(&self, measured: Option<Measured>) {
        let mut evicted = self.history_evicted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(measured) = measured.or_else(|| evicted.map(|_| Measured::default())) else { return };
        // Another history, and one that forgot the worker, count from nothing.
        let before = evicted.replace(measured.evicted).unwrap_or(0);
        let more = measured.evicted.checked_sub(before).unwrap_or(measured.evicted);
        let swept = |moment: &'static str, units: u64| {
            self.registry.gauge(&HISTORY_SWEPT, self.labels_and("moment", moment)).set(real(units));
        };
        self.registry.gauge(&HISTORY_UNITS, self.labels.clone()).set(real(measured.units));
        swept("before", measured.before_eviction);
        swept("after", measured.after_eviction);
        self.registry.counter(&HISTORY_EVICTED, self.labels.clone()).increment(more);
    }

    /// An engine reported what it took from its cache.
    pub fn prediction(&self, predicted: u32, reported: u32) {
        let result = match predicted.cmp(&reported) {
            std::cmp::Ordering::Equal => "exact",
            std::cmp::Ordering::Greater => "over",
            std::cmp::Ordering::Less => "under",
        };
        self.predictions.count(result);
        self.belief.predicted(predicted, reported);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    #[test]
    fn another_history_goes_on_counting_and_none_remembers_nothing() {
        let metrics = Metrics::new("w");
        let worker = metrics.worker("a", None);
        let told = |measured: Option<(u64, u64)>| {
            worker.history(measured.map(|(units, evicted)| Measured { units, evicted, ..Measured::default() }));
            let text = metrics.render();
            let value = |name: &str| Some(text.lines().find_map(|line| line.strip_prefix(name))?.trim().to_owned());
            (value("w_history_units{worker=\"a\"}"), value("w_history_evicted_units_total{worker=\"a\"}"))
        };
        let seen = |units: &str, evicted: &str| (Some(units.to_owned()), Some(evicted.to_owned()));
        assert_eq!(told(None), (None, None), "who never had one has no series");
        assert_eq!(told(Some((5, 3))), seen("5", "3"));
        assert_eq!(told(Some((6, 4))), seen("6", "4"));
        assert_eq!(told(Some((2, 1))), seen("2", "5"), "a fresh one");
        assert_eq!(told(None), seen("0", "5"));
    }

    #[test]
    fn a_wait_without_a_first_token_is_judged_once_it_is_too_long() {
        let metrics = Metrics::new("w");
        let model = metrics.model(0, "m");
        let [short, long] = [1, 3].map(std::time::Duration::from_secs);
        for (waited, limit) in [(short, Some(long)), (long, None), (long, Some(short))] {
            model.no_first_token(waited, limit);
        }
        let text = metrics.render();
        let missed: Vec<_> = text.lines().filter(|line| line.starts_with("w_objectives_total{")).collect();
        assert!(missed.iter().any(|line| line.contains("missed") && line.ends_with(" 1")), "{missed:?}");
        assert!(!missed.iter().any(|line| line.contains("\"met\"") && !line.ends_with(" 0")), "{missed:?}");
    }
}
