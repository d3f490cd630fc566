//! What an engine's `/metrics` say of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use warmpath_core::ids::Rank;
use warmpath_core::trust::PrefixCounters;
use warmpath_core::units::Blocks;

use super::engine::Process;
use super::prometheus::{Sample, samples};
use crate::config::MetricNames;

/// When the engine's process began, in seconds since 1970.
pub(crate) const PROCESS_START: &str = "process_start_time_seconds";

/// One reading of an engine's metrics.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Scrape {
    /// Whose names they have, as `engines.presets` calls them.
    #[serde(rename = "names")]
    pub engine: Arc<str>,
    /// Sequences that run.
    pub running: Option<u32>,
    /// Sequences that wait.
    pub waiting: Option<u32>,
    /// Share of the cache in use, from 0 to 1; blocks that are cached and idle count as free.
    pub kv_usage: Option<f64>,
    /// Blocks of the cache.
    pub blocks: Option<Blocks>,
    /// Tokens in a block.
    pub block_size: Option<u32>,
    /// Prompt tokens that were looked for in the cache.
    pub prefix_queries: Option<u64>,
    /// Of these, tokens that were found.
    pub prefix_hits: Option<u64>,
    /// When the process began, in milliseconds since 1970.
    pub process_start_ms: Option<u64>,
}

impl Scrape {
    /// Reads `text` by the names of the first of `presets` that are in it. None where no engine that is known speaks.
    /// Series of other ranks than `rank` are left out; those that name none count for all. O(samples × presets).
    pub fn read(text: &str, rank: Option<Rank>, presets: &[MetricNames]) -> Option<Self> {
        Self::read_ranks(text, &[rank], presets).pop().flatten()
    }

    /// The same for several ranks of one engine, in their order. O(samples × presets + ranks × presets).
    pub fn read_ranks(text: &str, ranks: &[Option<Rank>], presets: &[MetricNames]) -> Vec<Option<Self>> {
        Self::of_ranks(samples(text), ranks, presets)
    }

