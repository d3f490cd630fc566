//! Who answers: whether anybody does, what it serves, which engine it is, and how long its blocks are.

use std::time::Instant;

use serde_json::Value;
use warmpath_core::ids::WorkerId;
use warmpath_core::units::BlockSize;

use super::engine::{Engine, Reply};
use super::finding::{Check, Finding};
use super::remedy;
use crate::config::Model;

/// The oldest minor version of vLLM 0 that publishes events.
const VLLM_MIN: u32 = 9;

/// The newest one whose events were read from a real engine.
const VLLM_TESTED: u32 = 32;

/// Names of models that are repeated.
const NAMED: usize = 4;

/// Whether it answers its health check.
pub(super) async fn reachable(engine: &Engine) -> Finding {
    let start = Instant::now();
    let url = engine.base();
    match engine.get("/health").await {
        Ok(reply) if reply.is_good() => {
            let ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            Finding::ok(Check::Reachable, format!("{url}/health answers in {ms} ms")).with("ms", ms)
        }
        Ok(reply) => {
            let finding = format!("{url}/health says {}", reply.refusal());
            let remedy = match reply.status {
                300..500 => "correct workers[].url: whatever answers there is no engine, or something before it",
                _ => "see the engine's log: it runs and does not serve",
            };
            Finding::failed(Check::Reachable, finding, remedy)
        }
        Err(error) => {
            let remedy = "start the engine, correct workers[].url, or let its port be reached from here";
            Finding::failed(Check::Reachable, format!("{url}/health: {error}"), remedy)
        }
    }
}

/// It is at the address of another one.
pub(super) fn not_alone(engine: &Engine, other: &WorkerId) -> Finding {
    let remedy = "list each engine once, its ranks by dp_ranks, or correct workers[].url";
    Finding::failed(Check::Reachable, format!("{} is the address of `{other}`, too", engine.base()), remedy)
}

/// What an engine offers of a model.
pub(super) struct Offer {
    /// Whether it serves the model under all of its names.
    pub(super) finding: Finding,
    /// Whether it serves the model under the name by which it is asked here.
    pub(super) serves: bool,
    /// The most tokens that it takes, where it tells.
    pub(super) longest: Option<u64>,
}

/// What it serves.
pub(super) async fn model(engine: &Engine, model: &Model) -> Offer {
    let names: Vec<&str> = std::iter::once(&model.name).chain(&model.aliases).map(|name| name.value.as_str()).collect();
    match models(engine).await {
        Ok(list) => offer(&names, &list),
        Err((finding, remedy)) => {
            Offer { finding: Finding::failed(Check::Model, finding, remedy), serves: false, longest: None }
        }
    }
}

