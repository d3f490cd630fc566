//! `warmpath replay`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::available_parallelism;

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;

use super::runtime;
use crate::config::Config;
use crate::replay::measured::{self, Gateway};
use crate::replay::page;
use crate::replay::report::{self, Row};
use crate::replay::simulated::{Trial, Trials, Tried, csv};
use crate::replay::trace::{self, TraceRequest};
use crate::sim::fleet::{Effect, EventWay, Reports, RouterSettings, Scenario};
use crate::sim::{EngineConfig, Ms, Timing};

/// Sends the requests of a trace, at the times of the trace, through simulated fleets behind the real scheduler, index and
/// decoder. Lists give all combinations, which run side by side. Equal options give equal figures, but for `wall_s`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The trace: JSON lines of timestamp, input_length, output_length and hash_ids, plain or gzipped.
    #[arg(long, value_name = "FILE")]
    trace: PathBuf,
    /// Numbers of workers.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Vec<u16>,
    /// Policies.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "kv", value_parser = policy)]
    policy: Vec<PolicyName>,
    /// How much faster than recorded requests arrive.
    #[arg(long, value_name = "FACTOR", value_delimiter = ',', default_value = "1")]
    speed: Vec<f64>,
    /// Replay only the first requests of the trace.
    #[arg(long, value_name = "N")]
    requests: Option<usize>,
    /// Seed of every chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Tokens in a block, of the trace as well as of the engines.
    #[arg(long, value_name = "TOKENS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    block_size: u32,
    /// Blocks in each engine's cache.
    #[arg(long, value_name = "BLOCKS", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cache_blocks: u32,
    /// How long a step of an engine lasts.
    #[arg(long, value_name = "MODEL", default_value_t, help = format!("How long a step of an engine lasts: {}", Timing::known()))]
    timing: Timing,
    /// Requests that an engine runs at once.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    max_num_seqs: u32,
    /// Tokens that an engine computes in one step.
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    max_num_batched_tokens: u32,
    /// Take the weights of the policies from this configuration.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Time from the end of an engine's step until its events reach the router, in ms.
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    event_delay: f64,
    /// Time between two readings of the engines' metrics, in ms; 0: never. As configured, if it is not given.
    #[arg(long, value_name = "MS")]
    scrape_interval: Option<f64>,
    /// The share of the requests at the beginning that warms the caches and counts in no figure.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    warm_up: f64,
    /// Leave out effects of the model.
    #[arg(long, value_name = "EFFECT", value_delimiter = ',', help = format!("Leave out effects of the model: {}", Effect::ALL.map(Effect::as_str).join(", ")))]
    without: Vec<Effect>,
    /// Add a row for each effect of the model left out, with the difference that it makes.
    #[arg(long)]
    ablate: bool,
    /// Send events as bytes through encoder and decoder, and prompts as token ids. Slower; changes no figure.
    #[arg(long)]
    wire: bool,
    /// Check all that must hold after every step. Much slower.
    #[arg(long)]
    check: bool,
    /// Combinations that run at once; as many as there are cores, if it is not given.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Send the requests to this live gateway instead, at the first of the speeds; what is reachable is then that of a cache
    /// without bound.
    #[arg(long, value_name = "URL", conflicts_with_all = ["csv", "html", "ablate", "without", "config"])]
    live: Option<String>,
    /// The model that is asked for.
    #[arg(long, value_name = "NAME", requires = "live", default_value = "demo")]
    model: String,
    /// Prompt tokens are below this number.
    #[arg(long, value_name = "N", requires = "live", default_value_t = 32_000, value_parser = clap::value_parser!(u32).range(2..))]
    vocabulary: u32,
    /// Write what became of every request to this file, as comma-separated values.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Write a report with plots to this file, as one HTML page that needs no other.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn policy(name: &str) -> Result<PolicyName, String> {
    let known = || PolicyName::ALL.map(PolicyName::as_str).join(", ");
    let found = PolicyName::ALL.into_iter().find(|policy| policy.as_str() == name);
    found.ok_or_else(|| format!("unknown policy (known: {})", known()))
}

