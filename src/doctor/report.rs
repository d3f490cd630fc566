//! What the examination found, as lines for people and as JSON for programs.

use std::fmt::Write;

use serde::Serialize;

use super::finding::{Finding, Verdict};
use crate::printable;

/// All that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Every worker that was examined, in the order of the configuration.
    pub workers: Vec<WorkerReport>,
    /// Checks that hold.
    pub ok: usize,
    /// Checks that do not.
    pub failed: usize,
    /// Checks that could not be made.
    pub skipped: usize,
}

/// What was found of one worker.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorkerReport {
    /// Its id.
    pub worker: String,
    /// Where it answers.
    pub url: String,
    /// The model that it is to serve.
    pub model: String,
    /// One for each check, and for each rank where ranks are examined one by one.
    pub checks: Vec<Finding>,
}

/// The start of a colour, and its end.
const COLOURS: [(Verdict, &str); 3] =
    [(Verdict::Ok, "\x1b[32m"), (Verdict::Failed, "\x1b[1;31m"), (Verdict::Skipped, "\x1b[33m")];
const PLAIN: &str = "\x1b[0m";

impl Report {
    /// Sums up.
    pub fn new(workers: Vec<WorkerReport>) -> Self {
        let count = |verdict| {
            workers.iter().flat_map(|worker| &worker.checks).filter(|finding| finding.verdict == verdict).count()
        };
        let (ok, failed, skipped) = (count(Verdict::Ok), count(Verdict::Failed), count(Verdict::Skipped));
        Self { workers, ok, failed, skipped }
    }

    /// One line for each check, and one that sums up.
    pub fn table(&self, coloured: bool) -> String {
        let width = self.workers.iter().map(|worker| worker.worker.chars().count()).max().unwrap_or_default();
        let mut text = String::new();
        for worker in &self.workers {
            for finding in &worker.checks {
                line(&mut text, (&worker.worker, width), finding, coloured);
            }
        }
        let workers = self.workers.len();
        let plural = if workers == 1 { "" } else { "s" };
        let (ok, failed, skipped) = (self.ok, self.failed, self.skipped);
        put(&mut text, format_args!("{workers} worker{plural}: {ok} ok, {failed} failed, {skipped} skipped\n"));
        text
    }
}

fn line(text: &mut String, (worker, width): (&str, usize), finding: &Finding, coloured: bool) {
    let word = match finding.verdict {
        Verdict::Ok => "ok",
        Verdict::Failed => "FAILED",
        Verdict::Skipped => "skipped",
    };
    let colour = COLOURS.iter().find(|(verdict, _)| coloured && *verdict == finding.verdict);
    let (begin, end) = colour.map_or(("", ""), |(_, begin)| (begin, PLAIN));
    let rank = finding.rank.map_or_else(String::new, |rank| format!("rank {rank}: "));
    let (check, found) = (finding.check.as_str(), printable::line(&finding.finding));
    put(text, format_args!("{begin}{word:<7}{end}  {worker:<width$}  {check:<10}  {rank}{found}"));
    if let Some(remedy) = &finding.remedy {
        put(text, format_args!("; remedy: {}", printable::line(remedy)));
    }
    text.push('\n');
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a string takes everything");
}

#[cfg(test)]
mod tests {
    use super::super::finding::Check;
    use super::*;

    fn report() -> Report {
        let checks = vec![
            Finding::ok(Check::Reachable, "answers in 3 ms").with("ms", 3),
            Finding {
                rank: Some(1),
                ..Finding::failed(Check::Events, "nothing\ncame", "start the engine with events")
            },
            Finding::skipped(Check::Replay, "no events"),
        ];
        let worker = |id: &str, checks| WorkerReport {
            worker: id.to_owned(),
            url: "http://a:1".to_owned(),
            model: "m".to_owned(),
            checks,
        };
        Report::new(vec![worker("engine", checks), worker("b", vec![Finding::ok(Check::Reachable, "yes")])])
    }

    #[test]
    fn each_check_is_one_line_with_its_remedy() {
        let expected = "ok       engine  reachable   answers in 3 ms\n\
            FAILED   engine  events      rank 1: nothing came; remedy: start the engine with events\n\
            skipped  engine  replay      no events\n\
            ok       b       reachable   yes\n\
            2 workers: 2 ok, 1 failed, 1 skipped\n";
        assert_eq!(report().table(false), expected);
    }

    #[test]
    fn colours_surround_the_verdict_alone() {
        let table = report().table(true);
        let failed = table.lines().nth(1).unwrap();
        assert!(failed.starts_with("\x1b[1;31mFAILED \x1b[0m  engine  events "), "{failed}");
    }

    #[test]
    fn the_form_for_programs_has_every_field() {
        let expected = serde_json::json!({
            "workers": [
                {"worker": "engine", "url": "http://a:1", "model": "m", "checks": [
                    {"check": "reachable", "rank": null, "verdict": "ok", "finding": "answers in 3 ms", "remedy": null,
                     "facts": {"ms": 3}},
                    {"check": "events", "rank": 1, "verdict": "failed", "finding": "nothing\ncame",
                     "remedy": "start the engine with events", "facts": {}},
                    {"check": "replay", "rank": null, "verdict": "skipped", "finding": "no events", "remedy": null,
                     "facts": {}}]},
                {"worker": "b", "url": "http://a:1", "model": "m", "checks": [
                    {"check": "reachable", "rank": null, "verdict": "ok", "finding": "yes", "remedy": null, "facts": {}}]}],
            "ok": 2, "failed": 1, "skipped": 1});
        assert_eq!(serde_json::to_value(report()).unwrap(), expected);
    }
}
