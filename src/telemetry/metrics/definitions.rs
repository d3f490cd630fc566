//! Every metric: its name, kind, labels and help, in the groups of `docs/metrics.md`.

/// What a metric counts or measures.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram(&'static [f64]),
}

/// One metric, without its prefix.
pub(super) struct Definition {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Names of its labels, in their order. [`RANK`] may be missing from a series; the others are always there.
    pub(super) labels: &'static [&'static str],
    pub(super) help: &'static str,
}

/// Metrics that are about one thing.
pub(super) struct Group {
    pub(super) title: &'static str,
    pub(super) metrics: &'static [Definition],
}

/// The label that only workers with ranks have.
pub(super) const RANK: &str = "rank";

impl Kind {
    /// The exposition's word for it.
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

impl Definition {
    /// Whether a series with labels of these names is one of this metric.
    pub(super) fn takes<'a>(&self, names: impl Iterator<Item = &'a str> + Clone) -> bool {
        let has_rank = names.clone().any(|name| name == RANK);
        names.eq(self.labels.iter().copied().filter(|label| has_rank || *label != RANK))
    }
}

const LATENCY_BOUNDS: [f64; 14] =
    [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 1.0];
const TTFT_BOUNDS: [f64; 14] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// Of costs in any unit, shares as well as tokens.
const REGRET_BOUNDS: [f64; 12] = [0.0, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0, 100_000.0, 1e7, 1e9];

macro_rules! definitions {
    ($($title:literal { $($constant:ident = $name:literal, $kind:expr, $labels:expr, $help:literal;)* })*) => {
        $($(pub(super) const $constant: Definition =
            Definition { name: $name, kind: $kind, labels: &$labels, help: $help };)*)*
        pub(super) const GROUPS: &[Group] = &[$(Group { title: $title, metrics: &[$($constant),*] }),*];
    };
}

