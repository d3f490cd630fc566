//! Where the workers' events come from, and how that goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warmpath_core::namespace::Namespace;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource};
use crate::error::BoxError;
use crate::events::local::LocalBus;
use crate::events::nats::NatsBus;
use crate::events::snapshots::SnapshotFolder;
use crate::events::source::source;
use crate::events::wiring::{nats_settings, nats_source, zmq_settings, zmq_source};
use crate::events::zmq::{Gate, ZmqBus};
use crate::events::{Abilities, EventTask, Heard, Source};
use crate::fleet::{Fleet, Worker};
use crate::real::real_len;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// The most that is set aside at shutdown for writing views down.
const WRITING_MAX: Duration = Duration::from_secs(5);

/// Every event task, seen from outside.
pub(super) struct Sources {
    bus: Option<NatsBus>,
    zmq: ZmqBus,
    /// The event tasks, apart from all others: they end by themselves when they are told when to.
    tasks: Tasks,
    stop: watch::Sender<Option<Instant>>,
    folder: Option<SnapshotFolder>,
    /// Why there is no folder though one is configured.
    folder_trouble: Option<String>,
    index: Arc<ConcurrentIndex>,
    workers: Vec<Arc<Worker>>,
    metrics: Metrics,
}

impl Sources {
    /// Starts a task for each (worker, rank) that has events.
    pub(super) async fn start(
        config: &Config,
        local: Option<LocalBus>,
        (fleet, index): (&Fleet, &Arc<ConcurrentIndex>),
        metrics: &Metrics,
        background: &Tasks,
    ) -> Result<Arc<Self>, StartError> {
        let bus = match nats_settings(&config.events.nats) {
            Some(settings) => {
                let connecting = NatsBus::connect(settings).await;
                Some(connecting.map_err(|error| setup("the NATS settings cannot be used", error))?)
            }
            None => None,
        };
        let (folder, folder_trouble) = open_folder(config);
        let (stop, stopped) = watch::channel(None);
        let tasks = Tasks::new();
        let zmq = ZmqBus::new(zmq_settings(&config.events.zmq));
        let mut gate = config.events.zmq.bind.as_ref().map(|bind| Gate::new(&zmq, bind.value.clone()));
        for worker in fleet.workers() {
            let described = config.workers.iter().find(|described| described.id.value == worker.id);
            let described = described.expect("the fleet was built from this configuration");
            let source = match config.event_source(described) {
                EventSource::None => continue,
                EventSource::Local => local_source(local.as_ref(), worker, background)?,
                EventSource::Nats => {
                    let bus = bus.as_ref().ok_or("`events.nats.url` is not set");
                    let bus = bus.map_err(|why| cannot_be_heard(worker, "nats", why))?;
                    nats_source(bus, worker, config, background)
                }
                EventSource::Zmq => zmq_source((&zmq, gate.as_mut()), (worker, described), config, background)
                    .map_err(|why| cannot_be_heard(worker, "zmq", why))?,
            };
            let mut task = task(config, fleet, worker, index, source);
            // A local engine ends with this process.
            if let (Some(folder), EventSource::Nats) = (&folder, config.event_source(described)) {
                task = task.kept_in(folder);
            }
            tasks.spawn(task.run(stopped.clone()));
        }
        if let Some(gate) = gate {
            background.spawn(gate.run(background.clone()));
        }
        let (index, workers) = (Arc::clone(index), fleet.workers().to_vec());
        Ok(Arc::new(Self { bus, zmq, tasks, stop, folder, folder_trouble, index, workers, metrics: metrics.clone() }))
    }

    /// Whether events can arrive from every worker that sends them over the bus, and follow what was known before.
    pub(super) fn are_up(&self) -> bool {
        self.are_connected() && self.are_warm()
    }

    /// Whether what the run before left has been read, or is not waited for any longer.
    pub(super) fn are_warm(&self) -> bool {
        self.folder.as_ref().is_none_or(SnapshotFolder::is_read)
    }

    /// Event tasks alive.
    pub(super) fn tasks_alive(&self) -> usize {
        self.tasks.len()
    }

    /// How much of the time that a shutdown may take is set aside for [`Sources::stop`].
    pub(super) fn time_to_stop(&self, grace: Duration) -> Duration {
        if self.folder.is_some() { (grace / 4).min(WRITING_MAX) } else { Duration::ZERO }
    }

