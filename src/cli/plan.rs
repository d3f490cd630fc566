//! `warmpath plan`: what a change of the configuration would do.

use std::fmt::Write;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Conditions, EventWay, Reports, Scenario};
use warmpath_simulator::timing::Timing;
use warmpath_simulator::{EngineConfig, Ms};

use super::fleet::{completeness, simulated};
use super::trace::TraceForm;
use super::{number, say};
use crate::config::{Change, Config, changes};
use crate::replay::report::Row;
use crate::replay::simulated::{Trial, Trials};
use crate::replay::trace::TraceRequest;
use crate::telemetry::panics;
use engines::{Engines, Given, Named, compare_models};
use unreplayed::Basis;

mod engines;
mod unreplayed;

/// Compares two configurations: what differs, what of it takes effect at once and what needs a restart. With a trace, what
/// the change would do to hit rate and time to first token, in simulated fleets.
#[derive(Debug, Args)]
#[command(after_help = AFTER, after_long_help = AFTER)]
pub struct PlanArgs {
    /// The configuration that runs.
    old: PathBuf,
    /// The one that is to run.
    new: PathBuf,
    /// Replay this trace under both: JSON lines, plain or gzipped, such as what `record` writes; `-` is standard input;
    /// `generate:SHAPE?key=value&…` makes one, as for `replay`.
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    #[command(flatten)]
    form: TraceForm,
    /// How much faster than recorded they arrive.
    #[arg(long, value_name = "FACTOR", requires = "trace", default_value_t = 1.0, value_parser = number::above_zero)]
    speed: f64,
    /// Engines of the simulated fleets; as many as each configuration lists for the trace's model, if it is not given. It
    /// must be given where that is none, since workers that are discovered are not known here.
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
    /// Blocks in the cache of each engine; `capacity_blocks` of the workers, or 2048 where it is not configured, if it is
    /// not given.
    #[arg(long, value_name = "N", requires = "trace", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    cache_blocks: Option<u32>,
    /// What steps of an engine take; see `replay`.
    #[arg(long, value_name = "MODEL", requires = "trace", default_value = "roofline:8b-h100")]
    timing: Timing,
    /// Seed of every chance.
    #[arg(long, value_name = "SEED", requires = "trace", default_value_t = 0)]
    seed: u64,
    /// Print one JSON document.
    #[arg(long)]
    json: bool,
}

const AFTER: &str = "\
+ comes, - goes, ~ changes. `live`: takes effect when the file is reloaded, for requests that come from then on.
`restart`: stays as it is until the router starts anew; the reload says so, too.

What simulated fleets do not go by is named below the figures: they tell events, every prompt's tokens are known, no engine
fails or has anything below its cache, all requests are of the default class, and while all engines are full the least loaded
one is taken, whatever the configurations say.

Simulated engines are all alike: where workers differ in max_num_seqs or capacity_blocks, all have the smallest. A trace
that does not name one of several models needs --workers; so does a configuration that lists no worker for its model. A model
that it names must be in both files or in neither.

--json: {\"changes\": [{\"key\", \"old\", \"new\", \"live\"}], \"needs_restart\": true or false, \"replayed\": null or
{\"old\": ROW, \"new\": ROW}, \"not_replayed\": [KEY, …]}, with rows as `warmpath replay` has them.

Exit codes: 0 compared, 1 a configuration or the trace has faults or not all of its requests were completed, 2 wrong use or an unreadable file.";

impl PlanArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (old, new) = (Config::load(&self.old)?, Config::load(&self.new)?);
        let found = changes(&old, &new);
        let trace = self.trace.as_ref().map(|trace| self.form.requests(trace)).transpose()?;
        let replayed = match &trace {
            Some((trace, block_size)) => Some(self.replay(trace, *block_size, [&old, &new])?),
            None => None,
        };
        let basis = trace.as_ref().map(|(trace, _)| Basis::of(trace, [&old, &new], self.given()));
        if self.json {
            let replayed = replayed.as_ref().map_or(Value::Null, |[old, new]| json!({"old": old, "new": new}));
            let needs_restart = found.iter().any(|change| !change.live);
            let mut plan = json!({"changes": found, "needs_restart": needs_restart, "replayed": replayed});
            if let Some(basis) = &basis {
                plan["not_replayed"] = json!(basis.unreplayed(&found));
            }
            say(format_args!("{plan:#}\n"))?;
        } else {
            let shown = replayed.as_ref().map(|[old, new]| compared(old, new)).unwrap_or_default();
            let left_out = basis.map(|basis| basis.told(&found)).unwrap_or_default();
            say(format_args!("{}{shown}{left_out}", lines(&found)))?;
        }
        Ok(completeness(replayed.iter().flatten()))
    }

    /// What is said of the engines.
    fn given(&self) -> Given {
        Given { workers: self.workers, cache_blocks: self.cache_blocks }
    }

    fn replay(
        &self,
        trace: &[TraceRequest],
        block_size: BlockSize,
        [old, new]: [&Config; 2],
    ) -> anyhow::Result<[Row; 2]> {
        panics::say_wholly();
        let named = [Named { file: &self.old, config: old }, Named { file: &self.new, config: new }];
        compare_models(trace, named)?;
        let trials = Trials::new(trace, block_size, 0);
        let trial = |of: Named<'_>| -> anyhow::Result<Trial> {
            let engines = Engines::of(of, trace, block_size, self.given())?;
            Ok(Trial { scenario: self.scenario(of.config, &engines, block_size), without: None })
        };
        let wanted = [trial(named[0])?, trial(named[1])?];
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let tried = simulated(trials.run(&wanted, cores, &|| ()))?;
        let rows: Vec<Row> = tried.into_iter().map(|tried| tried.row).collect();
        rows.try_into().ok().context("a row for each configuration")
    }

    fn scenario(&self, config: &Config, engines: &Engines, block_size: BlockSize) -> Scenario {
        Scenario {
            router: config.simulated(config.routing.policy),
            workers: engines.workers,
            engine: EngineConfig {
                block_size,
                blocks: engines.blocks.saturating_add(1),
                max_num_seqs: usize::try_from(engines.max_num_seqs).unwrap_or(usize::MAX),
                timing: self.timing,
                ..EngineConfig::default()
            },
            slow: 1.0,
            speed: self.speed,
            seed: self.seed,
            events: EventWay::AfterStep(Ms(1.0)),
            reports: Reports::Every(Ms(config.engines.metrics_interval.get().as_secs_f64() * 1e3)),
            shared_pages: 0,
            conditions: Conditions::default(),
            wire: false,
            check: false,
            explained: Vec::new(),
        }
    }
}