impl ReplayArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        ensure!(self.speed.iter().all(|speed| speed.is_finite() && *speed > 0.0), "--speed must be above 0");
        ensure!((0.0..1.0).contains(&self.warm_up), "--warm-up must be at least 0 and below 1, got {}", self.warm_up);
        for (name, ms) in [("event-delay", self.event_delay), ("scrape-interval", self.scrape_interval.unwrap_or(0.0))]
        {
            ensure!(ms.is_finite() && ms >= 0.0, "--{name} must be at least 0, got {ms}");
        }
        let trace = self.read()?;
        if let Some(base) = &self.live {
            return self.against(base, &trace);
        }
        let config = self.config.as_deref().map(configuration).transpose()?.unwrap_or_default();
        let block_size = BlockSize::new(self.block_size).context("--block-size must be at least 1")?;
        let trials = Trials::new(&trace, block_size, share(trace.len(), self.warm_up));
        let wanted = self.trials(&config, block_size);
        let tried = self.try_all(&trials, &wanted)?;
        self.show(&tried.iter().map(|tried| tried.row.clone()).collect::<Vec<_>>())?;
        if let Some(file) = &self.csv {
            std::fs::write(file, csv(&tried)).with_context(|| format!("cannot write {}", file.display()))?;
        }
        if let Some(file) = &self.html {
            let name = self.trace.file_name().unwrap_or_default().to_string_lossy();
            std::fs::write(file, page::page(&name, &trials, &tried).render())
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        let whole = tried.iter().all(|tried| tried.row.completed == tried.row.requests);
        if !whole {
            eprintln!("warmpath: some requests did not complete: their prompts are longer than an engine can hold");
        }
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Replays against a live gateway.
    fn against(&self, base: &str, trace: &[TraceRequest]) -> anyhow::Result<ExitCode> {
        let gateway = Gateway {
            base: base.trim_end_matches('/').to_owned(),
            model: self.model.clone(),
            vocabulary: self.vocabulary,
            block_size: self.block_size,
            speed: self.speed.first().copied().unwrap_or(1.0),
        };
        let bar = progress_bar(trace.len(), std::io::stderr().is_terminal());
        let row = runtime()?.block_on(measured::replay(trace, &gateway, || bar.inc(1)));
        bar.finish_and_clear();
        let whole = row.completed == row.requests;
        self.show(std::slice::from_ref(&row))?;
        if let (false, Some(lag)) = (self.json, row.lag_ms) {
            println!("sent behind their times: mean {:.2} ms, p99 {:.2} ms", lag.mean, lag.p99);
        }
        if !whole {
            eprintln!("warmpath: some requests did not complete");
        }
        Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn read(&self) -> anyhow::Result<Vec<TraceRequest>> {
        let name = self.trace.display();
        let bytes = std::fs::read(&self.trace).with_context(|| format!("cannot read {name}"))?;
        let mut trace = trace::read(&bytes).with_context(|| format!("{name}"))?;
        trace.sort_by_key(|request| request.at_ms);
        trace.truncate(self.requests.unwrap_or(usize::MAX));
        ensure!(!trace.is_empty(), "{name} has no requests");
        Ok(trace)
    }

    /// Every combination, in the order of the options.
    fn trials(&self, config: &Config, block_size: BlockSize) -> Vec<Trial> {
        let mut trials = Vec::new();
        for workers in &self.workers {
            for speed in &self.speed {
                for policy in &self.policy {
                    let scenario = self.scenario((*policy, *workers, *speed), config, block_size);
                    let scenario = self.without.iter().fold(scenario, |scenario, effect| scenario.without(*effect));
                    trials.push(Trial { scenario: scenario.clone(), without: None });
                    let left_out = Effect::ALL.into_iter().filter(|effect| !self.without.contains(effect));
                    trials.extend(
                        left_out
                            .filter(|_| self.ablate)
                            .map(|effect| Trial { scenario: scenario.clone().without(effect), without: Some(effect) }),
                    );
                }
            }
        }
        trials
    }

    fn scenario(
        &self,
        (policy, workers, speed): (PolicyName, u16, f64),
        config: &Config,
        block_size: BlockSize,
    ) -> Scenario {
        let count = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let engine = EngineConfig {
            block_size,
            blocks: self.cache_blocks + 1,
            max_num_seqs: count(self.max_num_seqs),
            max_num_batched_tokens: count(self.max_num_batched_tokens),
            timing: self.timing,
            ..EngineConfig::default()
        };
        let configured = config.engines.metrics_interval.get().as_secs_f64() * 1e3;
        let interval = self.scrape_interval.unwrap_or(configured);
        Scenario {
            router: RouterSettings::new(policy, config),
            workers,
            engine,
            speed,
            seed: self.seed,
            events: EventWay::AfterStep(Ms(self.event_delay)),
            reports: if interval > 0.0 { Reports::Every(Ms(interval)) } else { Reports::Never },
            wire: self.wire,
            check: self.check,
        }
    }

    fn try_all(&self, trials: &Trials<'_>, wanted: &[Trial]) -> anyhow::Result<Vec<Tried>> {
        let total = trials.prepared().len().saturating_mul(wanted.len());
        let bar = progress_bar(total, std::io::stderr().is_terminal());
        let cores = available_parallelism().map_or(1, std::num::NonZero::get);
        let tried = trials.run(wanted, self.jobs.unwrap_or(cores), &|| bar.inc(1));
        bar.finish_and_clear();
        Ok(tried?)
    }

    fn show(&self, rows: &[Row]) -> anyhow::Result<()> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "rows": rows }))?);
        } else {
            print!("{}", report::lines(rows));
        }
        Ok(())
    }
}

/// So many of `len`, rounded down.
fn share(len: usize, share: f64) -> usize {
    let mut count = 0;
    while crate::real::real_len(count + 1) <= crate::real::real_len(len) * share {
        count += 1;
    }
    count
}

fn configuration(file: &Path) -> anyhow::Result<Config> {
    match Config::load(file) {
        Ok(config) => Ok(config),
        Err(error) => bail!("{error}"),
    }
}

fn progress_bar(requests: usize, shown: bool) -> ProgressBar {
    if !shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(requests).unwrap_or(0));
    let style = ProgressStyle::with_template("[{wide_bar}] {pos}/{len} requests, {eta} left");
    bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
    bar
}
