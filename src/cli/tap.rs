//! `warmpath tap`: decisions as they are made.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::admin::{AdminArgs, AdminPort};
use super::{remark, runtime};
use crate::decisions::told::Row;
use crate::printable;

/// Decisions that are asked for at once.
const AT_ONCE: usize = 1000;

/// Shows a running router's decisions as they are made, until it is interrupted.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct TapArgs {
    /// Only those of this model.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only those for this worker.
    #[arg(long, value_name = "ID")]
    worker: Option<String>,
    /// Only those whose request's x-request-id has this in it.
    #[arg(long, value_name = "TEXT")]
    request: Option<String>,
    /// End after so many.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Begin with so many that were made before, 1000 at most.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    last: u16,
    /// Milliseconds between two looks.
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(50..=60_000))]
    interval: u64,
    /// Print a JSON line for each.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

const AFTER: &str = "\
Each line: number, model, worker, cached of prompt tokens, why. What the engine said and the time to the first token are
told by `warmpath explain --request NUMBER` once they are known.

--json: a row of GET /api/v1/decisions a line. Where more are made than are looked at, those between are left out, and a
line on standard error says how many, or with a filter that it may be so.";

/// What is answered: rows as they are, so that fields of a newer router survive.
#[derive(Deserialize)]
struct List {
    /// When the router began to count; none of an older one.
    #[serde(default)]
    since_ms: u64,
    last: u64,
    decisions: Vec<Value>,
}

impl TapArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runtime = runtime()?;
        let port = self.admin.clone().port(&runtime)?;
        runtime.block_on(self.follow(&port))?;
        Ok(ExitCode::SUCCESS)
    }

    async fn follow(&self, port: &AdminPort) -> anyhow::Result<()> {
        let mut left = self.count.unwrap_or(u64::MAX);
        let last = usize::from(self.last);
        let start: List = self.look(port, 0, last.max(1)).await?;
        let (mut after, mut since_ms) = (start.last, start.since_ms);
        let mut rows = if self.last == 0 { Vec::new() } else { start.decisions };
        let known = u64::try_from(rows.len()).unwrap_or(u64::MAX);
        if rows.len() < last && known < left {
            remark(format_args!("warmpath: of decisions made before, {known} are kept; waiting for more\n"));
        }
        loop {
            rows.reverse();
            for row in &rows {
                if left == 0 {
                    return Ok(());
                }
                left -= 1;
                // Whoever reads has gone: nobody is left to tell.
                if self.show(row)?.is_none() {
                    return Ok(());
                }
            }
            if left == 0 {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(self.interval)).await;
            let mut list = self.look(port, after, AT_ONCE).await?;
            if list.last < after || list.since_ms != since_ms {
                remark(format_args!("the router has begun anew\n"));
                (after, since_ms) = (0, list.since_ms);
                list = self.look(port, after, AT_ONCE).await?;
            }
            if let Some(left_out) = self.left_out(after, &list.decisions) {
                remark(format_args!("{left_out}: narrow them, or look more often\n"));
            }
            (after, rows) = (list.last, list.decisions);
        }
    }

    async fn look(&self, port: &AdminPort, after: u64, limit: usize) -> anyhow::Result<List> {
        let (after, limit) = (after.to_string(), limit.to_string());
        let mut query = vec![("after", after.as_str()), ("limit", limit.as_str())];
        let filters = [("model", &self.model), ("worker", &self.worker), ("request", &self.request)];
        query.extend(filters.into_iter().filter_map(|(name, value)| Some((name, value.as_deref()?))));
        port.get(&["api", "v1", "decisions"], &query).await
    }

    /// What is said of decisions behind number `after` that are not among `rows`, the newest first. Where only some are asked
    /// for nobody knows which of the others they would be.
    fn left_out(&self, after: u64, rows: &[Value]) -> Option<String> {
        let is_narrowed = self.model.is_some() || self.worker.is_some() || self.request.is_some();
        if is_narrowed {
            return (rows.len() == AT_ONCE).then(|| "more may have been left out".to_owned());
        }
        let oldest = rows.last()?["number"].as_u64()?;
        let between = oldest.saturating_sub(after.saturating_add(1));
        (between > 0).then(|| format!("{between} decisions were left out"))
    }

    /// One line; none where nobody reads it any more.
    fn show(&self, row: &Value) -> anyhow::Result<Option<()>> {
        let line = if self.json { row.to_string() } else { printable::line(&line(&Row::deserialize(row)?)) };
        match writeln!(std::io::stdout(), "{line}") {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(None),
            written => written.map(Some).context("cannot write to standard output"),
        }
    }
}

fn line(row: &Row) -> String {
    let rank = if row.rank == 0 { String::new() } else { format!("/{}", row.rank) };
    let Row { number, model, worker, overlap_tokens, prompt_tokens, why, .. } = row;
    format!("{number} {model} {worker}{rank} {overlap_tokens}/{prompt_tokens} {why}")
}

#[cfg(test)]
mod tests {
    use clap::{FromArgMatches, Subcommand};
    use serde_json::json;

    use super::*;

    #[derive(Subcommand)]
    enum Only {
        Tap(TapArgs),
    }

    fn tap(arguments: &[&str]) -> TapArgs {
        let command = Only::augment_subcommands(clap::Command::new("warmpath"));
        let matches = command.get_matches_from([&["warmpath", "tap"], arguments].concat());
        let Only::Tap(tap) = Only::from_arg_matches(&matches).unwrap();
        tap
    }

    #[test]
    fn decisions_between_two_looks_are_counted_by_their_numbers() {
        let rows = |numbers: std::ops::Range<u64>| numbers.rev().map(|at| json!({"number": at})).collect::<Vec<_>>();
        let all = tap(&[]);
        for whole in [rows(8..9), rows(8..1008), rows(3..9), rows(0..0)] {
            assert_eq!(all.left_out(7, &whole), None);
        }
        assert_eq!(all.left_out(7, &rows(1408..2408)).unwrap(), "1400 decisions were left out");
        assert_eq!(all.left_out(7, &rows(10..12)).unwrap(), "2 decisions were left out");
        // Of others nobody knows whether they are meant.
        let some = tap(&["--worker", "a"]);
        assert_eq!(some.left_out(7, &rows(100..200)), None);
        assert_eq!(some.left_out(7, &rows(100..1100)).unwrap(), "more may have been left out");
    }
}
