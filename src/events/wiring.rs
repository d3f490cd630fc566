//! From what the configuration says of event sources to the sources themselves.

use std::sync::Arc;

use warmpath_indexer::feed::Patience;

use super::nats::{Credentials, INBOX, NatsBus, NatsSettings, Tls};
use super::source::source;
use super::zmq::{Gate, ReplaySettings, ZmqBus, ZmqEngine, ZmqSettings};
use super::{Abilities, Source};
use crate::config::{self, Config, JetStream, Nats, Secret, Spanned, Zmq, ZmqEndpoint};
use crate::fleet::Worker;
use crate::shutdown::{Restarts, Tasks};

/// A worker whose sockets the configuration does not name, where nothing waits for it to connect either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its sockets have no place")]
pub struct NoPlace;

/// How to reach the NATS server, and who we are to it; none where no server is configured.
pub fn nats_settings(nats: &Nats) -> Option<NatsSettings> {
    let text = |secret: &Option<Spanned<Secret>>| secret.as_ref().map(|secret| secret.value.expose().to_owned());
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
    let [certificate, key] =
        [&nats.tls_certificate, &nats.tls_key].map(|file| file.as_ref().map(|file| file.value.clone()));
    Tls { authorities: nats.tls_authorities.clone(), identity: certificate.zip(key) }
}

fn patience(config: &Config) -> Patience {
    Patience { batches: usize::from(config.events.hold_batches.get()), wait: config.events.hold_time.get() }
}

/// The events of one (worker, rank) over NATS.
pub fn nats_source(
    bus: &NatsBus,
    worker: &Arc<Worker>,
    config: &Config,
    (tasks, restarts): (&Tasks, &Restarts),
) -> Source {
    // Without JetStream, or without a bridge, what is asked for ends at once, with nothing.
    let replays = config.events.nats.jetstream == JetStream::Auto;
    let abilities = Abilities { patience: patience(config), replays, snapshots: true };
    let waiting = usize::try_from(config.events.nats.queue_messages.get()).unwrap_or(usize::MAX);
    let (source, line) = source(abilities, waiting);
    let rank = worker.rank.unwrap_or_default().0;
    let (bus, worker) = (bus.clone(), Arc::clone(worker));
    tasks.supervise(restarts.clone(), move || {
        bus.clone().follow((&worker.model, worker.id.as_str(), rank), line.clone())
    });
    source
}

/// How ZeroMQ sockets are used.
pub fn zmq_settings(zmq: &Zmq) -> ZmqSettings {
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

/// The events of one (worker, rank) over ZeroMQ. A worker with a place of its own is connected to, any other one comes to
/// the gate.
///
/// # Errors
/// [`NoPlace`]: it has none, and there is no gate.
pub fn zmq_source(
    (bus, gate): (&ZmqBus, Option<&Arc<Gate>>),
    (worker, described): (&Arc<Worker>, &config::Worker),
    config: &Config,
    (tasks, restarts): (&Tasks, &Restarts),
) -> Result<Source, NoPlace> {
    let rank = worker.rank.unwrap_or_default().0;
    let of_rank = |endpoint: Option<ZmqEndpoint>| endpoint.and_then(|endpoint| endpoint.for_rank(rank));
    let replay = of_rank(config.zmq_replay(described));
    // One connection overtakes nothing.
    let abilities = Abilities { patience: Patience::NONE, replays: replay.is_some(), snapshots: false };
    let waiting = usize::try_from(config.events.zmq.queue_messages.get()).unwrap_or(usize::MAX);
    let (source, line) = source(abilities, waiting);
    match (of_rank(config.zmq_events(described)), gate) {
        (Some(events), _) => {
            let (bus, worker, engine) = (bus.clone(), worker.as_ref().into(), ZmqEngine { events, replay });
            tasks.supervise(restarts.clone(), move || bus.follow(&worker, engine.clone(), line.clone()));
        }
        (None, Some(gate)) => {
            let model = config.models.iter().find(|model| model.name.value == *worker.model);
            let aliases = model.into_iter().flat_map(|model| &model.aliases).map(|alias| alias.value.as_str());
            let models: Vec<_> = std::iter::once(&*worker.model).chain(aliases).map(str::to_owned).collect();
            let (gate, worker) = (Arc::clone(gate), worker.as_ref().into());
            tasks.supervise(restarts.clone(), move || {
                let models: Vec<_> = models.iter().map(String::as_str).collect();
                gate.expect(&worker, &models, replay.clone(), line.clone())
            });
        }
        (None, None) => return Err(NoPlace),
    }
    Ok(source)
}
