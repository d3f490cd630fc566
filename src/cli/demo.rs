//! `warmpath demo`.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tracing::Level;
use warmpath_core::policy::PolicyName;

use super::fleet::{completeness, policies, policy};
use super::{nats_url, number, remark, runtime, say};
use crate::config::LogFormat;
use crate::demo::{self, DemoOptions};
use crate::telemetry::{self, has_moves};

/// Replays a slice of a real conversation trace through the router to simulated engines, under one policy after the other,
/// each before a fresh fleet. Takes about a minute; needs no GPU, no server and no network but loopback.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct DemoArgs {
    /// Send the engines' events over this NATS server instead of inside the process.
    #[arg(long, value_name = "NATS-URL")]
    bus: Option<String>,
    /// Leave the last fleet serving, and print a request to try.
    #[arg(long)]
    keep: bool,
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Policies, one or several with commas between.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "round_robin,kv", value_parser = policy, help = policies())]
    policy: Vec<PolicyName>,
    /// Simulated engines.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: u16,
    /// Replay only the first requests of the slice.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests: Option<u32>,
    /// How much faster than recorded requests arrive.
    #[arg(long, default_value_t = DemoOptions::default().speed, value_parser = number::above_zero)]
    speed: f64,
    /// Blocks of 16 tokens in each engine's cache.
    #[arg(long, default_value_t = DemoOptions::default().cache_blocks, value_parser = clap::value_parser!(u32).range(512..=1_000_000))]
    cache_blocks: u32,
    /// Seed of every chance.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const AFTER: &str = "\
--json: {\"rows\": [ROW]}, one for each policy, with rows as `warmpath replay` has them.

Exit codes: 0 all requests were completed, 1 not all were, or failed, 2 wrong use.";

impl DemoArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        telemetry::log_to_stderr(LogFormat::Text, Level::WARN);
        let options = DemoOptions {
            bus: self.bus.as_deref().map(|url| nats_url("--bus", url)).transpose()?,
            workers: usize::from(self.workers),
            cache_blocks: self.cache_blocks,
            requests: self.requests.map(|requests| usize::try_from(requests).unwrap_or(usize::MAX)),
            speed: self.speed,
            seed: self.seed,
            policies: self.policy.clone(),
            progress: has_moves(&std::io::stderr()),
            ..DemoOptions::default()
        };
        runtime()?.block_on(self.show(&options))
    }

    async fn show(&self, options: &DemoOptions) -> anyhow::Result<ExitCode> {
        let requests = demo::slice(options)?;
        remark(format_args!("{}\n\n", demo::describe(options, &requests)));
        let (rows, fleet) = demo::run(options).await.context("the demo stopped")?;
        if self.json {
            say(format_args!("{}\n", serde_json::to_string_pretty(&serde_json::json!({ "rows": rows }))?))?;
        } else {
            say(format_args!("{}", demo::table(&rows)))?;
        }
        if let Some(fleet) = fleet {
            if self.keep {
                let invitation = format!("\n{}\n", fleet.invitation());
                if self.json {
                    remark(format_args!("{invitation}"));
                } else {
                    say(format_args!("{invitation}"))?;
                }
                fleet.serve().await?;
            } else {
                fleet.stop().await;
            }
        }
        Ok(completeness(&rows))
    }
}
