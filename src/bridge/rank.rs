//! One rank's events: from the engine, in order, to the stream and to the block set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tokio::sync::mpsc;
use warmpath_indexer::feed::{Began, Position};

use super::blocks::Blocks;
use super::course::{Batch, Course, Step};
use super::epoch::Epoch;
use super::poll::Polled;
use crate::events::{Ask, Heard, Message, Source};
use crate::fleet::scrape::milliseconds;
use crate::wall_clock;

/// What happened to one rank's batches.
#[derive(Debug, Default)]
pub(super) struct RankCounts {
    /// Batches that came from the engine, repeats included.
    pub(super) heard: AtomicU64,
    /// Batches that could not be read; they are passed on all the same.
    pub(super) unreadable: AtomicU64,
    /// Batches that the engine has no longer.
    pub(super) lost: AtomicU64,
    /// Changes of the engine's process.
    pub(super) restarts: AtomicU64,
}

/// Where one rank's batches come from and go to.
pub(super) struct RankTask {
    pub(super) rank: u32,
    pub(super) source: Source,
    pub(super) polled: Polled,
    pub(super) out: mpsc::Sender<Message>,
    pub(super) blocks: Arc<Blocks>,
    pub(super) counts: Arc<RankCounts>,
    /// Told to whoever reports: the highest epoch of all ranks.
    pub(super) epoch_told: Arc<AtomicU64>,
    /// Epoch and number of the last batch that the stream had when we began.
    pub(super) published: Option<(u64, u64)>,
}

/// What the task has found out.
struct Progress {
    course: Course,
    epoch: Epoch,
    steps: Vec<Step>,
}

impl RankTask {
    /// Works until the source is gone, nobody takes what is passed on, or `stop`.
    pub(super) async fn run(mut self, stop: impl Future<Output = ()>) {
        let course = Course::new(self.source.abilities.replays);
        let mut progress = Progress { course, epoch: Epoch::default(), steps: Vec::new() };
        tokio::pin!(stop);
        loop {
            let deadline = progress.course.deadline();
            let silent = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = &mut stop => break,
                heard = self.source.heard.recv() => match heard {
                    Some(heard) => self.hear(heard, &mut progress).await,
                    None => break,
                },
                engine = self.polled.next() => self.watch(engine.started_ms, &mut progress),
                () = silent => progress.course.give_up(Instant::now(), &mut progress.steps),
            }
            if self.act(&mut progress).await.is_err() {
                return;
            }
        }
        // What was held back for older ones is worth more late than never.
        progress.course.give_up(Instant::now(), &mut progress.steps);
        let _ = self.act(&mut progress).await;
    }

    async fn hear(&mut self, heard: Heard, progress: &mut Progress) {
        match &heard {
            Heard::Connected => {
                tracing::info!(rank = self.rank, "connected to the engine's events");
                let started = self.polled.fresh().await.started_ms;
                self.watch(started, progress);
            }
            Heard::Live(_) | Heard::Replayed(..) => {
                self.counts.heard.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        progress.course.hear(heard, Instant::now(), &mut progress.steps);
    }

    /// Another process is known by its start before its first event came.
    fn watch(&self, started_ms: Option<u64>, progress: &mut Progress) {
        // Before the first batch there is nothing that could be of another process.
        if let Some(started) = started_ms.filter(|_| progress.epoch.number() > 0)
            && progress.epoch.seen(started)
        {
            self.renew(&progress.epoch);
            progress.course.begin_anew(Instant::now(), &mut progress.steps);
        }
    }

    fn renew(&self, epoch: &Epoch) {
        tracing::info!(rank = self.rank, epoch = epoch.number(), "the engine restarted");
        self.counts.restarts.fetch_add(1, Ordering::Relaxed);
        self.blocks.forget(self.rank, Began::AtStart);
    }

    /// Does what the course says; fails when nobody takes what is passed on.
    async fn act(&mut self, progress: &mut Progress) -> Result<(), ()> {
        for step in std::mem::take(&mut progress.steps) {
            match step {
                Step::Ask(id, from) => {
                    if self.source.asks.try_send(Ask::Replay { id, from }).is_err() {
                        tracing::warn!(rank = self.rank, "the engine's events cannot be asked for");
                    }
                }
                Step::Lost(missing) => {
                    let count = missing.end - missing.start;
                    self.counts.lost.fetch_add(count, Ordering::Relaxed);
                    tracing::warn!(rank = self.rank, from = missing.start, count, "the engine's events are lost");
                    self.blocks.forget(self.rank, Began::InTheMiddle);
                }
                Step::Restarted { ts } => {
                    let started = self.polled.fresh().await.started_ms;
                    if !started.is_some_and(|started| progress.epoch.seen(started)) {
                        progress.epoch.restarted(milliseconds(ts).unwrap_or_else(wall_clock::now_ms));
                    }
                    self.renew(&progress.epoch);
                }
                Step::Publish(batch) => self.pass_on(batch, &mut progress.epoch).await?,
            }
        }
        Ok(())
    }

    async fn pass_on(&mut self, batch: Batch, epoch: &mut Epoch) -> Result<(), ()> {
        if epoch.number() == 0 {
            self.begin(batch.ts, epoch).await;
        }
        self.epoch_told.fetch_max(epoch.number(), Ordering::Relaxed);
        let position =
            Position { epoch: Some(epoch.number()), next: batch.seq.saturating_add(1), newest: Some(batch.ts) };
        if batch.events.is_none() {
            self.counts.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(rank = self.rank, seq = batch.seq, "a batch cannot be read; it is passed on as it is");
        }
        self.blocks.apply(self.rank, batch.events.as_deref(), position);
        let is_there = |(known, last)| known == epoch.number() && batch.seq <= last;
        if self.published.is_some_and(is_there) {
            return Ok(());
        }
        let message = Message { payload: batch.payload, seq: Some(batch.seq), epoch: Some(epoch.number()) };
        self.out.send(message).await.map_err(|_| ())
    }

    /// The first batch of all.
    async fn begin(&mut self, ts: f64, epoch: &mut Epoch) {
        match self.polled.fresh().await.started_ms {
            Some(started) => drop(epoch.seen(started)),
            None => epoch.restarted(milliseconds(ts).unwrap_or_else(wall_clock::now_ms)),
        }
        epoch.at_least(self.published.map_or(0, |(known, _)| known));
    }
}
