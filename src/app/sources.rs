//! Where the workers' events come from, and how that goes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use warmpath_core::namespace::Namespace;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource, JetStream, Nats, Worker as Described, Zmq, ZmqEndpoint};
use crate::events::local::LocalBus;
use crate::events::nats::{Credentials, INBOX, NatsBus, NatsSettings, Tls};
use crate::events::snapshots::SnapshotFolder;
use crate::events::source::source;
use crate::events::zmq::{Gate, ReplaySettings, ZmqBus, ZmqEngine, ZmqSettings};
use crate::events::{Abilities, EventTask, Heard, Source};
use crate::fleet::{Fleet, PoolState, Worker};
use crate::real::real_len;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// The most that is set aside at shutdown for writing views down.
const WRITING_MAX: Duration = Duration::from_secs(5);

/// Starts and ends the event tasks, and sees them from outside.
pub(super) struct Sources {
    config: Arc<Config>,
    bus: Option<NatsBus>,
    zmq: ZmqBus,
    gate: Option<Arc<Gate>>,
    local: Option<LocalBus>,
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
        let bus = match settings(&config.events.nats) {
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
            background.spawn(Arc::clone(gate).run(background.clone()));
        }
        Ok(Self {
            config: Arc::clone(config),
            bus,
            zmq,
            gate,
            local,
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

    /// Listens for the events of one (worker, rank), if it has any: `tasks` receive them, `listening` keeps the index true
    /// to them.
    pub(super) fn start(
        &self,
        worker: &Arc<Worker>,
        described: &Described,
        (tasks, listening): (&Tasks, &Tasks),
    ) -> Result<(), StartError> {
        let kind = self.config.event_source(described);
        let source = match kind {
            EventSource::None => return Ok(()),
            EventSource::Local => local_source(self.local.as_ref(), worker, tasks)?,
            EventSource::Nats => nats_source(self.bus.as_ref(), worker, &self.config, tasks)?,
            EventSource::Zmq => zmq_source((&self.zmq, self.gate.as_ref()), (worker, described), &self.config, tasks)?,
        };
        let mut task = self.task(worker, described, source)?;
        // A local engine ends with this process.
        if let (Some(folder), EventSource::Nats) = (&self.folder, kind) {
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
        let writer = self.index.writer(worker.slot, &self.view(worker, pool, blocks));
        Ok(EventTask::new((Arc::clone(worker), Arc::clone(pool), Arc::clone(&target.trust)), writer, source))
    }

    /// Forgets what a worker that has left held. Its task must have ended.
    pub(super) fn vacate(&self, worker: &Worker) {
        if let Some(pool) = self.fleet.pool(&worker.model) {
            // Whoever begins in a slot makes it empty, and an empty view takes next to no room.
            drop(self.index.writer(worker.slot, &self.view(worker, pool, 0)));
        }
    }

    fn view(&self, worker: &Worker, pool: &PoolState, blocks: usize) -> ViewSettings {
        let namespace = Namespace::plain(Arc::clone(&worker.model), pool.block_size);
        ViewSettings { pool: namespace, seed: self.config.index.seed, blocks }
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

fn settings(nats: &Nats) -> Option<NatsSettings> {
    let text = |secret: &Option<crate::config::Spanned<crate::config::Secret>>| {
        secret.as_ref().map(|secret| secret.value.expose().to_owned())
    };
    let user = nats.user.as_ref().map(|user| user.value.clone());
    let credentials = match (user, text(&nats.token), text(&nats.nkey_seed), text(&nats.credentials)) {
        (Some(user), ..) => Credentials::User { user, password: text(&nats.password).unwrap_or_default() },
        (_, Some(token), ..) => Credentials::Token(token),
        (_, _, Some(seed), _) => Credentials::Nkey(seed),
        (.., Some(text)) => Credentials::Creds(text),
        _ => Credentials::Anonymous,
    };
    Some(NatsSettings {
        url: nats.url.as_ref()?.value.as_str().to_owned(),
        prefix: nats.prefix.clone(),
        jetstream: nats.jetstream == JetStream::Auto,
        credentials,
        tls: tls(nats),
        inbox: INBOX.to_owned(),
        connect_timeout: nats.connect_timeout.get(),
        reconnect_delay_max: nats.reconnect_delay_max.get(),
        queue_messages: usize::try_from(nats.queue_messages.get()).unwrap_or(usize::MAX),
    })
}

fn tls(nats: &Nats) -> Tls {
    let certificate = nats.tls_certificate.as_ref().map(|file| PathBuf::from(&file.value));
    let key = nats.tls_key.as_ref().map(|file| PathBuf::from(&file.value));
    Tls { authorities: nats.tls_authorities.as_ref().map(PathBuf::from), identity: certificate.zip(key) }
}

fn patience(config: &Config) -> Patience {
    Patience { batches: usize::from(config.events.hold_batches.get()), wait: config.events.hold_time.get() }
}

fn local_source(local: Option<&LocalBus>, worker: &Worker, tasks: &Tasks) -> Result<Source, StartError> {
    let bus = local.ok_or_else(|| {
        setup(
            &format!("worker `{}` has `events: local`", worker.id),
            "there is no engine inside this process; use `nats` or `none`",
        )
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

fn nats_source(bus: Option<&NatsBus>, worker: &Worker, config: &Config, tasks: &Tasks) -> Result<Source, StartError> {
    let missing = || setup(&format!("worker `{}` has `events: nats`", worker.id), "`events.nats.url` is not set");
    let bus = bus.ok_or_else(missing)?.clone();
    // Without JetStream, or without a bridge, what is asked for ends at once, with nothing.
    let replays = config.events.nats.jetstream == JetStream::Auto;
    let abilities = Abilities { patience: patience(config), replays, snapshots: true };
    let waiting = usize::try_from(config.events.nats.queue_messages.get()).unwrap_or(usize::MAX);
    let (source, line) = source(abilities, waiting);
    let rank = worker.rank.unwrap_or_default().0;
    tasks.spawn(bus.follow((&worker.model, worker.id.as_str(), rank), line));
    Ok(source)
}

fn zmq_settings(zmq: &Zmq) -> ZmqSettings {
    ZmqSettings {
        topic: zmq.topic.clone(),
        connect_timeout: zmq.connect_timeout.get(),
        reconnect_delay_max: zmq.reconnect_delay_max.get(),
        heartbeat: zmq.heartbeat.get(),
        replay: ReplaySettings {
            connect_timeout: zmq.connect_timeout.get(),
            idle_timeout: zmq.replay_idle_timeout.get(),
            timeout: zmq.replay_timeout.get(),
        },
    }
}

/// A worker with a place of its own is connected to, any other one comes to the gate.
fn zmq_source(
    (bus, gate): (&ZmqBus, Option<&Arc<Gate>>),
    (worker, described): (&Arc<Worker>, &Described),
    config: &Config,
    tasks: &Tasks,
) -> Result<Source, StartError> {
    let rank = worker.rank.unwrap_or_default().0;
    let of_rank = |endpoint: Option<ZmqEndpoint>| endpoint.and_then(|endpoint| endpoint.for_rank(rank));
    let replay = of_rank(config.zmq_replay(described));
    // One connection overtakes nothing.
    let abilities = Abilities { patience: Patience::NONE, replays: replay.is_some(), snapshots: false };
    let waiting = usize::try_from(config.events.zmq.queue_messages.get()).unwrap_or(usize::MAX);
    let (source, line) = source(abilities, waiting);
    match (of_rank(config.zmq_events(described)), gate) {
        (Some(events), _) => tasks.spawn(bus.follow(&worker.as_ref().into(), ZmqEngine { events, replay }, line)),
        (None, Some(gate)) => {
            let model = config.models.iter().find(|model| model.name.value == *worker.model);
            let aliases = model.into_iter().flat_map(|model| &model.aliases).map(|alias| alias.value.as_str());
            let models: Vec<_> = std::iter::once(&*worker.model).chain(aliases).collect();
            tasks.spawn(gate.expect(&worker.as_ref().into(), &models, replay, line));
        }
        (None, None) => {
            let what = format!("worker `{}` has `events: zmq`", worker.id);
            return Err(setup(&what, "its sockets have no place"));
        }
    }
    Ok(source)
}
