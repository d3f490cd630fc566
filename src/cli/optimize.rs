//! `warmpath optimize`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::misuse::misuse;
use super::output::Output;
use super::trace::Input;
use super::{number, progress, say};
use crate::optimize::accesses::Rule;
use crate::optimize::placement::Placement;
use crate::optimize::stack::Order;
use crate::optimize::store::Eviction;
use crate::optimize::{self, Capacities, Capacity, Plan, outcome};

/// The most workers of a fleet.
const WORKERS_MAX: usize = 1_024;
/// The most rows of one call.
const ROWS_MAX: usize = 100_000;

/// Capacity against hit rate over a trace: what caches of each size, eviction, number of workers and placement would have
/// hit. Untimed, so it takes seconds; `warmpath replay` drives the real scheduler.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct OptimizeArgs {
    #[command(flatten)]
    input: Input,
    /// Each worker's room in blocks: numbers, `inf`, or `sweep` for a curve up to the trace's different blocks.
    #[arg(long, default_value = "sweep", value_name = "N,…|sweep", value_parser = capacities)]
    capacity_blocks: Capacities,
    /// Who goes when a cache is full: lru, random_lru, leaf_aware_lru, lfu, ttl.
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    eviction: Vec<Eviction>,
    /// Numbers of workers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1", value_parser = workers)]
    workers: Vec<usize>,
    /// Untimed placement: pooled (one cache of all workers' room), round_robin, sticky, longest_prefix.
    #[arg(long, value_delimiter = ',', default_value = "pooled")]
    policy: Vec<Placement>,
    /// Which blocks count: any-block (all of the trace), or engine (full blocks, and never a prompt's last token).
    #[arg(long, default_value = "any-block")]
    rule: Rule,
    /// Which of the blocks that are used together counts as used earlier: suffix-older (as engines do) or prefix-older.
    #[arg(long, default_value = "suffix-older")]
    order: Order,
    /// The time after which `ttl` lets go of a block that was not used.
    #[arg(long, default_value_t = 300.0, value_name = "S", value_parser = number::not_negative)]
    ttl_seconds: f64,
    /// The seed of random_lru.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time to prefill a token on one GPU: 31 is DeepSeek's published rate.
    #[arg(long, default_value_t = 31.0, value_name = "US", value_parser = number::not_negative)]
    us_per_token: f64,
    /// KV bytes of a token, to tell how much the trace makes; 57344 for a 7B model with 4 KV heads.
    #[arg(long, value_name = "BYTES", value_parser = number::not_negative)]
    bytes_per_token: Option<f64>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the rows as CSV to this file, and the hits over time beside it as `….time.csv`; to /dev/stdout the rows alone.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const AFTER: &str = "\
--json: {\"rows\": [ROW], \"requests\", \"unique_blocks\", \"block_size\", \"span_s\", \"kv_volume\": null or
{\"gb_per_s\", \"pb_per_day\"}, \"time_locality\": [{\"within_s\", \"uses\"}], \"access_frequency\": [{\"up_to\", \"blocks\", \"uses\"}],
\"over_time_capacities\": [N], \"over_time\": [{\"until_s\", \"tokens\", \"token_hits\": [for each of those capacities]}]}. A ROW has
  capacity_blocks, eviction, workers, policy, rule, order    what was combined; capacity_blocks is \"inf\" without a bound
  blocks, block_hits, block_hit_rate                         looked up, and found
  tokens, token_hits, hit_rate                               of prompts, and of these cached
  saved_gpu_s, gpus_without, gpus                            what hits save, by --us-per-token

Exit codes: 0 done, 1 failed, 2 wrong use or an unreadable file.";

impl OptimizeArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        self.check()?;
        let inputs = [self.input.file()];
        let (rows, html) =
            (Output::asked(self.csv.as_deref(), &inputs)?, Output::asked(self.html.as_deref(), &inputs)?);
        let over_time = Output::beside(self.csv.as_deref(), "time.csv", &inputs)?;
        let trace = self.input.asking()?;
        let plan = Plan {
            block_size: trace.block_size,
            capacities: self.capacity_blocks.clone(),
            evictions: self.eviction.clone(),
            workers: self.workers.clone(),
            placements: self.policy.clone(),
            rule: self.rule,
            order: self.order,
            ttl_ms: u64::try_from(Duration::try_from_secs_f64(self.ttl_seconds)?.as_millis()).unwrap_or(u64::MAX),
            seed: self.seed,
            us_per_token: self.us_per_token,
            bytes_per_token: self.bytes_per_token,
        };
        let bar = progress::bar(0, "parts");
        let found = optimize::run(&trace.requests, &plan, &|done, all| {
            bar.set_length(u64::try_from(all).unwrap_or(0));
            bar.set_position(u64::try_from(done).unwrap_or(0));
        });
        bar.finish_and_clear();
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&found)?))?;
        } else {
            say(format_args!("{}", outcome::table(&found)))?;
        }
        rows.map_or(Ok(()), |file| file.write(&outcome::csv(&found)))?;
        over_time.map_or(Ok(()), |file| file.write(&outcome::csv_over_time(&found)))?;
        html.map_or(Ok(()), |file| file.page(outcome::page(&found, &self.input.name())))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Whether all that is asked for fits one table.
    fn check(&self) -> anyhow::Result<()> {
        let Capacities::Listed(listed) = &self.capacity_blocks else { return Ok(()) };
        let lines = self.eviction.len() * self.workers.len() * self.policy.len();
        let fits = listed.len().saturating_mul(lines) <= ROWS_MAX;
        fits.then_some(()).ok_or_else(|| misuse(format!("more than {ROWS_MAX} rows")))
    }
}

fn capacities(text: &str) -> Result<Capacities, String> {
    if text == "sweep" {
        return Ok(Capacities::Sweep);
    }
    text.split(',').map(|part| part.trim().parse::<Capacity>()).collect::<Result<_, _>>().map(Capacities::Listed)
}

fn workers(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=WORKERS_MAX).contains(count));
    count.ok_or_else(|| format!("must be from 1 to {WORKERS_MAX}"))
}
