//! `warmpath replay`.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Effect, Scenario};

use super::explain;
use super::fleet::{FleetArgs, completeness, policies, policy, share, simulated};
use super::misuse::misuse;
use super::output::Output;
use super::site::{TlsArgs, remedied};
use super::trace::Input;
use super::{number, progress, remark, runtime, say};
use crate::config::Config;
use crate::doctor;
use crate::printable;
use crate::replay::live;
use crate::replay::measured::{self, Gateway};
use crate::replay::page;
use crate::replay::report::{self, Row};
use crate::replay::simulated::{Trial, Trials, Tried, csv};
use crate::replay::trace::TraceRequest;
use crate::telemetry::panics;

/// Sends the requests of a trace, at the times of the trace, through simulated fleets behind the real scheduler, index and
/// decoder. Lists give all combinations, which run side by side. Equal options give equal figures, but for `wall_s`.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct ReplayArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    fleet: FleetArgs,
    /// Policies, one or several with commas between.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "kv", value_parser = policy, help = policies())]
    policy: Vec<PolicyName>,
    /// Leave out effects of the model.
    #[arg(long, value_name = "EFFECT", value_delimiter = ',', help = format!("Leave out effects of the model: {}", Effect::ALL.map(Effect::as_str).join(", ")))]
    without: Vec<Effect>,
    /// Add a row for each effect of the model left out, with the difference that it makes.
    #[arg(long)]
    ablate: bool,
    /// Send events as bytes through encoder and decoder, and prompts as token ids. Slower; changes no
    /// figure but those of chwbl, whose key of a prompt, made of its first block, is another there.
    #[arg(long)]
    wire: bool,
    /// Tell of these requests, numbered from 1 in the order of their arrival, why they went where they went: every candidate with
    /// every term of its cost, as `warmpath explain` does.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    explain: Vec<u32>,
    /// Check all that must hold after every step. Much slower.
    #[arg(long)]
    check: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Send the requests to this live gateway instead, at the first of the speeds; what is reachable is then that of a cache
    /// without bound.
    #[arg(long, value_name = "URL", conflicts_with_all = SIMULATED)]
    live: Option<String>,
    /// How long the gateway may say nothing, before an answer and within one, until the request has failed.
    #[arg(long, value_name = "SECONDS", requires = "live", default_value_t = live::PATIENCE.as_secs_f64(), value_parser = number::above_zero)]
    timeout: f64,
    #[command(flatten)]
    tls: TlsArgs,
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