definitions! {
    "Requests" {
        REQUESTS = "requests_total", Kind::Counter, ["model", "outcome"], "Requests answered, by model and outcome.";
        TTFT = "time_to_first_token_seconds", Kind::Histogram(&TTFT_BOUNDS), ["model"], "From the request's arrival to its first token, of streams: other answers have no first token of their own.";
        OBJECTIVES = "objectives_total", Kind::Counter, ["model", "objective", "result"], "Streams whose class was promised a time to first token (ttft) or between tokens (itl), by whether that was met or missed.";
        DURATION = "request_duration_seconds", Kind::Histogram(&TTFT_BOUNDS), ["model"], "From the arrival of a request for a model to its end, whatever became of it.";
        RETRIES = "retries_total", Kind::Counter, ["reason"], "Further attempts, by what went wrong with the one before.";
        RECORDED = "recorded_requests_total", Kind::Counter, ["outcome"], "Finished requests that were to be recorded, by what became of them.";
        TRACED = "traced_requests_total", Kind::Counter, ["outcome"], "Requests whose spans were to be sent, by what became of them.";
    }

    "Routing" {
        ROUTING_LATENCY = "routing_latency_seconds", Kind::Histogram(&LATENCY_BOUNDS), [], "Time to hash, match, score and reserve.";
        FALLBACK = "fallback_total", Kind::Counter, ["reason"], "Placements that the policy left to the fallback, by reason.";
        BALANCE = "load_balance_score", Kind::Gauge, ["model"], "Deviation of the workers' kv_load over its mean.";
        SHADOW_PLACEMENTS = "shadow_placements_total", Kind::Counter, ["model", "policy", "result"], "Placements by the policy, by whether a shadow policy agrees.";
        SHADOW_REGRET = "shadow_regret", Kind::Histogram(&REGRET_BOUNDS), ["model", "policy", "active"], "What a shadow policy's choice costs more than the cheapest, by the active policy and in its unit.";
    }

    "Queue" {
        QUEUE_LENGTH = "queue_length", Kind::Gauge, ["model", "class"], "Requests that wait for a worker, by class.";
        QUEUE_WAIT = "queue_wait_seconds", Kind::Histogram(&TTFT_BOUNDS), ["model", "class"], "How long those waited that were admitted after a wait.";
        QUEUE_REFUSALS = "queue_refusals_total", Kind::Counter, ["model", "reason"], "Requests that the queue did not take or keep, by reason.";
    }

    "Token ids" {
        UNTOKENIZED = "untokenized_total", Kind::Counter, ["reason"], "Requests whose token ids could not be had, by reason.";
        TOKENIZED = "tokenized_bytes_total", Kind::Counter, ["model", "source"], "Text of prompts, by what became of it: repeated, found or encoded.";
        TOKEN_HITS = "token_cache_hit_ratio", Kind::Gauge, ["model"], "Share of the text that did not have to be encoded, last five minutes.";
        TOKEN_BYTES = "token_cache_bytes", Kind::Gauge, [], "Memory for what was tokenized before, of all models together.";
        TOKEN_CHECKS = "tokenizer_checks_total", Kind::Counter, ["model", "result"], "Prompts compared with the reference tokenizer, by result; models of one tokenizer share these figures.";
        TOKEN_FAST = "tokenizer_fast", Kind::Gauge, ["model"], "1 while the fast tokenizer is used, 0 while the reference is.";
        TOKEN_CUTS = "tokenizer_cuts", Kind::Gauge, ["model"], "1 while texts are cut where that is safe, 0 while they are not.";
    }

    "Workers" {
        UP = "worker_up", Kind::Gauge, ["worker", RANK], "1 while the worker may be chosen.";
        WORKER_STATE = "worker_state", Kind::Gauge, ["worker", RANK, "state"], "1 for what the worker is: active, draining, ejected or down.";
        PLACED = "placed_requests_total", Kind::Counter, ["worker", RANK], "Requests that the router chose the worker for.";
        IN_FLIGHT = "in_flight_requests", Kind::Gauge, ["worker", RANK], "Requests sent to the worker and not finished.";
        PREFILL = "prefill_tokens_in_flight", Kind::Gauge, ["worker", RANK], "Uncached prompt tokens of requests without a first token.";
        KV_LOAD = "kv_load", Kind::Gauge, ["worker", RANK], "Blocks in flight over the blocks of the worker's cache.";
    }

    "Hit rate and trust" {
        HIT_RATE = "kv_hit_rate", Kind::Gauge, ["worker", RANK], "Predicted overlap over prompt tokens of the answers that began, last five minutes; as reported where prompts are not read, or nobody tells what caches hold.";
        PROMPT_TOKENS = "prompt_tokens_total", Kind::Counter, ["worker", RANK], "Prompt tokens of the answers that the worker began: cached_tokens_total as predicted over these is the hit rate that was promised.";
        PROMPT_REPORTED = "prompt_tokens_reported_total", Kind::Counter, ["worker", RANK], "Prompt tokens of answers that told their cached tokens: cached_tokens_total as reported over these is the hit rate that engines had.";
        CACHED_TOKENS = "cached_tokens_total", Kind::Counter, ["worker", RANK, "source"], "Cached prompt tokens, as predicted and as reported.";
        PREDICTIONS = "predictions_total", Kind::Counter, ["worker", RANK, "result"], "Requests whose cached tokens were reported: exact, over or under.";
        PREDICTION_ERROR = "prediction_error_tokens_total", Kind::Counter, ["worker", RANK, "direction"], "Tokens by which predicted and reported cached tokens differ.";
        TOKEN_PARITY = "token_parity_total", Kind::Counter, ["worker", RANK, "result"], "Prompts whose tokens the engine counted too: equal or differs.";
        TRUST_WEIGHT = "trust_weight", Kind::Gauge, ["worker", RANK], "What a block is worth that the worker's view promises, from 0 to 1.";
        TRUST_REASON = "trust_reason", Kind::Gauge, ["worker", RANK, "reason"], "1 while the worker's view is doubted for this reason.";
    }

    "Engines" {
        ENGINE_RUNNING = "engine_requests_running", Kind::Gauge, ["worker", RANK], "Running requests as the engine last said.";
        ENGINE_WAITING = "engine_requests_waiting", Kind::Gauge, ["worker", RANK], "Waiting requests as the engine last said.";
        ENGINE_USAGE = "engine_kv_usage", Kind::Gauge, ["worker", RANK], "Share of its cache in use as the engine last said.";
        ENGINE_AGE = "engine_metrics_age_seconds", Kind::Gauge, ["worker", RANK], "Time since the engine's metrics were read, or since it joined where they never were.";
        ENGINE_SCRAPES = "engine_scrapes_total", Kind::Counter, ["worker", RANK, "outcome"], "Attempts to read the engine's metrics, by outcome.";
        ENGINE_REPORTS = "engine_load_reports_total", Kind::Counter, ["worker", RANK, "outcome"], "Bridges' reports of the engine's load, by outcome.";
    }

    "Events" {
        BUS_UP = "event_bus_up", Kind::Gauge, [], "0 while a bus that workers' events come over is not connected, or none of the engines' own sockets is.";
        EVENTS = "kv_events_total", Kind::Counter, ["worker", RANK, "outcome"], "KV-cache events, by what became of them.";
        EVENT_LAG = "kv_event_lag_seconds", Kind::Histogram(&TTFT_BOUNDS), ["worker", RANK], "From the engine's time stamp to the index, of batches that came by themselves.";
        EVENT_GAPS = "kv_event_gaps_total", Kind::Counter, ["worker", RANK], "Losses of events that emptied a worker's view.";
        EVENT_RESTARTS = "kv_event_restarts_total", Kind::Counter, ["worker", RANK], "Engine restarts seen in its events.";
        EVENTS_HELD = "kv_events_held", Kind::Gauge, ["worker", RANK], "Event batches that wait for others.";
        REPAIRS = "kv_view_repairs_total", Kind::Counter, ["worker", RANK, "outcome"], "Repairs of a worker's view, by how they ended.";
        SUSPECT = "kv_view_suspect", Kind::Gauge, ["worker", RANK], "1 while something is thought to be missing in the worker's view.";
        COLD = "kv_view_cold", Kind::Gauge, ["worker", RANK], "1 while the view lacks what was said before a loss, or cannot be read.";
        UNMATCHED = "kv_event_unmatched_topics_total", Kind::Counter, [], "Messages of engines that connected to us whose topic names no worker.";
    }

    "Index" {
        INDEX_BLOCKS = "index_blocks", Kind::Gauge, ["worker", RANK], "Blocks that the index holds for the worker.";
        INDEX_BYTES = "index_bytes", Kind::Gauge, [], "Heap of the prefix index, the engines' own names for blocks included.";
        INDEX_WORKER_BYTES = "index_worker_bytes", Kind::Gauge, ["worker", RANK], "Heap of the worker's own names for blocks in the index.";
        INDEX_SHED = "index_shed_entries_total", Kind::Counter, [], "Entries that the index let go to make room for others.";
        INDEX_REFUSED = "index_refused_blocks_total", Kind::Counter, [], "Blocks not remembered because the index was full.";
        RESTORED = "index_restored_blocks_total", Kind::Counter, ["worker", RANK], "Blocks of the worker that were read from the file of the run before.";
        CREDIT = "in_flight_credit_blocks", Kind::Gauge, ["worker", RANK], "Blocks that count as cached because the worker was sent them, before its events come.";
        HISTORY_UNITS = "history_units", Kind::Gauge, ["worker", RANK], "What approx_tree (tokens, characters) or approx_lru (blocks) remembers.";
        HISTORY_SWEPT = "history_swept_units", Kind::Gauge, ["worker", RANK, "moment"], "The same before and after the last sweep that found too much.";
        HISTORY_EVICTED = "history_evicted_units_total", Kind::Counter, ["worker", RANK], "What was evicted from it, least recently used first.";
    }

    "Connections" {
        CONNECTIONS = "client_connections", Kind::Gauge, ["listener"], "Connections of clients, by listener.";
        CONNECTIONS_OPENED = "client_connections_opened_total", Kind::Counter, ["listener"], "Connections of clients that were accepted.";
        CONNECTIONS_CLOSED = "client_connections_closed_total", Kind::Counter, ["listener", "reason"], "Connections of clients that ended, by reason.";
        CONNECTIONS_REFUSED = "client_connections_refused_total", Kind::Counter, ["listener", "reason"], "Connections that were turned away, by reason.";
        ACCEPT_FAILURES = "accept_failures_total", Kind::Counter, ["listener", "reason"], "Connections that could not be accepted, by reason.";
        STREAMS_RESET = "client_streams_reset_total", Kind::Counter, ["listener", "reason"], "Streams of HTTP/2 that were reset, by reason.";
        HANDSHAKE_FAILURES = "tls_handshake_failures_total", Kind::Counter, ["listener", "reason"], "TLS handshakes that failed, by reason.";
        CERTIFICATE_READS = "tls_certificate_reads_total", Kind::Counter, ["listener", "outcome"], "Times that a changed certificate was read: renewed or refused.";
        CERTIFICATE_EXPIRY = "tls_certificate_expiry_timestamp_seconds", Kind::Gauge, ["listener"], "When the certificate in use expires, since 1970.";
    }

    "Configuration" {
        CONFIG_RELOADS = "config_reloads_total", Kind::Counter, [], "Times that a configuration was read anew and followed, whether anything in it had changed or not.";
        CONFIG_FAILURES = "config_reload_failures_total", Kind::Counter, [], "Times that a configuration was read that cannot be followed.";
        CONFIG_LOADED = "config_last_reload_success_timestamp_seconds", Kind::Gauge, [], "When the configuration in effect was read, since 1970.";
        CONFIG_SUCCESSFUL = "config_last_reload_successful", Kind::Gauge, [], "1 unless the configuration that was read last cannot be followed.";
        CONFIG_HASH = "config_hash", Kind::Gauge, [], "The first 32 bits of the hash of the file that was followed last: equal for equal files. What of it waits for a restart is counted by config_restart_pending.";
        CONFIG_WAITING = "config_restart_pending", Kind::Gauge, [], "Keys that the file has changed and that wait for a restart.";
        DISCOVERY_FAULTS = "discovery_faults", Kind::Gauge, ["source"], "What is wrong with a source of workers, counted: 0 while it is well.";
    }

    "Process" {
        BUILD = "build_info", Kind::Gauge, ["version"], "1, with the version of the program.";
        PROCESS_CPU = "process_cpu_seconds_total", Kind::Counter, [], "Processor time of the process, in user mode and in the kernel.";
        PROCESS_MEMORY = "process_resident_memory_bytes", Kind::Gauge, [], "Memory of the process that is in RAM.";
        PROCESS_FILES = "process_open_fds", Kind::Gauge, [], "Descriptors that the process has open.";
        PROCESS_FILES_MAX = "process_max_fds", Kind::Gauge, [], "Descriptors that it may have open.";
        RESTARTS = "task_restarts_total", Kind::Counter, ["task"], "Background tasks that panicked and began again, by task.";
        LOG_DROPPED = "log_lines_dropped_total", Kind::Counter, [], "Lines of the log that were lost: they came faster than they could be written, or could not be written at all.";
    }
}
