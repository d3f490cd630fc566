//! Which changes of a configuration no simulated fleet shows.

use std::collections::HashSet;

use serde_json::Value;
use warmpath_core::policy::PolicyName;

use super::engines::{Given, asked, serving};
use crate::config::{Change, Config};
use crate::replay::trace::TraceRequest;

/// What the router of a simulated fleet goes by: [`Config::simulated`].
const REPLAYED: &[&str] =
    &["routing.", "index.in_flight_credit", "index.max_entries", "engines.half_life", "engines.metrics_interval"];

/// What it does otherwise, or never comes to: all requests are of the default class and known by their blocks, no engine has
/// anything below its cache, or fails, and all of them tell what they do.
const LEFT_OUT: &[&str] = &[
    "routing.on_all_busy",
    "routing.predict",
    "routing.seed",
    "routing.shadow",
    "routing.objectives.high",
    "routing.objectives.low",
    "routing.tiers.host",
    "routing.tiers.disk",
    "routing.tiers.external",
    "routing.sessions.header",
    "routing.sessions.field",
    "routing.chwbl.prefix_characters",
    "routing.trust.event_silence",
];

/// What one replay goes by.
pub(super) struct Basis<'a> {
    /// Of what simulated fleets go by in general, that which comes to nothing here.
    left_out: Vec<&'static str>,
    /// What is taken of a worker, and of a model.
    of_engines: Vec<&'static str>,
    /// The workers that serve the trace under either configuration, and their models.
    workers: HashSet<&'a str>,
    models: HashSet<&'a str>,
    /// Whether there are as many engines as the configurations list workers.
    is_counted: bool,
}

