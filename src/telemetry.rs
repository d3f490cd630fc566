//! Logs and metrics.

use tracing_subscriber::filter::LevelFilter;

pub mod hit_rate;
pub mod metrics;

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Starts logging to standard error. Only the first call in a process counts.
pub fn log_to_stderr(format: LogFormat, level: LevelFilter) {
    use std::io::IsTerminal;
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr);
    let started = match format {
        LogFormat::Text => builder.with_ansi(std::io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}