const AFTER: &str = "\
--json: {\"rows\": [ROW]}, one for each combination of the lists. A ROW has
  policy, workers, speed, seed     what was combined
  requests, completed              sent, and answered whole
  input_tokens, cached_tokens      of prompts, as engines counted them
  hit_rate, reachable_hit_rate     cached over input; of one cache as large as the fleet's together
  ttft_ms, itl_ms, e2e_ms          {\"mean\", \"p50\", \"p90\", \"p95\", \"p99\"}: to the first token, between tokens, to the last
  requests_per_s, wall_s           completed over the time until the last ended; seconds that it took
  requests_max_over_mean, new_tokens_max_over_mean, load_balance_score
                                   the busiest worker's over the mean; deviation of loads over their mean
  requests_by_worker               a list
  predicted_cached_tokens, predicted_exact_requests
  failures                         {reason: count} of those that were not answered whole; left out where all were
with --explain decisions, as `warmpath explain --json` has them; and with --ablate ablation {\"without\", and what that changes: \"hit_rate\", \"ttft_mean_ms\", \"ttft_p99_ms\", \"itl_mean_ms\",
\"e2e_mean_ms\", \"requests_per_s\"}; with --live lag_ms, how far behind their times requests were sent.
What is not known is left out: of a live gateway the seed, who did not answer, and what was cached where no engine tells.

Exit codes: 0 all completed (or a worker was to die), 1 not all were, or failed, 2 wrong use or an unreadable file.";

/// What says something of simulated fleets, or of what only they tell; a live gateway knows nothing of it.
const SIMULATED: [&str; 39] = [
    "workers",
    "seed",
    "cache_blocks",
    "gpu_memory_utilization",
    "profile",
    "host_blocks",
    "storage_blocks",
    "write_policy",
    "write_output",
    "prefetch",
    "bus_link",
    "storage_link",
    "storage_ranks",
    "slow_rank",
    "tier_eviction",
    "timing",
    "max_num_seqs",
    "max_num_batched_tokens",
    "config",
    "event_delay",
    "scrape_interval",
    "slow",
    "restart",
    "routers",
    "output_unknown",
    "jitter",
    "kv_transfer",
    "misread",
    "clients",
    "warm_up",
    "jobs",
    "policy",
    "without",
    "ablate",
    "wire",
    "check",
    "explain",
    "csv",
    "html",
];

impl ReplayArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if self.live.is_none() && self.tls.is_given() {
            return Err(misuse("--ca, --cert and --key are for --live: simulated fleets have no certificates"));
        }
        self.fleet.check()?;
        let config = self.fleet.configuration()?;
        let inputs = [self.input.file(), ("--config", self.fleet.config.as_deref())];
        let outputs = (Output::asked(self.csv.as_deref(), &inputs)?, Output::asked(self.html.as_deref(), &inputs)?);
        let (trace, block_size) = self.input.requests()?;
        if let Some(base) = &self.live {
            return self.against(base, &trace, block_size);
        }
        panics::say_wholly();
        let trials = Trials::new(&trace, block_size, share(trace.len(), self.fleet.warm_up));
        let wanted = self.trials(&config, block_size, &self.explained(trace.len())?);
        let tried = self.try_all(&trials, &wanted)?;
        self.show(&tried.iter().map(|tried| tried.row.clone()).collect::<Vec<_>>())?;
        let (rows, html) = outputs;
        rows.map_or(Ok(()), |file| file.write(&csv(&tried)))?;
        html.map_or(Ok(()), |file| file.page(page::page(&self.input.name(), &trials, &tried)))?;
        // With a worker that dies some are meant to fail.
        let is_expected = self.fleet.restart.is_some();
        Ok(if is_expected { ExitCode::SUCCESS } else { completeness(tried.iter().map(|tried| &tried.row)) })
    }

    /// Replays against a live gateway.
    fn against(&self, base: &str, trace: &[TraceRequest], block_size: BlockSize) -> anyhow::Result<ExitCode> {
        let runtime = runtime()?;
        let site = {
            let _inside = runtime.enter();
            self.tls.site(base).context("--live")?
        };
        let gateway = Gateway {
            site: site.clone(),
            model: self.model.clone(),
            vocabulary: self.vocabulary,
            block_size: block_size.get(),
            speed: self.fleet.speed.first().copied().unwrap_or(1.0),
            patience: Duration::from_secs_f64(self.timeout),
        };
        let found = runtime.block_on(live::find(&site, &gateway.model));
        found.map_err(|error| remedied(error, &site))?;
        let bar = progress::bar(trace.len(), "requests");
        let row = runtime.block_on(measured::replay(trace, &gateway, || bar.inc(1)));
        bar.finish_and_clear();
        self.show(std::slice::from_ref(&row))?;
        if let (false, Some(lag)) = (self.json, row.lag_ms) {
            say(format_args!("sent behind their times: mean {:.2} ms, p99 {:.2} ms\n", lag.mean, lag.p99))?;
        }
        if row.completed > 0 && row.hit_rate.is_none() {
            let unknown = "no engine told how many tokens its cache had, so the hit rate is not known";
            remark(format_args!("warmpath: {unknown}: {}\n", doctor::DETAILS));
        }
        Ok(completeness([&row]))
    }

    /// The places of the requests whose decisions are told, in rising order.
    fn explained(&self, requests: usize) -> anyhow::Result<Vec<usize>> {
        let numbers = self.explain.iter().map(|number| usize::try_from(*number).unwrap_or(usize::MAX));
        let places: BTreeSet<usize> = numbers.map(|number| number - 1).collect();
        if let Some(beyond) = places.last().filter(|last| **last >= requests) {
            return Err(misuse(format!("--explain {}: the trace has {requests} requests", beyond + 1)));
        }
        Ok(places.into_iter().collect())
    }

    /// Every combination, in the order of the options.
    fn trials(&self, config: &Config, block_size: BlockSize, explained: &[usize]) -> Vec<Trial> {
        let mut trials = Vec::new();
        for workers in &self.fleet.workers {
            for speed in &self.fleet.speed {
                for policy in &self.policy {
                    let scenario = self.fleet.scenario((*policy, *workers, *speed), config, block_size);
                    let scenario =
                        Scenario { wire: self.wire, check: self.check, explained: explained.to_vec(), ..scenario };
                    let scenario = self.without.iter().fold(scenario, |scenario, effect| scenario.without(*effect));
                    trials.push(Trial { scenario: scenario.clone(), without: None });
                    let warm_up = self.fleet.warm_up > 0.0;
                    let left_out = Effect::ALL
                        .into_iter()
                        .filter(|effect| scenario.has(*effect) && (warm_up || *effect != Effect::WarmUp));
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

    fn try_all(&self, trials: &Trials<'_>, wanted: &[Trial]) -> anyhow::Result<Vec<Tried>> {
        let total = trials.prepared().len().saturating_mul(wanted.len());
        let bar = progress::bar(total, "requests");
        let tried = trials.run(wanted, self.fleet.threads(), &|| bar.inc(1));
        bar.finish_and_clear();
        simulated(tried)
    }

    fn show(&self, rows: &[Row]) -> anyhow::Result<()> {
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&serde_json::json!({ "rows": rows }))?))?;
        } else {
            say(format_args!("{}", report::lines(rows)))?;
            for row in rows {
                for made in &row.decisions {
                    let Row { policy, workers, speed, .. } = row;
                    let told = printable::lines(&explain::as_text(made, None));
                    say(format_args!("\n{policy}, {workers} workers, {speed} times as fast: {told}\n"))?;
                }
            }
        }
        Ok(())
    }
}
