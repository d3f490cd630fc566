//! Logs and metrics.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use tracing::Level;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
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
pub mod parting;
pub mod spans;
pub mod trace_context;

/// Libraries that tell each of their attempts; what they mean is logged here, once.
const CHATTY: [&str; 2] = ["async_nats", "hyper_util"];

/// Lines that may wait to be written. Whoever reads them slowly costs lines, and no request any time.
const LINES_WAITING: usize = 16_384;

/// How many lines found no room, where lines wait.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Starts logging to standard error, line by line. Only the first call in a process counts.
pub fn log_to_stderr(format: LogFormat, level: Level) {
    log(format, level, LevelFilter::OFF, io::stderr);
}

/// The same with the lines of requests, of whatever level the others are: whether there are any is for the gateway to say.
/// Nobody waits for these lines to be written; what waits when the guard is dropped is written then.
pub fn log_with_requests(format: LogFormat, level: Level) -> WorkerGuard {
    let lines = NonBlockingBuilder::default().buffered_lines_limit(LINES_WAITING).lossy(true).thread_name("log");
    let (writer, guard) = lines.finish(io::stderr());
    DROPPED.get_or_init(|| writer.error_counter());
    log(format, level, LevelFilter::INFO, writer);
    guard
}

/// Lines of the log that were dropped since they came faster than they could be written.
pub fn lines_dropped() -> u64 {
    DROPPED.get().map_or(0, |dropped| u64::try_from(dropped.dropped_lines()).unwrap_or(u64::MAX))
}

fn log<W>(format: LogFormat, level: Level, requests: LevelFilter, writer: W)
where
    W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let quiet = CHATTY.iter().map(|library| (*library, level.min(Level::WARN)));
    let filter = Targets::new().with_default(level).with_targets(quiet).with_target(access::TARGET, requests);
    let lines = tracing_subscriber::registry().with(filter);
    // Of a line that cannot be written nothing is said: that would be written to the same place, and panic.
    let layer = fmt::layer().with_writer(writer).log_internal_errors(false);
    let started = match format {
        LogFormat::Text => lines.with(layer.with_ansi(io::stderr().is_terminal())).try_init(),
        LogFormat::Json => lines.with(layer.json().flatten_event(true)).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}
