//! Config -> how a gateway behaves.

use warmpath_core::retry::RetryRules;

use crate::config::{Config, HeaderField, Predict, Usage};
use crate::door::Intake;
use crate::http::gateway::Behaviour;
use crate::http::sender::Senders;
use crate::upstream::Timeouts;

/// How long attempts may take.
pub(super) fn attempt_timeouts(config: &Config) -> Timeouts {
    Timeouts { first_byte: config.timeouts.first_byte.get(), idle: config.timeouts.stream_idle.get() }
}

/// How it behaves, with chance and numbers of its own.
pub(super) fn behaviour(config: &Config) -> Behaviour {
    Behaviour {
        intake: Intake {
            bytes_max: config.limits.body_bytes.bytes(),
            timeout: config.timeouts.body_read.get(),
            bytes_per_second: config.limits.body_rate.bytes(),
        },
        all_body_bytes: config.limits.all_body_bytes.bytes().max(config.limits.body_bytes.bytes()),
        messages_max: usize::try_from(config.limits.messages.get()).unwrap_or(usize::MAX),
        total_timeout: config.timeouts.total.get(),
        retries: RetryRules { attempts: config.retries.attempts, server_errors: config.retries.server_errors },
        suspicion: config.retries.suspicion.get(),
        reads_prompts: config.routing.predict == Predict::Always
            || [config.routing.policy].iter().chain(&config.routing.shadow).any(|policy| !policy.is_baseline()),
        opening_characters: config.routing.chwbl.prefix_characters,
        index_seed: config.index.seed,
        objectives: config.routing.objectives,
        seed: config.routing.seed.unwrap_or_else(rand::random),
        expose_decisions: config.listen.routing_headers,
        logs_access: config.log.access,
        sample: config.tracing.sample.get(),
        senders: senders(config),
        asks_usage: config.usage == Usage::Always,
    }
}

/// The same in the place of `old`: with its chance, and knowing senders as it does.
pub(super) fn succeeding(config: &Config, old: &Behaviour) -> Behaviour {
    let new = behaviour(config);
    Behaviour { seed: old.seed, senders: new.senders.succeeding(&old.senders), ..new }
}

fn senders(config: &Config) -> Senders {
    let name = |field: &Option<HeaderField>| field.as_ref().map(|field| field.name().clone());
    let senders = Senders::new(name(&config.queue.tenant_header), name(&config.queue.class_header));
    let sessions = &config.routing.sessions;
    match sessions.rule() {
        Some(_) => senders.with_sessions(name(&sessions.header), sessions.field),
        None => senders,
    }
}