    fn of_ranks<'a>(
        samples: impl Iterator<Item = Sample<'a>>,
        ranks: &[Option<Rank>],
        presets: &[MetricNames],
    ) -> Vec<Option<Self>> {
        let mut found = vec![Parts::of(ranks); presets.len()];
        let mut process_start_ms = None;
        for sample in samples {
            if sample.name == PROCESS_START {
                process_start_ms = milliseconds(sample.value);
            }
            for (names, parts) in presets.iter().zip(&mut found) {
                parts.take(names, &sample);
            }
        }
        let is_known = |scrape: &Self| scrape.running.is_some() && scrape.kv_usage.is_some();
        let read = |rank: &Option<Rank>| {
            let mut of_rank = found.iter().map(|parts| parts.of_rank(*rank)).zip(presets);
            let (scrape, names) = of_rank.find(|(scrape, _)| is_known(scrape))?;
            Some(Self { engine: names.name.as_str().into(), process_start_ms, ..scrape })
        };
        ranks.iter().map(read).collect()
    }

    /// This and what the engine says of all its ranks.
    fn with(self, shared: &Self) -> Self {
        Self {
            running: sum(self.running, shared.running, u32::saturating_add),
            waiting: sum(self.waiting, shared.waiting, u32::saturating_add),
            kv_usage: sum(self.kv_usage, shared.kv_usage, f64::max),
            blocks: self.blocks.or(shared.blocks),
            block_size: self.block_size.or(shared.block_size),
            prefix_queries: sum(self.prefix_queries, shared.prefix_queries, u64::saturating_add),
            prefix_hits: sum(self.prefix_hits, shared.prefix_hits, u64::saturating_add),
            ..self
        }
    }

    /// The process that says it, where it tells.
    pub fn process(&self) -> Option<Process> {
        self.process_start_ms.map(|start_ms| Process { start_ms })
    }

    /// Totals of the prefix cache, where the engine tells both.
    pub fn prefix(&self) -> Option<PrefixCounters> {
        Some(PrefixCounters { queries: self.prefix_queries?, hits: self.prefix_hits? })
    }

    /// Blocks in use, where the engine's share and the cache's size are known.
    pub fn blocks_in_use(&self, total: Option<Blocks>) -> Option<Blocks> {
        let total = total.or(self.blocks)?;
        let blocks = count((self.kv_usage? * f64::from(total.0)).round())?;
        u32::try_from(blocks).ok().map(Blocks)
    }

    fn take(&mut self, names: &MetricNames, sample: &Sample<'_>) {
        let Sample { name, value, .. } = *sample;
        // SGLang with priorities says how many there are, and beside it how many of them are of each class.
        let is_part = sample.label("priority").is_some_and(|class| !class.is_empty());
        if is_part && (name == names.running || name == names.waiting) {
            return;
        }
        if name == names.info {
            let figure = |label| sample.label(label).and_then(|text| text.parse().ok());
            // An engine that does not know its cache yet says 0, by which it would be full for ever.
            let sure = |label| figure(label).filter(|figure| *figure > 0);
            self.blocks = self.blocks.or(sure("num_gpu_blocks").map(Blocks));
            self.block_size = self.block_size.or(sure("block_size"));
        } else if name == names.usage {
            let share = value.is_finite().then_some(value.clamp(0.0, 1.0));
            self.kv_usage = share.map(|share| share.max(self.kv_usage.unwrap_or_default())).or(self.kv_usage);
        } else if let Some(count) = count(value) {
            let small = u32::try_from(count).unwrap_or(u32::MAX);
            let sum = |before: Option<u32>| Some(before.unwrap_or_default().saturating_add(small));
            let sum_of_many = |before: Option<u64>| Some(before.unwrap_or_default().saturating_add(count));
            match name {
                _ if name == names.running => self.running = sum(self.running),
                _ if name == names.waiting => self.waiting = sum(self.waiting),
                _ if name == names.queries => self.prefix_queries = sum_of_many(self.prefix_queries),
                _ => self.prefix_hits = sum_of_many(self.prefix_hits),
            }
        }
    }
}

/// What an engine said by one preset's names.
#[derive(Clone)]
struct Parts {
    /// In series of any rank, and of none.
    all: Scrape,
    /// In series that name no rank.
    shared: Scrape,
    /// In series of each rank that is asked for.
    own: HashMap<Rank, Scrape, foldhash::fast::RandomState>,
}

impl Parts {
    fn of(ranks: &[Option<Rank>]) -> Self {
        let own = ranks.iter().flatten().map(|rank| (*rank, Scrape::default())).collect();
        Self { all: Scrape::default(), shared: Scrape::default(), own }
    }

    fn take(&mut self, names: &MetricNames, sample: &Sample<'_>) {
        let known = [&names.running, &names.waiting, &names.usage, &names.queries, &names.hits, &names.info];
        if !known.iter().any(|known| *known == sample.name) {
            return;
        }
        self.all.take(names, sample);
        let rank = sample.label(&names.rank).and_then(|label| label.parse().ok()).map(Rank);
        let part = rank.map_or(Some(&mut self.shared), |rank| self.own.get_mut(&rank));
        part.into_iter().for_each(|part| part.take(names, sample));
    }

    fn of_rank(&self, rank: Option<Rank>) -> Scrape {
        let Some(own) = rank.map(|rank| self.own.get(&rank)) else { return self.all.clone() };
        own.map_or_else(|| self.shared.clone(), |own| own.clone().with(&self.shared))
    }
}

/// The sum of what was said in two places.
fn sum<T>(one: Option<T>, other: Option<T>, add: fn(T, T) -> T) -> Option<T> {
    one.into_iter().chain(other).reduce(add)
}

/// Seconds as milliseconds, where they are a time that a process can have started at.
pub(crate) fn milliseconds(seconds: f64) -> Option<u64> {
    let since = Duration::try_from_secs_f64(seconds).ok()?.saturating_add(Duration::from_micros(500));
    u64::try_from(since.as_millis()).ok().filter(|since| *since > 0)
}

