//! Every metric: its name, kind, labels and help. Handles live in structs; nobody looks a metric up by name twice.
//!
//! Labels are bounded: models and workers are configured names (at most 64 and 1 024, the rest is `other`), reasons are
//! enums.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use warmpath_core::ids::Rank;

use crate::real::{real, real_len};
use crate::shutdown::Restarts;
pub use belief::Belief;
pub use config::ConfigMetrics;
pub use door::DoorMetrics;
use histogram::Histograms;
pub use model::ModelMetrics;
use process::ProcessMetrics;
pub use queue::QueueMetrics;
use reasons::Reasons;
pub use record::RecordMetrics;
pub use spans::SpanMetrics;
pub use tokenizer::TokenizerFigures;
pub use worker::WorkerMetrics;

mod belief;
mod config;
pub mod door;
mod histogram;
mod model;
mod process;
mod queue;
mod reasons;
mod record;
mod shadow;
mod spans;
mod tokenizer;
mod worker;

const LATENCY_BOUNDS: [f64; 14] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0];
const TTFT_BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Of costs in any unit, shares as well as tokens.
const REGRET_BOUNDS: [f64; 10] = [0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0];

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
    SHADOW_PLACEMENTS = "shadow_placements_total", Kind::Counter, "Placements by the policy, by whether a shadow policy agrees: agrees, differs or no_choice.";
    SHADOW_REGRET = "shadow_regret", Kind::Histogram(&REGRET_BOUNDS), "What a shadow policy's choice costs more than the cheapest, by the policy and in its unit.";
    UNTOKENIZED = "untokenized_total", Kind::Counter, "Requests whose token ids could not be had, by reason.";
    TOKENIZED = "tokenized_bytes_total", Kind::Counter, "Text of prompts, by what became of it: repeated, found or encoded.";
    TOKEN_HITS = "token_cache_hit_ratio", Kind::Gauge, "Share of the text that did not have to be encoded, last five minutes.";
    TOKEN_BYTES = "token_cache_bytes", Kind::Gauge, "Memory for what was tokenized before, of all models together.";
    TOKEN_CHECKS = "tokenizer_checks_total", Kind::Counter, "Prompts compared with the reference tokenizer, by result.";
    TOKEN_FAST = "tokenizer_fast", Kind::Gauge, "1 while the fast tokenizer is used, 0 while the reference is.";
    TOKEN_CUTS = "tokenizer_cuts", Kind::Gauge, "1 while texts are cut where that is safe, 0 while they are not.";
    QUEUE_LENGTH = "queue_length", Kind::Gauge, "Requests that wait for a worker, by class.";
    QUEUE_WAIT = "queue_wait_seconds", Kind::Histogram(&TTFT_BOUNDS), "How long those waited that were admitted after a wait.";
    QUEUE_REFUSALS = "queue_refusals_total", Kind::Counter, "Requests that the queue did not take or keep, by reason.";
    ROUTING_LATENCY = "routing_latency_seconds", Kind::Histogram(&LATENCY_BOUNDS), "Time to hash, match, score and reserve.";
    TTFT = "time_to_first_token_seconds", Kind::Histogram(&TTFT_BOUNDS), "From the request's arrival to its first token, of streams: other answers have no first token of their own.";
    DURATION = "request_duration_seconds", Kind::Histogram(&TTFT_BOUNDS), "From the request's arrival to its end.";
    BALANCE = "load_balance_score", Kind::Gauge, "Deviation of the workers' kv_load over its mean.";
    HIT_RATE = "kv_hit_rate", Kind::Gauge, "Predicted overlap over prompt tokens, last five minutes; as reported where prompts are not read.";
    KV_LOAD = "kv_load", Kind::Gauge, "Blocks in flight over the blocks of the worker's cache.";
    PLACED = "placed_requests_total", Kind::Counter, "Requests that the router chose the worker for.";
    IN_FLIGHT = "in_flight_requests", Kind::Gauge, "Requests sent to the worker and not finished.";
    PREFILL = "prefill_tokens_in_flight", Kind::Gauge, "Uncached prompt tokens of requests without a first token.";
    WORKER_STATE = "worker_state", Kind::Gauge, "1 for what the worker is: active, draining, ejected or down.";
    UP = "worker_up", Kind::Gauge, "1 while the worker may be chosen.";
    PROMPT_TOKENS = "prompt_tokens_total", Kind::Counter, "Prompt tokens sent to the worker: cached_tokens_total as predicted over these is the hit rate that was promised.";
    PROMPT_REPORTED = "prompt_tokens_reported_total", Kind::Counter, "Prompt tokens of answers that told their usage: cached_tokens_total as reported over these is the hit rate that engines had.";
    CACHED_TOKENS = "cached_tokens_total", Kind::Counter, "Cached prompt tokens, as predicted and as reported.";
    PREDICTIONS = "predictions_total", Kind::Counter, "Requests whose cached tokens were reported: exact, over or under.";
    PREDICTION_ERROR = "prediction_error_tokens_total", Kind::Counter, "Tokens by which predicted and reported cached tokens differ.";
    TOKEN_PARITY = "token_parity_total", Kind::Counter, "Prompts whose tokens the engine counted too: equal or differs.";
    TRUST_WEIGHT = "trust_weight", Kind::Gauge, "What a block is worth that the worker's view promises, from 0 to 1.";
    TRUST_REASON = "trust_reason", Kind::Gauge, "1 while the worker's view is doubted for this reason.";
    ENGINE_RUNNING = "engine_requests_running", Kind::Gauge, "Running requests as the engine last said.";
    ENGINE_WAITING = "engine_requests_waiting", Kind::Gauge, "Waiting requests as the engine last said.";
    ENGINE_USAGE = "engine_kv_usage", Kind::Gauge, "Share of its cache in use as the engine last said.";
    ENGINE_AGE = "engine_metrics_age_seconds", Kind::Gauge, "Time since the engine's metrics were read, or since it joined where they never were.";
    ENGINE_REPORTS = "engine_load_reports_total", Kind::Counter, "Bridges' reports of the engine's load, by outcome.";
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
    RESTARTS = "task_restarts_total", Kind::Counter, "Background tasks that panicked and began again, by task.";
    LOG_DROPPED = "log_lines_dropped_total", Kind::Counter, "Lines of the log that came faster than they could be written.";
    RECORDED = "recorded_requests_total", Kind::Counter, "Finished requests that were to be recorded, by what became of them.";
    TRACED = "traced_requests_total", Kind::Counter, "Requests whose spans were to be sent, by what became of them.";
    CONFIG_RELOADS = "config_reloads_total", Kind::Counter, "Times that a changed configuration took effect.";
    CONFIG_FAILURES = "config_reload_failures_total", Kind::Counter, "Times that a configuration was read that cannot be followed.";
    CONFIG_LOADED = "config_last_reload_success_timestamp_seconds", Kind::Gauge, "When the configuration in effect was read, since 1970.";
    CONFIG_SUCCESSFUL = "config_last_reload_successful", Kind::Gauge, "1 unless the configuration that was read last cannot be followed.";
    CONFIG_HASH = "config_hash", Kind::Gauge, "The first 32 bits of the hash of the file that was followed last: equal for equal files. What of it waits for a restart is counted by config_restart_pending.";
    CONFIG_WAITING = "config_restart_pending", Kind::Gauge, "Keys that the file has changed and that wait for a restart.";
    DISCOVERY_FAULTS = "discovery_faults", Kind::Gauge, "What is wrong with a source of workers, counted: 0 while it is well.";
    BUS_UP = "event_bus_up", Kind::Gauge, "0 while a bus that workers' events come over is not connected, or none of the engines' own sockets is.";
    BUILD = "build_info", Kind::Gauge, "1, with the version of the program.";
    PROCESS_CPU = "process_cpu_seconds_total", Kind::Counter, "Processor time of the process, in user mode and in the kernel.";
    PROCESS_MEMORY = "process_resident_memory_bytes", Kind::Gauge, "Memory of the process that is in RAM.";
    PROCESS_FILES = "process_open_fds", Kind::Gauge, "Descriptors that the process has open.";
    PROCESS_FILES_MAX = "process_max_fds", Kind::Gauge, "Descriptors that it may have open.";
}

