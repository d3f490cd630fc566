//! `warmpath check FILE`: whether a configuration can be followed.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::config::{Config, Environment, Reading};

/// Reads the configuration as `serve` does. Exits 0 and sums it up on standard output; 1 with each fault as a line
/// `FILE:line:column: message` on standard error; 2 if the file cannot be read.
pub fn run(path: &Path) -> ExitCode {
    let stderr = io::stderr();
    let carets = stderr.is_terminal();
    report(path, &Environment::of_process(), carets, &mut io::stdout().lock(), &mut stderr.lock())
}

/// Nobody is left to tell where a line cannot be written, so the exit code alone must do.
fn report(
    path: &Path,
    environment: &Environment,
    carets: bool,
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
    if let (Some(config), []) = (&reading.config, reading.faults.as_slice()) {
        let _ = writeln!(stdout, "{name}: {}", summary(config));
        return ExitCode::SUCCESS;
    }
    for fault in &reading.faults {
        let _ = writeln!(stderr, "{fault}");
        if let Some(excerpt) = carets.then(|| fault.excerpt(&name, &reading.text)).flatten() {
            let _ = writeln!(stderr, "{excerpt}");
        }
    }
    ExitCode::FAILURE
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
        for (carets, expected) in [(false, format!("{url}{usage}")), (true, format!("{url}{caret}{usage}"))] {
            let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
            let code = report(&path, &environment, carets, &mut stdout, &mut stderr);
            assert_eq!((code, stdout.as_slice()), (ExitCode::FAILURE, &b""[..]));
            assert_eq!(String::from_utf8(stderr).unwrap(), expected);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
