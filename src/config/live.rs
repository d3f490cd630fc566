//! What can change while the router runs, and what needs a restart.

use std::collections::HashMap;

use super::leaves::{Leaf, Origins, leaves};
use super::{Config, EventSource, Limits, Listen, Queue, Retries, Routing, Secret, Spanned, Timeouts, Worker};

/// Keys that take effect at once; a section stands for all below it.
const LIVE: &[&str] = &[
    "listen.admin_token",
    "listen.routing_headers",
    "listen.passthrough",
    "workers",
    "routing",
    "queue.tenant_header",
    "queue.class_header",
    "index.in_flight_credit",
    "engines.half_life",
    "limits.body_bytes",
    "limits.all_body_bytes",
    "limits.body_rate",
    "limits.messages",
    "timeouts.first_byte",
    "timeouts.stream_idle",
    "timeouts.total",
    "timeouts.body_read",
    "health",
    "retries.attempts",
    "retries.server_errors",
    "retries.budget",
    "retries.budget_min",
    "log.access",
    "tracing.sample",
    "usage",
];

/// Those below them that do not.
const NOT_LIVE: &[&str] = &["routing.on_all_busy", "routing.seed", "routing.trust"];

/// Whether a change of `key` takes effect at once.
pub fn is_live(key: &str) -> bool {
    let below =
        |section: &str| key.strip_prefix(section).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    LIVE.iter().any(|section| below(section)) && !NOT_LIVE.iter().any(|section| below(section))
}

/// What becomes of `running` when `wanted` is asked for: all that can change changes, the rest stays.
pub fn adopted(running: &Config, wanted: &Config) -> Config {
    let (old, new) = (running.clone(), wanted.clone());
    // Where only the token guards the port, it does not go before the port has moved.
    let keeps_token = new.listen.admin_token.is_none() && !old.listen.admin.ip().is_loopback();
    let workers = adopted_workers(running, wanted);
    Config {
        listen: Listen {
            admin_token: if keeps_token { old.listen.admin_token } else { new.listen.admin_token },
            routing_headers: new.listen.routing_headers,
            passthrough: new.listen.passthrough,
            ..old.listen
        },
        workers,
        routing: Routing {
            on_all_busy: old.routing.on_all_busy,
            seed: old.routing.seed,
            trust: old.routing.trust,
            ..new.routing
        },
        queue: Queue { tenant_header: new.queue.tenant_header, class_header: new.queue.class_header, ..old.queue },
        index: super::Index { in_flight_credit: new.index.in_flight_credit, ..old.index },
        engines: super::Engines { half_life: new.engines.half_life, ..old.engines },
        limits: Limits {
            body_bytes: new.limits.body_bytes,
            all_body_bytes: new.limits.all_body_bytes,
            body_rate: new.limits.body_rate,
            messages: new.limits.messages,
            ..old.limits
        },
        timeouts: Timeouts {
            first_byte: new.timeouts.first_byte,
            stream_idle: new.timeouts.stream_idle,
            total: new.timeouts.total,
            body_read: new.timeouts.body_read,
            ..old.timeouts
        },
        health: new.health,
        retries: Retries { suspicion: old.retries.suspicion, ..new.retries },
        log: super::Log { access: new.log.access, ..old.log },
        tracing: super::Tracing { sample: new.tracing.sample, ..old.tracing },
        usage: new.usage,
        ..old
    }
}

/// The workers that `old` can have of those that `new` lists. Those that it cannot would leave nobody for what is served: of a
/// model that is yet to come, with events from a server that is yet to be connected, or by the ids of those that stay. Then all
/// stay as they are.
fn adopted_workers(old: &Config, new: &Config) -> Vec<Worker> {
    let names =
        |config: &Config, worker: &Worker| config.models.iter().any(|model| model.name.value == worker.model.value);
    let hears = |worker: &Worker| match old.event_source(worker) {
        EventSource::Nats => old.events.nats.url.is_some(),
        EventSource::Zmq => old.events.zmq.bind.is_some() || old.zmq_events(worker).is_some(),
        EventSource::Local | EventSource::None => true,
    };
    // Those of a model that is to go stay until it does: without them the router would not be ready.
    let last: Vec<&Worker> = old.workers.iter().filter(|worker| !names(new, worker)).collect();
    let is_free = |worker: &Worker| last.iter().all(|stays| stays.id.value != worker.id.value);
    if !new.workers.iter().all(|worker| names(old, worker) && hears(worker) && is_free(worker)) {
        return old.workers.clone();
    }
    last.iter().copied().chain(&new.workers).cloned().collect()
}

/// A value that differs between two configurations.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Change {
    /// Its name.
    pub key: String,
    /// What it was; null where it was not there.
    pub old: serde_json::Value,
    /// What it is to be; null where it is not there any more.
    pub new: serde_json::Value,
    /// Whether that takes effect at once.
    pub live: bool,
}