/// The registry of one gateway, and the handles that have no worker or model.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    /// A registry for each worker, since the recorder forgets no series: one that leaves takes its registry along.
    workers: Arc<Mutex<BTreeMap<String, Arc<Registry>>>>,
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
    retries: Reasons,
    fallbacks: Reasons,
    untokenized: Reasons,
    refused: Reasons,
    process: ProcessMetrics,
}

struct Registry {
    prefix: String,
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    histograms: Histograms,
}

impl Metrics {
    /// A registry of its own: several gateways in one process do not mix.
    pub fn new(prefix: &str) -> Self {
        let registry = Registry::new(prefix);
        let registry = Arc::new(registry);
        let routing_latency = registry.histogram(&ROUTING_LATENCY, Vec::new());
        let bus_up = registry.gauge(&BUS_UP, Vec::new());
        let unmatched_topics = registry.counter(&UNMATCHED, Vec::new());
        let index_bytes = registry.gauge(&INDEX_BYTES, Vec::new());
        let index_refused = registry.counter(&INDEX_REFUSED, Vec::new());
        let index_shed = registry.counter(&INDEX_SHED, Vec::new());
        let of_no_model = vec![Label::new("model", "none")];
        Self {
            retries: Reasons::new(&registry, &RETRIES, "reason", Vec::new()),
            fallbacks: Reasons::new(&registry, &FALLBACK, "reason", Vec::new()),
            untokenized: Reasons::new(&registry, &UNTOKENIZED, "reason", Vec::new()),
            refused: Reasons::new(&registry, &REQUESTS, "outcome", of_no_model),
            process: ProcessMetrics::new(&registry),
            registry,
            workers: Arc::default(),
            routing_latency,
            bus_up,
            unmatched_topics,
            index_bytes,
            index_refused,
            index_shed,
        }
    }

