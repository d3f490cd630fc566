//! The words of labels whose values are names that the code has, and what each of them tells.

/// The values of one label, of the metrics that share them.
pub(super) struct Words {
    /// Metrics, without their prefix.
    pub(super) of: &'static [&'static str],
    pub(super) label: &'static str,
    /// Each with its meaning.
    pub(super) all: &'static [(&'static str, &'static str)],
}

impl Words {
    /// Those of a metric's label, if it has such.
    pub(super) fn of(metric: &str, label: &str) -> Option<&'static Self> {
        WORDS.iter().find(|words| words.label == label && words.of.contains(&metric))
    }

    pub(super) fn has(&self, word: &str) -> bool {
        self.all.iter().any(|(known, _)| *known == word)
    }
}

/// In the order of the groups.
pub(super) const WORDS: &[Words] = &[
    Words {
        of: &["requests_total"],
        label: "outcome",
        all: &[
            ("ok", "the worker answered, and all of it was relayed"),
            ("worker_refused", "the worker refused it as the client's fault; its answer was relayed"),
            ("worker_error", "the worker answered 500 or another 5xx that is not tried again; its answer was relayed"),
            ("broken", "the worker broke off, or fell silent, after its answer had begun"),
            ("client_left", "the client closed its connection, or cancelled the request, before the end"),
            ("deadline", "it did not end within its time"),
            ("bad_request", "the request is at fault: its head, body, method or path"),
            ("unknown_model", "no such model, alias or adapter"),
            ("queue_refused", "the queue did not take or keep it; `queue_refusals_total` tells why"),
            ("tenant_full", "as many of its tenant waited as may"),
            ("all_busy", "every worker was at its limit, and requests do not wait (`routing.on_all_busy`)"),
            ("no_worker", "no worker may be chosen"),
            ("upstream_error", "every attempt at a worker failed"),
            ("suspect", "not tried again: workers broke under it (`retries.suspicion`)"),
            ("too_many_in_flight", "`limits.in_flight` requests were under way"),
            ("too_many_connections", "`limits.connections` clients were connected"),
            ("no_room", "the bodies of all requests together were as large as they may be"),
            ("no_descriptors", "no file descriptor was left for a connection to a worker"),
            ("shutting_down", "the router was told to stop"),
            ("internal", "the router failed: a bug, with a line in the log"),
        ],
    },
    Words {
        of: &["objectives_total"],
        label: "objective",
        all: &[("ttft", "the time to the first token"), ("itl", "the mean time between tokens")],
    },
    Words {
        of: &["objectives_total"],
        label: "result",
        all: &[("met", "it was no longer than was promised"), ("missed", "it was longer")],
    },
    Words {
        of: &["retries_total"],
        label: "reason",
        all: &[
            ("connect", "no connection: refused, timed out, or its handshake failed"),
            ("no_descriptors", "no file descriptor was left for one"),
            ("stale_connection", "a kept connection ended before the answer began"),
            ("broken", "the connection broke before the answer began, or what came was no HTTP"),
            ("first_byte_timeout", "no data within `timeouts.first_byte`"),
            ("unavailable", "the worker answered 502, 503 or 504, or its stream began with an error"),
            ("too_many_requests", "the worker answered 429"),
            ("denied", "the worker refused the router's key"),
            ("model_not_served", "the worker answered that it does not serve the model"),
            ("server_error", "the worker answered 500, and `retries.server_errors` is on"),
            ("ejected", "an operator ejected the worker"),
        ],
    },
    Words {
        of: &["recorded_requests_total"],
        label: "outcome",
        all: &[
            ("written", "in the file"),
            ("dropped", "came faster than they could be written"),
            ("failed", "the file could not be written"),
            ("unknown_tokens", "the prompt's token ids could not be had"),
        ],
    },
    Words {
        of: &["traced_requests_total"],
        label: "outcome",
        all: &[
            ("sent", "taken by the receiver"),
            ("dropped", "came faster than they could be sent"),
            ("failed", "the receiver refused them, or was not there"),
        ],
    },
    Words {
        of: &["fallback_total"],
        label: "reason",
        all: &[("all_zero", "the policy had nothing to tell the workers apart by")],
    },
    Words {
        of: &["shadow_placements_total"],
        label: "result",
        all: &[
            ("agrees", "it would have chosen the same worker"),
            ("differs", "another one"),
            (
                "against_rule",
                "another one, to which the active policy's rule sends nobody, or nobody while it is so full: a regret without a size",
            ),
            ("no_choice", "none"),
        ],
    },
    Words {
        of: &["queue_refusals_total"],
        label: "reason",
        all: &[
            ("full", "as many waited as may, none of them less urgent"),
            ("tenant_full", "as many of the tenant waited as may"),
            ("displaced", "something more urgent took its place"),
            ("expired", "no worker was free within `queue.timeout`"),
            ("deadline", "the request's own time was over while it waited"),
            ("client_left", "the client left while it waited"),
            ("shutting_down", "the router was told to stop, and did not wait any longer"),
        ],
    },
    Words {
        of: &["untokenized_total"],
        label: "reason",
        all: &[
            ("media", "messages with images, sound or video"),
            ("prompt_embeds", "the prompt is made of vectors"),
            ("request_template", "the request brings a chat template of its own"),
            ("engine_rules", "the engine, SGLang, makes another text of such a chat than is made here"),
            ("template_variables", "a variable for the template has the name of a parameter of the engine's renderer"),
            ("template_error", "the template refuses the chat, fails, or reads the time of day"),
            ("no_template", "the tokenizer has no chat template"),
            ("no_tokenizer", "the model has no tokenizer"),
            ("loading", "the tokenizer is being loaded"),
            ("load_failed", "the tokenizer could not be loaded"),
            ("too_long", "longer than is worth tokenising"),
            ("tokenizer_busy", "too many long texts were being tokenised"),
            ("tokenizer_error", "the tokenizer failed on the text"),
            ("truncation", "the prompt is truncated, in which engines differ"),
            ("remote_failed", "the engine's `/tokenize` gave no usable answer"),
        ],
    },
    Words {
        of: &["tokenized_bytes_total"],
        label: "source",
        all: &[
            ("repeated", "of requests that were known as a whole"),
            ("found", "of parts that were known"),
            ("encoded", "new"),
        ],
    },
    Words {
        of: &["tokenizer_checks_total"],
        label: "result",
        all: &[
            ("equal", "the same ids"),
            ("differs", "other ids: the reference is used from then on"),
            ("skipped", "not compared: there was no time"),
        ],
    },
    Words {
        of: &["worker_state"],
        label: "state",
        all: &[
            ("active", "gets requests"),
            ("draining", "finishes what it has"),
            ("ejected", "gets nothing, and what it had not begun went to others"),
            ("down", "cannot be reached, or fails"),
        ],
    },
    Words {
        of: &["cached_tokens_total"],
        label: "source",
        all: &[("predicted", "as the index promised"), ("reported", "as the engine said")],
    },
    Words {
        of: &["predictions_total"],
        label: "result",
        all: &[("exact", "as many as were promised"), ("over", "more were promised"), ("under", "fewer were promised")],
    },
    Words {
        of: &["prediction_error_tokens_total"],
        label: "direction",
        all: &[("over", "promised and not found"), ("under", "found and not promised")],
    },
    Words {
        of: &["token_parity_total"],
        label: "result",
        all: &[("equal", "both counted the same"), ("differs", "they did not: another tokenizer or template?")],
    },
    Words {
        of: &["trust_reason"],
        label: "reason",
        all: &[
            ("repairing", "events are missing and being fetched"),
            ("unproven", "after a reconnection, the next event tells whether any is missing"),
            ("token_counts", "the engine counts other tokens in prompts"),
            ("promises_too_much", "the engine finds less in its cache than the view says"),
            ("promises_too_little", "the engine finds more in its cache than the view says"),
            ("block_size", "its events carry blocks of another size"),
            ("no_events", "requests finish, and no event comes"),
        ],
    },
    Words {
        of: &["engine_scrapes_total", "engine_load_reports_total"],
        label: "outcome",
        all: &[
            ("ok", "read"),
            ("late", "something newer had come on another way"),
            ("failed", "no answer, or none that can be read"),
            ("unknown_names", "no known engine's names are in them"),
            ("absent", "a report says nothing of this rank"),
            ("refused", "a report cannot be read"),
        ],
    },
    Words {
        of: &["kv_events_total"],
        label: "outcome",
        all: &[
            ("stored", "a block that the engine had no copy of"),
            ("copy", "a further copy of a block"),
            ("reported", "a block that the engine reuses and names again"),
            ("removed", "a copy taken away"),
            ("orphan", "refused: below a parent that the view does not hold"),
            ("wrong_block_size", "refused: blocks of another size than the pool's"),
            ("filtered", "passed over: of a group or tier that does not feed the index"),
            ("conflict", "refused: under a name that stands for another block"),
            ("unknown", "removed, or placed in one more tier, without being known there"),
            ("over_limit", "refused: the index is full"),
            ("cut", "blocks that the event's tokens did not reach"),
            ("replayed", "a batch that came again because it was asked for"),
            ("duplicate", "a batch that had come before"),
            ("rejected", "an event that could not be understood"),
            ("undecodable", "a batch that could not be read"),
            ("foreign", "a batch of another worker or rank, or without the numbers that its others have"),
            ("unexpected_topic", "a message of a topic that was not asked for"),
            ("malformed", "a message of another form"),
            ("queue_full", "a message that found no room, and is fetched again"),
        ],
    },
    Words {
        of: &["kv_view_repairs_total"],
        label: "outcome",
        all: &[
            ("whole", "nothing was missing"),
            ("replayed", "what was missing was sent again"),
            ("snapshot", "filled from a snapshot"),
            ("no_replay", "emptied: the source brings nothing again"),
            ("history_gone", "emptied: the source does not go back far enough"),
            ("unanswered", "emptied: the source did not answer, several times"),
            ("overflow", "emptied: more came than can be held meanwhile"),
            ("unreadable", "emptied: what came cannot be read"),
        ],
    },
    Words {
        of: &["history_swept_units"],
        label: "moment",
        all: &[("before", "what was too much"), ("after", "what was kept")],
    },
    Words {
        of: &["client_connections_closed_total"],
        label: "reason",
        all: &[
            ("done", "the client left, or the last answer said that it was the last"),
            ("broken", "the client left in the middle, or makes no sense"),
            ("handshake", "the TLS handshake failed"),
            ("stopped", "the router stops"),
            ("head_timeout", "a request's head took longer than `timeouts.header_read`, or the first one did not come"),
            ("idle", "no further request for `timeouts.client_idle`"),
            ("stalled", "the client took nothing for `timeouts.client_stall`"),
            ("late", "the client did not take the rest of an answer in its request's time"),
        ],
    },
    Words {
        of: &["client_connections_refused_total"],
        label: "reason",
        all: &[
            ("full", "`limits.connections` are open"),
            ("address", "`limits.connections_per_address` of one address are open"),
        ],
    },
    Words {
        of: &["accept_failures_total"],
        label: "reason",
        all: &[("no_descriptors", "no file descriptor was left"), ("other", "the log tells")],
    },
    Words {
        of: &["client_streams_reset_total"],
        label: "reason",
        all: &[("stalled", "the client took nothing of it for `timeouts.client_stall`")],
    },
    Words {
        of: &["tls_handshake_failures_total"],
        label: "reason",
        all: &[
            ("timeout", "longer than `timeouts.header_read`"),
            ("client_certificate", "none, or one that is not accepted"),
            ("refused_by_client", "the client does not accept the router's certificate, or nothing that is offered"),
            ("protocol", "what came is not TLS, or none that both speak"),
            ("disconnected", "the client left"),
        ],
    },
    Words {
        of: &["tls_certificate_reads_total"],
        label: "outcome",
        all: &[("renewed", "in use now"), ("refused", "cannot be used, or is outside its time: the old one stays")],
    },
    Words {
        of: &["discovery_faults"],
        label: "source",
        all: &[
            ("list", "`workers`"),
            ("file", "`discovery.file`"),
            ("dns", "`discovery.dns`"),
            ("kubernetes", "`discovery.kubernetes`"),
            ("nats", "`discovery.nats`"),
        ],
    },
    Words {
        of: &["task_restarts_total"],
        label: "task",
        all: &[
            ("event_source", "reads a bus or an engine's sockets"),
            ("events", "applies a worker's events"),
            ("probe", "checks a worker's health"),
            ("scrape", "reads an engine's metrics"),
            ("offers", "asks a worker for its models and adapters"),
            ("load", "hears reports of a worker's load over NATS"),
            ("discovery", "looks for workers"),
            ("members", "takes workers in, and lets them go"),
            ("reload", "follows the configuration's file"),
        ],
    },
];
