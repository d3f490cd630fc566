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
