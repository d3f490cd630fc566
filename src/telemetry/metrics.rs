//! Every metric: its name, kind, labels and help. Handles live in structs; nobody looks a metric up by name twice.
//!
//! Labels are bounded: models and workers are configured names (at most 64 and 1 024, the rest is `other`), reasons are
//! enums.

use std::sync::Arc;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use warmpath_core::history::Measured;

use crate::real::real;
pub use belief::Belief;
pub use door::DoorMetrics;

mod belief;
pub mod door;

const LATENCY_BOUNDS: [f64; 14] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0];
const TTFT_BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The most values of the labels `model` and `worker`.
const MODELS_MAX: usize = 64;
const WORKERS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// One metric, without its prefix.
struct Definition {
    name: &'static str,
    kind: Kind,
    help: &'static str,
}

macro_rules! definitions {
    ($($constant:ident = $name:literal, $kind:expr, $help:literal;)*) => {
        $(const $constant: Definition = Definition { name: $name, kind: $kind, help: $help };)*
        const ALL: &[Definition] = &[$($constant),*];
    };
}

definitions! {
    REQUESTS = "requests_total", Kind::Counter, "Requests answered, by model and outcome.";
    RETRIES = "retries_total", Kind::Counter, "Attempts on another worker, by reason.";
    FALLBACK = "fallback_total", Kind::Counter, "Placements that the policy left to the fallback, by reason.";
    UNTOKENIZED = "untokenized_total", Kind::Counter, "Requests whose token ids could not be had, by reason.";
    ROUTING_LATENCY = "routing_latency_seconds", Kind::Histogram(&LATENCY_BOUNDS), "Time to hash, match, score and reserve.";
    TTFT = "time_to_first_token_seconds", Kind::Histogram(&TTFT_BOUNDS), "From the request's arrival to its first token.";
    DURATION = "request_duration_seconds", Kind::Histogram(&TTFT_BOUNDS), "From the request's arrival to its end.";
    BALANCE = "load_balance_score", Kind::Gauge, "Deviation of the workers' kv_load over its mean.";
    HIT_RATE = "kv_hit_rate", Kind::Gauge, "Predicted overlap over prompt tokens, last five minutes.";
    KV_LOAD = "kv_load", Kind::Gauge, "Blocks in flight over the blocks of the worker's cache.";
    PLACED = "placed_requests_total", Kind::Counter, "Requests that the router chose the worker for.";
    IN_FLIGHT = "in_flight_requests", Kind::Gauge, "Requests sent to the worker and not finished.";
    PREFILL = "prefill_tokens_in_flight", Kind::Gauge, "Uncached prompt tokens of requests without a first token.";
    UP = "worker_up", Kind::Gauge, "1 while the worker may be chosen.";
    PROMPT_TOKENS = "prompt_tokens_total", Kind::Counter, "Prompt tokens sent to the worker.";
    CACHED_TOKENS = "cached_tokens_total", Kind::Counter, "Cached prompt tokens, as predicted and as reported.";
    PREDICTIONS = "predictions_total", Kind::Counter, "Requests whose cached tokens were reported: exact, over or under.";
    PREDICTION_ERROR = "prediction_error_tokens_total", Kind::Counter, "Tokens by which predicted and reported cached tokens differ.";
    TOKEN_PARITY = "token_parity_total", Kind::Counter, "Prompts whose tokens the engine counted too: equal or differs.";
    TRUST_WEIGHT = "trust_weight", Kind::Gauge, "What a block is worth that the worker's view promises, from 0 to 1.";
    TRUST_REASON = "trust_reason", Kind::Gauge, "1 while the worker's view is doubted for this reason.";
    ENGINE_RUNNING = "engine_requests_running", Kind::Gauge, "Running requests as the engine last said.";
    ENGINE_WAITING = "engine_requests_waiting", Kind::Gauge, "Waiting requests as the engine last said.";
    ENGINE_USAGE = "engine_kv_usage", Kind::Gauge, "Share of its cache in use as the engine last said.";
    ENGINE_AGE = "engine_metrics_age_seconds", Kind::Gauge, "Time since the engine's metrics were read.";
    ENGINE_SCRAPES = "engine_scrapes_total", Kind::Counter, "Attempts to read the engine's metrics, by outcome.";
    EVENTS = "kv_events_total", Kind::Counter, "KV-cache events, by what became of them.";
    EVENT_GAPS = "kv_event_gaps_total", Kind::Counter, "Losses of events that emptied a worker's view.";
    EVENT_RESTARTS = "kv_event_restarts_total", Kind::Counter, "Engine restarts seen in its events.";
    REPAIRS = "kv_view_repairs_total", Kind::Counter, "Repairs of a worker's view, by how they ended.";
    SUSPECT = "kv_view_suspect", Kind::Gauge, "1 while something is thought to be missing in the worker's view.";
    COLD = "kv_view_cold", Kind::Gauge, "1 while the view lacks what was said before a loss, or cannot be read.";
    EVENTS_HELD = "kv_events_held", Kind::Gauge, "Event batches that wait for others.";
    EVENT_LAG = "kv_event_lag_seconds", Kind::Histogram(&TTFT_BOUNDS), "From the engine's time stamp to the index.";
    INDEX_BLOCKS = "index_blocks", Kind::Gauge, "Blocks that the index holds for the worker.";
    INDEX_BYTES = "index_bytes", Kind::Gauge, "Heap of the prefix index, the engines' own names for blocks included.";
    INDEX_WORKER_BYTES = "index_worker_bytes", Kind::Gauge, "Heap of the worker's own names for blocks in the index.";
    INDEX_SHED = "index_shed_entries_total", Kind::Counter, "Entries that the index let go to make room for others.";
    CREDIT = "in_flight_credit_blocks", Kind::Gauge, "Blocks that count as cached because the worker was sent them, before its events come.";
    INDEX_REFUSED = "index_refused_blocks_total", Kind::Counter, "Blocks not remembered because the index was full.";
    HISTORY_UNITS = "history_units", Kind::Gauge, "What approx_tree (tokens, characters) or approx_lru (blocks) remembers.";
    HISTORY_SWEPT = "history_swept_units", Kind::Gauge, "The same before and after the last sweep that found too much.";
    HISTORY_EVICTED = "history_evicted_units_total", Kind::Counter, "What was evicted from it, least recently used first.";
    RESTORED = "index_restored_blocks_total", Kind::Counter, "Blocks of the worker that were read from the file of the run before.";
    UNMATCHED = "kv_event_unmatched_topics_total", Kind::Counter, "Messages of engines that connected to us whose topic names no worker.";
    CONNECTIONS = "client_connections", Kind::Gauge, "Connections of clients, by listener.";
    CONNECTIONS_OPENED = "client_connections_opened_total", Kind::Counter, "Connections of clients that were accepted.";
    CONNECTIONS_CLOSED = "client_connections_closed_total", Kind::Counter, "Connections of clients that ended, by reason.";
    CONNECTIONS_REFUSED = "client_connections_refused_total", Kind::Counter, "Connections that were turned away, by reason.";
    ACCEPT_FAILURES = "accept_failures_total", Kind::Counter, "Connections that could not be accepted, by reason.";
    STREAMS_RESET = "client_streams_reset_total", Kind::Counter, "Streams of HTTP/2 that were reset, by reason.";
    HANDSHAKE_FAILURES = "tls_handshake_failures_total", Kind::Counter, "TLS handshakes that failed, by reason.";
    CERTIFICATE_READS = "tls_certificate_reads_total", Kind::Counter, "Times that a changed certificate was read: renewed or refused.";
    CERTIFICATE_EXPIRY = "tls_certificate_expiry_timestamp_seconds", Kind::Gauge, "When the certificate in use expires, since 1970.";
    BUS_UP = "event_bus_up", Kind::Gauge, "1 while the event bus is connected.";
}