/// All that differs, in the order of `new`'s sections; what is gone comes last. Secrets differ without being shown.
pub fn changes(old: &Config, new: &Config) -> Vec<Change> {
    // A key that takes effect at once by itself may have to wait for another.
    let waiting = differences(&adopted(old, new), new);
    let mut found = differences(old, new);
    for change in &mut found {
        change.live = !waiting.iter().any(|waits| waits.key == change.key);
    }
    found
}

/// The same, each by itself.
fn differences(old: &Config, new: &Config) -> Vec<Change> {
    let none = Origins::default();
    let (before, after) = (leaves(old, &none), leaves(new, &none));
    let by_key = |leaves: &[Leaf]| -> HashMap<String, serde_json::Value> {
        leaves.iter().map(|leaf| (leaf.key.clone(), leaf.value.clone())).collect()
    };
    let (was, is) = (by_key(&before), by_key(&after));
    let mut found = Vec::new();
    // What a worker that comes or goes leaves unsaid is no change.
    for leaf in &after {
        let old = was.get(&leaf.key).cloned().unwrap_or_default();
        if old != leaf.value {
            let (key, new) = (leaf.key.clone(), leaf.value.clone());
            found.push(Change { live: is_live(&key), key, old, new });
        }
    }
    for leaf in before.into_iter().filter(|leaf| !is.contains_key(&leaf.key) && !leaf.value.is_null()) {
        let Leaf { key, value, .. } = leaf;
        found.push(Change { live: is_live(&key), key, old: value, new: serde_json::Value::Null });
    }
    found.extend(hidden(old, new));
    found
}

/// Secrets that differ: shown, they are all alike.
fn hidden(old: &Config, new: &Config) -> Vec<Change> {
    let mut pairs = vec![
        ("listen.admin_token".to_owned(), old.listen.admin_token.as_ref(), new.listen.admin_token.as_ref()),
        ("discovery.dns.api_key".to_owned(), old.discovery.dns.api_key.as_ref(), new.discovery.dns.api_key.as_ref()),
        (
            "discovery.kubernetes.api_key".to_owned(),
            old.discovery.kubernetes.api_key.as_ref(),
            new.discovery.kubernetes.api_key.as_ref(),
        ),
        ("discovery.nats.api_key".to_owned(), old.discovery.nats.api_key.as_ref(), new.discovery.nats.api_key.as_ref()),
    ];
    let (before, after) = (&old.events.nats, &new.events.nats);
    for (key, old, new) in [
        ("password", &before.password, &after.password),
        ("token", &before.token, &after.token),
        ("nkey_seed", &before.nkey_seed, &after.nkey_seed),
        ("credentials", &before.credentials, &after.credentials),
    ] {
        pairs.push((format!("events.nats.{key}"), text(old), text(new)));
    }
    for worker in &new.workers {
        if let Some(was) = old.workers.iter().find(|was| was.id.value == worker.id.value) {
            pairs.push((
                format!("workers[{}].api_key", worker.id.value),
                was.api_key.as_ref(),
                worker.api_key.as_ref(),
            ));
        }
    }
    let secret = || serde_json::Value::from("[secret]");
    let differ = pairs.into_iter().filter(|(_, old, new)| old.is_some() && new.is_some() && old != new);
    let sent = new.tracing.headers.changed(&old.tracing.headers).map(|name| format!("tracing.headers.{name}"));
    let keys = differ.map(|(key, ..)| key).chain(sent);
    keys.map(|key| Change { live: is_live(&key), key, old: secret(), new: secret() }).collect()
}

