//! Where the workers' events come from, and how that goes.

use std::path::PathBuf;
use std::sync::Arc;

use warmpath_core::namespace::Namespace;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource, JetStream, Nats};
use crate::events::local::LocalBus;
use crate::events::nats::{Credentials, INBOX, NatsBus, NatsSettings, Tls};
use crate::events::source::source;
use crate::events::{Abilities, EventTask, Heard, Source};
use crate::fleet::{Fleet, Worker};
use crate::real::real_len;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// Every event task, seen from outside.
pub(super) struct Sources {
    bus: Option<NatsBus>,
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
        tasks: &Tasks,
    ) -> Result<Arc<Self>, StartError> {
        let bus = match settings(&config.events.nats) {
            Some(settings) => {
                let connecting = NatsBus::connect(settings).await;
                Some(connecting.map_err(|error| setup("the NATS settings cannot be used", error))?)
            }
            None => None,
        };
        for worker in fleet.workers() {
            let described = config.workers.iter().find(|described| described.id.value == worker.id);
            let described = described.expect("the fleet was built from this configuration");
            let source = match config.event_source(described) {
                EventSource::None => continue,
                EventSource::Local => local_source(local.as_ref(), worker, tasks)?,
                EventSource::Nats => nats_source(bus.as_ref(), worker, config, tasks)?,
            };
            tasks.spawn(task(config, fleet, worker, index, source).run());
        }
        let sources =
            Self { bus, index: Arc::clone(index), workers: fleet.workers().to_vec(), metrics: metrics.clone() };
        Ok(Arc::new(sources))
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
        for worker in &self.workers {
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
    let blocks = fleet.table().get(worker.slot).and_then(|target| target.limits.blocks);
    let blocks = blocks.map_or(0, |blocks| usize::try_from(blocks.0).unwrap_or(0));
    let view = ViewSettings { pool: namespace, seed: config.index.seed, blocks };
    EventTask::new((Arc::clone(worker), Arc::clone(pool)), index.writer(worker.slot, &view), source)
}
