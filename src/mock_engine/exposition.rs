//! The engine's metrics, under vLLM's names or SGLang's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::real::real_len;
use crate::sim::{Engine, Ms, RequestId, TokenOut};

const SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0];
const METADATA: Metadata<'static> = Metadata::new("mock_engine", Level::INFO, None);

/// A counter of what the engine counts itself, which begins anew when it is started anew.
struct Total {
    counter: Counter,
    seen: AtomicU64,
}

impl From<Counter> for Total {
    fn from(counter: Counter) -> Self {
        Self { counter, seen: AtomicU64::new(0) }
    }
}

impl Total {
    fn follow(&self, total: u64) {
        let seen = self.seen.swap(total, Ordering::Relaxed);
        self.counter.increment(total.checked_sub(seen).unwrap_or(total));
    }
}

/// Whose names metrics have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Vllm,
    Sglang,
}

/// The metrics of all ranks.
pub(super) struct Exposition {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    model: String,
    names: Names,
    /// The text as it was when metrics went stale; none while they are fresh.
    stale: Mutex<Option<String>>,
}

/// Handles of every metric of one rank that routers read; what an engine does not have goes nowhere.
pub(super) struct RankMetrics {
    names: Names,
    running: Gauge,
    waiting: Gauge,
    usage: Gauge,
    queries: Total,
    hits: Total,
    prompt_tokens: Total,
    generated_tokens: Total,
    finished: Counter,
    preemptions: Total,
    aborted: Total,
    /// Of the hits, those that lay in the host.
    host_hits: Total,
    hit_rate: Gauge,
    ttft: Histogram,
    itl: Histogram,
    e2e: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    lives: Mutex<HashMap<RequestId, Life>>,
}

/// When a request arrived, and when its first and last tokens came.
#[derive(Clone, Copy)]
struct Life {
    arrived: Ms,
    first: Ms,
    last: Option<Ms>,
}

struct Registry<'a> {
    recorder: &'a PrometheusRecorder,
    model: &'a str,
    names: Names,
    rank: u32,
}

impl Registry<'_> {
    fn key(&self, name: &str, more: &[(&'static str, String)]) -> Key {
        let (engine, rank) = match self.names {
            Names::Vllm => ("vllm", "engine"),
            Names::Sglang => ("sglang", "dp_rank"),
        };
        let mut labels = vec![Label::new("model_name", self.model.to_owned()), Label::new(rank, self.rank.to_string())];
        labels.extend(more.iter().map(|(name, value)| Label::new(*name, value.clone())));
        Key::from_parts(format!("{engine}:{name}"), labels)
    }

    fn labelled(&self, name: &str, label: &'static str, value: &str) -> Counter {
        self.recorder.register_counter(&self.key(name, &[(label, value.to_owned())]), &METADATA)
    }

    fn gauge(&self, name: &str) -> Gauge {
        self.recorder.register_gauge(&self.key(name, &[]), &METADATA)
    }

    fn counter(&self, name: &str) -> Counter {
        self.recorder.register_counter(&self.key(name, &[]), &METADATA)
    }

    fn histogram(&self, name: &str) -> Histogram {
        self.recorder.register_histogram(&self.key(name, &[]), &METADATA)
    }
}

impl Exposition {
    /// The metrics of an engine that serves `model`.
    pub(super) fn new(model: &str, names: Names) -> Self {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .expect("bounds are not empty");
        let recorder = builder.build_recorder();
        Self { handle: recorder.handle(), recorder, model: model.to_owned(), names, stale: Mutex::default() }
    }

    /// Those of one rank, which has `blocks` blocks.
    pub(super) fn rank(&self, rank: u32, block_size: u32, blocks: u32) -> RankMetrics {
        let Self { recorder, model, names, .. } = self;
        let registry = Registry { recorder, model, names: *names, rank };
        match names {
            Names::Vllm => vllm(&registry, block_size, blocks),
            Names::Sglang => sglang(&registry),
        }
    }

    /// Lets the metrics stay as they are, or follow the engine again.
    pub(super) fn set_stale(&self, is_stale: bool) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        *stale = if is_stale { stale.take().or_else(|| Some(self.fresh())) } else { None };
    }

    /// The exposition text.
    pub(super) fn render(&self) -> String {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner).clone();
        stale.unwrap_or_else(|| self.fresh())
    }

    fn fresh(&self) -> String {
        self.handle.run_upkeep();
        self.handle.render()
    }
}

