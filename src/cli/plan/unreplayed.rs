//! Which changes of a configuration no simulated fleet shows.

use serde_json::Value;

use crate::config::Change;

/// What the router of a simulated fleet goes by: [`Config::simulated`](crate::config::Config::simulated), and the engines of
/// `plan`.
const REPLAYED: &[&str] = &[
    "routing.",
    "index.in_flight_credit",
    "index.max_entries",
    "engines.half_life",
    "engines.metrics_interval",
    "health.request_failures",
    "health.ramp",
    "timeouts.health_interval",
];

/// What it does otherwise.
const LEFT_OUT: &[&str] = &["routing.on_all_busy", "routing.predict", "routing.seed", "routing.shadow"];

/// What it takes of a worker, and of a model.
const OF_ENGINES: &[&str] = &["capacity_blocks", "dp_ranks", "max_num_seqs", "model", "block_size"];

/// The keys of the changes that it does not show; of those, workers that come or go are none.
pub(super) fn keys(found: &[Change]) -> Vec<&str> {
    let shown = |change: &&Change| is_shown(&change.key) || comes_or_goes(&change.key, found);
    found.iter().filter(|change| !shown(change)).map(|change| &*change.key).collect()
}

/// The same in words; nothing where there are none.
pub(super) fn told(found: &[Change]) -> String {
    let keys = keys(found);
    if keys.is_empty() { String::new() } else { format!("not in the replay: {}\n", keys.join(", ")) }
}

fn is_shown(key: &str) -> bool {
    let begins = |with: &&str| key.starts_with(*with);
    let of_engine = key.rsplit_once("].").is_some_and(|(_, field)| OF_ENGINES.contains(&field));
    of_engine || REPLAYED.iter().any(begins) && !LEFT_OUT.iter().any(begins)
}

/// Whether the key is of a worker that comes or goes as a whole.
fn comes_or_goes(key: &str, found: &[Change]) -> bool {
    let Some((worker, _)) = key.strip_prefix("workers[").and_then(|rest| rest.split_once("].")) else { return false };
    let url = format!("workers[{worker}].url");
    found.iter().any(|change| change.key == url && (change.old == Value::Null || change.new == Value::Null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, old: Value, new: Value) -> Change {
        Change { key: key.to_owned(), old, new, live: true }
    }

    #[test]
    fn what_a_simulated_fleet_does_not_go_by_is_named() {
        let keys_of = |changes: &[&str]| {
            let found: Vec<Change> = changes.iter().map(|key| change(key, 1.into(), 2.into())).collect();
            keys(&found).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        let shown = ["routing.kv.alpha", "health.ramp_from", "workers[a].max_num_seqs", "models[m].block_size"];
        assert_eq!(keys_of(&shown), Vec::<String>::new());
        let left = ["workers[a].events", "models[m].tokenizer", "routing.on_all_busy", "workers[a].url", "queue.max"];
        assert_eq!(keys_of(&left), left);
        assert_eq!(told(&[change("queue.max", 1.into(), 2.into())]), "not in the replay: queue.max\n");
        assert_eq!(told(&[]), "");
    }

    #[test]
    fn a_worker_that_comes_is_one_engine_more_with_all_that_it_has() {
        let [url, events] = ["workers[b].url", "workers[b].events"].map(|key| change(key, Value::Null, "x".into()));
        assert_eq!(keys(&[url, events]), Vec::<&str>::new());
    }
}
