//! Logs and metrics.

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::config::LogFormat;

pub mod access;
pub mod hit_rate;
pub mod metrics;
pub mod otlp;
pub mod panics;
pub mod spans;
pub mod trace_context;

/// Libraries that tell each of their attempts; what they mean is logged here, once.
const CHATTY: [&str; 2] = ["async_nats", "hyper_util"];

/// Starts logging to standard error. Only the first call in a process counts.
pub fn log_to_stderr(format: LogFormat, level: Level) {
    log(format, level, LevelFilter::OFF);
}

/// The same with the lines of requests, of whatever level the others are: whether there are any is for the gateway to say.
pub fn log_with_requests(format: LogFormat, level: Level) {
    log(format, level, LevelFilter::INFO);
}

fn log(format: LogFormat, level: Level, requests: LevelFilter) {
    let quiet = CHATTY.iter().map(|library| (*library, level.min(Level::WARN)));
    let filter = Targets::new().with_default(level).with_targets(quiet).with_target(access::TARGET, requests);
    let lines = tracing_subscriber::registry().with(filter);
    // Of a line that cannot be written nothing is said: that would be written to the same place, and panic.
    let layer = fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let started = match format {
        LogFormat::Text => lines.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        LogFormat::Json => lines.with(layer.json().flatten_event(true)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}
