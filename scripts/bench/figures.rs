//! What was measured: each figure with its unit, its target and whether that is met.

use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

use crate::times::median;

/// The load average of a machine that does something else.
const BUSY: f64 = 1.5;

/// One figure.
pub(crate) struct Figure {
    metric: &'static str,
    unit: &'static str,
    value: f64,
    /// The value of each round, where there were several; `value` is their median.
    rounds: Vec<f64>,
    /// What it should not exceed.
    target: Option<f64>,
    /// Whether what was to be measured was done at all; without it, no target is met.
    valid: bool,
}

impl Figure {
    /// A figure that was measured once.
    pub(crate) fn once(metric: &'static str, unit: &'static str, value: f64) -> Self {
        Self { metric, unit, value, rounds: Vec::new(), target: None, valid: true }
    }

    /// The median of several rounds.
    pub(crate) fn of(metric: &'static str, unit: &'static str, rounds: Vec<f64>) -> Self {
        Self { metric, unit, value: median(&rounds), rounds, target: None, valid: true }
    }

    /// With what it should not exceed.
    pub(crate) fn target(self, target: Option<f64>) -> Self {
        Self { target, ..self }
    }

    /// Meets its target only if what was to be measured was done.
    pub(crate) fn only_if(self, valid: bool) -> Self {
        Self { valid, ..self }
    }

    /// The figure itself.
    pub(crate) fn value(&self) -> f64 {
        self.value
    }

    fn met(&self) -> Option<bool> {
        self.target.map(|target| self.valid && self.value <= target)
    }

    fn json(&self, row: &str) -> Value {
        json!({
            "name": format!("{row}/{}", self.metric), "row": row, "metric": self.metric, "value": self.value,
            "unit": self.unit, "rounds": self.rounds, "target": self.target, "met": self.met(),
        })
    }

    fn cell(&self) -> String {
        let value = digits(self.value);
        match (self.target, self.met()) {
            (Some(target), Some(met)) => format!("{value} <= {target} {}", if met { "met" } else { "MISSED" }),
            _ => value,
        }
    }
}

/// Three digits that mean something.
fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 0.1 || small == 0.0 => 2,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Everything that a run says.
pub(crate) struct Report {
    head: Value,
    rows: Vec<(String, Vec<Figure>)>,
    faults: Vec<String>,
}

impl Report {
    /// A report that begins with `head`, an object: what was run, and how.
    pub(crate) fn new(mut head: Value) -> Self {
        head["machine"] = machine();
        Self { head, rows: Vec::new(), faults: Vec::new() }
    }

    /// Something that a reader of the figures should know.
    pub(crate) fn note(&mut self, key: &str, note: String) {
        self.head[key] = Value::String(note);
    }

    /// Adds a row, and prints it; rows of the same figures that follow each other are one table.
    pub(crate) fn row(&mut self, name: impl Into<String>, figures: Vec<Figure>) {
        let name = name.into();
        let metrics = |figures: &[Figure]| figures.iter().map(|figure| figure.metric).collect::<Vec<_>>();
        let continues = self.rows.last().is_some_and(|(_, last)| metrics(last) == metrics(&figures));
        let widths = figures.iter().map(|figure| figure.metric.len().max(if figure.target.is_some() { 20 } else { 7 }));
        let line = |first: &str, cells: &mut dyn Iterator<Item = String>| {
            let cells: Vec<String> = widths.clone().zip(cells).map(|(width, cell)| format!("{cell:>width$}")).collect();
            println!("{first:<34} {}", cells.join("  "));
        };
        if !continues {
            println!();
            line("", &mut figures.iter().map(|figure| figure.metric.to_owned()));
            line("", &mut figures.iter().map(|figure| figure.unit.to_owned()));
        }
        line(&name, &mut figures.iter().map(Figure::cell));
        self.rows.push((name, figures));
    }

    /// Something went wrong: the run fails.
    pub(crate) fn fault(&mut self, fault: impl Into<String>) {
        let fault = fault.into();
        eprintln!("bench: {fault}");
        self.faults.push(fault);
    }

    /// Writes all of it to `json` if asked for, and tells whether nothing went wrong.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn finish(mut self, json: Option<&Path>) -> anyhow::Result<bool> {
        let figures = || self.rows.iter().flat_map(|(_, figures)| figures);
        let (met, missed) = (
            figures().filter(|figure| figure.met() == Some(true)).count(),
            figures().filter(|figure| figure.met() == Some(false)).count(),
        );
        let load = load_average();
        if self.head["machine"]["load_average_at_start"].as_f64() > Some(BUSY) {
            println!("\nthe machine was busy when this began: take no figure for the truth");
        }
        println!(
            "\ntargets: {met} met, {missed} missed; load average {} at the start, {load:.1} at the end",
            self.head["machine"]["load_average_at_start"]
        );
        if let Some(path) = json {
            self.head["machine"]["load_average_at_end"] = json!(load);
            let told = self.rows.iter().flat_map(|(row, figures)| figures.iter().map(|figure| figure.json(row)));
            self.head["figures"] = told.collect();
            self.head["faults"] = json!(self.faults);
            let text = serde_json::to_string_pretty(&self.head).context("the figures are no JSON")?;
            std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        if !self.faults.is_empty() {
            eprintln!("bench: {} faults: the figures mean nothing", self.faults.len());
        }
        Ok(self.faults.is_empty())
    }
}

/// What may explain the figures.
fn machine() -> Value {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|text| text.trim_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    json!({ "processor": model, "cores": cores, "load_average_at_start": load_average() })
}

fn load_average() -> f64 {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_says_whether_its_target_is_met() {
        let figure = Figure::of("cpu_ratio_to_nginx", "x", vec![1.6, 1.2, 1.4]).target(Some(1.5));
        assert_eq!(figure.cell(), "1.40 <= 1.5 met");
        let told = figure.json("short/round_robin/c32");
        assert_eq!(told["name"], "short/round_robin/c32/cpu_ratio_to_nginx");
        assert_eq!(told["met"], true);
        assert_eq!(Figure::once("rss", "MB", 51.0).target(Some(50.0)).cell(), "51.0 <= 50 MISSED");
        assert_eq!(Figure::once("rss", "MB", 49.0).target(Some(50.0)).only_if(false).cell(), "49.0 <= 50 MISSED");
        assert_eq!(Figure::once("rss", "MB", 51.0).json("a")["met"], Value::Null);
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(["1234", "12.3", "1.23", "0.0123", "0.00"], [1234.4, 12.34, 1.234, 0.0123, 0.0].map(digits)[..]);
    }
}