fn text(secret: &Option<Spanned<Secret>>) -> Option<&Secret> {
    secret.as_ref().map(|secret| &secret.value)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::config::{Environment, Reading};

    const FLEET: &str = "models: [{name: m}]\nworkers: [{id: a, url: 'http://a:1', model: m, api_key: k}]\n";

    fn read(text: &str, variables: &[(&str, &str)]) -> Option<Config> {
        let environment: Environment = variables.iter().copied().collect();
        Reading::of_text("f.yaml", text.to_owned(), Path::new("/x"), &environment).into_config().ok()
    }

    /// Values that differ from any default, of which one fits.
    const OTHERS: [&str; 14] = [
        "3",
        "0.123",
        "true",
        "false",
        "7s",
        "3MiB",
        "x",
        "always",
        "all",
        "product",
        "random",
        "error",
        "http://b:2",
        "127.0.0.1:77",
    ];

    /// Each key is given another value, one after the other: what then takes effect is what the table says.
    #[test]
    fn what_is_said_to_be_live_is_what_changes() {
        let text = format!("{FLEET}listen: {{admin_token: t}}\n");
        let old = read(&text, &[]).unwrap();
        let (mut live, mut restart) = (BTreeSet::new(), BTreeSet::new());
        for leaf in leaves(&old, &Origins::default()) {
            let steps = leaf.key.replace("[a]", "__0").replace("[m]", "__0").replace('.', "__").to_uppercase();
            let variable = format!("WARMPATH__{steps}");
            for other in OTHERS {
                let Some(new) = read(&text, &[(variable.as_str(), other)]) else { continue };
                if new == old {
                    continue;
                }
                let found = changes(&old, &new);
                let after = changes(&adopted(&old, &new), &new);
                let left: Vec<&str> = after.iter().map(|change| change.key.as_str()).collect();
                let needs: Vec<&str> =
                    found.iter().map(|change| change.key.as_str()).filter(|key| !is_live(key)).collect();
                assert_eq!(left, needs, "{} = {other}", leaf.key);
                let set = if needs.is_empty() { &mut live } else { &mut restart };
                set.extend(found.into_iter().map(|change| change.key));
            }
        }
        for key in ["routing.kv.alpha", "routing.policy", "workers[a].url", "workers[a].api_key", "limits.messages"] {
            assert!(live.contains(key), "{key}: {live:?}");
        }
        for key in ["listen.data", "index.seed", "routing.on_all_busy", "timeouts.connect", "retries.suspicion"] {
            assert!(restart.contains(key), "{key}: {restart:?}");
        }
        assert!(live.len() > 60 && restart.len() > 50, "{} {}", live.len(), restart.len());
    }

    #[test]
    fn a_port_beyond_loopback_keeps_its_token_and_models_their_workers() {
        let open = format!("{FLEET}listen: {{admin: '0.0.0.0:9', admin_token: t}}\n");
        let renamed = "models: [{name: n}]\nworkers: [{id: b, url: 'http://b:1', model: n}]\n";
        let (old, new) = (read(&open, &[]).unwrap(), read(renamed, &[]).unwrap());
        let after = adopted(&old, &new);
        assert_eq!((&after.listen, &after.workers, &after.models), (&old.listen, &old.workers, &old.models));
        let renewed = read(&open.replace("admin_token: t", "admin_token: u"), &[]).unwrap();
        assert_eq!(adopted(&old, &renewed), renewed);
    }

    /// What of `new` a router that runs `old` waits for, as far as keys of workers go.
    fn waiting(old: &str, new: &str) -> Vec<String> {
        let (old, new) = (read(old, &[]).unwrap(), read(new, &[]).unwrap());
        let after = adopted(&old, &new);
        assert_eq!(adopted(&after, &new), after, "another look changes nothing");
        let found = changes(&old, &new).into_iter().filter(|change| !change.live && change.key.starts_with("workers"));
        found.map(|change| change.key).collect()
    }

    /// Each alone takes effect; together they would leave workers that cannot be heard.
    #[test]
    fn workers_whose_events_need_a_restart_wait_for_it() {
        let on_bus = FLEET.replace("api_key: k", "api_key: k, events: nats");
        let bus = "events: {nats: {url: 'nats://n:1'}}\n";
        assert_eq!(waiting(FLEET, &format!("{on_bus}{bus}")), ["workers[a].events"]);
        assert!(waiting(&format!("{FLEET}{bus}"), &format!("{on_bus}{bus}")).is_empty());
        assert!(waiting(FLEET, &FLEET.replace("a:1", "a:2")).is_empty());
    }

    #[test]
    fn workers_of_a_model_that_goes_stay_until_it_does() {
        let two = "models: [{name: m}, {name: n}]\nworkers: [{id: a, url: 'http://a:1', model: m}, {id: b, url: 'http://b:1', \
                   model: n}]\n";
        let one = "models: [{name: m}]\nworkers: [{id: a, url: 'http://a:2', model: m}]\n";
        let waits = waiting(two, one);
        assert!(!waits.is_empty() && waits.iter().all(|key| key.starts_with("workers[b].")), "{waits:?}");
        // One that would serve another model does so after the restart, and whoever it would do it for stays as long.
        let moved = one.replace("id: a", "id: b");
        let (old, new) = (read(two, &[]).unwrap(), read(&moved, &[]).unwrap());
        assert_eq!(adopted(&old, &new).workers, old.workers);
    }

    #[test]
    fn what_differs_is_named_and_secrets_are_not_shown() {
        let (old, new) = (
            format!("{FLEET}index: {{seed: 1}}\n"),
            "models: [{name: m}]\nworkers: [{id: a, url: 'http://a:1', model: m, api_key: other}, {id: b, url: 'http://b:1', \
             model: m}]\nrouting: {kv: {alpha: 0.4}}\n"
                .to_owned(),
        );
        let found = changes(&read(&old, &[]).unwrap(), &read(&new, &[]).unwrap());
        let of = |key: &str| {
            let change = found.iter().find(|change| change.key == key).unwrap();
            (change.old.clone(), change.new.clone(), change.live)
        };
        assert_eq!(of("routing.kv.alpha"), (0.3.into(), 0.4.into(), true));
        assert_eq!(of("index.seed"), (1.into(), 1337.into(), false));
        assert_eq!(of("workers[b].url"), (Value::Null, "http://b:1".into(), true));
        let of_b: Vec<&str> = found.iter().filter_map(|change| change.key.strip_prefix("workers[b].")).collect();
        assert_eq!(of_b, ["id", "url", "model", "dp_ranks", "dp_start_rank", "max_num_seqs", "role"]);
        assert_eq!(of("workers[a].api_key"), ("[secret]".into(), "[secret]".into(), true));
        assert!(!serde_json::to_string(&found).unwrap().contains("other"));
    }
}
