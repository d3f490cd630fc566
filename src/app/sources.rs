//! Where the workers' events come from, and how that goes.

use std::sync::Arc;

use warmpath_core::namespace::Namespace;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource, JetStream, Nats, Worker as Described};
use crate::events::local::LocalBus;
use crate::events::nats::{Credentials, NatsBus, NatsSettings};
use crate::events::source::source;
use crate::events::{Abilities, EventTask, Heard, Source};
use crate::fleet::{Fleet, PoolState, Worker};
use crate::real::real_len;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// Starts and ends the event tasks, and sees them from outside.
pub(super) struct Sources {
    config: Arc<Config>,
    bus: Option<NatsBus>,
    local: Option<LocalBus>,
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
    ) -> Result<Self, StartError> {
        let bus = match settings(&config.events.nats) {
            Some(settings) => {
                let connecting = NatsBus::connect(settings).await;
                Some(connecting.map_err(|error| setup("the NATS settings cannot be used", error))?)
            }
            None => None,
        };
        let (fleet, index) = (Arc::clone(fleet), Arc::clone(index));
        Ok(Self { config: Arc::clone(config), bus, local, index, fleet, metrics: metrics.clone() })
    }

    /// Listens for the events of one (worker, rank), if it has any.
    pub(super) fn start(&self, worker: &Arc<Worker>, described: &Described, tasks: &Tasks) -> Result<(), StartError> {
        let source = match self.config.event_source(described) {
            EventSource::None => return Ok(()),
            EventSource::Local => local_source(self.local.as_ref(), worker, tasks)?,
            EventSource::Nats => nats_source(self.bus.as_ref(), worker, &self.config, tasks)?,
        };
        let pool = self.fleet.pool(&worker.model).ok_or_else(|| setup("no such model", worker.model.to_string()))?;
        // As many as the configuration says; engines that tell the number themselves let the table grow.
        let blocks = described.capacity_blocks.map_or(0, |blocks| usize::try_from(blocks.get()).unwrap_or(0));
        let writer = self.index.writer(worker.slot, &self.view(worker, pool, blocks));
        tasks.spawn(EventTask::new((Arc::clone(worker), Arc::clone(pool)), writer, source).run());
        Ok(())
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

    /// Whether events can arrive from every worker that sends them over the bus.
    pub(super) fn are_up(&self) -> bool {
        self.trouble().is_none()
    }

    /// What does not work, in words.
    pub(super) fn complaints(&self) -> Vec<String> {
        let complaint = |trouble| {
            format!(
                "the event bus is not connected ({trouble}): requests are routed by load and by what was known before"
            )
        };
        self.trouble().map(complaint).into_iter().collect()
    }

    fn trouble(&self) -> Option<String> {
        self.bus.as_ref().and_then(NatsBus::trouble)
    }

    /// Brings the gauges up to date.
    pub(super) fn measure(&self) {
        self.metrics.index_bytes.set(real_len(self.index.bytes()));
        self.metrics.index_refused.absolute(self.index.refused());
        self.metrics.index_shed.absolute(self.index.shed());
        self.metrics.bus_up.set(if self.are_up() { 1.0 } else { 0.0 });
        for worker in self.fleet.roster().workers() {
            worker.metrics.index_blocks.set(real_len(self.index.entries(worker.slot)));
            worker.metrics.index_worker_bytes.set(real_len(self.index.bytes_of(worker.slot)));
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
        connect_timeout: nats.connect_timeout.get(),
        reconnect_delay_max: nats.reconnect_delay_max.get(),
        queue_messages: usize::try_from(nats.queue_messages.get()).unwrap_or(usize::MAX),
    })
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
    let abilities = Abilities { patience: patience(config), replays: false, snapshots: false };
    let waiting = usize::try_from(config.events.nats.queue_messages.get()).unwrap_or(usize::MAX);
    let (source, line) = source(abilities, waiting);
    let rank = worker.rank.unwrap_or_default().0;
    tasks.spawn(bus.follow(&worker.model, worker.id.as_str(), rank, line.tell));
    Ok(source)
}
