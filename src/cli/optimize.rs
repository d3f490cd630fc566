//! `warmpath optimize`.

use std::fs;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::say;
use super::trace::Input;
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
pub struct OptimizeArgs {
    #[command(flatten)]
    input: Input,
    /// Each worker's room in blocks: numbers, `inf`, or `sweep` for a curve up to the trace's different blocks.
    #[arg(long, default_value = "sweep", value_name = "N,…|sweep")]
    capacity_blocks: String,
    /// Who goes when a cache is full: lru, random_lru, leaf_aware_lru, lfu, ttl.
    #[arg(long, value_delimiter = ',', default_value = "lru")]
    eviction: Vec<Eviction>,
    /// Numbers of workers.
    #[arg(long, value_delimiter = ',', default_value = "1")]
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
    #[arg(long, default_value_t = 300.0, value_name = "S")]
    ttl_seconds: f64,
    /// The seed of random_lru.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time to prefill a token on one GPU: 31 is DeepSeek's published rate.
    #[arg(long, default_value_t = 31.0, value_name = "US")]
    us_per_token: f64,
    /// KV bytes of a token, to tell how much the trace makes; 57344 for a 7B model with 4 KV heads.
    #[arg(long, value_name = "BYTES")]
    bytes_per_token: Option<f64>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the rows as CSV to this file, and the hits over time beside it as `….time.csv`.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a page with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl OptimizeArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let capacities = self.capacities()?;
        for (value, name) in [(self.ttl_seconds, "--ttl-seconds"), (self.us_per_token, "--us-per-token")] {
            ensure!(value.is_finite() && value >= 0.0, "{name} must be a number, 0 or more, got {value}");
        }
        let ok = |workers: &usize| (1..=WORKERS_MAX).contains(workers);
        ensure!(self.workers.iter().all(ok), "--workers must be between 1 and {WORKERS_MAX}");
        let trace = self.input.read()?;
        let plan = Plan {
            block_size: trace.block_size,
            capacities,
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
        let bar = progress_bar();
        let found = optimize::run(&trace.requests, &plan, &|done, all| {
            bar.set_length(u64::try_from(all).unwrap_or(0));
            bar.set_position(u64::try_from(done).unwrap_or(0));
        });
        bar.finish_and_clear();
        if let Some(path) = &self.csv {
            write(path, &outcome::csv(&found))?;
            write(&path.with_extension("time.csv"), &outcome::csv_over_time(&found))?;
        }
        if let Some(path) = &self.html {
            write(path, &outcome::page(&found, &self.input.name()))?;
        }
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&found)?));
        } else {
            say(format_args!("{}", outcome::table(&found)));
        }
        Ok(ExitCode::SUCCESS)
    }

    fn capacities(&self) -> anyhow::Result<Capacities> {
        if self.capacity_blocks == "sweep" {
            return Ok(Capacities::Sweep);
        }
        let listed = self.capacity_blocks.split(',').map(|text| text.trim().parse::<Capacity>());
        let listed = listed.collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg).context("--capacity-blocks")?;
        let lines = self.eviction.len() * self.workers.len() * self.policy.len();
        ensure!(listed.len().saturating_mul(lines) <= ROWS_MAX, "more than {ROWS_MAX} rows");
        Ok(Capacities::Listed(listed))
    }
}

fn write(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// On standard error, where that is a terminal.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("[{wide_bar}] {pos}/{len}, {eta} left");
    bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
    bar
}