    /// The exposition text: each metric once, with the series of all registries, and the process as it is now.
    pub fn render(&self) -> String {
        self.process.measure();
        self.text()
    }

    fn text(&self) -> String {
        let registries: Vec<_> = self.lock_workers().values().chain([&self.registry]).cloned().collect();
        let mut series: BTreeMap<String, String> = BTreeMap::new();
        for registry in registries {
            for (name, lines) in families(&registry.handle.render()) {
                let of_all = series.entry(name.to_owned()).or_default();
                of_all.push_str(lines.trim_end());
                of_all.push('\n');
            }
            registry.histograms.write(&mut series);
        }
        let mut text = String::new();
        for definition in ALL {
            let name = format!("{}_{}", self.registry.prefix, definition.name);
            let Some(lines) = series.get(&name) else { continue };
            let (help, kind) = (definition.help, definition.kind.word());
            text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}\n"));
        }
        text
    }

    fn lock_workers(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Registry>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The worker has left: its series end. What is still counted for it is shown nowhere.
    pub fn forget_worker(&self, worker: &str) {
        self.lock_workers().remove(worker);
    }

    /// So much is wrong with this source of workers.
    pub fn discovery(&self, source: &'static str, faults: usize) {
        self.registry.gauge(&DISCOVERY_FAULTS, vec![Label::new("source", source)]).set(real_len(faults));
    }

    /// Handles of the listener with this name.
    pub fn door(&self, listener: &'static str) -> DoorMetrics {
        DoorMetrics::new(self, listener)
    }

    /// Handles of a worker, or of one of its ranks.
    pub fn worker(&self, worker: &str, rank: Option<Rank>) -> WorkerMetrics {
        let (registry, worker) = {
            let mut workers = self.lock_workers();
            let is_full = workers.len() >= WORKERS_MAX;
            match workers.get(worker) {
                Some(registry) => (Arc::clone(registry), worker),
                None if is_full => (Arc::clone(&self.registry), "other"),
                None => {
                    let registry = Arc::new(Registry::new(&self.registry.prefix));
                    workers.insert(worker.to_owned(), Arc::clone(&registry));
                    (registry, worker)
                }
            }
        };
        let rank = rank.map(|rank| Label::new("rank", rank.0.to_string()));
        let labels: Vec<Label> = std::iter::once(Label::new("worker", worker.to_owned())).chain(rank).collect();
        WorkerMetrics::new(registry, labels)
    }

    /// How many lines of the log were dropped.
    pub fn log_dropped(&self, lines: u64) {
        self.registry.counter(&LOG_DROPPED, Vec::new()).absolute(lines);
    }

    /// An attempt on another worker.
    pub fn retry(&self, reason: &'static str) {
        self.retries.count(reason);
    }

    /// A placement that the policy left to the fallback.
    pub fn fallback(&self, reason: &'static str) {
        self.fallbacks.count(reason);
    }

    /// A request whose token ids could not be had.
    pub fn untokenized(&self, reason: &'static str) {
        self.untokenized.count(reason);
    }

    /// How often background tasks of this sort began again.
    pub fn restarts(&self, task: &'static str) -> Restarts {
        Restarts::new(task, self.registry.counter(&RESTARTS, vec![Label::new("task", task)]))
    }

    /// A request that was refused before any model was known.
    pub fn refused(&self, outcome: &'static str) {
        self.refused.count(outcome);
    }
}

