//! `warmpath tune`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, ensure};
use clap::Args;
use warmpath_core::policy::PolicyName;

use super::fleet::{FleetArgs, policy, progress_bar, requests, share};
use super::say;
use super::trace::Input;
use crate::tune::figures::{Aim, Limits};
use crate::tune::{self, Plan, page};

/// Searches the weights of a policy over a trace, at all speeds and fleet sizes together, for a stated aim. The end of the
/// trace is held back: what was found is shown on it beside the weights that the search began with, and where it is not
/// better there, those are printed. Equal options give equal results, but for `wall_s`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    fleet: FleetArgs,
    /// The policy whose weights are searched.
    #[arg(long, value_name = "NAME", default_value = "kv", value_parser = policy)]
    policy: PolicyName,
    /// What is to be reached: mean-ttft, p99-ttft, or goodput, the share of answers that keep both limits.
    #[arg(long, default_value = "mean-ttft")]
    aim: Aim,
    /// Time to first token of a good answer, in ms.
    #[arg(long, value_name = "MS", default_value_t = 2_000.0)]
    ttft_limit: f64,
    /// Mean time between the tokens of a good answer, in ms.
    #[arg(long, value_name = "MS", default_value_t = 50.0)]
    itl_limit: f64,
    /// Choices of weights that are tried. Most are given up after a part of the trace.
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    trials: u16,
    /// The share of the trace, at its end, that the search does not see.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3)]
    hold_back: f64,
    /// Print one JSON document instead of tables.
    #[arg(long)]
    json: bool,
    /// Write a report with plots to this file, as one HTML page that needs no other.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the weights to use to this file, as a configuration has them.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl TuneArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        self.fleet.check()?;
        let is_part = self.hold_back > 0.0 && self.hold_back < 1.0;
        ensure!(is_part, "--hold-back must be above 0 and below 1, got {}", self.hold_back);
        for (name, ms) in [("ttft-limit", self.ttft_limit), ("itl-limit", self.itl_limit)] {
            ensure!(ms.is_finite() && ms > 0.0, "--{name} must be above 0, got {ms}");
        }
        let config = self.fleet.configuration()?;
        let (trace, block_size) = requests(&self.input)?;
        let tuned = share(trace.len(), 1.0 - self.hold_back);
        let fleets =
            self.fleet.workers.iter().flat_map(|workers| self.fleet.speed.iter().map(|speed| (*workers, *speed)));
        let scenario = |(workers, speed)| self.fleet.scenario((self.policy, workers, speed), &config, block_size);
        let plan = Plan {
            policy: self.policy,
            aim: self.aim,
            limits: Limits { ttft_ms: self.ttft_limit, itl_ms: self.itl_limit },
            trials: usize::from(self.trials),
            seed: self.fleet.seed,
            cells: fleets.map(scenario).collect(),
            block_size,
            warm_up: share(tuned, self.fleet.warm_up),
            tuned,
            threads: self.fleet.threads(),
        };
        let bar = progress_bar(0, std::io::stderr().is_terminal());
        let planned = |requests: usize| bar.set_length(u64::try_from(requests).unwrap_or(0));
        let outcome = tune::run(&trace, &plan, &planned, &|| bar.inc(1))?;
        bar.finish_and_clear();
        for (file, text) in [
            (&self.out, outcome.file(&self.input.name())),
            (&self.html, page::page(&self.input.name(), &outcome).render()),
        ] {
            if let Some(file) = file {
                std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&outcome)?));
        } else {
            say(format_args!("{}", outcome.table()));
        }
        Ok(ExitCode::SUCCESS)
    }
}
