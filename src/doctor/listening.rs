//! The events of one (worker, rank), taken in as the router takes them in: the same sources, the same task, an index.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use warmpath_core::blocks::{Root, hash_blocks};
use warmpath_core::ids::{Rank, Slot, TokenId};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::trust::Trust;
use warmpath_core::units::Blocks;
use warmpath_core::workers::Limits;
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::snapshot::owner_of;
use warmpath_indexer::view::ViewSettings;

use super::ear::{Ear, Notes, Own};
use super::engine::link_to;
use crate::config::{Config, Model, Worker as Described};
use crate::events::nats::NatsBus;
use crate::events::source::source;
use crate::events::zmq::ZmqBus;
use crate::events::{Ask, EventTask, Source};
use crate::fleet::health::Health;
use crate::fleet::{Contract, Newcomer, PoolState, Worker};
use crate::link::Links;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// Between two looks at an index.
const LOOK: Duration = Duration::from_millis(5);

/// The only worker of its index.
const SLOT: Slot = Slot(0);

/// What an ear waits with for the task, and the task for its ear.
const QUEUE: usize = 1024;

/// What events of one (worker, rank) come over.
#[derive(Clone)]
pub(super) enum Bus {
    /// NATS.
    Nats(Box<NatsBus>),
    /// Its own ZeroMQ sockets; nobody else's are on this bus.
    Zmq(ZmqBus),
    /// A place to which it connects, together with others.
    Gate(ZmqBus),
}

/// One (worker, rank)'s events, being heard.
pub(super) struct Listening {
    bus: Bus,
    index: Arc<ConcurrentIndex>,
    root: Root,
    trust: Arc<Trust>,
    notes: watch::Receiver<Notes>,
    own: mpsc::Sender<Ask>,
    sought: watch::Sender<Arc<[TokenId]>>,
    /// Nobody tells the task to stop: it ends with its tasks.
    _stop: watch::Sender<Option<Instant>>,
}

/// The worker as event sources know it.
pub(super) fn worker_of(described: &Described, rank: Option<Rank>, links: &Links) -> Option<Arc<Worker>> {
    let link = link_to(links, &described.url.value).ok()?;
    let newcomer = Newcomer {
        id: described.id.value.clone(),
        rank,
        tells_rank: described.dp_ranks.value.get() > 1,
        model: described.model.value.as_str().into(),
        link: Arc::clone(&link),
        control: link,
        metrics: Metrics::new("warmpath").worker(described.id.value.as_str(), rank),
        contract: Contract {
            authorization: None,
            limits: Limits { blocks: None, sequences: described.max_num_seqs.get() },
            role: described.role,
        },
        health: Health::presumed(),
        silence: None,
    };
    Some(Arc::new(Worker::new(SLOT, &newcomer)))
}

impl Listening {
    /// Begins to listen to `from`.
    pub(super) fn start(
        config: &Config,
        (worker, model): (Arc<Worker>, &Model),
        (bus, from): (Bus, Source),
        tasks: &Tasks,
    ) -> Self {
        let entries = usize::try_from(config.index.max_entries.get()).unwrap_or(usize::MAX);
        let index = Arc::new(ConcurrentIndex::new(entries));
        let namespace = Namespace::plain(Arc::clone(&worker.model), model.block_size);
        let root = Root::new(&namespace, config.index.seed);
        let view = ViewSettings { pool: namespace, seed: config.index.seed, blocks: 0 };
        let (to_task, line) = source(from.abilities, QUEUE);
        let (own, asked) = mpsc::channel(1);
        let (notes, noted) = watch::channel(Notes::default());
        let (sought, seeking) = watch::channel::<Arc<[TokenId]>>([].into());
        let (stop, stopped) = watch::channel(None);
        let trust = Arc::<Trust>::default();
        let taken = (root.sequence, owner_of(worker.id.as_str(), worker.rank.unwrap_or_default().0));
        let known = (worker, Arc::new(PoolState::listening(&model.name.value, model.block_size)), Arc::clone(&trust));
        let task = EventTask::new(known, index.writer(SLOT, &view), to_task);
        tasks.spawn(task.run(stopped));
        tasks.spawn(Ear { bus: from, line, own: asked, sought: seeking, notes, taken }.listen());
        Self { bus, index, root, trust, notes: noted, own, sought, _stop: stop }
    }

    /// What is heard of this prompt from now on is to be noted.
    pub(super) fn seek(&self, prompt: &[TokenId]) {
        self.sought.send_replace(prompt.into());
    }

    /// What has passed so far.
    pub(super) fn notes(&self) -> Notes {
        self.notes.borrow().clone()
    }

    /// Waits until the notes are as wanted; whether they are.
    pub(super) async fn until(&self, patience: Duration, wanted: impl FnMut(&Notes) -> bool) -> bool {
        matches!(timeout(patience, self.notes.clone().wait_for(wanted)).await, Ok(Ok(_)))
    }

    /// The leading blocks of `prompt` that the router would believe the worker to hold, and no fewer than `least` if they
    /// come in time.
    pub(super) async fn held(&self, prompt: &[TokenId], least: Blocks, patience: Duration) -> Blocks {
        let mut hashes = Vec::new();
        hash_blocks(&self.root, prompt, &[], &mut hashes);
        let mut overlaps = Overlaps::default();
        let deadline = Instant::now() + patience;
        loop {
            self.index.match_prefix(&hashes, &mut overlaps);
            let held = overlaps.of(SLOT).total();
            if held >= least || Instant::now() >= deadline {
                return held;
            }
            sleep(LOOK).await;
        }
    }

    /// Asks the bus, beside the task; what came of it, if it came to an end.
    pub(super) async fn ask(&self, ask: Ask, patience: Duration) -> Option<Own> {
        let before = self.notes.borrow().asked;
        timeout(patience, self.own.send(ask)).await.ok()?.ok()?;
        let ended = self.until(patience, |notes| notes.asked > before && notes.own.ended).await;
        ended.then(|| self.notes.borrow().own)
    }

    /// Whether the view waits for something that it has missed, as it does after each new connection.
    pub(super) fn is_incomplete(&self) -> bool {
        self.trust.view().is_doubted()
    }

    /// What keeps events from arriving, in words.
    pub(super) fn trouble(&self) -> Option<String> {
        match &self.bus {
            Bus::Nats(bus) => bus.trouble(),
            Bus::Zmq(bus) | Bus::Gate(bus) => bus.trouble(),
        }
    }

    /// What else the bus complains of.
    pub(super) fn complaints(&self) -> Vec<String> {
        match &self.bus {
            Bus::Nats(_) => Vec::new(),
            Bus::Zmq(bus) | Bus::Gate(bus) => bus.complaints(),
        }
    }

    /// Whether the engine connects to us: nobody knows of it before it speaks.
    pub(super) fn is_awaited(&self) -> bool {
        matches!(self.bus, Bus::Gate(_))
    }
}
