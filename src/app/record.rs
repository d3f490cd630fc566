//! Finished requests, from the gateway to the file.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::StartError;
use super::build::setup;
use crate::config::Config;
use crate::replay::record::{Journal, Obstacle, QUEUE};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;
use crate::upstream::record::Recorder;

/// How long what waits at the end may take to be written.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The task that keeps what is told of requests, if anything is.
#[derive(Default)]
pub(super) struct Keeping {
    tasks: Tasks,
    stop: CancellationToken,
    obstacle: Obstacle,
}

/// Begins the file that the configuration names.
pub(super) async fn start(config: &Config, metrics: &Metrics) -> Result<(Option<Recorder>, Keeping), StartError> {
    let mut keeping = Keeping::default();
    let Some(path) = &config.record else { return Ok((None, keeping)) };
    let journal = Journal::begin(path, config.record_size.bytes(), metrics.record()).await;
    let journal = journal.map_err(|error| setup(&format!("`record`: {} cannot be written", path.display()), error))?;
    keeping.obstacle = journal.obstacle();
    let (to, from) = mpsc::channel(QUEUE);
    keeping.keep(|stop| journal.keep(from, stop));
    Ok((Some(Recorder::new(to, metrics.record())), keeping))
}

impl Keeping {
    /// Runs `work` until it is over, or as long as it takes once it is told to stop.
    pub(super) fn keep<W: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(CancellationToken) -> W) {
        self.tasks.spawn(work(self.stop.clone()));
    }

    /// Once no request runs any more: writes what waits.
    pub(super) async fn stop(&self) {
        self.stop.cancel();
        self.tasks.drain(LAST_WORDS).await;
    }

    /// What keeps the file from being written.
    pub(super) fn obstacle(&self) -> Obstacle {
        self.obstacle.clone()
    }

    pub(super) fn tasks_alive(&self) -> usize {
        self.tasks.len()
    }
}
