//! A whole run: each part of each case in a process of its own, so that memory of one does not show in another.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::arguments::{All, Arguments, HELP};
use crate::case::{Case, Contender, Part};
use crate::clock::{now, reading_ns};
use crate::report;
use crate::trace::Trace;

/// Runs what the command line asks for, on these indexes, ours first.
pub(crate) fn run(contenders: &[Contender]) -> ExitCode {
    let done = match Arguments::parse(std::env::args().skip(1)) {
        Ok(Arguments::Help) => {
            print!("{HELP}");
            Ok(true)
        }
        Ok(Arguments::One { case, part, name, trace }) => one(contenders, case, part, &name, &trace),
        Ok(Arguments::All(all)) => every(contenders, &all),
        Err(fault) => Err(fault),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(fault) => {
            eprintln!("index bench: {fault}");
            ExitCode::from(2)
        }
    }
}

fn one(contenders: &[Contender], case: Case, part: Part, name: &str, trace: &Path) -> Result<bool, String> {
    let contender = contenders.iter().find(|contender| contender.name == name);
    let contender = contender.ok_or(format!("there is no index `{name}`"))?;
    let trace = Trace::read(trace)?;
    println!("{}", (contender.measure)(case, part, &trace));
    Ok(true)
}

/// Seconds that a part takes, roughly, on two cores.
fn seconds(case: Case, part: Part) -> u64 {
    let millions = u64::try_from(case.entries / 1_000_000).unwrap_or(0).max(1);
    match (part, case.quick) {
        (Part::Speed, true) => 7 + 2 * millions,
        (Part::Speed, false) => 28 + 2 * millions,
        (Part::Memory, true) => 2 * millions,
        (Part::Memory, false) => 6 + millions,
        (Part::MemoryTiers, true) => 3 * millions,
        (Part::MemoryTiers, false) => 12 + millions,
    }
}

fn every(contenders: &[Contender], all: &All) -> Result<bool, String> {
    let known = |name: &&String| !contenders.iter().any(|contender| contender.name == **name);
    if let Some(unknown) = all.only.iter().find(known) {
        let names: Vec<&str> = contenders.iter().map(|contender| contender.name).collect();
        return Err(format!("there is no index `{unknown}` (there are: {})", names.join(", ")));
    }
    let chosen = contenders.iter().filter(|it| all.only.is_empty() || all.only.iter().any(|name| name == it.name));
    let chosen: Vec<&Contender> = chosen.collect();
    let mut jobs = Vec::new();
    for &case in &all.cases {
        for contender in &chosen {
            let parts = all.parts.iter().filter(|part| **part != Part::MemoryTiers || contender.tiers);
            jobs.extend(parts.map(|&part| (case, *contender, part)));
        }
    }
    let mut left: u64 = jobs.iter().map(|&(case, _, part)| seconds(case, part)).sum();
    let clock = reading_ns();
    eprintln!(
        "{} measurements, about {} min {} s; reading the clock takes {clock:.0} ns",
        jobs.len(),
        left / 60,
        left % 60
    );
    let start = now();
    let mut rows: Vec<Value> = Vec::new();
    for (number, &(case, contender, part)) in jobs.iter().enumerate() {
        let name = contender.name;
        let what = format!(
            "{name} {} {} entries {} workers: {}",
            case.workload.letter(),
            case.entries,
            case.workers,
            part.name()
        );
        eprintln!("[{}/{}, about {left} s left] {what}", number + 1, jobs.len());
        let measured = child(case, part, name, &all.trace).map_err(|fault| format!("{what}: {fault}"))?;
        report::merge(&mut rows, case, name, measured);
        left -= seconds(case, part);
    }
    finish(all, rows, clock, start.elapsed())
}

fn finish(all: &All, rows: Vec<Value>, clock_ns: f64, wall: Duration) -> Result<bool, String> {
    let faults: Vec<&str> = rows.iter().flat_map(report::faults).collect();
    report::print(&rows);
    eprintln!("took {:.0} s", wall.as_secs_f64());
    for fault in &faults {
        eprintln!("WRONG: {fault}");
    }
    let exact = faults.is_empty();
    let machine = report::machine(clock_ns);
    let report = json!({
        "bench": "index", "quick": all.quick, "machine": machine, "exact": exact, "wall_s": wall.as_secs_f64(),
        "rows": rows,
    });
    if let Some(path) = &all.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())? + "\n";
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(exact)
}

fn child(case: Case, part: Part, name: &str, trace: &Path) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.args(["--child", "--workload", case.workload.letter(), "--part", part.name(), "--only", name]);
    command.args(["--workers", &case.workers.to_string(), "--entries", &case.entries.to_string()]);
    command.arg("--trace").arg(trace);
    if case.quick {
        command.arg("--quick");
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("the measuring process ended with {}", output.status));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("what the measuring process printed: {error}"))
}