fn vllm(registry: &Registry<'_>, block_size: u32, blocks: u32) -> RankMetrics {
    let sizes = [("block_size", block_size.to_string()), ("num_gpu_blocks", blocks.to_string())];
    registry.recorder.register_gauge(&registry.key("cache_config_info", &sizes), &METADATA).set(1.0);
    RankMetrics {
        names: registry.names,
        running: registry.gauge("num_requests_running"),
        waiting: registry.gauge("num_requests_waiting"),
        usage: registry.gauge("kv_cache_usage_perc"),
        queries: registry.counter("prefix_cache_queries_total").into(),
        hits: registry.counter("prefix_cache_hits_total").into(),
        prompt_tokens: registry.counter("prompt_tokens_total").into(),
        generated_tokens: registry.counter("generation_tokens_total").into(),
        finished: registry.labelled("request_success_total", "finished_reason", "length"),
        preemptions: registry.counter("num_preemptions_total").into(),
        aborted: Counter::noop().into(),
        host_hits: Counter::noop().into(),
        hit_rate: Gauge::noop(),
        ttft: registry.histogram("time_to_first_token_seconds"),
        itl: registry.histogram("inter_token_latency_seconds"),
        e2e: registry.histogram("e2e_request_latency_seconds"),
        queue: registry.histogram("request_queue_time_seconds"),
        prefill: registry.histogram("request_prefill_time_seconds"),
        decode: registry.histogram("request_decode_time_seconds"),
        lives: Mutex::default(),
    }
}

fn sglang(registry: &Registry<'_>) -> RankMetrics {
    RankMetrics {
        names: registry.names,
        running: registry.gauge("num_running_reqs"),
        waiting: registry.gauge("num_queue_reqs"),
        usage: registry.gauge("token_usage"),
        queries: Counter::noop().into(),
        hits: registry.labelled("cached_tokens_total", "cache_source", "device").into(),
        prompt_tokens: registry.counter("prompt_tokens_total").into(),
        generated_tokens: registry.counter("generation_tokens_total").into(),
        finished: registry.counter("num_requests_total"),
        preemptions: Counter::noop().into(),
        aborted: registry.counter("num_aborted_requests_total").into(),
        host_hits: registry.labelled("cached_tokens_total", "cache_source", "host").into(),
        hit_rate: registry.gauge("cache_hit_rate"),
        ttft: registry.histogram("time_to_first_token_seconds"),
        itl: registry.histogram("inter_token_latency_seconds"),
        e2e: registry.histogram("e2e_request_latency_seconds"),
        queue: Histogram::noop(),
        prefill: Histogram::noop(),
        decode: Histogram::noop(),
        lives: Mutex::default(),
    }
}

impl RankMetrics {
    /// A request was queued.
    pub(super) fn arrived(&self, id: RequestId, now: Ms) {
        self.lives().insert(id, Life { arrived: now, first: now, last: None });
    }

    /// A request's client has left.
    pub(super) fn left(&self, id: RequestId) {
        self.lives().remove(&id);
    }

    /// A token was generated.
    pub(super) fn token(&self, token: &TokenOut, now: Ms) {
        let mut lives = self.lives();
        let Some(life) = lives.get_mut(&token.id) else { return };
        match life.last {
            None => {
                self.ttft.record(seconds(now - life.arrived));
                life.first = now;
            }
            Some(last) => self.itl.record(seconds(now - last)),
        }
        life.last = Some(now);
        if let Some(first) = token.first {
            self.queue.record(seconds(first.queued));
            self.prefill.record(seconds(now - life.arrived - first.queued));
        }
        if token.finished.is_some() {
            self.e2e.record(seconds(now - life.arrived));
            self.decode.record(seconds(now - life.first));
            self.finished.increment(1);
            lives.remove(&token.id);
        }
    }

    /// Levels and totals as they stand between two steps.
    pub(super) fn levels(&self, engine: &Engine) {
        let stats = engine.stats();
        self.running.set(real_len(stats.running));
        self.waiting.set(real_len(stats.waiting));
        self.usage.set(stats.kv_usage);
        self.hit_rate.set(real_len(stats.prefix_hits) / real_len(stats.prefix_queries.max(1)));
        let hits = match self.names {
            Names::Vllm => stats.prefix_hits,
            Names::Sglang => stats.prefix_hits.saturating_sub(stats.loaded),
        };
        let totals = [
            (&self.queries, stats.prefix_queries),
            (&self.hits, hits),
            (&self.host_hits, stats.loaded),
            (&self.aborted, stats.aborted),
            (&self.prompt_tokens, stats.prompt_tokens),
            (&self.generated_tokens, stats.generation_tokens),
            (&self.preemptions, stats.preemptions),
        ];
        for (counter, total) in totals {
            counter.follow(u64::try_from(total).unwrap_or(u64::MAX));
        }
    }

    fn lives(&self) -> std::sync::MutexGuard<'_, HashMap<RequestId, Life>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(span: Ms) -> f64 {
    span.0 / 1e3
}
