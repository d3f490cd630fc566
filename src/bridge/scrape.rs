//! What an engine's metrics say of its process, its cache and its load, rank by rank, by the names of its version.

use crate::config::MetricNames;
use crate::events::nats::load::RankLoad;
use crate::fleet::prometheus::{Sample, samples};
use crate::fleet::scrape::{PROCESS_START, count, milliseconds};

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
    /// Reads the text format of Prometheus by the names of the first of `presets` that are in it, if need be in part. Series that name no
    /// rank count for rank 0. O(samples × presets).
    pub(super) fn read(text: &str, presets: &[MetricNames]) -> Self {
        let mut found = vec![Self::default(); presets.len()];
        let mut started_ms = None;
        for sample in samples(text) {
            if sample.name == PROCESS_START {
                started_ms = milliseconds(sample.value);
            }
            for (names, scrape) in presets.iter().zip(&mut found) {
                scrape.take(names, &sample);
            }
        }
        let has = |scrape: &Self, figure: fn(&RankLoad) -> Option<f64>| {
            scrape.ranks.iter().any(|rank| figure(rank).is_some())
        };
        let is_known = |scrape: &Self| has(scrape, |rank| rank.running) && has(scrape, |rank| rank.usage);
        let best =
            found.iter().position(is_known).or_else(|| found.iter().position(|scrape| *scrape != Self::default()));
        let mut scrape = best.map_or_else(Self::default, |best| found.swap_remove(best));
        scrape.ranks.truncate(RANKS_MAX);
        Self { started_ms, ..scrape }
    }

    fn take(&mut self, names: &MetricNames, sample: &Sample<'_>) {
        let (name, value) = (sample.name, sample.value);
        if name == names.info {
            self.block_size = figure(sample, "block_size");
            self.blocks = figure(sample, "num_gpu_blocks");
        } else if name == names.running {
            self.rank(names, sample).running = amount(value);
        } else if name == names.waiting {
            self.rank(names, sample).waiting = amount(value);
        } else if name == names.usage {
            self.rank(names, sample).usage = amount(value);
        } else if name == names.queries {
            add(&mut self.rank(names, sample).queries, value);
        } else if name == names.hits {
            add(&mut self.rank(names, sample).hits, value);
        }
    }

    fn rank(&mut self, names: &MetricNames, sample: &Sample<'_>) -> &mut RankLoad {
        let rank = figure(sample, &names.rank).unwrap_or(0);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn known(text: &str) -> Scrape {
        Scrape::read(text, &MetricNames::known())
    }

    #[test]
    fn a_real_engines_metrics_are_understood() {
        let scrape = known(include_str!("../../tests/data/engines/metrics-0.32.0.txt"));
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
        assert_eq!(known(text).ranks, [zero, one]);
        let text = "sglang:num_running_reqs{model_name=\"m\"} 3\nsglang:num_queue_reqs 1\nsglang:token_usage 0.25\n\
                    sglang:cached_tokens_total{cache_source=\"device\"} 7\nsglang:cached_tokens_total{cache_source=\"host\"} 2\n";
        let load = RankLoad { running: Some(3.0), waiting: Some(1.0), usage: Some(0.25), ..RankLoad::default() };
        let rank = RankLoad { hits: Some(9), ..load };
        assert_eq!(known(text).ranks, [rank]);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let text =
            "{\n} 5\nvllm:cache_config_info{num_gpu_blocks=\"None\"} 1\nprocess_start_time_seconds -5\n\u{e9} \n";
        assert_eq!(known(text), Scrape::default());
    }

    #[test]
    fn a_version_that_is_not_known_is_read_by_names_of_its_own() {
        let text = "next:running{dp=\"1\"} 3\nnext:usage{dp=\"1\"} 0.5\nprocess_start_time_seconds 2.5\n";
        let next = MetricNames {
            running: "next:running".to_owned(),
            usage: "next:usage".to_owned(),
            rank: "dp".to_owned(),
            ..MetricNames::default()
        };
        let rank = RankLoad { rank: 1, running: Some(3.0), usage: Some(0.5), ..RankLoad::default() };
        let expected = Scrape { started_ms: Some(2500), ranks: vec![rank], ..Scrape::default() };
        assert_eq!(Scrape::read(text, &[next]), expected);
        // Nobody's names: when it started is told all the same.
        assert_eq!(known(text), Scrape { started_ms: Some(2500), ..Scrape::default() });
    }
}
