//! `warmpath check FILE`: whether a configuration can be followed. Its lines stay as they are: editors read them.

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::overrides::Overrides;
use super::say;
use crate::config::{Config, Environment, Fault, Reading};
use warnings::warnings;

mod warnings;

/// Reads the configuration as `serve` does. Exits 0 and sums it up on standard output; 1 with each fault as a line
/// `FILE:line:column: message` on standard error; 2 if the file cannot be read. What it names and `serve` could not use (files,
/// certificates), a policy that goes by caches of which nobody tells, workers that are one engine, and a port that is open to
/// the network are lines `FILE:line:column: warning: message`, and change the exit code with `--strict` only.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The configuration.
    file: PathBuf,
    /// Print one JSON document on standard output instead: {"valid": …, "faults": [{"file", "line", "column", "message"}],
    /// "warnings": [the same]}.
    #[arg(long)]
    json: bool,
    /// Exit with 1 where there are warnings, too.
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    overrides: Overrides,
}

impl CheckArgs {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let style = match (self.json, io::stderr().is_terminal()) {
            (true, _) => Style::Json,
            (false, true) => Style::Carets,
            (false, false) => Style::Lines,
        };
        let environment = self.overrides.environment();
        let (mut summary, mut remarks) = (Vec::new(), Vec::new());
        let told = report(&self.file, &environment, style, &mut summary, &mut remarks);
        let said = say(format_args!("{}", String::from_utf8_lossy(&summary)));
        // Nobody is left to tell where a fault cannot be written, so the exit code alone must do.
        let _ = io::stderr().write_all(&remarks);
        said?;
        Ok(match told {
            Told::Unreadable => ExitCode::from(2),
            Told::Faulty => ExitCode::FAILURE,
            Told::Doubtful if self.strict => ExitCode::FAILURE,
            Told::Doubtful | Told::Good => ExitCode::SUCCESS,
        })
    }
}

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Good,
    /// It can be followed, and there are warnings.
    Doubtful,
    Faulty,
    Unreadable,
}

/// How faults are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Style {
    Lines,
    Carets,
    Json,
}

fn report(
    path: &Path,
    environment: &Environment,
    style: Style,
    stdout: &mut dyn Write,
    stderr: &mut dyn Write,
) -> Told {
    let name = path.display().to_string();
    let reading = match Reading::of_file(path, environment) {
        Ok(reading) => reading,
        Err(error) => {
            let _ = writeln!(stderr, "{name}: cannot be read: {error}");
            return Told::Unreadable;
        }
    };
    let good = reading.config.as_ref().filter(|_| reading.faults.is_empty());
    let doubts = good.map(|config| warnings(config, &reading, &name)).unwrap_or_default();
    let told = match good {
        None => Told::Faulty,
        Some(_) if doubts.is_empty() => Told::Good,
        Some(_) => Told::Doubtful,
    };
    if style == Style::Json {
        let _ = writeln!(stdout, "{:#}", document(&reading.faults, &doubts));
        return told;
    }
    if let Some(config) = good {
        let _ = writeln!(stdout, "{name}: {}", summary(config));
    }
    let said = reading.faults.iter().map(|fault| (fault, "")).chain(doubts.iter().map(|doubt| (doubt, "warning: ")));
    for (fault, kind) in said {
        let Fault { place, message } = fault;
        let _ = writeln!(stderr, "{place}: {kind}{message}");
        let excerpt = (style == Style::Carets).then(|| reading.excerpt(&name, fault));
        if let Some(excerpt) = excerpt.flatten() {
            let _ = writeln!(stderr, "{excerpt}");
        }
    }
    told
}

fn document(faults: &[Fault], doubts: &[Fault]) -> serde_json::Value {
    let listed = |found: &[Fault]| -> Vec<_> {
        let told = |Fault { place, message }: &Fault| json!({"file": &*place.source, "line": place.line, "column": place.column, "message": message});
        found.iter().map(told).collect()
    };
    json!({"valid": faults.is_empty(), "faults": listed(faults), "warnings": listed(doubts)})
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
    fn no_excerpt_has_a_secret_in_it() {
        let path = std::env::temp_dir().join(format!("warmpath-check-secret-{}.yaml", std::process::id()));
        let fleet = "models: [{name: m}]\nworkers: [{id: w, url: 'http://w:1', model: m}]\n";
        for text in [
            "listen: {admin_token: \"hunter2\", datta: x}",
            "listen: {admin_tokn: hunter2}",
            "listen: {data: 1, admin_token:\n  hunter2, datta: x}",
            "events: {nats: {token: a, password: |\n  one\n  hunter2\n}}",
            "tracing: {otlp: 'http://a:1', headers: {x-api: \"hunter2\\n\"}}",
            "tracing:\n  headers:\n    x-api:\n      \"hunter2\\n\"",
            "routing: {policy: kv, policyy: 1}\ndiscovery: {dns: {api_key: {hunter2: a}}}",
            "listen: {admin_token: hunter2}\nlisten: {admin_token: hunter2}",
            "listen:\n  admin_token:\n    hunter2\n  data: [",
            "models: [{name: n}]\nworkers: [{id: v, url: 'http://u:hunter2@w', model: m}]",
        ] {
            std::fs::write(&path, format!("{fleet}{text}\n")).unwrap();
            let mut stderr = Vec::new();
            let code = report(&path, &Environment::default(), Style::Carets, &mut Vec::new(), &mut stderr);
            let said = String::from_utf8(stderr).unwrap();
            assert_eq!(code, Told::Faulty, "{text}");
            assert!(!said.is_empty() && !said.contains("hunter2"), "{text}: {said}");
        }
        std::fs::remove_file(&path).unwrap();
    }

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
            assert_eq!((code, stdout.as_slice()), (Told::Faulty, &b""[..]));
            assert_eq!(String::from_utf8(stderr).unwrap(), expected);
        }
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let code = report(&path, &environment, Style::Json, &mut stdout, &mut stderr);
        assert_eq!((code, stderr.as_slice()), (Told::Faulty, &b""[..]));
        let expected = json!({"valid": false, "faults": [
            {"file": name.to_string(), "line": 2, "column": 24,
             "message": "expected a URL such as http://10.0.0.1:8000, got `a`"},
            {"file": "WARMPATH__USAGE", "line": 1, "column": 1,
             "message": "unknown value `never` (known: as_asked, always)"},
        ], "warnings": []});
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&stdout).unwrap(), expected);
        std::fs::remove_file(&path).unwrap();
    }
}