/// A count that was written as a real number: none where it is none.
pub(crate) fn count(value: f64) -> Option<u64> {
    #[expect(clippy::as_conversions, reason = "finite and at least 0; what is larger than a u64 becomes the largest")]
    let count = value as u64;
    (value.is_finite() && value >= 0.0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_the_next_millisecond() {
        assert_eq!([1_795_780_000.01, 0.0004, 1.0006].map(milliseconds), [Some(1_795_780_000_010), None, Some(1001)]);
        assert_eq!([-1.0, f64::NAN, f64::INFINITY, 1e300].map(milliseconds), [None; 4]);
    }

    fn known(text: &str, rank: Option<Rank>) -> Option<Scrape> {
        Scrape::read(text, rank, &MetricNames::known())
    }

    #[test]
    fn a_real_engines_metrics_are_read() {
        let text = include_str!("../../tests/data/engines/metrics-0.32.0.txt");
        let expected = Scrape {
            engine: "vllm".into(),
            running: Some(0),
            waiting: Some(0),
            kv_usage: Some(0.0),
            blocks: Some(Blocks(129)),
            block_size: Some(32),
            prefix_queries: Some(13_031),
            prefix_hits: Some(1_280),
            process_start_ms: Some(1_795_224_792_390),
        };
        assert_eq!(known(text, None), Some(expected.clone()));
        assert_eq!(known(text, Some(Rank(0))), Some(expected));
        assert_eq!(known(text, Some(Rank(1))), None);
    }

    #[test]
    fn the_ranks_of_an_engine_are_read_at_once() {
        const RANKS: u32 = 64;
        let series = |rank: u32| {
            let of = format!("{{engine=\"{rank}\",model_name=\"m\"}}");
            format!(
                "vllm:num_requests_running{of} {rank}\nvllm:num_requests_waiting{of} 1\n\
                 vllm:kv_cache_usage_perc{of} 0.{rank:02}\nvllm:prefix_cache_queries_total{of} 10\n\
                 vllm:cache_config_info{{engine=\"{rank}\",num_gpu_blocks=\"{}\"}} 1\n",
                100 + rank
            )
        };
        let shared = "vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc 0.30\nvllm:prefix_cache_hits_total 4\n\
                      vllm:cache_config_info{num_gpu_blocks=\"7\",block_size=\"16\"} 1\n";
        let text: String = (0..RANKS).map(series).chain([shared.to_owned()]).collect();
        let asked: Vec<_> = (0..RANKS).map(|rank| Some(Rank(rank))).chain([Some(Rank(99)), None]).collect();
        let mut seen = 0;
        let lines = samples(&text).inspect(|_| seen += 1);
        let read = Scrape::of_ranks(lines, &asked, &MetricNames::known());
        assert_eq!((seen, read.len()), (5 * 64 + 4, asked.len()));
        let one = |rank: usize| read[rank].clone().unwrap();
        assert_eq!((one(40).running, one(40).waiting, one(40).kv_usage), (Some(40), Some(3), Some(0.40)));
        assert_eq!((one(7).kv_usage, one(7).blocks, one(7).block_size), (Some(0.30), Some(Blocks(107)), Some(16)));
        assert_eq!((one(7).prefix_queries, one(7).prefix_hits), (Some(10), Some(4)));
        assert_eq!(read[64], None, "nothing of it runs");
        assert_eq!((one(65).running, one(65).waiting), (Some(64 * 63 / 2), Some(64 + 2)));
        for (rank, read) in asked.iter().zip(&read) {
            assert_eq!(*read, known(&text, *rank), "{rank:?}");
        }
    }

    #[test]
    fn older_names_and_those_of_sglang_are_known_by_what_is_there() {
        let old = "vllm:num_requests_running{model_name=\"m\"} 3.0\nvllm:num_requests_waiting{model_name=\"m\"} 2.0\n\
                   vllm:gpu_cache_usage_perc{model_name=\"m\"} 0.5\nvllm:gpu_prefix_cache_queries_total{} 10\n\
                   vllm:gpu_prefix_cache_hits_total{} 4\nvllm:cache_config_info{num_gpu_blocks=\"None\"} 1.0\n";
        let read = known(old, None).unwrap();
        assert_eq!(
            (&*read.engine, read.running, read.waiting, read.kv_usage),
            ("vllm_old", Some(3), Some(2), Some(0.5))
        );
        assert_eq!(read.prefix(), Some(PrefixCounters { queries: 10, hits: 4 }));
        assert_eq!((read.blocks, read.blocks_in_use(Some(Blocks(100)))), (None, Some(Blocks(50))));
        let unsure = old.replace("\"None\"", "\"0\",block_size=\"0\"");
        let read = known(&unsure, None).unwrap();
        assert_eq!((read.blocks, read.block_size), (None, None));
        let sglang = "sglang:num_running_reqs{dp_rank=\"0\"} 3\nsglang:num_running_reqs{dp_rank=\"1\"} 4\n\
                      sglang:num_queue_reqs{dp_rank=\"1\"} 5\nsglang:token_usage{dp_rank=\"1\"} 0.25\n\
                      sglang:prompt_tokens_total 100\nsglang:cached_tokens_total{cache_source=\"device\"} 7\n\
                      sglang:cached_tokens_total{cache_source=\"host\"} 2\n";
        let read = known(sglang, Some(Rank(1))).unwrap();
        assert_eq!(
            (&*read.engine, read.running, read.waiting, read.kv_usage),
            ("sglang", Some(4), Some(5), Some(0.25))
        );
        assert_eq!(read.prefix(), Some(PrefixCounters { queries: 100, hits: 9 }));
        assert_eq!(known(sglang, None).unwrap().running, Some(7));
        let by_class = "sglang:num_running_reqs{priority=\"\"} 8\nsglang:num_running_reqs{priority=\"0\"} 5\n\
                        sglang:num_running_reqs{priority=\"7\"} 3\nsglang:num_queue_reqs{priority=\"0\"} 4\n\
                        sglang:num_queue_reqs{priority=\"\"} 4\nsglang:token_usage 0.5\n";
        let read = known(by_class, None).unwrap();
        assert_eq!((read.running, read.waiting), (Some(8), Some(4)));
    }

    #[test]
    fn nonsense_is_no_load() {
        assert_eq!(known("", None), None);
        assert_eq!(known("<html>not found</html>", None), None);
        let odd = "vllm:num_requests_running NaN\nvllm:num_requests_running -4\nvllm:kv_cache_usage_perc 7\n";
        assert_eq!(known(odd, None), None);
        let huge = "vllm:num_requests_running 1e30\nvllm:kv_cache_usage_perc inf\nvllm:kv_cache_usage_perc 7\n\
                    process_start_time_seconds -1\n";
        let read = known(huge, None).unwrap();
        assert_eq!((read.running, read.kv_usage, read.process_start_ms), (Some(u32::MAX), Some(1.0), None));
        assert_eq!(read.blocks_in_use(None), None);
    }

    #[test]
    fn a_version_that_is_not_known_is_read_by_names_of_its_own() {
        let text = "next:running{dp=\"1\"} 3\nnext:running{dp=\"0\"} 9\nnext:waiting 1\nnext:usage 0.5\n";
        let next = MetricNames {
            name: "next".to_owned(),
            running: "next:running".to_owned(),
            waiting: "next:waiting".to_owned(),
            usage: "next:usage".to_owned(),
            rank: "dp".to_owned(),
            ..MetricNames::default()
        };
        assert_eq!(known(text, Some(Rank(1))), None);
        let read = Scrape::read(text, Some(Rank(1)), &[next]).unwrap();
        assert_eq!((&*read.engine, read.running, read.waiting, read.kv_usage), ("next", Some(3), Some(1), Some(0.5)));
        assert_eq!(read.prefix(), None);
    }
}