/// The names and lengths of all models that it serves; or why it tells none, and what to do about it.
async fn models(engine: &Engine) -> Result<Vec<(String, Option<u64>)>, (String, &'static str)> {
    let reply = match engine.get("/v1/models").await {
        Ok(reply) if reply.is_good() => reply,
        Ok(reply) => {
            let remedy = match reply.status {
                401 | 403 => "set workers[].api_key to the engine's --api-key",
                _ => "point workers[].url at an OpenAI-compatible engine",
            };
            return Err((format!("/v1/models says {}", reply.refusal()), remedy));
        }
        Err(error) => {
            return Err((format!("/v1/models: {error}"), "see the engine's log: it is alive and does not answer"));
        }
    };
    let list = reply.json().unwrap_or_default();
    let models = list["data"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named =
        models.iter().filter_map(|model| Some((model["id"].as_str()?.to_owned(), model["max_model_len"].as_u64())));
    Ok(named.collect())
}

/// `names` are the model's, the one by which it is asked first.
fn offer(names: &[&str], list: &[(String, Option<u64>)]) -> Offer {
    let served: Vec<&str> = list.iter().map(|(name, _)| name.as_str()).collect();
    let missing: Vec<&str> = names.iter().copied().filter(|name| !served.contains(name)).collect();
    let name = names.first().copied().unwrap_or_default();
    let longest = list.iter().find(|(served, _)| served == name).and_then(|(_, longest)| *longest);
    let finding = if missing.is_empty() {
        let tokens = longest.map_or_else(String::new, |tokens| format!(", up to {tokens} tokens"));
        Finding::ok(Check::Model, format!("serves `{name}`{tokens}"))
    } else {
        let remedy = format!(
            "start it with --served-model-name {}, or correct models[].name (and aliases) and workers[].model",
            names.join(" ")
        );
        Finding::failed(Check::Model, format!("serves {}, not {}", quoted(&served), quoted(&missing)), remedy)
    };
    Offer { finding: finding.with("max_model_len", longest), serves: served.contains(&name), longest }
}

fn quoted(names: &[&str]) -> String {
    let shown: Vec<_> = names.iter().take(NAMED).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(NAMED) {
        _ if names.is_empty() => "nothing".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Which engine it is, and whether it tells its load.
pub(super) async fn version(engine: &Engine, tells_load: bool) -> Finding {
    let finding = named(engine).await;
    if tells_load || finding.has_failed() {
        return finding;
    }
    let told = format!("{}; its /metrics tell no load that is known", finding.finding);
    Finding { finding: told, ..finding }.with_remedy(remedy::METRICS)
}

async fn named(engine: &Engine) -> Finding {
    if let Some(version) = version_at(engine, "/version").await {
        return vllm(&version);
    }
    for path in ["/server_info", "/get_server_info"] {
        if let Some(version) = version_at(engine, path).await {
            return Finding::ok(Check::Version, format!("SGLang {version}")).with("version", version);
        }
    }
    Finding::skipped(Check::Version, "no version at /version (vLLM) or /server_info (SGLang)")
}

async fn version_at(engine: &Engine, path: &'static str) -> Option<String> {
    let reply = engine.get(path).await.ok().filter(Reply::is_good)?;
    let version: String = reply.json()?.get("version").and_then(Value::as_str)?.chars().take(64).collect();
    (!version.is_empty()).then_some(version)
}

fn vllm(version: &str) -> Finding {
    let mut numbers = version.split(['.', '+', 'r', 'd', '-']).map(|part| part.parse::<u32>().ok());
    let minor = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(0), minor) => minor,
        _ => None,
    };
    let finding = match minor {
        Some(minor) if minor < VLLM_MIN => Finding::failed(
            Check::Version,
            format!("vLLM {version} does not tell what it caches"),
            format!("upgrade to vLLM 0.{VLLM_MIN} or later, or set workers[].events: none"),
        ),
        Some(minor) if minor > VLLM_TESTED => Finding::ok(
            Check::Version,
            format!("vLLM {version} (newer than 0.{VLLM_TESTED}, the newest that was tested with)"),
        ),
        _ => Finding::ok(Check::Version, format!("vLLM {version}")),
    };
    finding.with("version", version)
}

/// Whether its blocks are as long as configured. What its events carry counts, else what its metrics tell.
pub(super) fn block_size(model: &Model, carried: Option<u32>, told: Option<u32>) -> Finding {
    let (check, configured) = (Check::BlockSize, model.block_size);
    let by = if carried.is_some() { "its events" } else { "its metrics" };
    let finding = match carried.or(told) {
        None => Finding::skipped(check, "neither its events nor its metrics tell"),
        Some(size) if size == configured.get() => Finding::ok(check, format!("{size} tokens, as {by} tell")),
        Some(size) => {
            let finding =
                format!("{by} tell {size} tokens, configured are {configured}", configured = configured.get());
            Finding::failed(check, finding, resized(model, size))
        }
    };
    finding.with("configured", configured.get()).with("told", carried.or(told))
}

fn resized(model: &Model, size: u32) -> String {
    let (name, configured) = (&model.name.value, model.block_size.get());
    let flags = format!("start the engine with --block-size {configured} (SGLang: --page-size {configured})");
    match BlockSize::new(size) {
        Some(_) => format!("set models[].block_size to {size} for `{name}`, or {flags}"),
        None => flags,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;
    use crate::config::Config;

    fn configured(block_size: u32) -> Model {
        let text = format!(
            "models: [{{name: m, block_size: {block_size}}}]\nworkers: [{{id: w, url: 'http://h:1', model: m}}]\n"
        );
        Config::parse("a test", text).unwrap().models.remove(0)
    }

    #[test]
    fn versions_are_judged_by_their_minor_number() {
        let told = |version| {
            let finding = vllm(version);
            (finding.verdict, finding.finding)
        };
        assert_eq!(told("0.32.0"), (Verdict::Ok, "vLLM 0.32.0".to_owned()));
        assert_eq!(told("0.20.2+cpu").0, Verdict::Ok);
        assert_eq!(told("0.8.5"), (Verdict::Failed, "vLLM 0.8.5 does not tell what it caches".to_owned()));
        assert!(told("0.33rc1").1.contains("newer than 0.32"));
        assert_eq!(told("nightly"), (Verdict::Ok, "vLLM nightly".to_owned()));
        assert_eq!(told("1.0.0").0, Verdict::Ok);
    }

    #[test]
    fn what_events_carry_counts_more_than_what_metrics_tell() {
        let found = |carried, told| block_size(&configured(16), carried, told);
        assert_eq!(found(Some(16), Some(32)).finding, "16 tokens, as its events tell");
        assert_eq!(found(None, Some(16)).finding, "16 tokens, as its metrics tell");
        let wrong = found(Some(32), None);
        assert_eq!(wrong.finding, "its events tell 32 tokens, configured are 16");
        let remedy =
            "set models[].block_size to 32 for `m`, or start the engine with --block-size 16 (SGLang: --page-size 16)";
        assert_eq!((wrong.verdict, wrong.remedy.as_deref()), (Verdict::Failed, Some(remedy)));
        assert_eq!(found(None, None).verdict, Verdict::Skipped);
    }

    #[test]
    fn long_lists_of_models_are_cut() {
        assert_eq!(quoted(&[]), "nothing");
        assert_eq!(quoted(&["a", "b"]), "`a`, `b`");
        assert_eq!(quoted(&["a", "b", "c", "d", "e", "f"]), "`a`, `b`, `c`, `d` and 2 more");
    }
}
