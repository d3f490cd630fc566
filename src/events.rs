//! Events of the workers' caches: one task for each (worker, rank), which receives, decodes, orders and applies.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use warmpath_indexer::codec::{DecodeError, decode, decode_json};
use warmpath_indexer::concurrent::Chains;
use warmpath_indexer::event::EventBatch;
use warmpath_indexer::feed::{Action, Stamp, WorkerFeed};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::Applied;

use crate::fleet::{PoolState, Worker};

pub mod local;
pub mod nats;
pub mod publish;
pub mod source;
pub mod subject;

pub use source::{Abilities, Ask, Heard, Message, Source};

/// Keeps the index true to one (worker, rank).
pub struct EventTask {
    worker: Arc<Worker>,
    pool: Arc<PoolState>,
    index: Writer<Chains>,
    source: Source,
    feed: WorkerFeed<EventBatch>,
    actions: Vec<Action<EventBatch>>,
}

/// Why a message was left out.
enum Refusal {
    Undecodable(DecodeError),
    /// It says that it is from another worker or rank than its subject.
    Foreign(String),
}

impl EventTask {
    /// A task that knows nothing yet.
    pub fn new((worker, pool): (Arc<Worker>, Arc<PoolState>), index: Writer<Chains>, source: Source) -> Self {
        let feed = WorkerFeed::new(source.abilities.patience);
        Self { worker, pool, index, source, feed, actions: Vec::new() }
    }

    /// Works until the bus is closed.
    pub async fn run(mut self) {
        let worker = Arc::clone(&self.worker);
        loop {
            let deadline = self.feed.deadline();
            let overdue = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                heard = self.source.heard.recv() => match heard {
                    Some(Heard::Live(message) | Heard::Replayed(message)) => self.receive(&message),
                    Some(_) => {}
                    None => return,
                },
                () = overdue => self.feed.expire(Instant::now(), &mut self.actions),
                () = worker.view_reset.notified() => self.index.forget(),
            }
            self.act();
        }
    }

    fn receive(&mut self, message: &Message) {
        let (stamp, batch) = match self.read(message) {
            Ok(read) => read,
            Err(refusal) => return self.refuse(refusal),
        };
        let rejected = u64::try_from(batch.rejected_total()).unwrap_or(u64::MAX);
        self.worker.metrics.events("rejected", rejected);
        let duplicates = self.feed.counts().duplicates;
        let index = &self.index;
        let orphan = |batch: &EventBatch| batch.events.iter().any(|event| index.is_orphan(event));
        self.feed.push(stamp, batch, orphan, Instant::now(), &mut self.actions);
        self.worker.metrics.events("duplicate", self.feed.counts().duplicates - duplicates);
    }

    /// JSON begins with a brace, which begins no msgpack batch.
    fn read(&self, message: &Message) -> Result<(Stamp, EventBatch), Refusal> {
        if message.payload.first() == Some(&b'{') {
            let event = decode_json(&message.payload).map_err(Refusal::Undecodable)?;
            if event.worker_id != self.worker.id {
                return Err(Refusal::Foreign(event.worker_id.as_str().chars().take(64).collect()));
            }
            self.check_rank(&event.batch)?;
            let stamp = Stamp { seq: event.event_id, epoch: None, ts: None };
            return Ok((stamp, event.batch));
        }
        let batch = decode(&message.payload).map_err(Refusal::Undecodable)?;
        self.check_rank(&batch)?;
        // A bus that numbers nothing is taken to lose nothing.
        let seq = message.seq.unwrap_or_else(|| self.feed.next_seq());
        Ok((Stamp { seq, epoch: message.epoch, ts: batch.ts }, batch))
    }

    fn check_rank(&self, batch: &EventBatch) -> Result<(), Refusal> {
        match batch.dp_rank {
            Some(rank) if rank != self.worker.rank.unwrap_or_default().0 => {
                Err(Refusal::Foreign(format!("rank {rank}")))
            }
            _ => Ok(()),
        }
    }

    fn refuse(&self, refusal: Refusal) {
        match refusal {
            Refusal::Undecodable(error) => {
                self.worker.metrics.events("undecodable", 1);
                tracing::warn!(worker = %self.worker.id, %error, "event batch refused");
            }
            Refusal::Foreign(says) => {
                self.worker.metrics.events("foreign", 1);
                tracing::warn!(worker = %self.worker.id, says, "foreign event refused");
            }
        }
    }

    fn act(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        for action in actions.drain(..) {
            match action {
                Action::Apply(batch) => self.apply(&batch),
                Action::Lost(missing) => {
                    self.worker.metrics.event_gaps.increment(1);
                    if self.index.names() > 0 {
                        let missing = missing.end - missing.start;
                        tracing::warn!(worker = %self.worker.id, missing, "events lost; starting from an empty view");
                    }
                    self.index.forget();
                }
                Action::Restarted => {
                    self.worker.metrics.event_restarts.increment(1);
                    tracing::info!(worker = %self.worker.id, "the engine restarted");
                    self.index.forget();
                    // What was being computed there is gone too.
                    self.pool.scheduler.overlay().withdraw(self.worker.slot);
                }
            }
        }
        self.actions = actions;
    }

    fn apply(&self, batch: &EventBatch) {
        self.count(&self.index.apply(&batch.events));
        if let Some(ts) = batch.ts {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            self.worker.metrics.event_lag.record((now - ts).max(0.0));
        }
    }

    fn count(&self, applied: &Applied) {
        let outcomes = [
            ("stored", applied.stored),
            ("copy", applied.copies),
            ("reported", applied.reported),
            ("removed", applied.removed),
            ("orphan", applied.orphans),
            ("wrong_block_size", applied.wrong_size),
            ("filtered", applied.filtered),
            ("conflict", applied.conflicts),
            ("unknown", applied.unknown),
            ("over_limit", applied.over_limit),
            ("cut", applied.cut),
        ];
        for (outcome, count) in outcomes {
            self.worker.metrics.events(outcome, u64::try_from(count).unwrap_or(u64::MAX));
        }
    }
}