impl<'a> Basis<'a> {
    /// Of the replay of this trace under these configurations.
    pub(super) fn of(trace: &[TraceRequest], configs: [&'a Config; 2], given: Given) -> Self {
        let mut left_out = LEFT_OUT.to_vec();
        if trace.iter().all(|request| request.session().is_none()) {
            left_out.push("routing.sessions");
        }
        // Where tokens are known only this policy ever prefers nobody.
        if configs.iter().all(|config| config.routing.policy != PolicyName::Logit) {
            left_out.push("routing.fallback");
        }
        let serving = || configs.into_iter().flat_map(|config| serving(config, asked(trace, config)));
        let mut of_engines = vec!["max_num_seqs", "model"];
        if given.workers.is_none() {
            of_engines.push("dp_ranks");
        }
        if given.cache_blocks.is_none() {
            of_engines.push("capacity_blocks");
            // Blocks of a trace have the size that it says; one that is configured only tells how much a cache holds.
            if serving().any(|worker| worker.capacity_blocks.is_some()) {
                of_engines.push("block_size");
            }
        }
        Self {
            left_out,
            of_engines,
            workers: serving().map(|worker| worker.id.as_str()).collect(),
            models: serving().map(|worker| worker.model.as_str()).collect(),
            is_counted: given.workers.is_none(),
        }
    }

    /// The keys of the changes that it does not show; of those, workers that come or go are none where they are counted.
    pub(super) fn unreplayed<'c>(&self, found: &'c [Change]) -> Vec<&'c str> {
        let shown = |change: &&Change| self.shows(&change.key) || self.counts(&change.key, found);
        found.iter().filter(|change| !shown(change)).map(|change| &*change.key).collect()
    }

    /// The same in words; nothing where there are none.
    pub(super) fn told(&self, found: &[Change]) -> String {
        let keys = self.unreplayed(found);
        if keys.is_empty() { String::new() } else { format!("not in the replay: {}\n", keys.join(", ")) }
    }

    fn shows(&self, key: &str) -> bool {
        if let Some((entry, field)) = key.rsplit_once("].") {
            let is_replayed = match entry.split_once('[') {
                Some(("workers", id)) => self.workers.contains(id),
                Some(("models", name)) => self.models.contains(name),
                _ => false,
            };
            return is_replayed && self.of_engines.contains(&field);
        }
        let begins = |with: &&str| key.starts_with(*with);
        REPLAYED.iter().any(begins) && !self.left_out.iter().any(begins)
    }

    /// Whether the key is of a worker that comes or goes as a whole, and is an engine more or less.
    fn counts(&self, key: &str, found: &[Change]) -> bool {
        let Some((worker, _)) = key.strip_prefix("workers[").and_then(|rest| rest.split_once("].")) else {
            return false;
        };
        let url = format!("workers[{worker}].url");
        let comes_or_goes = |change: &Change| change.old == Value::Null || change.new == Value::Null;
        let is_engine = self.is_counted && self.workers.contains(worker);
        is_engine && found.iter().any(|change| change.key == url && comes_or_goes(change))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::changes;
    use crate::replay::trace::About;

    const NOTHING: Given = Given { workers: None, cache_blocks: None };

    const FLEET: &str = "models: [{name: m}, {name: other}]\nworkers:\n- {id: a, url: 'http://h:1', model: m}\n\
                         - {id: o, url: 'http://h:2', model: other}\n";

    /// One request for `m`.
    fn trace(session: Option<&str>) -> Vec<TraceRequest> {
        let about = About { model: Some("m".to_owned()), session: session.map(str::to_owned), ..About::default() };
        vec![TraceRequest { about: Some(Box::new(about)), ..TraceRequest::default() }]
    }

    /// The keys that differ between two configurations, and those of them that a replay of `trace` does not show.
    fn keys([old, new]: [&str; 2], trace: &[TraceRequest], given: Given) -> (Vec<String>, Vec<String>) {
        let [old, new] = [old, new].map(|text| Config::parse("test", text.to_owned()).unwrap());
        let found = changes(&old, &new);
        let unreplayed = Basis::of(trace, [&old, &new], given).unreplayed(&found);
        (found.iter().map(|change| change.key.clone()).collect(), unreplayed.into_iter().map(str::to_owned).collect())
    }

    /// The same of what is set beside the fleet.
    fn set(text: &str, session: Option<&str>) -> (Vec<String>, Vec<String>) {
        keys([FLEET, &format!("{FLEET}{text}")], &trace(session), NOTHING)
    }

    #[test]
    fn what_a_simulated_fleet_does_not_go_by_is_named() {
        for (text, changed) in [
            ("routing: {policy: kv, fallback: random, seed: 3, on_all_busy: error}", 3),
            ("routing: {objectives: {high: {ttft: 50ms, itl: 5ms}, low: {ttft: 9s}}}", 3),
            ("routing: {tiers: {host: 0.1, disk: 0.1, external: 0.1}}", 3),
            ("routing: {sessions: {header: x-foo, field: user}}", 2),
            ("routing: {trust: {event_silence: 1s}, chwbl: {prefix_characters: 10}}", 2),
            ("health: {ramp: 1s, ramp_from: 3, request_failures: 9}", 3),
            ("timeouts: {health_interval: 9s}\nqueue: {requests: 3}", 2),
        ] {
            let (found, unreplayed) = set(text, Some("s"));
            assert_eq!((unreplayed, found.len()), (found.clone(), changed), "{text}");
        }
        for text in [
            "routing: {policy: predicted, kv: {alpha: 0.9}, objectives: {normal: {ttft: 1s}}, tiers: {device: 0.5}}",
            "routing: {policy: logit, fallback: random, sessions: {weight: 1, ttl: 1s}, chwbl: {load_factor: 3}}",
            "index: {in_flight_credit: 3s, max_entries: 1000}\nengines: {half_life: 1s, metrics_interval: 3s}",
        ] {
            let (found, unreplayed) = set(text, Some("s"));
            assert_eq!((unreplayed, found.len() > 3), (Vec::new(), true), "{text}: {found:?}");
        }
    }

    #[test]
    fn sessions_are_in_no_replay_of_a_trace_that_tells_of_none() {
        let sessions = "routing: {sessions: {weight: 1, ttl: 1s}}";
        assert_eq!(set(sessions, None).1, ["routing.sessions.weight", "routing.sessions.ttl"]);
        assert_eq!(set(sessions, Some("s")).1, Vec::<String>::new());
    }

    #[test]
    fn of_engines_that_serve_the_trace_it_shows_what_is_not_said_for_all() {
        let left = |text: [&str; 2], given| keys(text, &trace(None), given).1;
        let given = |workers, cache_blocks| Given { workers, cache_blocks };
        let larger = FLEET.replace("model: m}", "model: m, max_num_seqs: 3, dp_ranks: 2, capacity_blocks: 900}");
        assert_eq!(left([FLEET, &larger], NOTHING), Vec::<String>::new());
        assert_eq!(left([FLEET, &larger], given(Some(4), None)), ["workers[a].dp_ranks"]);
        assert_eq!(left([FLEET, &larger], given(None, Some(9))), ["workers[a].capacity_blocks"]);
        let other = FLEET.replace("model: other}", "model: other, max_num_seqs: 3}");
        assert_eq!(left([FLEET, &other], NOTHING), ["workers[o].max_num_seqs"], "nothing of the trace goes there");
        let blocks = |text: &str| text.replace("{name: m}", "{name: m, block_size: 64}");
        assert_eq!(left([FLEET, &blocks(FLEET)], NOTHING), ["models[m].block_size"], "the trace has its own");
        assert_eq!(left([&larger, &blocks(&larger)], NOTHING), Vec::<String>::new(), "a cache holds other numbers");
    }

    #[test]
    fn a_worker_that_comes_is_one_engine_more_where_they_are_counted() {
        let worker = |model: &str| format!("{FLEET}- {{id: b, url: 'http://h:3', model: {model}, events: none}}\n");
        let left = |model, given| keys([FLEET, &worker(model)], &trace(None), given).1;
        assert_eq!(left("m", NOTHING), Vec::<String>::new());
        for left in [left("other", NOTHING), left("m", Given { workers: Some(2), cache_blocks: None })] {
            assert!(left.iter().any(|key| key == "workers[b].url"), "{left:?}");
        }
    }
}
