//! What real engines sent, over every bus into a real task and index: before each request that an engine answered, the
//! index knew what the engine then found in its cache.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::source::source;
use warmpath::events::zmq::ZmqWorker;
use warmpath::events::{Abilities, EventTask, Heard, Message};
use warmpath::fleet::health::Health;
use warmpath::fleet::{Contract, Newcomer, PoolState, Worker};
use warmpath::link::{ClientTls, HEAD_MAX, LinkLimits, Links};
use warmpath::shutdown::Tasks;
use warmpath::telemetry::metrics::Metrics;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::BlockSize;
use warmpath_core::workers::{Limits, Role};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::feed::Patience;
use warmpath_indexer::view::ViewSettings;

use crate::fleet::value_of;
use crate::nats::NatsServer;
use crate::pyzmq::{Peer, RECORDINGS, Recorded, lines, recorded};
use crate::zmq::{bus, worker};

/// A worker of which nothing but its events matters.
fn newcomer(worker: &ZmqWorker) -> Newcomer {
    let second = Duration::from_secs(1);
    let links =
        Links::new(LinkLimits { connect: second, idle: second, head: HEAD_MAX }, ClientTls::default(), Tasks::new());
    Newcomer {
        id: worker.id.clone(),
        rank: None,
        tells_rank: false,
        model: Arc::clone(&worker.model),
        link: links.link(&http::uri::Scheme::HTTP, &worker.authority).unwrap(),
        control: links.link(&http::uri::Scheme::HTTP, &worker.authority).unwrap(),
        metrics: worker.metrics.clone(),
        contract: Contract {
            authorization: None,
            limits: Limits { blocks: None, sequences: 1 },
            role: Role::default(),
        },
        health: Health::presumed(),
        silence: None,
    }
}

/// A request of a recording.
#[derive(Deserialize)]
struct Step {
    step: String,
    model: Option<String>,
    cache_salt: Option<String>,
    prompt_token_ids: Option<Vec<u32>>,
    /// Whether the engine's answer had a usage.
    reported: bool,
    cached_tokens: Option<u32>,
}

/// How the frames travel.
enum Way {
    Zmq(Box<Peer>),
    Nats(Box<NatsBus>),
}

impl Way {
    async fn send(&mut self, messages: &[Recorded]) {
        let (Some(first), Some(last)) = (messages.first(), messages.last()) else { return };
        match self {
            Self::Zmq(peer) => peer.tell(&format!("send {} {}", first.seq, last.seq + 1)).await,
            Self::Nats(bus) => {
                for message in messages {
                    let payload = message.payload.clone().into();
                    let message = Message { payload, seq: Some(message.seq), epoch: Some(1) };
                    bus.publish(("tiny", "e", 0), message).unwrap();
                }
            }
        }
    }
}

/// A task with its index.
struct Router {
    index: Arc<ConcurrentIndex>,
    space: Namespace,
    metrics: Metrics,
    told: tokio::sync::mpsc::Sender<Heard>,
    _tasks: Tasks,
}

