//! Where the workers' events come from, and how that goes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use warmpath_core::count::real_len;
use warmpath_core::ids::{Slot, WorkerId};
use warmpath_core::namespace::Namespace;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource, Worker as Described};
use crate::error::BoxError;
use crate::events::course::{Course, MEANWHILE, Standing, State, Way};
use crate::events::local::LocalBus;
use crate::events::nats::NatsBus;
use crate::events::snapshots::SnapshotFolder;
use crate::events::source::Line;
use crate::events::source::source;
use crate::events::wiring::{nats_settings, nats_source, zmq_settings, zmq_source};
use crate::events::zmq::{Gate, ZmqBus};
use crate::events::{Abilities, EventTask, Heard, Message, Source};
use crate::fleet::{Fleet, PoolState, Worker};
use crate::shutdown::{Lasting, Restarts, Tasks};
use crate::telemetry::metrics::Metrics;

/// The most that is set aside at shutdown for writing views down.
const WRITING_MAX: Duration = Duration::from_secs(5);

/// Workers whose events cannot be used that are told by name; of the rest, the number.
const NAMED: usize = 3;

/// What the tasks that receive events are called.
const SOURCE: &str = "event_source";

/// How it goes with each worker's events. Nobody keeps a slot by being in here.
type Courses = BTreeMap<Slot, (Weak<Worker>, Arc<Course>)>;