/// The registry of one gateway, and the handles that have no worker or model.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// Time to hash, match, score and reserve.
    pub routing_latency: Histogram,
    /// 1 while the event bus is connected.
    pub bus_up: Gauge,
    /// Messages whose topic names no worker.
    pub unmatched_topics: Counter,
    /// Heap of the prefix index.
    pub index_bytes: Gauge,
    /// Blocks that the full index did not take.
    pub index_refused: Counter,
    /// Entries that the index let go.
    pub index_shed: Counter,
}

struct Registry {
    prefix: String,
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

/// Handles of one model.
#[derive(Clone)]
pub struct ModelMetrics {
    metrics: Metrics,
    model: String,
    /// Arrival to first token.
    pub ttft: Histogram,
    /// Arrival to end.
    pub duration: Histogram,
    /// How uneven the pool's load is.
    pub balance: Gauge,
}

/// Handles of one worker.
#[derive(Clone)]
pub struct WorkerMetrics {
    metrics: Metrics,
    worker: String,
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
    /// Prompt tokens sent.
    pub prompt_tokens: Counter,
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

impl Metrics {
    /// A registry of its own: several gateways in one process do not mix. Fails only on an empty set of bounds.
    pub fn new(prefix: &str) -> Self {
        let mut builder = PrometheusBuilder::new();
        for definition in ALL {
            if let Kind::Histogram(bounds) = definition.kind {
                let name = Matcher::Full(format!("{prefix}_{}", definition.name));
                builder = builder.set_buckets_for_metric(name, bounds).expect("bounds are not empty");
            }
        }
        let recorder = builder.build_recorder();
        let registry = Registry { prefix: prefix.to_owned(), handle: recorder.handle(), recorder };
        registry.describe();
        let registry = Arc::new(registry);
        let routing_latency = registry.histogram(&ROUTING_LATENCY, Vec::new());
        let bus_up = registry.gauge(&BUS_UP, Vec::new());
        let unmatched_topics = registry.counter(&UNMATCHED, Vec::new());
        let index_bytes = registry.gauge(&INDEX_BYTES, Vec::new());
        let index_refused = registry.counter(&INDEX_REFUSED, Vec::new());
        let index_shed = registry.counter(&INDEX_SHED, Vec::new());
        Self { registry, routing_latency, bus_up, unmatched_topics, index_bytes, index_refused, index_shed }
    }

