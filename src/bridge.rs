//! The sidecar of one engine: its events to NATS, unchanged and in order; its load, its blocks and its address too.
//!
//! ```text
//! engine --ZMQ--> rank: course (order, repeats, restarts), epoch --> outbox (acknowledged) --> stream
//!                   \\--> blocks <-- requests for snapshots
//! engine --/metrics, /health--> poll --> load reports; lease --> bucket of registrations
//! ```

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use warmpath_core::ids::WorkerId;
use warmpath_core::units::BlockSize;

use crate::config::{BaseUrl, MetricNames};
use crate::door::Listener;
use crate::events::Source;
use crate::events::nats::{INBOX, NatsBus, NatsSettings, Outbox, OutboxCounts};
use crate::fleet::discovery::registration::{RegisteredEvents, Registration, VERSION, key_of};
use crate::link::{Site, TlsFiles};
use crate::shutdown::Tasks;
use blocks::Blocks;
use exposition::Watched;
use lease::Lease;
use poll::Poll;
use rank::{RankCounts, RankTask};

pub use blocks::{BlockSet, Chunks};
pub use view::RankView;

mod blocks;
mod course;
mod epoch;
mod exposition;
mod lease;
mod poll;
mod rank;
mod scrape;
mod view;

/// Batches between a rank and its outbox.
const PASSING_MAX: usize = 1024;

/// How long the start waits to learn what the stream has already.
const LOOKED_UP_WITHIN: Duration = Duration::from_secs(2);

/// Whose sidecar it is.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// Where the engine answers.
    pub engine: BaseUrl,
    /// Whom it is asked from, and who it must be, where that is https.
    pub engine_tls: TlsFiles,
    /// Where routers reach it.
    pub advertised: BaseUrl,
    /// The worker's id.
    pub worker: String,
    /// The model that it serves.
    pub model: String,
    /// Tokens in a block; none: as the engine tells.
    pub block_size: Option<BlockSize>,
    /// Requests that it computes at once, a rank, where that is known.
    pub max_num_seqs: Option<NonZeroU32>,
    /// The names that its metrics may have.
    pub presets: Vec<MetricNames>,
    /// The server.
    pub nats: NatsSettings,
    /// Whether the engine is entered into the bucket of registrations.
    pub register: bool,
}

/// The events of one rank, and where its blocks are kept; without that, no snapshots of it are handed out.
pub struct RankFeed {
    /// The rank.
    pub rank: u32,
    /// Its events.
    pub source: Source,
    /// Its blocks.
    pub blocks: Option<Box<dyn BlockSet>>,
}

/// A running bridge.
pub struct Bridge {
    tasks: Tasks,
    stop: CancellationToken,
    watched: Arc<Watched>,
}

/// What a bridge has done so far, over all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeCounts {
    /// Batches that came from the engine, repeats included.
    pub heard: u64,
    /// Batches that could not be read; they were passed on all the same.
    pub unreadable: u64,
    /// Batches that the engine no longer had when they were asked for.
    pub lost: u64,
    /// Changes of the engine's process.
    pub restarts: u64,
    /// Batches that the server has taken.
    pub published: u64,
    /// Batches that were dropped because the server was away for too long, or that it does not take.
    pub dropped: u64,
    /// Batches that wait for the server.
    pub waiting: u64,
    /// Snapshots that a router began to read.
    pub snapshots: u64,
}

