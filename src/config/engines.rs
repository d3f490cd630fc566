//! `engines`: what engines say of themselves, by which names, and how long it counts.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::document::options;
use super::quantity::Period;

/// The engines' own metrics and models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engines {
    /// Between two readings of a worker's `/metrics`.
    pub metrics_interval: Period,
    /// What a reading says counts half after this.
    pub half_life: Period,
    /// Between two readings of a worker's `/v1/models`.
    pub models_interval: Period,
    /// LoRA adapters of a worker that are known; those that it names beyond are not.
    pub adapters: NonZeroU32,
    /// The names that engines' versions use; of those whose names are there, the first counts.
    pub presets: Vec<MetricNames>,
}

/// The names that an engine's version uses. What it does not have is an empty name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MetricNames {
    /// What this version is called.
    pub name: String,
    /// Sequences that run.
    pub running: String,
    /// Sequences that wait.
    pub waiting: String,
    /// Share of the cache in use, from 0 to 1.
    pub usage: String,
    /// Prompt tokens that were looked for in the cache, in total.
    #[serde(default)]
    pub queries: String,
    /// Of these, tokens that were found.
    #[serde(default)]
    pub hits: String,
    /// A series whose labels `num_gpu_blocks` and `block_size` tell the cache's shape.
    #[serde(default)]
    pub info: String,
    /// The label that tells data-parallel ranks apart.
    #[serde(default)]
    pub rank: String,
}

impl Default for Engines {
    fn default() -> Self {
        let presets = MetricNames::known().to_vec();
        Self {
            metrics_interval: Period::seconds(1),
            half_life: Period::seconds(5),
            models_interval: Period::seconds(5),
            adapters: NonZeroU32::new(1024).expect("1024 is not 0"),
            presets,
        }
    }
}

impl MetricNames {
    /// Reads a YAML list of them.
    ///
    /// # Errors
    /// What is wrong with it, and where; also that it is empty.
    pub fn listed(yaml: &str) -> Result<Vec<Self>, String> {
        let listed: Vec<Self> =
            serde_saphyr::from_str_with_options(yaml, options()).map_err(|error| error.to_string())?;
        if listed.is_empty() { Err("it names no version".to_owned()) } else { Ok(listed) }
    }

    /// Every version that is known, newest first.
    pub fn known() -> [Self; 3] {
        let vllm = Self {
            name: "vllm".to_owned(),
            running: "vllm:num_requests_running".to_owned(),
            waiting: "vllm:num_requests_waiting".to_owned(),
            usage: "vllm:kv_cache_usage_perc".to_owned(),
            queries: "vllm:prefix_cache_queries_total".to_owned(),
            hits: "vllm:prefix_cache_hits_total".to_owned(),
            info: "vllm:cache_config_info".to_owned(),
            rank: "engine".to_owned(),
        };
        let vllm_old = Self {
            name: "vllm_old".to_owned(),
            usage: "vllm:gpu_cache_usage_perc".to_owned(),
            queries: "vllm:gpu_prefix_cache_queries_total".to_owned(),
            hits: "vllm:gpu_prefix_cache_hits_total".to_owned(),
            ..vllm.clone()
        };
        let sglang = Self {
            name: "sglang".to_owned(),
            running: "sglang:num_running_reqs".to_owned(),
            waiting: "sglang:num_queue_reqs".to_owned(),
            usage: "sglang:token_usage".to_owned(),
            queries: "sglang:prompt_tokens_total".to_owned(),
            hits: "sglang:cached_tokens_total".to_owned(),
            info: String::new(),
            rank: "dp_rank".to_owned(),
        };
        [vllm, vllm_old, sglang]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_names_is_read_and_what_is_wrong_with_it_said() {
        let next = MetricNames {
            name: "next".to_owned(),
            running: "a".to_owned(),
            waiting: "b".to_owned(),
            usage: "c".to_owned(),
            ..MetricNames::default()
        };
        assert_eq!(MetricNames::listed("- {name: next, running: a, waiting: b, usage: c}\n"), Ok(vec![next]));
        for (yaml, said) in [("- {name: next, runing: a}\n", "runing"), ("[]\n", "no version"), ("a: [", "line 1")] {
            let error = MetricNames::listed(yaml).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