    /// The exposition text.
    pub fn render(&self) -> String {
        self.registry.handle.run_upkeep();
        self.registry.handle.render()
    }

    /// Handles of the listener with this name.
    pub fn door(&self, listener: &'static str) -> DoorMetrics {
        DoorMetrics::new(self, listener)
    }

    /// Handles of the `place`-th model.
    pub fn model(&self, place: usize, model: &str) -> ModelMetrics {
        let model = if place < MODELS_MAX { model } else { "other" };
        let labels = || vec![Label::new("model", model.to_owned())];
        ModelMetrics {
            ttft: self.registry.histogram(&TTFT, labels()),
            duration: self.registry.histogram(&DURATION, labels()),
            balance: self.registry.gauge(&BALANCE, labels()),
            model: model.to_owned(),
            metrics: self.clone(),
        }
    }

    /// Handles of the `place`-th target, whose worker has this name.
    pub fn worker(&self, place: usize, worker: &str) -> WorkerMetrics {
        let worker = if place < WORKERS_MAX { worker } else { "other" };
        let labels = || vec![Label::new("worker", worker.to_owned())];
        let cached = |source: &'static str| {
            let labels = vec![Label::new("worker", worker.to_owned()), Label::new("source", source)];
            self.registry.counter(&CACHED_TOKENS, labels)
        };
        WorkerMetrics {
            hit_rate: self.registry.gauge(&HIT_RATE, labels()),
            kv_load: self.registry.gauge(&KV_LOAD, labels()),
            placed: self.registry.counter(&PLACED, labels()),
            in_flight: self.registry.gauge(&IN_FLIGHT, labels()),
            prefill: self.registry.gauge(&PREFILL, labels()),
            up: self.registry.gauge(&UP, labels()),
            prompt_tokens: self.registry.counter(&PROMPT_TOKENS, labels()),
            cached_predicted: cached("predicted"),
            cached_reported: cached("reported"),
            event_gaps: self.registry.counter(&EVENT_GAPS, labels()),
            event_restarts: self.registry.counter(&EVENT_RESTARTS, labels()),
            suspect: self.registry.gauge(&SUSPECT, labels()),
            cold: self.registry.gauge(&COLD, labels()),
            events_held: self.registry.gauge(&EVENTS_HELD, labels()),
            event_lag: self.registry.histogram(&EVENT_LAG, labels()),
            index_blocks: self.registry.gauge(&INDEX_BLOCKS, labels()),
            index_worker_bytes: self.registry.gauge(&INDEX_WORKER_BYTES, labels()),
            credit: self.registry.gauge(&CREDIT, labels()),
            restored: self.registry.counter(&RESTORED, labels()),
            belief: Belief::new(self, worker),
            worker: worker.to_owned(),
            metrics: self.clone(),
        }
    }

    /// An attempt on another worker.
    pub fn retry(&self, reason: &'static str) {
        self.registry.counter(&RETRIES, vec![Label::new("reason", reason)]).increment(1);
    }

    /// A placement that the policy left to the fallback.
    pub fn fallback(&self, reason: &'static str) {
        self.registry.counter(&FALLBACK, vec![Label::new("reason", reason)]).increment(1);
    }

    /// A request whose token ids could not be had.
    pub fn untokenized(&self, reason: &'static str) {
        self.registry.counter(&UNTOKENIZED, vec![Label::new("reason", reason)]).increment(1);
    }

    /// A request that was refused before any model was known.
    pub fn refused(&self, outcome: &'static str) {
        let labels = vec![Label::new("model", "none"), Label::new("outcome", outcome)];
        self.registry.counter(&REQUESTS, labels).increment(1);
    }
}

impl ModelMetrics {
    /// A request ended.
    pub fn request(&self, outcome: &'static str) {
        let labels = vec![Label::new("model", self.model.clone()), Label::new("outcome", outcome)];
        self.metrics.registry.counter(&REQUESTS, labels).increment(1);
    }
}

impl WorkerMetrics {
    /// `count` events met this end.
    pub fn events(&self, outcome: &'static str, count: u64) {
        if count > 0 {
            self.belief.events(outcome, count);
            let labels = vec![Label::new("worker", self.worker.clone()), Label::new("outcome", outcome)];
            self.metrics.registry.counter(&EVENTS, labels).increment(count);
        }
    }