const METADATA: Metadata<'static> = Metadata::new("warmpath", Level::INFO, None);

impl Kind {
    /// The exposition's word for it.
    fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// The metrics of an exposition by name, each with the lines of its series. There are no help lines: none was described.
fn families(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n\n").filter_map(|family| {
        let (head, lines) = family.trim_start_matches('\n').strip_prefix("# TYPE ")?.split_once('\n')?;
        Some((head.split_once(' ')?.0, lines))
    })
}

impl Registry {
    /// Without series.
    fn new(prefix: &str) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        Self { prefix: prefix.to_owned(), handle: recorder.handle(), recorder, histograms: Histograms::default() }
    }

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
        let Kind::Histogram(bounds) = definition.kind else { return Histogram::noop() };
        self.histograms.get(self.key(definition, labels), bounds)
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
        metrics.worker("worker-1", None).hit_rate.set(0.45);
        assert!(metrics.render().contains("dynamo_kv_hit_rate{worker=\"worker-1\"} 0.45"));
    }

    #[test]
    fn the_process_and_its_build_are_told() {
        let metrics = Metrics::new("w");
        let text = metrics.render();
        let build = format!("w_build_info{{version=\"{}\"}} 1\n", env!("CARGO_PKG_VERSION"));
        assert!(text.contains(&build) && text.contains("# TYPE w_process_cpu_seconds_total counter\n"), "{text}");
        for name in ["process_resident_memory_bytes", "process_open_fds", "process_max_fds"] {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("w_{name} "))).unwrap();
            assert!(line.parse::<f64>().unwrap() > 0.0, "{name} {line}");
        }
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
        for number in 0..WORKERS_MAX {
            metrics.worker(&number.to_string(), None);
        }
        metrics.worker("one-too-many", None).up.set(1.0);
        metrics.worker("1000", None).up.set(1.0);
        let text = metrics.render();
        assert!(text.contains("w_worker_up{worker=\"other\"} 1\n"));
        assert!(text.contains("w_worker_up{worker=\"1000\"} 1\n"));
    }

    #[test]
    fn each_metric_is_announced_once_however_many_workers_it_has() {
        let metrics = Metrics::new("w");
        for (worker, rank) in [("a", None), ("b", Some(Rank(0))), ("b", Some(Rank(3)))] {
            metrics.worker(worker, rank).up.set(1.0);
        }
        let text = metrics.render();
        assert_eq!(text.matches("# HELP w_worker_up ").count(), 1);
        assert_eq!(text.matches("# TYPE w_worker_up gauge\n").count(), 1);
        for line in ["{worker=\"a\"} 1\n", "{worker=\"b\",rank=\"0\"} 1\n", "{worker=\"b\",rank=\"3\"} 1\n"] {
            assert!(text.contains(&format!("w_worker_up{line}")), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_worker_that_left_leaves_no_series() {
        let metrics = Metrics::new("w");
        let before = metrics.text();
        let gone = metrics.worker("gone", None);
        gone.events("stored", 3);
        gone.event_lag.record(0.1);
        assert!(metrics.text().contains("worker=\"gone\""));
        metrics.forget_worker("gone");
        gone.events("stored", 1);
        assert_eq!(metrics.text(), before);
        metrics.worker("gone", None).placed.increment(1);
        assert!(metrics.text().contains("w_placed_requests_total{worker=\"gone\"} 1\n"));
    }
}
