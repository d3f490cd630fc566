//! Logs and metrics.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tracing::{Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::LogFormat;
use gathering::Gathering;
use line::Lines;

pub mod access;
mod gathering;
pub mod hit_rate;
mod line;
pub mod metrics;
pub mod otlp;
pub mod panics;
pub mod parting;
pub mod spans;
pub mod trace_context;

/// Libraries that tell each of their attempts, and how much of that is written at `level`; what they mean is logged here,
/// once. `async_nats` calls each attempt that fails an error, four times a second.
fn chatty(level: Level) -> [(&'static str, LevelFilter); 2] {
    let most = LevelFilter::from(level.min(Level::WARN));
    let attempts = if level >= Level::DEBUG { most } else { LevelFilter::OFF };
    [("async_nats", attempts), ("hyper_util", most)]
}

/// Of lines that tell what operators have done.
pub const AUDIT: &str = "warmpath::audit";

/// Of lines that tell how everything stands, for operators who ask.
pub const STATE: &str = "warmpath::state";

/// Lines that may wait to be written. Whoever reads them slowly costs lines, and no request any time.
const LINES_WAITING: usize = 16_384;

/// How many lines found no room, where lines wait.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// How many lines were not taken where they are written to, as by a disk that is full.
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

/// Starts logging to standard error, line by line. Only the first call in a process counts.
pub fn log_to_stderr(format: LogFormat, level: Level) {
    log(format, level, LevelFilter::OFF, io::stderr);
}

/// The same with the lines of requests, of whatever level the others are: whether there are any is for the gateway to say.
/// Nobody waits for these lines to be written; what waits when the guard is dropped is written then.
pub fn log_with_requests(format: LogFormat, level: Level) -> WorkerGuard {
    let lines = NonBlockingBuilder::default().buffered_lines_limit(LINES_WAITING).lossy(true).thread_name("log");
    let (writer, guard) = lines.finish(Gathering::new(io::stderr(), &UNWRITTEN));
    DROPPED.get_or_init(|| writer.error_counter());
    log(format, level, LevelFilter::INFO, writer);
    guard
}

/// Whether what is written here is to have colours: on a terminal that has them, for somebody who has not asked for none.
pub fn has_colours(output: &impl IsTerminal) -> bool {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !is_plain && has_moves(output)
}

/// Whether a line that is written here can be written over: on a terminal that knows how.
pub fn has_moves(output: &impl IsTerminal) -> bool {
    std::env::var_os("TERM").is_none_or(|terminal| terminal != "dumb") && output.is_terminal()
}

/// Lines of the log that were lost: they came faster than they could be written, or could not be written at all.
pub fn lines_dropped() -> u64 {
    let dropped = DROPPED.get().map_or(0, |dropped| u64::try_from(dropped.dropped_lines()).unwrap_or(u64::MAX));
    dropped.saturating_add(UNWRITTEN.load(Ordering::Relaxed))
}

fn log<W>(format: LogFormat, level: Level, requests: LevelFilter, writer: W)
where
    W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let filter = filter(level, requests);
    let layer = layer(format, has_colours(&io::stderr()), writer);
    let started = tracing_subscriber::registry().with(filter).with(layer).try_init();
    if started.is_err() {
        tracing::debug!("logging was started before");
    }
}

/// What is written at `level`, with the lines of requests, and whatever the level with what operators did and asked for.
fn filter(level: Level, requests: LevelFilter) -> Targets {
    let operators = [AUDIT, STATE].map(|target| (target, Level::INFO));
    let targets = Targets::new().with_default(level).with_targets(chatty(level)).with_targets(operators);
    targets.with_target(access::TARGET, requests)
}

/// Writes each line to `writer`. Colours are for text alone.
fn layer<S, W>(format: LogFormat, has_colours: bool, writer: W) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    // Of a line that cannot be written nothing is said: that would be written to the same place, and panic.
    let layer = fmt::layer().with_writer(writer).log_internal_errors(false);
    match format {
        LogFormat::Text => layer.with_ansi(has_colours).map_event_format(|others| Lines::new(format, others)).boxed(),
        LogFormat::Json => {
            layer.json().flatten_event(true).map_event_format(|others| Lines::new(format, others)).boxed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_to_connect_are_written_only_where_the_smallest_is_asked_for() {
        for level in [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE] {
            let is_written = |target, of| filter(level, LevelFilter::OFF).would_enable(target, &of);
            assert_eq!(is_written("async_nats::connector", Level::ERROR), level >= Level::DEBUG, "{level}");
            assert!(!is_written("async_nats", Level::INFO) && !is_written("hyper_util::client", Level::INFO));
            assert!(is_written("hyper_util::client", Level::ERROR) && is_written("warmpath::events", Level::ERROR));
            assert!(is_written(AUDIT, Level::INFO) && is_written(STATE, Level::INFO), "{level}: operators read them");
        }
    }
}