    /// A repair of its view ended like this.
    pub fn repair(&self, outcome: &'static str) {
        let labels = vec![Label::new("worker", self.worker.clone()), Label::new("outcome", outcome)];
        self.metrics.registry.counter(&REPAIRS, labels).increment(1);
    }

    /// What the policy's history remembers of the worker. Policies without one have no such series.
    pub fn history(&self, measured: &Measured) {
        let label = || Label::new("worker", self.worker.clone());
        let swept = |moment: &'static str, units: u64| {
            let labels = vec![label(), Label::new("moment", moment)];
            self.metrics.registry.gauge(&HISTORY_SWEPT, labels).set(real(units));
        };
        self.metrics.registry.gauge(&HISTORY_UNITS, vec![label()]).set(real(measured.units));
        swept("before", measured.before_eviction);
        swept("after", measured.after_eviction);
        self.metrics.registry.counter(&HISTORY_EVICTED, vec![label()]).absolute(measured.evicted);
    }

    /// An engine reported what it took from its cache.
    pub fn prediction(&self, predicted: u32, reported: u32) {
        let result = match predicted.cmp(&reported) {
            std::cmp::Ordering::Equal => "exact",
            std::cmp::Ordering::Greater => "over",
            std::cmp::Ordering::Less => "under",
        };
        let labels = vec![Label::new("worker", self.worker.clone()), Label::new("result", result)];
        self.metrics.registry.counter(&PREDICTIONS, labels).increment(1);
        self.belief.predicted(predicted, reported);
    }
}

const METADATA: Metadata<'static> = Metadata::new("warmpath", Level::INFO, None);

impl Registry {
    fn key(&self, definition: &Definition, labels: Vec<Label>) -> Key {
        Key::from_parts(format!("{}_{}", self.prefix, definition.name), labels)
    }

    fn counter(&self, definition: &Definition, labels: Vec<Label>) -> Counter {
        self.recorder.register_counter(&self.key(definition, labels), &METADATA)
    }

    fn gauge(&self, definition: &Definition, labels: Vec<Label>) -> Gauge {
        self.recorder.register_gauge(&self.key(definition, labels), &METADATA)
    }

    fn histogram(&self, definition: &Definition, labels: Vec<Label>) -> Histogram {
        self.recorder.register_histogram(&self.key(definition, labels), &METADATA)
    }

    fn describe(&self) {
        for definition in ALL {
            let name = KeyName::from(format!("{}_{}", self.prefix, definition.name));
            let unit = definition.name.ends_with("_seconds").then_some(Unit::Seconds);
            match definition.kind {
                Kind::Counter => self.recorder.describe_counter(name, unit, definition.help.into()),
                Kind::Gauge => self.recorder.describe_gauge(name, unit, definition.help.into()),
                Kind::Histogram(_) => self.recorder.describe_histogram(name, unit, definition.help.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100 observations of 0.5 ms, 850 of 3 ms and 49 of 8 ms.
    #[test]
    fn r036_routing_latency_has_the_buckets_that_users_ask_about() {
        let metrics = Metrics::new("warmpath");
        for (count, seconds) in [(100, 0.0005), (850, 0.003), (49, 0.008)] {
            metrics.routing_latency.record_many(seconds, count);
        }
        let text = metrics.render();
        for (bound, count) in [("0.001", 100), ("0.005", 950), ("0.01", 999)] {
            let line = format!("warmpath_routing_latency_seconds_bucket{{le=\"{bound}\"}} {count}");
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }

    ///
    #[test]
    fn r038_the_prefix_is_a_choice() {
        let metrics = Metrics::new("dynamo");
        metrics.worker(0, "worker-1").hit_rate.set(0.45);
        assert!(metrics.render().contains("dynamo_kv_hit_rate{worker=\"worker-1\"} 0.45"));
    }

    #[test]
    fn two_registries_do_not_mix() {
        let (first, second) = (Metrics::new("a"), Metrics::new("a"));
        first.retry("connect");
        assert!(first.render().contains("a_retries_total{reason=\"connect\"} 1"));
        assert!(!second.render().contains("a_retries_total{"));
    }

    #[test]
    fn beyond_the_bound_a_label_is_other() {
        let metrics = Metrics::new("w");
        metrics.worker(WORKERS_MAX, "one-too-many").up.set(1.0);
        assert!(metrics.render().contains("w_worker_up{worker=\"other\"} 1"));
    }
}