/// Over what a worker's events come.
#[derive(Clone, Copy)]
pub(super) enum Origin<'a> {
    Local(&'a LocalBus),
    Nats(&'a NatsBus),
    Zmq,
}

/// Starts and ends the event tasks, and sees them from outside.
pub(super) struct Sources {
    config: Arc<Config>,
    bus: Option<NatsBus>,
    zmq: ZmqBus,
    gate: Option<Arc<Gate>>,
    local: Option<LocalBus>,
    courses: Mutex<Courses>,
    /// The event tasks, apart from all others: they end by themselves when they are told when to.
    tasks: Tasks,
    stop: watch::Sender<Option<Instant>>,
    folder: Option<SnapshotFolder>,
    /// Why there is no folder though one is configured.
    folder_trouble: Option<String>,
    index: Arc<ConcurrentIndex>,
    fleet: Arc<Fleet>,
    metrics: Metrics,
}

impl Sources {
    /// Connects the buses; no worker's events are listened for yet.
    pub(super) async fn connect(
        config: &Arc<Config>,
        local: Option<LocalBus>,
        (fleet, index): (&Arc<Fleet>, &Arc<ConcurrentIndex>),
        metrics: &Metrics,
        background: &Tasks,
    ) -> Result<Self, StartError> {
        let bus = match nats_settings(&config.events.nats) {
            Some(settings) => {
                let connecting = NatsBus::connect(settings).await;
                Some(connecting.map_err(|error| setup("the NATS settings cannot be used", error))?)
            }
            None => None,
        };
        let (folder, folder_trouble) = open_folder(config);
        let zmq = ZmqBus::new(zmq_settings(&config.events.zmq));
        let gate = config.events.zmq.bind.as_ref().map(|bind| Arc::new(Gate::new(&zmq, bind.value.clone())));
        if let Some(gate) = &gate {
            let (gate, tasks) = (Arc::clone(gate), background.clone());
            background.supervise(metrics.restarts(SOURCE), move || Arc::clone(&gate).run(tasks.clone()));
        }
        Ok(Self {
            config: Arc::clone(config),
            bus,
            zmq,
            gate,
            local,
            courses: Mutex::default(),
            tasks: Tasks::new(),
            stop: watch::Sender::new(None),
            folder,
            folder_trouble,
            index: Arc::clone(index),
            fleet: Arc::clone(fleet),
            metrics: metrics.clone(),
        })
    }

    /// Room for the event tasks of one worker, which can be ended by themselves.
    pub(super) fn part(&self) -> Tasks {
        self.tasks.part()
    }

    /// Where the events of a worker come from, if it has any.
    ///
    /// # Errors
    /// When there is nothing over which they could come.
    pub(super) fn origin(&self, described: &Described) -> Result<Option<Origin<'_>>, StartError> {
        let cannot = |source, why: &str| cannot_be_heard(&described.id.value, source, why);
        match self.config.event_source(described) {
            EventSource::None => Ok(None),
            EventSource::Local => {
                let why = "there is no engine inside this process; use `zmq`, `nats` or `none`";
                self.local.as_ref().map(|bus| Some(Origin::Local(bus))).ok_or_else(|| cannot("local", why))
            }
            EventSource::Nats => {
                let why = "`events.nats.url` is not set";
                self.bus.as_ref().map(|bus| Some(Origin::Nats(bus))).ok_or_else(|| cannot("nats", why))
            }
            EventSource::Zmq => Ok(Some(Origin::Zmq)),
        }
    }

    /// Listens for the events of one (worker, rank), if it has any: `tasks` receive them, `listening` keeps the index true
    /// to them.
    pub(super) fn start(
        &self,
        worker: &Arc<Worker>,
        described: &Described,
        (tasks, listening): (&Tasks, &Tasks),
    ) -> Result<(), StartError> {
        let Some(origin) = self.origin(described)? else { return Ok(()) };
        let restarts = self.metrics.restarts(SOURCE);
        let tasks = (tasks, &restarts);
        let source = match origin {
            Origin::Local(bus) => local_source(bus, worker, tasks),
            Origin::Nats(bus) => nats_source(bus, worker, &self.config, tasks),
            Origin::Zmq => zmq_source((&self.zmq, self.gate.as_ref()), (worker, described), &self.config, tasks)
                .map_err(|why| cannot_be_heard(&worker.id, "zmq", why))?,
        };
        let course = Arc::clone(&source.course);
        let mut task = self.task(worker, described, source)?;
        self.courses().insert(worker.slot, (Arc::downgrade(worker), course));
        // A local engine ends with this process.
        if let (Some(folder), Origin::Nats(_)) = (&self.folder, origin) {
            task = task.kept_in(folder);
        }
        listening.spawn(task.run(self.stop.subscribe()));
        Ok(())
    }

    fn task(&self, worker: &Arc<Worker>, described: &Described, source: Source) -> Result<EventTask, StartError> {
        let pool = self.fleet.pool(&worker.model).ok_or_else(|| setup("no such model", worker.model.to_string()))?;
        let roster = self.fleet.roster();
        let target = roster.table().get(worker.slot).ok_or_else(|| setup("no such worker", worker.id.to_string()))?;
        // As many as the configuration says; engines that tell the number themselves let the table grow.
        let blocks = described.capacity_blocks.map_or(0, |blocks| usize::try_from(blocks.get()).unwrap_or(0));
        let writer = self.index.writer(worker.slot, &self.view(worker, &pool, blocks));
        Ok(EventTask::new((Arc::clone(worker), pool, Arc::clone(&target.trust)), writer, source))
    }

    /// Forgets what a worker that has left held. Its task must have ended.
    pub(super) fn vacate(&self, worker: &Worker) {
        self.courses().remove(&worker.slot);
        if let Some(pool) = self.fleet.pool(&worker.model) {
            // Whoever begins in a slot makes it empty, and an empty view takes next to no room.
            drop(self.index.writer(worker.slot, &self.view(worker, &pool, 0)));
        }
    }

    /// Tells the index who belongs together, after some have come or gone.
    pub(super) fn tell_pools(&self) {
        let roster = self.fleet.roster();
        let pools = roster.table().pools().iter().map(|pool| pool.targets.iter().copied().collect());
        self.index.set_pools(&pools.collect::<Vec<_>>());
    }

    fn view(&self, worker: &Worker, pool: &PoolState, blocks: usize) -> ViewSettings {
        let namespace = Namespace::plain(Arc::clone(&worker.model), pool.block_size);
        ViewSettings { pool: namespace, seed: self.config.index.seed, blocks }
    }

    fn courses(&self) -> MutexGuard<'_, Courses> {
        self.courses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it goes with one worker's events; none where it tells none.
    pub(super) fn course(&self, worker: &Arc<Worker>) -> Option<Arc<Course>> {
        let courses = self.courses();
        let (known, course) = courses.get(&worker.slot)?;
        std::ptr::eq(known.as_ptr(), Arc::as_ptr(worker)).then(|| Arc::clone(course))
    }

    /// How it is with the place to which engines connect, and how many messages named no worker; none without one.
    pub(super) fn gate(&self) -> Option<(Standing, u64)> {
        self.gate.as_ref().map(|gate| (gate.standing(), self.zmq.unmatched()))
    }

    /// The connection to NATS, where there is one.
    pub(super) fn nats(&self) -> Option<&NatsBus> {
        self.bus.as_ref()
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
        let bus = self.bus.as_ref().and_then(|bus| Some((bus, bus.trouble()?))).map(|(bus, trouble)| {
            let effect = if self.needs_nats() {
                "workers whose events come over it are routed to by load and by what was known before"
            } else {
                "no worker's events come over it; registrations and other routers are not heard"
            };
            let lacks = if bus.is_up() { "does not bring all events" } else { "is not connected" };
            format!("the event bus {lacks} ({trouble}): {effect}")
        });
        let refused = self.refused();
        bus.into_iter().chain(self.zmq.complaints()).chain(refused).chain(self.folder_trouble.clone()).collect()
    }

    /// Of whom nothing that comes can be used, a sentence for each that is told by name.
    fn refused(&self) -> Vec<String> {
        let refused: Vec<_> = {
            let courses = self.courses();
            courses
                .values()
                .filter_map(|(worker, course)| Some((worker.upgrade()?.place(), course.refuses()?)))
                .collect()
        };
        let named = refused.iter().take(NAMED);
        let named = named.map(|(worker, why)| format!("events of {worker} cannot be used ({why}): {MEANWHILE}"));
        let more = refused.len().saturating_sub(NAMED);
        named.chain((more > 0).then(|| format!("events of {more} more cannot be used: {MEANWHILE}"))).collect()
    }

    /// Whether workers' events come over NATS, or may yet: nobody is there.
    fn needs_nats(&self) -> bool {
        let is_used = self.courses().values().any(|(_, course)| course.is_over_nats());
        is_used || self.fleet.roster().workers().next().is_none()
    }

    /// Whether events cannot come though they should: the bus that some share is away, or every engine's own socket.
    fn is_cut_off(&self) -> bool {
        let is_down = |bus: &NatsBus| self.needs_nats() && bus.trouble().is_some();
        let is_shut = |(gate, _): (Standing, u64)| gate.state != State::Connected;
        self.bus.as_ref().is_some_and(is_down) || self.gate().is_some_and(is_shut) || self.zmq.is_cut_off()
    }

    fn are_connected(&self) -> bool {
        self.bus.as_ref().and_then(NatsBus::trouble).is_none() && self.zmq.trouble().is_none()
    }

    /// Brings the gauges up to date.
    pub(super) fn measure(&self) {
        self.metrics.index_bytes.set(real_len(self.index.bytes()));
        self.metrics.log_dropped(crate::telemetry::lines_dropped());
        self.metrics.index_refused.absolute(self.index.refused());
        self.metrics.index_shed.absolute(self.index.shed());
        self.metrics.unmatched_topics.absolute(self.zmq.unmatched());
        self.metrics.bus_up.set(if self.is_cut_off() { 0.0 } else { 1.0 });
        for worker in self.fleet.roster().workers() {
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

fn cannot_be_heard(worker: &WorkerId, source: &str, why: impl Into<BoxError>) -> StartError {
    setup(&format!("worker `{worker}` has `events: {source}`"), why)
}

fn local_source(bus: &LocalBus, worker: &Worker, (tasks, restarts): (&Tasks, &Restarts)) -> Source {
    let queue = bus.subscribe(worker.id.as_str(), worker.rank.unwrap_or_default().0);
    let (source, line) = source(Abilities { patience: Patience::NONE, replays: false, snapshots: false }, 1);
    line.course.comes(Way::Local, "this process");
    line.course.up(Instant::now());
    tasks.supervise(restarts.clone(), Passing { queue, line });
    source
}

/// Hands on what a local engine publishes.
struct Passing {
    queue: mpsc::Receiver<Message>,
    line: Line,
}

impl Lasting for Passing {
    async fn work(&mut self) {
        while let Some(message) = self.queue.recv().await {
            if self.line.tell.send(Heard::Live(message)).await.is_err() {
                return;
            }
        }
    }
}
