//! What is measured, as handles in structs: nobody looks a metric up by name twice. Each is defined in `definitions`.
//!
//! Labels are bounded: models and workers are configured names (at most 64 and 1 024, the rest is `other`), reasons are
//! enums.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use warmpath_core::count::real_len;
use warmpath_core::ids::Rank;

use crate::shutdown::Restarts;
use crate::telemetry::parting::Parting;
pub use belief::Belief;
pub use config::ConfigMetrics;
use definitions::*;
pub use door::DoorMetrics;
use histogram::Histograms;
pub use model::ModelMetrics;
use process::ProcessMetrics;
pub use queue::QueueMetrics;
use reasons::Reasons;
pub use record::RecordMetrics;
pub use reference::reference;
pub use spans::SpanMetrics;
pub use tokenizer::TokenizerFigures;
pub use worker::WorkerMetrics;

mod belief;
mod config;
mod definitions;
pub mod door;
mod histogram;
mod model;
mod process;
mod queue;
mod reasons;
mod record;
mod reference;
mod shadow;
mod spans;
mod tokenizer;
mod words;
mod worker;

/// The most values of the labels `model` and `worker`.
const MODELS_MAX: usize = 64;
const WORKERS_MAX: usize = 1024;

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
    /// Why requests end that nobody waits for any more.
    pub parting: Parting,
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
            parting: Parting::default(),
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
        for definition in GROUPS.iter().flat_map(|group| group.metrics) {
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

    /// The one place where series get their names, so the one that holds labels and their words to what is
    /// declared.
    fn key(&self, definition: &Definition, labels: Vec<Label>) -> Key {
        debug_assert!(
            definition.takes(labels.iter().map(Label::key)),
            "{}: not its labels: {labels:?}",
            definition.name
        );
        debug_assert!(
            labels.iter().all(|label| {
                let words = words::Words::of(definition.name, label.key());
                words.is_none_or(|words| words.has(label.value()))
            }),
            "{}: a word that is not told: {labels:?}",
            definition.name
        );
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
    use std::time::Duration;

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
    fn what_was_promised_is_met_or_missed_where_it_was_promised() {
        let metrics = Metrics::new("w");
        let (model, second) = (metrics.model(0, "m"), Duration::from_secs(1));
        model.first_token(second, None);
        model.first_token(second, Some(second));
        model.first_token(second, Some(second / 2));
        model.gaps(second, second / 2);
        let text = metrics.render();
        let counted: Vec<&str> = text.lines().filter(|line| line.starts_with("w_objectives_total")).collect();
        let line = |objective, result| {
            format!("w_objectives_total{{model=\"m\",objective=\"{objective}\",result=\"{result}\"}} 1")
        };
        let mut expected = [("ttft", "met"), ("ttft", "missed"), ("itl", "missed")].map(|(name, how)| line(name, how));
        expected.sort();
        let mut counted = counted;
        counted.sort_unstable();
        assert_eq!(counted, expected);
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
