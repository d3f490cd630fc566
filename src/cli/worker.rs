//! `warmpath worker`: what operators do with one worker of a running router.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Deserialize;
use serde_json::{Value, json};

use super::admin::{AdminArgs, AdminPort};
use super::{runtime, say};
use crate::config::Period;
use crate::printable;

/// Between two looks at a worker that is being drained.
const INTERVAL: Duration = Duration::from_millis(250);

/// Take a worker out of a running router, and in again.
#[derive(Debug, Subcommand)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub enum WorkerCommand {
    /// Give it nothing more, and let it finish what it has: before it is stopped or updated.
    Drain(DrainArgs),
    /// Have it serve again after a drain or an eject.
    Undrain(WorkerArgs),
    /// Give it nothing more, and give to others what it has not begun to answer: when it misbehaves.
    Eject(WorkerArgs),
    /// Forget its failures: it is tried again at once.
    ResetBreaker(WorkerArgs),
    /// Have its engine empty its cache, and forget what it held.
    ResetCache(WorkerArgs),
}

/// Which worker, of which router.
#[derive(Debug, Args)]
pub struct WorkerArgs {
    /// Its `workers[].id`, or the name that discovery gave it: `warmpath top --once` lists them. All its ranks are meant.
    #[arg(value_name = "ID")]
    id: String,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// A drain, and perhaps its end.
#[derive(Debug, Args)]
pub struct DrainArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    /// Come back when none of the router's requests is in flight on it any more: at the latest after this time (10m unless
    /// said otherwise), with exit code 1 if there still are some. It goes on draining then.
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = period)]
    wait: Option<Duration>,
}

const AFTER: &str = "\
A rolling update, a worker at a time:
  warmpath worker drain worker-1 --wait=5m && systemctl restart engine-1 && warmpath worker undrain worker-1

A router knows its own requests only: where several route to a worker, each is asked by its own --admin. What is set lasts
until it is unset, the worker leaves or is described anew, or the router restarts.

--json: the answer of POST /api/v1/workers/{id}/…, {\"worker\", \"state\"}; with --wait also `in_flight`.

Exit codes: 0 done, or so already, 1 refused, not reached, or not drained in time, 2 wrong use.";

/// What is read of `GET /api/v1/workers`.
#[derive(Deserialize)]
struct Workers {
    workers: Vec<Row>,
}

/// One rank.
#[derive(Deserialize)]
struct Row {
    id: String,
    condition: String,
    in_flight: InFlight,
}

#[derive(Deserialize)]
struct InFlight {
    requests: u64,
}

fn period(text: &str) -> Result<Duration, String> {
    Period::try_from(text.to_owned()).map(Period::get)
}

impl WorkerCommand {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (worker, action, wait) = match self {
            Self::Drain(DrainArgs { worker, wait }) => (worker, "drain", wait),
            Self::Undrain(worker) => (worker, "undrain", None),
            Self::Eject(worker) => (worker, "eject", None),
            Self::ResetBreaker(worker) => (worker, "reset_breaker", None),
            Self::ResetCache(worker) => (worker, "reset_cache", None),
        };
        let WorkerArgs { id, json, admin } = worker;
        let runtime = runtime()?;
        let port = admin.port(&runtime)?;
        let told = runtime.block_on(async {
            match wait {
                None => port.act(&id, action).await,
                Some(patience) => port.drained(&id, patience).await,
            }
        })?;
        let mut text = told.to_string();
        if !json {
            let done = if action == "reset_cache" { "cache emptied, it is " } else { "" };
            text = printable::line(&format!("{id}: {done}{}", told["state"].as_str().unwrap_or_default()));
            if let Some(requests) = told["in_flight"].as_u64() {
                // Writing to a string cannot fail.
                let _ = write!(text, ", {requests} in flight");
            }
        }
        say(format_args!("{text}\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}

impl AdminPort {
    async fn act(&self, id: &str, action: &str) -> anyhow::Result<Value> {
        let told = self.change(&["api", "v1", "workers", id, action]).await?;
        // Whoever asks again, as scripts do, has what was asked for.
        let state = match action {
            "drain" => "draining",
            "undrain" => "active",
            _ => "ejected",
        };
        Ok(told.unwrap_or_else(|| json!({"worker": id, "state": state})))
    }

    /// Drains it, and comes back when it has nothing in flight.
    async fn drained(&self, id: &str, patience: Duration) -> anyhow::Result<Value> {
        let start = Instant::now();
        self.act(id, "drain").await?;
        let mut last = 0;
        loop {
            let ranks = self.ranks(id).await?;
            let state = ranks.first().map_or("gone", |rank| rank.condition.as_str());
            let requests: u64 = ranks.iter().map(|rank| rank.in_flight.requests).sum();
            if ranks.is_empty() && last > 0 {
                bail!(
                    "{id} has left the list; {last} were in flight when last seen: its engine tells when they have ended"
                );
            }
            if !["draining", "ejected", "gone"].contains(&state) {
                bail!("{id} is {state} and on duty again, with {requests} in flight: somebody has ended the drain");
            }
            last = requests;
            if requests == 0 {
                return Ok(json!({"worker": id, "state": state, "in_flight": requests}));
            }
            if start.elapsed() >= patience {
                bail!("{id} still has {requests} in flight after {patience:?}: it is {state}, and goes on");
            }
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// What is known of its ranks; nothing once it has left.
    async fn ranks(&self, id: &str) -> anyhow::Result<Vec<Row>> {
        let Workers { workers } = self.get(&["api", "v1", "workers"], &[]).await?;
        Ok(workers.into_iter().filter(|row| row.id == id).collect())
    }
}