impl Router {
    /// A router that listens on `way`.
    async fn start(recording: &str, size: u32, nats: Option<&NatsServer>) -> (Self, Way) {
        let (metrics, tasks) = (Metrics::new("w"), Tasks::new());
        let worker = worker(&metrics, "tiny", "e");
        let (source, line) = source(Abilities { patience: Patience::NONE, replays: false, snapshots: false }, 64);
        let told = line.tell.clone();
        let way = match nats {
            None => {
                let (peer, engine) = Peer::engine(recording, "topic").await;
                let bus = bus();
                tasks.spawn(bus.follow(&worker, engine, line));
                while bus.trouble().is_some() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Way::Zmq(Box::new(peer))
            }
            Some(server) => {
                let settings = NatsSettings::publisher(server.url(), "warmpath".to_owned());
                let bus = NatsBus::connect(settings).await.unwrap();
                bus.prepare().await;
                tasks.spawn(bus.clone().follow(("tiny", "e", 0), line));
                while bus.trouble().is_some() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Way::Nats(Box::new(bus))
            }
        };
        let space = Namespace::plain("tiny", BlockSize::new(size).unwrap());
        let index = Arc::new(ConcurrentIndex::new(100_000));
        let view = ViewSettings { pool: space.clone(), seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let listening = Arc::new(Worker::new(Slot(0), &newcomer(&worker)));
        let task = EventTask::new(
            (listening, Arc::new(PoolState::listening("tiny", BlockSize::new(size).unwrap())), Arc::default()),
            index.writer(Slot(0), &view),
            source,
        );
        tasks.spawn(task.run(tokio::sync::watch::channel(None).1));
        (Self { index, space, metrics, told, _tasks: tasks }, way)
    }

    /// Waits until so many batches have been applied.
    async fn applied(&self, batches: usize) {
        let deadline = Instant::now() + Duration::from_secs(10);
        let batches = f64::from(u32::try_from(batches).unwrap());
        while value_of(&self.metrics.render(), "w_kv_event_lag_seconds_count", "") < batches {
            assert!(Instant::now() < deadline && !self.told.is_closed(), "batch {batches} was not applied");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The cached tokens that the router would promise.
    fn promise(&self, step: &Step, ids: &[u32]) -> u32 {
        let adapter = step.model.as_deref().filter(|model| *model != "tiny").map(Into::into);
        let space = Namespace { adapter, salt: step.cache_salt.as_deref().map(Into::into), ..self.space.clone() };
        let mut hashes = Vec::new();
        hash_blocks(&Root::new(&space, DEFAULT_ROOT_SEED), ids, &[], &mut hashes);
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(&hashes, &mut overlaps);
        let most = (u32::try_from(ids.len()).unwrap() - 1) / space.block_size.get();
        overlaps.of(Slot(0)).total().0.min(most) * space.block_size.get()
    }
}

/// Sends a recording step by step and compares; returns how many figures were compared.
async fn compare(recording: &str, size: u32, nats: Option<&NatsServer>) -> usize {
    let (router, mut way) = Router::start(recording, size, nats).await;
    let messages = recorded(recording);
    let (mut sent, mut compared) = (0, 0);
    for step in lines::<Step>(recording, "steps.jsonl") {
        router.applied(sent).await;
        // The usage of `n2` counts its second sample. A reset shows in the events only with the next request's.
        let told = step.reported && !["n2", "prompt_after_reset"].contains(&step.step.as_str());
        if let Some(ids) = step.prompt_token_ids.as_ref().filter(|_| told) {
            let promised = router.promise(&step, ids);
            assert_eq!(promised, step.cached_tokens.unwrap_or(0), "{recording}, {}", step.step);
            assert!(step.step != "prompt_3_blocks_after_evict" || promised == 0);
            compared += 1;
        }
        let of_step = messages[sent..].iter().take_while(|message| message.step == step.step).count();
        way.send(&messages[sent..sent + of_step]).await;
        sent += of_step;
    }
    assert_eq!(sent, messages.len());
    router.applied(sent).await;
    for unexpected in ["rejected", "undecodable", "foreign", "orphan", "duplicate", "malformed"] {
        let metrics = router.metrics.render();
        assert_eq!(value_of(&metrics, "w_kv_events_total", &format!("outcome=\"{unexpected}\"")), 0.0, "{unexpected}");
    }
    compared
}

#[tokio::test]
async fn over_zeromq_every_figure_that_an_engine_reported_was_known_before() {
    for (recording, size) in RECORDINGS {
        assert_eq!(compare(recording, size, None).await, 25);
    }
}

#[tokio::test]
async fn over_core_nats_every_figure_that_an_engine_reported_was_known_before() {
    for (recording, size) in RECORDINGS {
        assert_eq!(compare(recording, size, Some(&NatsServer::core())).await, 25);
    }
}

#[tokio::test]
async fn over_jetstream_every_figure_that_an_engine_reported_was_known_before() {
    for (recording, size) in RECORDINGS {
        assert_eq!(compare(recording, size, Some(&NatsServer::jetstream())).await, 25);
    }
}
