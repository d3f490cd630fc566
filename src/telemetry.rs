//! Logs and metrics.

use tracing::Level;

use crate::config::LogFormat;

pub mod hit_rate;
pub mod metrics;

/// Starts logging to standard error. Only the first call in a process counts.
pub fn log_to_stderr(format: LogFormat, level: Level) {
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
