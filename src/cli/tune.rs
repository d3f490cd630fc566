//! `warmpath tune`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use warmpath_core::count::real_len;
use warmpath_core::policy::PolicyName;

use super::fleet::{FleetArgs, REFUSED, policy, share};
use super::misuse::OrMisuse;
use super::output::Output;
use super::trace::Input;
use super::{number, progress, remark, say};
use crate::telemetry::panics;
use crate::tune::figures::{Aim, Limits};
use crate::tune::{self, Plan, page, space};

/// Searches the weights of a policy over a trace, at all speeds and fleet sizes together, for a stated aim. The end of the
/// trace is held back: what was found is shown on it beside the weights that the search began with, over several draws of
/// chance, and where it is not better there by more than these differ, those are printed. Equal options give equal results,
/// but for `wall_s`.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct TuneArgs {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    fleet: FleetArgs,
    /// The policy whose weights are searched.
    #[arg(long, value_name = "NAME", default_value = "kv", value_parser = tunable)]
    policy: PolicyName,
    /// What is to be reached: mean-ttft, p99-ttft, or goodput, the share of answers that keep both limits.
    #[arg(long, default_value = "mean-ttft")]
    aim: Aim,
    /// Time to first token of a good answer, in ms.
    #[arg(long, value_name = "MS", default_value_t = 2_000.0, value_parser = number::above_zero)]
    ttft_limit: f64,
    /// Mean time between the tokens of a good answer, in ms.
    #[arg(long, value_name = "MS", default_value_t = 50.0, value_parser = number::above_zero)]
    itl_limit: f64,
    /// Choices of weights that are tried. Most are given up after a part of the trace.
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    trials: u16,
    /// The share of the trace, at its end, that the search does not see.
    #[arg(long, value_name = "SHARE", default_value_t = 0.3, value_parser = number::inner_part)]
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

const AFTER: &str = "\
--json: {\"policy\", \"aim\", \"limits\": {\"ttft_ms\", \"itl_ms\"}, \"seed\", \"tuned_requests\", \"held_back_requests\",
\"cells\": [{\"workers\", \"speed\"}], \"points\", \"simulations\", \"verdict\", \"change_tuned\", \"change_held_back\",
\"changes_held_back\": [of each draw], \"error_held_back\",
\"start\" and \"found\": {\"weights\": {key: value}, \"tuned\" and \"held_back\": {\"all\": FIGURES, \"cells\": [FIGURES]}},
\"front\": [{\"weights\", \"tuned\": FIGURES}], \"tried\": [FIGURES],
\"worlds\": [{\"constant\", \"factor\", \"start\": FIGURES, \"found\": FIGURES, \"change\"}], \"yaml\", \"wall_s\"}.
FIGURES are {\"ttft_mean_ms\", \"ttft_p99_ms\", \"itl_mean_ms\", \"e2e_mean_ms\", \"hit_rate\", \"good\", \"completed\"}; the last two
are shares of requests, `good` of those within both limits. Changes are of what is aimed at, over that of the start.

What is held back comes once the fleet has run empty, and is drawn eight times: with other seeds, and with steps that last 1 %
longer or shorter by chance, or --jitter where that is more. Its figures are those of all draws; \"error_held_back\" is the
standard error of their mean change. The verdict is \"better\" where the gain is more than 2.5 of these, \"chance\" where it is
less, \"not_confirmed\" where there is none, and \"nothing_found\" where the search found nothing better.

Exit codes: 0 searched, 1 not all requests were completed, or failed, 2 wrong use or an unreadable file.";

impl TuneArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        self.fleet.check()?;
        let config = self.fleet.configuration()?;
        let inputs = [self.input.file(), ("--config", self.fleet.config.as_deref())];
        let outputs = (Output::asked(self.out.as_deref(), &inputs)?, Output::asked(self.html.as_deref(), &inputs)?);
        let (trace, block_size) = self.input.requests()?;
        let tuned = trace.len() - held_back(trace.len(), self.hold_back);
        let fleets =
            self.fleet.workers.iter().flat_map(|workers| self.fleet.speed.iter().map(|speed| (*workers, *speed)));
        let scenario = |(workers, speed)| self.fleet.scenario((self.policy, workers, speed), &config, block_size);
        panics::say_wholly();
        let plan = Plan {
            policy: self.policy,
            aim: self.aim,
            limits: Limits { ttft_ms: self.ttft_limit, itl_ms: self.itl_limit },
            trials: usize::from(self.trials),
            seed: self.fleet.seed,
            routing: config.routing.clone(),
            cells: fleets.map(scenario).collect(),
            block_size,
            warm_up: share(tuned, self.fleet.warm_up),
            tuned,
            threads: self.fleet.threads(),
        };
        let bar = progress::bar(0, "requests");
        let planned = |requests: usize| bar.set_length(u64::try_from(requests).unwrap_or(0));
        let outcome = tune::run(&trace, &plan, &planned, &|| bar.inc(1)).or_misuse()?;
        bar.finish_and_clear();
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&outcome)?))?;
        } else {
            say(format_args!("{}", outcome.table()))?;
        }
        let (weights, html) = outputs;
        weights.map_or(Ok(()), |file| file.write(&outcome.file(&self.input.name())))?;
        html.map_or(Ok(()), |file| file.page(page::page(&self.input.name(), &outcome)))?;
        // With a worker that dies some are meant to fail.
        let completed = outcome.completed();
        if completed < 1.0 && self.fleet.restart.is_none() {
            remark(format_args!("warmpath: {:.1} % of the requests completed: {REFUSED}\n", completed * 100.0));
            return Ok(ExitCode::FAILURE);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The requests that are nearest to this share of `len`: at least one, and not all where there are several.
fn held_back(len: usize, share: f64) -> usize {
    let nearest = (1..len).take_while(|count| real_len(*count) - 0.5 <= real_len(len) * share).count();
    nearest.max(1).min(len)
}

/// A policy that has weights.
fn tunable(name: &str) -> Result<PolicyName, String> {
    space::tunable(policy(name)?).map_err(|nothing| nothing.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_held_back_as_the_share_says() {
        let of = |len: usize| [0.01, 0.1, 0.3, 0.7, 0.8, 0.9, 0.99].map(|share| held_back(len, share));
        assert_eq!(of(10), [1, 1, 3, 7, 8, 9, 9]);
        assert_eq!(of(100), [1, 10, 30, 70, 80, 90, 99]);
        assert_eq!((held_back(100, 0.29), held_back(1_000, 0.001), held_back(8_020, 0.3)), (29, 1, 2_406));
        assert_eq!((held_back(0, 0.3), held_back(1, 0.3), held_back(2, 0.9)), (0, 1, 1));
    }
}