impl Bridge {
    /// Starts, whether the engine and the server are there or not.
    ///
    /// # Errors
    /// When the settings of the server, or the certificates for the engine, cannot be used.
    pub async fn start(settings: BridgeSettings, feeds: Vec<RankFeed>) -> Result<Self, async_nats::Error> {
        // An inbox of its own: a server need not let it listen to anybody else's.
        let inbox = format!("{INBOX}_{}", key_of(&settings.worker));
        let bus = NatsBus::connect(NatsSettings { inbox, ..settings.nats.clone() }).await?;
        let (tasks, stop) = (Tasks::new(), CancellationToken::new());
        let engine = Site::new(&settings.engine.to_string(), settings.engine_tls.clone(), tasks.part())?;
        let (poll, polled) = Poll::new(engine, settings.presets.clone());
        let epoch = Arc::<AtomicU64>::default();
        let count = NonZeroU16::new(u16::try_from(feeds.len()).unwrap_or(u16::MAX)).unwrap_or(NonZeroU16::MIN);
        let (mut sets, mut sources) = (Vec::new(), Vec::new());
        for feed in feeds {
            sets.extend(feed.blocks.map(|blocks| (feed.rank, blocks)));
            sources.push((feed.rank, feed.source));
        }
        let has_snapshots = !sets.is_empty();
        let blocks = Arc::new(Blocks::new(sets));
        let mut ranks = Vec::new();
        for (rank, source) in sources {
            let counts = (Arc::<RankCounts>::default(), Arc::<OutboxCounts>::default());
            let line = (settings.model.clone(), settings.worker.clone(), rank);
            let (out, passing) = mpsc::channel(PASSING_MAX);
            let outbox = Outbox::new(bus.clone(), (&line.0, &line.1, rank), Arc::clone(&counts.1));
            tasks.spawn(outbox.run(passing));
            let task = RankTask {
                rank,
                source,
                polled: polled.clone(),
                out,
                blocks: Arc::clone(&blocks),
                counts: Arc::clone(&counts.0),
                epoch_told: Arc::clone(&epoch),
                published: None,
            };
            tasks.spawn(rank_from_where_the_stream_ends(bus.clone(), line, task, stop.clone()));
            ranks.push((rank, counts.0, counts.1));
        }
        if has_snapshots {
            let serving = bus.clone().serve_snapshots(settings.worker.clone(), blocks.clone());
            tasks.spawn(until(stop.clone(), serving));
        }
        if settings.register {
            let lease = lease(&settings, &bus, count, &epoch);
            tasks.spawn(lease.run(polled.clone(), stop.clone().cancelled_owned()));
        }
        tasks.spawn(until(stop.clone(), poll.run(bus.clone(), settings.worker.clone(), epoch)));
        let watched = Arc::new(Watched { worker: settings.worker, bus, polled, ranks, blocks });
        Ok(Self { tasks, stop, watched })
    }

    /// What has been done so far.
    pub fn counts(&self) -> BridgeCounts {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let none = BridgeCounts { snapshots: self.watched.blocks.served(), ..BridgeCounts::default() };
        self.watched.ranks.iter().fold(none, |sum, (_, rank, outbox)| BridgeCounts {
            heard: sum.heard + get(&rank.heard),
            unreadable: sum.unreadable + get(&rank.unreadable),
            lost: sum.lost + get(&rank.lost),
            restarts: sum.restarts + get(&rank.restarts),
            published: sum.published + get(&outbox.published),
            dropped: sum.dropped + get(&outbox.dropped),
            waiting: sum.waiting + get(&outbox.waiting),
            ..sum
        })
    }

    /// Answers `GET /metrics` on `listener` with these counts, by rank, until the bridge stops.
    pub fn serve_metrics(&self, listener: Listener) {
        let watched = Arc::clone(&self.watched);
        self.tasks.spawn(watched.serve(listener, self.tasks.clone(), self.stop.clone()));
    }

    /// Takes no more from the engine, publishes what waits, and takes the registration away, all within `grace`. Returns
    /// whether all of it was done.
    pub async fn stop(self, grace: Duration) -> bool {
        self.stop.cancel();
        self.tasks.drain(grace).await == 0
    }
}

fn lease(settings: &BridgeSettings, bus: &NatsBus, ranks: NonZeroU16, epoch: &Arc<AtomicU64>) -> Lease {
    let base = Registration {
        v: VERSION,
        id: WorkerId::from(settings.worker.as_str()),
        model: settings.model.clone(),
        url: settings.advertised.clone(),
        block_size: settings.block_size.unwrap_or(BlockSize::new(16).expect("16 is not 0")),
        dp_ranks: ranks,
        epoch: 0,
        capacity_blocks: None,
        max_num_seqs: settings.max_num_seqs,
        events: RegisteredEvents::Nats,
    };
    Lease::new(bus.clone(), base, settings.block_size.is_some(), Arc::clone(epoch))
}

/// Batches that the stream has are not published again. Where the server is not there to ask, they are: it knows them by
/// their ids for two minutes, and routers know them by their numbers.
async fn rank_from_where_the_stream_ends(
    bus: NatsBus,
    (model, worker, rank): (String, String, u32),
    mut task: RankTask,
    stop: CancellationToken,
) {
    let looking = async {
        bus.connected().await;
        bus.last_batch((&model, &worker, rank)).await
    };
    match timeout(LOOKED_UP_WITHIN, looking).await {
        Ok(Ok(last)) => task.published = last,
        Ok(Err(error)) => tracing::debug!(rank, error = %error, "what the stream has is not known"),
        Err(_) => tracing::warn!(rank, "the event bus does not answer yet"),
    }
    task.run(stop.cancelled_owned()).await;
}

async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled_owned(task).await;
}