    /// Ends the event tasks. Those whose views are to outlive the router write them down, if they can before `until`.
    pub(super) async fn stop(&self, until: Instant) {
        self.stop.send_replace(Some(until));
        self.tasks.drain(until.saturating_duration_since(Instant::now())).await;
    }

    /// What does not work, in words.
    pub(super) fn complaints(&self) -> Vec<String> {
        const MEANWHILE: &str = "requests are routed by load and by what was known before";
        let bus = self.bus.as_ref().and_then(NatsBus::trouble);
        let bus = bus.map(|trouble| format!("the event bus is not connected ({trouble}): {MEANWHILE}"));
        let engines = self.zmq.trouble();
        let engines = engines.map(|trouble| format!("engines' events are not connected ({trouble}): {MEANWHILE}"));
        let complaints = bus.into_iter().chain(engines).chain(self.zmq.complaints());
        complaints.chain(self.folder_trouble.clone()).collect()
    }

    fn are_connected(&self) -> bool {
        self.bus.as_ref().and_then(NatsBus::trouble).is_none() && self.zmq.trouble().is_none()
    }

    /// Brings the gauges up to date.
    pub(super) fn measure(&self) {
        self.metrics.index_bytes.set(real_len(self.index.bytes()));
        self.metrics.index_refused.absolute(self.index.refused());
        self.metrics.index_shed.absolute(self.index.shed());
        self.metrics.unmatched_topics.absolute(self.zmq.unmatched());
        self.metrics.bus_up.set(if self.are_connected() { 1.0 } else { 0.0 });
        for worker in &self.workers {
            worker.metrics.index_blocks.set(real_len(self.index.entries(worker.slot)));
            worker.metrics.index_worker_bytes.set(real_len(self.index.bytes_of(worker.slot)));
        }
    }
}

/// A folder that cannot be used keeps nobody from serving: the router is cold after its next start, as without one.
fn open_folder(config: &Config) -> (Option<SnapshotFolder>, Option<String>) {
    let Some(path) = &config.index.snapshots else { return (None, None) };
    match SnapshotFolder::open(path.clone()) {
        Ok(folder) => (Some(folder), None),
        Err(error) => {
            let folder = path.display();
            tracing::warn!(%folder, %error, "snapshots cannot be kept here; the next start will be cold");
            (None, Some(format!("`index.snapshots` cannot be used ({folder}: {error}): the next start will be cold")))
        }
    }
}

fn cannot_be_heard(worker: &Worker, source: &str, why: impl Into<BoxError>) -> StartError {
    setup(&format!("worker `{}` has `events: {source}`", worker.id), why)
}

fn local_source(local: Option<&LocalBus>, worker: &Worker, tasks: &Tasks) -> Result<Source, StartError> {
    let bus = local.ok_or_else(|| {
        cannot_be_heard(worker, "local", "there is no engine inside this process; use `nats` or `none`")
    })?;
    let mut queue = bus.subscribe(worker.id.as_str(), worker.rank.unwrap_or_default().0);
    let (source, line) = source(Abilities { patience: Patience::NONE, replays: false, snapshots: false }, 1);
    tasks.spawn(async move {
        while let Some(message) = queue.recv().await {
            if line.tell.send(Heard::Live(message)).await.is_err() {
                return;
            }
        }
    });
    Ok(source)
}

fn task(
    config: &Config,
    fleet: &Fleet,
    worker: &Arc<Worker>,
    index: &Arc<ConcurrentIndex>,
    source: Source,
) -> EventTask {
    let pool = fleet.pool(&worker.model).expect("a fleet has a pool for the model of each worker");
    let namespace = Namespace::plain(Arc::clone(&worker.model), pool.block_size);
    // As many as the configuration says; engines that tell the number themselves let the table grow.
    let table = fleet.table();
    let target = table.get(worker.slot).expect("a fleet has a target for each worker");
    let blocks = target.limits.blocks;
    let blocks = blocks.map_or(0, |blocks| usize::try_from(blocks.0).unwrap_or(0));
    let view = ViewSettings { pool: namespace, seed: config.index.seed, blocks };
    let known = (Arc::clone(worker), Arc::clone(pool), Arc::clone(&target.trust));
    EventTask::new(known, index.writer(worker.slot, &view), source)
}
