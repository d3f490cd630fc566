//! What an engine's metrics say of its process, its cache and its load: the names of vLLM and SGLang, older ones among
//! them.

use crate::events::nats::load::RankLoad;
use crate::fleet::prometheus::{Sample, samples};
use crate::fleet::scrape::count;

/// Ranks that are read at most.
const RANKS_MAX: usize = 1024;

/// What was found; what the engine does not tell is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scrape {
    /// When the engine's process started, in milliseconds since 1970.
    pub(super) started_ms: Option<u64>,
    /// Tokens in a block.
    pub(super) block_size: Option<u32>,
    /// Blocks of the cache, a rank.
    pub(super) blocks: Option<u32>,
    /// The load of each rank, by rank.
    pub(super) ranks: Vec<RankLoad>,
}

impl Scrape {
    /// Reads the text format of Prometheus, as far as it is of interest. O(bytes).
    pub(super) fn read(text: &str) -> Self {
        let mut scrape = Self::default();
        for sample in samples(text) {
            let value = sample.value;
            match sample.name {
                "process_start_time_seconds" => scrape.started_ms = milliseconds(value),
                "vllm:cache_config_info" => {
                    scrape.block_size = figure(&sample, "block_size");
                    scrape.blocks = figure(&sample, "num_gpu_blocks");
                }
                "vllm:num_requests_running" | "sglang:num_running_reqs" => scrape.rank(&sample).running = amount(value),
                "vllm:num_requests_waiting" | "sglang:num_queue_reqs" => scrape.rank(&sample).waiting = amount(value),
                "vllm:kv_cache_usage_perc" | "vllm:gpu_cache_usage_perc" | "sglang:token_usage" => {
                    scrape.rank(&sample).usage = amount(value);
                }
                "vllm:prefix_cache_queries_total"
                | "vllm:gpu_prefix_cache_queries_total"
                | "sglang:prompt_tokens_total" => add(&mut scrape.rank(&sample).queries, value),
                "vllm:prefix_cache_hits_total" | "vllm:gpu_prefix_cache_hits_total" | "sglang:cached_tokens_total" => {
                    add(&mut scrape.rank(&sample).hits, value);
                }
                _ => {}
            }
        }
        scrape.ranks.truncate(RANKS_MAX);
        scrape
    }

    fn rank(&mut self, sample: &Sample<'_>) -> &mut RankLoad {
        let rank = figure(sample, "engine").or_else(|| figure(sample, "dp_rank")).unwrap_or(0);
        let at = self.ranks.partition_point(|known| known.rank < rank);
        if self.ranks.get(at).is_none_or(|known| known.rank != rank) {
            self.ranks.insert(at, RankLoad { rank, ..RankLoad::default() });
        }
        &mut self.ranks[at]
    }
}

/// A number in a series' labels.
fn figure(sample: &Sample<'_>, label: &str) -> Option<u32> {
    sample.label(label)?.parse().ok()
}

/// SGLang tells what it has found by where it lay.
fn add(total: &mut Option<u64>, value: f64) {
    if let Some(more) = count(value) {
        *total = Some(total.unwrap_or_default().saturating_add(more));
    }
}

fn amount(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite() && *value >= 0.0)
}

/// Seconds as whole milliseconds, where they are a time that a process can have started at.
pub(super) fn milliseconds(seconds: f64) -> Option<u64> {
    let since = std::time::Duration::try_from_secs_f64(seconds).ok()?;
    u64::try_from(since.as_millis()).ok().filter(|since| *since > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_engines_metrics_are_understood() {
        let scrape = Scrape::read(include_str!("../../tests/data/engines/metrics-0.32.0.txt"));
        let rank = RankLoad {
            rank: 0,
            running: Some(0.0),
            waiting: Some(0.0),
            usage: Some(0.0),
            queries: Some(13_031),
            hits: Some(1_280),
        };
        let expected =
            Scrape { started_ms: Some(1_795_224_792_390), block_size: Some(32), blocks: Some(129), ranks: vec![rank] };
        assert_eq!(scrape, expected);
    }

    #[test]
    fn ranks_and_other_engines_names_are_told_apart() {
        let text = "vllm:num_requests_running{engine=\"1\",model_name=\"m\"} 2.0\n\
                    vllm:gpu_cache_usage_perc{engine=\"0\"} 0.5\nvllm:num_requests_waiting{engine=\"1\"} NaN\n";
        let zero = RankLoad { rank: 0, usage: Some(0.5), ..RankLoad::default() };
        let one = RankLoad { rank: 1, running: Some(2.0), ..RankLoad::default() };
        assert_eq!(Scrape::read(text).ranks, [zero, one]);
        let text = "sglang:num_running_reqs{model_name=\"m\"} 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n\
                    sglang:cached_tokens_total{cache_source=\"device\"} 7\nsglang:cached_tokens_total{cache_source=\"host\"} 2\n";
        let load = RankLoad { running: Some(3.0), waiting: Some(1.0), usage: Some(0.25), ..RankLoad::default() };
        let rank = RankLoad { hits: Some(9), ..load };
        assert_eq!(Scrape::read(text).ranks, [rank]);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let text =
            "{\n} 5\nvllm:cache_config_info{num_gpu_blocks=\"None\"} 1\nprocess_start_time_seconds -5\n\u{e9} \n";
        assert_eq!(Scrape::read(text), Scrape::default());
    }
}
