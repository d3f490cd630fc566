//! `warmpath check FILE`: whether a configuration can be followed. Its lines stay as they are: editors read them.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::overrides::Overrides;
use crate::config::{Config, Environment, Fault, Reading};

/// Reads the configuration as `serve` does. Exits 0 and sums it up on standard output; 1 with each fault as a line
/// `FILE:line:column: message` on standard error; 2 if the file cannot be read.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration.
    file: PathBuf,
    /// Print one JSON document on standard output instead: {"valid": …, "faults": [{"file", "line", "column", "message"}]}.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    overrides: Overrides,
}

impl CheckArgs {
    pub(super) fn run(self) -> ExitCode {
        run(&self.file, &self.overrides.environment(), self.json)
    }
}

/// Does it for `file`.
pub fn run(file: &Path, environment: &Environment, json: bool) -> ExitCode {
    let (stdout, stderr) = (io::stdout(), io::stderr());
    let style = match (json, stderr.is_terminal()) {
        (true, _) => Style::Json,
        (false, true) => Style::Carets,
        (false, false) => Style::Lines,
    };
    report(file, environment, style, &mut stdout.lock(), &mut stderr.lock())
}

/// How faults are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Lines,
    Carets,
    Json,
}

/// Nobody is left to tell where a line cannot be written, so the exit code alone must do.
fn report(
    path: &Path,
    environment: &Environment,
    style: Style,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> ExitCode {
    let name = path.display().to_string();
    let reading = match Reading::of_file(path, environment) {
        Ok(reading) => reading,
        Err(error) => {
            let _ = writeln!(stderr, "{name}: cannot be read: {error}");
            return ExitCode::from(2);
        }
    };
    if style == Style::Json {
        let _ = writeln!(stdout, "{:#}", document(&reading.faults));
        return if reading.faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let (Some(config), []) = (&reading.config, reading.faults.as_slice()) {
        let _ = writeln!(stdout, "{name}: {}", summary(config));
        return ExitCode::SUCCESS;
    }
    for fault in &reading.faults {
        let _ = writeln!(stderr, "{fault}");
        let excerpt = (style == Style::Carets).then(|| fault.excerpt(&name, &reading.text));
        if let Some(excerpt) = excerpt.flatten() {
            let _ = writeln!(stderr, "{excerpt}");
        }
    }
    ExitCode::FAILURE
}

fn document(faults: &[Fault]) -> serde_json::Value {
    let faults: Vec<_> = faults
        .iter()
        .map(|fault| {
            let Fault { place, message } = fault;
            json!({"file": &*place.source, "line": place.line, "column": place.column, "message": message})
        })
        .collect();
    json!({"valid": faults.is_empty(), "faults": faults})
}

fn summary(config: &Config) -> String {
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let models = count(config.models.len(), "model");
    let workers = count(config.workers.len(), "worker");
    format!("valid: {models}, {workers}, policy {}", config.routing.policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carets_stand_below_the_faults_on_a_terminal_only() {
        let path = std::env::temp_dir().join(format!("warmpath-check-{}.yaml", std::process::id()));
        std::fs::write(&path, "models: [{name: m}]\nworkers: [{id: a, url: a, model: m}]\n").unwrap();
        let environment: Environment = [("WARMPATH__USAGE", "never")].into_iter().collect();
        let name = path.display();
        let url = format!("{name}:2:24: expected a URL such as http://10.0.0.1:8000, got `a`\n");
        let caret = format!("    workers: [{{id: a, url: a, model: m}}]\n    {:23}^\n", "");
        let usage = "WARMPATH__USAGE:1:1: unknown value `never` (known: as_asked, always)\n";
        for (style, expected) in
            [(Style::Lines, format!("{url}{usage}")), (Style::Carets, format!("{url}{caret}{usage}"))]
        {
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            let code = report(&path, &environment, style, &mut stdout, &mut stderr);
            assert_eq!((code, stdout.as_slice()), (ExitCode::FAILURE, &b""[..]));
            assert_eq!(String::from_utf8(stderr).unwrap(), expected);
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let code = report(&path, &environment, Style::Json, &mut stdout, &mut stderr);
        assert_eq!((code, stderr.as_slice()), (ExitCode::FAILURE, &b""[..]));
        let expected = json!({"valid": false, "faults": [
            {"file": name.to_string(), "line": 2, "column": 24,
             "message": "expected a URL such as http://10.0.0.1:8000, got `a`"},
            {"file": "WARMPATH__USAGE", "line": 1, "column": 1,
             "message": "unknown value `never` (known: as_asked, always)"},
        ]});
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&stdout).unwrap(), expected);
        std::fs::remove_file(&path).unwrap();
    }
}