fn lines(found: &[Change]) -> String {
    if found.is_empty() {
        return "nothing changes\n".to_owned();
    }
    let width = found.iter().map(|change| change.key.chars().count()).max().unwrap_or(0).min(60);
    let mut text = String::new();
    for Change { key, old, new, live } in found {
        let (mark, values) = match (old, new) {
            (Value::Null, new) => ('+', new.to_string()),
            (old, Value::Null) => ('-', old.to_string()),
            (old, new) => ('~', format!("{old} -> {new}")),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark} {key:<width$}  {}  {values}", if *live { "live   " } else { "restart" });
    }
    let restart = found.iter().filter(|change| !change.live).count();
    let _ = match restart {
        0 => writeln!(text, "{} changes, all of them live", found.len()),
        _ => writeln!(text, "{} changes, {restart} of them need a restart", found.len()),
    };
    text
}

fn compared(old: &Row, new: &Row) -> String {
    let mut text = format!("\n{:<16} {:>12} {:>12} {:>9}\n", "replayed", "old", "new", "change");
    let completed = [old, new].map(|row| format!("{} of {}", row.completed, row.requests));
    let _ = writeln!(text, "{:<16} {:>12} {:>12}", "completed", completed[0], completed[1]);
    for (name, was, is) in [
        ("hit rate %", old.hit_rate.unwrap_or_default() * 100.0, new.hit_rate.unwrap_or_default() * 100.0),
        ("reachable %", old.reachable_hit_rate * 100.0, new.reachable_hit_rate * 100.0),
        ("ttft mean ms", old.ttft_ms.mean, new.ttft_ms.mean),
        ("ttft p50 ms", old.ttft_ms.p50, new.ttft_ms.p50),
        ("ttft p99 ms", old.ttft_ms.p99, new.ttft_ms.p99),
        ("balance score", old.load_balance_score.unwrap_or_default(), new.load_balance_score.unwrap_or_default()),
    ] {
        let _ = writeln!(text, "{name:<16} {was:>12.2} {is:>12.2} {:>9}", change(was, is));
    }
    text
}

/// What is different, as a part of what was; of nothing there is no part.
fn change(was: f64, is: f64) -> String {
    match (was == 0.0, is == 0.0) {
        (true, true) => "+0.0%".to_owned(),
        (true, false) => "–".to_owned(),
        (false, _) => format!("{:+.1}%", (is / was - 1.0) * 100.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_nothing_has_no_share_that_it_grew_by() {
        let changes = [(0.0, 0.0), (0.0, 3.0), (2.0, 3.0), (2.0, 0.0)].map(|(was, is)| change(was, is));
        assert_eq!(changes, ["+0.0%", "–", "+50.0%", "-100.0%"]);
    }

    #[test]
    fn a_plan_says_what_comes_goes_and_changes_and_when() {
        let change = |key: &str, old: Value, new: Value, live| Change { key: key.to_owned(), old, new, live };
        let found = [
            change("routing.kv.alpha", 0.3.into(), 0.4.into(), true),
            change("workers[b].url", Value::Null, "http://b:1".into(), true),
            change("index.seed", 1.into(), 2.into(), false),
            change("workers[a].url", "http://a:1".into(), Value::Null, true),
        ];
        let expected = "~ routing.kv.alpha  live     0.3 -> 0.4\n+ workers[b].url    live     \"http://b:1\"\n\
                        ~ index.seed        restart  1 -> 2\n- workers[a].url    live     \"http://a:1\"\n\
                        4 changes, 1 of them need a restart\n";
        assert_eq!(lines(&found), expected);
        assert_eq!(lines(&[]), "nothing changes\n");
    }
}
