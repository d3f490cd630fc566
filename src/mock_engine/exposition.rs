//! The engine's metrics, under vLLM's names or SGLang's.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use warmpath_core::count::real_len;
use warmpath_simulator::{EngineStats, Levels, Ms, RequestId, TokenOut};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};

use crate::wall_clock;

const SECONDS: [f64; 16] =
    [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 60.0];
const METADATA: Metadata<'static> = Metadata::new("mock_engine", Level::INFO, None);

/// Whose names metrics have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Vllm,
    Sglang,
}

/// What metrics are of.
pub(super) struct Subject {
    pub(super) model: String,
    pub(super) names: Names,
    pub(super) ranks: u32,
    pub(super) block_size: u32,
    /// Of each rank.
    pub(super) blocks: u32,
}

/// The metrics of all ranks.
pub(super) struct Exposition {
    subject: Subject,
    process: Mutex<Process>,
    /// The text as it was when metrics went stale; none while they are fresh.
    stale: Mutex<Option<String>>,
}

/// The metrics of one process: the next one's begin at 0.
struct Process {
    /// The processes that there were before.
    lives: u64,
    recorder: PrometheusRecorder,
}

/// Handles of every metric of one rank that routers read; what an engine does not have goes nowhere.
pub(super) struct RankMetrics {
    names: Names,
    running: Gauge,
    waiting: Gauge,
    usage: Gauge,
    queries: Counter,
    hits: Counter,
    prompt_tokens: Counter,
    generated_tokens: Counter,
    finished: Counter,
    preemptions: Counter,
    aborted: Counter,
    /// Of the hits, those that lay in the host.
    host_hits: Counter,
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
    /// The metrics of an engine whose process starts now.
    pub(super) fn new(subject: Subject) -> Self {
        Self { process: Mutex::new(subject.begin(0)), subject, stale: Mutex::default() }
    }

    /// Those of one rank, whose process had so many before it. The first rank that has another one begins it for all.
    pub(super) fn rank(&self, rank: u32, lives: u64) -> RankMetrics {
        let mut process = self.process();
        if lives > process.lives {
            *process = self.subject.begin(lives);
        }
        self.subject.rank(&process.recorder, rank)
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
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
        let handle = self.process().recorder.handle();
        handle.run_upkeep();
        handle.render()
    }
}

impl Subject {
    /// The metrics of a process that starts now, with those of every rank.
    fn begin(&self, lives: u64) -> Process {
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
            .expect("bounds are not empty");
        let recorder = builder.build_recorder();
        if self.names == Names::Vllm {
            of_process(&recorder);
        }
        for rank in 0..self.ranks {
            self.rank(&recorder, rank);
        }
        Process { lives, recorder }
    }

    fn rank(&self, recorder: &PrometheusRecorder, rank: u32) -> RankMetrics {
        let registry = Registry { recorder, model: &self.model, names: self.names, rank };
        match self.names {
            Names::Vllm => vllm(&registry, self.block_size, self.blocks),
            Names::Sglang => sglang(&registry),
        }
    }
}

/// What is told once for all ranks, by vLLM; SGLang's processes tell together, and nothing of each.
fn of_process(recorder: &PrometheusRecorder) {
    let now_s = wall_clock::now().as_secs_f64();
    let adapters = [("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")];
    let adapters = adapters.map(|(name, value)| Label::new(name, value)).to_vec();
    for key in [
        Key::from_name("process_start_time_seconds"),
        // Its value is when the lists became what they are.
        Key::from_parts("vllm:lora_requests_info", adapters),
    ] {
        recorder.register_gauge(&key, &METADATA).set(now_s);
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
        queries: registry.counter("prefix_cache_queries_total"),
        hits: registry.counter("prefix_cache_hits_total"),
        prompt_tokens: registry.counter("prompt_tokens_total"),
        generated_tokens: registry.counter("generation_tokens_total"),
        finished: registry.labelled("request_success_total", "finished_reason", "length"),
        preemptions: registry.counter("num_preemptions_total"),
        aborted: Counter::noop(),
        host_hits: Counter::noop(),
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
        queries: Counter::noop(),
        hits: registry.labelled("cached_tokens_total", "cache_source", "device"),
        prompt_tokens: registry.counter("prompt_tokens_total"),
        generated_tokens: registry.counter("generation_tokens_total"),
        finished: registry.counter("num_requests_total"),
        preemptions: Counter::noop(),
        aborted: registry.counter("num_aborted_requests_total"),
        host_hits: registry.labelled("cached_tokens_total", "cache_source", "host"),
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

    /// What the engine is busy with.
    pub(super) fn levels(&self, levels: &Levels) {
        self.running.set(real_len(levels.running));
        self.waiting.set(real_len(levels.waiting));
        self.usage.set(levels.kv_usage);
    }

    /// Levels and totals as they stand between two steps.
    pub(super) fn ended(&self, stats: &EngineStats) {
        let EngineStats { levels, totals, .. } = stats;
        self.levels(levels);
        self.hit_rate.set(real_len(totals.prefix_hits) / real_len(totals.prefix_queries.max(1)));
        let hits = match self.names {
            Names::Vllm => totals.prefix_hits,
            Names::Sglang => totals.prefix_hits.saturating_sub(totals.loaded),
        };
        let counters = [
            (&self.queries, totals.prefix_queries),
            (&self.hits, hits),
            (&self.host_hits, totals.loaded),
            (&self.aborted, totals.aborted),
            (&self.prompt_tokens, totals.prompt_tokens),
            (&self.generated_tokens, totals.generation_tokens),
            (&self.preemptions, totals.preemptions),
        ];
        for (counter, total) in counters {
            counter.absolute(u64::try_from(total).unwrap_or(u64::MAX));
        }
    }

    fn lives(&self) -> MutexGuard<'_, HashMap<RequestId, Life>> {
        self.lives.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(span: Ms) -> f64 {
    span.0 / 1e3
}
