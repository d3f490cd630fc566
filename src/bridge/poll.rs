//! Asks the engine how it is, about twice a second, and tells its load.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval, timeout};
use warmpath_core::units::BlockSize;

use super::scrape::Scrape;
use crate::config::MetricNames;
use crate::error::chain;
use crate::events::nats::NatsBus;
use crate::events::nats::load::{LoadReport, VERSION};
use crate::fleet::health::Health;
use crate::fleet::prometheus::METRICS_MAX;
use crate::link::Site;
use crate::wall_clock;

/// How often the engine is asked. One that comes back is registered after two good answers, so within a second.
const EVERY: Duration = Duration::from_millis(500);

/// How long one answer is waited for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(1);

/// How long somebody waits who wants to know at once.
const FRESH_WITHIN: Duration = Duration::from_millis(500);

/// What is known of the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Engine {
    /// Whether its health check passes.
    pub(super) is_up: bool,
    /// When its process started, in milliseconds since 1970.
    pub(super) started_ms: Option<u64>,
    /// Tokens in a block.
    pub(super) block_size: Option<BlockSize>,
    /// Blocks of its cache, a rank.
    pub(super) blocks: Option<NonZeroU32>,
}

/// What the polls have shown last, and a way to have another at once.
#[derive(Clone, Debug)]
pub(super) struct Polled {
    engine: watch::Receiver<Engine>,
    now: Arc<Notify>,
}

/// The polls themselves.
pub(super) struct Poll {
    site: Site,
    presets: Vec<MetricNames>,
    engine: watch::Sender<Engine>,
    now: Arc<Notify>,
    /// Whether it was told that the engine does not answer.
    complained: AtomicBool,
}

impl Polled {
    /// What is known.
    pub(super) fn engine(&self) -> Engine {
        self.engine.borrow().clone()
    }

    /// What a poll that begins now shows, if the engine answers soon.
    pub(super) async fn fresh(&mut self) -> Engine {
        self.engine.mark_unchanged();
        self.now.notify_one();
        // An engine that does not answer in time is taken to be as it was.
        let _ = timeout(FRESH_WITHIN, self.engine.changed()).await;
        self.engine()
    }

    /// Waits for the next poll.
    pub(super) async fn next(&mut self) -> Engine {
        if self.engine.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.engine()
    }
}

impl Poll {
    /// Polls of the engine at `site`, whose metrics have the names of one of `presets`, and where their results are seen.
    pub(super) fn new(site: Site, presets: Vec<MetricNames>) -> (Self, Polled) {
        let (sender, receiver) = watch::channel(Engine::default());
        let now = Arc::new(Notify::new());
        (
            Self { site, presets, engine: sender, now: Arc::clone(&now), complained: AtomicBool::new(false) },
            Polled { engine: receiver, now },
        )
    }

    /// Works until nobody wants to know any more. Load is told of `worker`, whose events have this epoch.
    pub(super) async fn run(self, bus: NatsBus, worker: String, epoch: Arc<AtomicU64>) {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut health = Health::presumed();
        while !self.engine.is_closed() {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.now.notified() => {}
            }
            // Side by side: an engine whose metrics hang is no later back for that.
            let (scrape, answer) = tokio::join!(self.scrape(), self.get("/health"));
            health.checked(answer.is_some());
            if self.note(health.is_ready(), &scrape) {
                tracing::info!(worker, up = health.is_ready(), "engine");
            }
            if let Some(scrape) = scrape {
                let report = report(&worker, epoch.load(Ordering::Relaxed), scrape);
                if let Err(error) = bus.tell_load(&report).await {
                    tracing::warn!(worker, error = %error, "load not told");
                }
            }
        }
    }

    /// Returns whether the engine came or went.
    fn note(&self, is_up: bool, scrape: &Option<Scrape>) -> bool {
        let mut turned = false;
        self.engine.send_modify(|engine| {
            turned = engine.is_up != is_up;
            engine.is_up = is_up;
            if let Some(scrape) = scrape {
                engine.started_ms = scrape.started_ms;
                engine.block_size = scrape.block_size.and_then(BlockSize::new);
                engine.blocks = scrape.blocks.and_then(NonZeroU32::new);
            }
        });
        turned
    }

    async fn scrape(&self) -> Option<Scrape> {
        let text = self.get("/metrics").await?;
        Some(Scrape::read(std::str::from_utf8(&text).ok()?, &self.presets))
    }

    /// The body of a good answer.
    async fn get(&self, path: &str) -> Option<Bytes> {
        let answer = self.site.get(path, HeaderMap::new(), (ANSWERED_WITHIN, METRICS_MAX)).await;
        // Why is told once, not twice a second.
        if let Err(error) = &answer
            && !self.complained.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(engine = %self.site, why = chain(error), "the engine does not answer");
        }
        let (status, body) = answer.ok()?;
        self.complained.store(false, Ordering::Relaxed);
        status.is_success().then_some(body)
    }
}

fn report(worker: &str, epoch: u64, scrape: Scrape) -> LoadReport {
    let Scrape { started_ms, block_size, blocks, ranks } = scrape;
    let at_ms = wall_clock::now_ms();
    LoadReport { v: VERSION, worker: worker.to_owned(), at_ms, epoch, blocks, block_size, started_ms, ranks }
}
