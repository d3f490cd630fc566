//! Acknowledged publishing: nothing is lost silently between here and the stream.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{ContextBuilder, PublishError, PublishErrorKind};
use async_nats::jetstream::publish::PublishAck;
use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::{NatsBus, RETRY, stream};
use crate::events::Message;
use crate::events::subject;

/// Batches that wait for the bus at most; the oldest goes first.
pub const OUTBOX_BATCHES: usize = 16_384;

/// Bytes of them.
const OUTBOX_BYTES: usize = 64 << 20;

/// Batches that are sent and not acknowledged at most.
const WINDOW: usize = 256;

/// How long an acknowledgement is waited for.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(3);

/// What became of batches.
#[derive(Debug, Default)]
pub struct OutboxCounts {
    /// Acknowledged by the stream; without JetStream, handed to the connection.
    pub published: AtomicU64,
    /// Dropped, since there was no room for them or they are larger than the server takes: gaps in the numbers.
    pub dropped: AtomicU64,
    /// Waiting now.
    pub waiting: AtomicU64,
}

/// Publishes one (worker, rank)'s batches in order, each until the stream has it.
///
/// What is sent again after a lost connection is known by its message id, so that it stands in the stream once. What
/// finds no room while the bus is away is dropped, the oldest first: its numbers are missing, and who reads sees that.
pub struct Outbox {
    bus: NatsBus,
    context: Context,
    subject: String,
    worker: String,
    rank: u32,
    /// The first `sent` of them are on their way.
    waiting: VecDeque<Message>,
    sent: usize,
    bytes: usize,
    open: bool,
    counts: Arc<OutboxCounts>,
}

type Ack = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

impl Outbox {
    /// An outbox without batches.
    pub fn new(bus: NatsBus, (model, worker, rank): (&str, &str, u32), counts: Arc<OutboxCounts>) -> Self {
        let context = ContextBuilder::new().ack_timeout(ACKNOWLEDGED_WITHIN).build(bus.client.clone());
        Self {
            subject: subject::events_of(&bus.settings.prefix, model, worker, rank),
            bus,
            context,
            worker: worker.to_owned(),
            rank,
            waiting: VecDeque::new(),
            sent: 0,
            bytes: 0,
            open: true,
            counts,
        }
    }

    /// Works until `batches` is closed and all of them are published.
    pub async fn run(mut self, mut batches: mpsc::Receiver<Message>) {
        while self.open || !self.waiting.is_empty() {
            let bus = self.bus.clone();
            let mut link = bus.link.clone();
            let up = link.wait_for(|link| link.up);
            tokio::select! {
                batch = batches.recv(), if self.open => {
                    self.take(batch);
                    continue;
                }
                up = up => match up {
                    Ok(_) => {}
                    Err(_) => return,
                },
            }
            let losses = bus.link.borrow().losses;
            if let Err(error) = self.publish(losses, &mut batches).await {
                if bus.link.borrow().losses == losses {
                    tracing::warn!(worker = self.worker, rank = self.rank, error = %error, "not published; trying again");
                }
                self.pause(&mut batches).await;
            }
        }
    }

    /// Takes batches in for a while.
    async fn pause(&mut self, batches: &mut mpsc::Receiver<Message>) {
        self.sent = 0;
        let end = Instant::now() + RETRY / 2;
        while self.open {
            tokio::select! {
                batch = batches.recv() => self.take(batch),
                () = sleep_until(end) => return,
            }
        }
        sleep_until(end).await;
    }

    fn take(&mut self, batch: Option<Message>) {
        let Some(batch) = batch else {
            self.open = false;
            return;
        };
        self.bytes += batch.payload.len();
        self.waiting.push_back(batch);
        while (self.waiting.len() > OUTBOX_BATCHES || self.bytes > OUTBOX_BYTES) && self.waiting.len() > self.sent {
            // What is on its way stays: its acknowledgement is counted by its place.
            self.discard(self.sent, "the bus was away for too long");
        }
        self.measure();
    }

    fn discard(&mut self, at: usize, why: &str) {
        if let Some(batch) = self.waiting.remove(at) {
            self.bytes -= batch.payload.len();
            // The first of a row is told; the rest is counted.
            if self.counts.dropped.fetch_add(1, Ordering::Relaxed).is_power_of_two() {
                tracing::warn!(worker = self.worker, rank = self.rank, seq = batch.seq, why, "batch dropped");
            }
        }
    }

    fn measure(&self) {
        let waiting = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        self.counts.waiting.store(waiting, Ordering::Relaxed);
    }

    /// Publishes until the connection is lost, a batch fails, or all is done.
    async fn publish(&mut self, losses: u64, batches: &mut mpsc::Receiver<Message>) -> Result<(), async_nats::Error> {
        let bus = self.bus.clone();
        let jetstream = bus.settings.jetstream && bus.has_jetstream(losses).await?;
        if jetstream {
            stream::ensure(&bus.client, &bus.settings.prefix).await?;
        }
        let mut acks: FuturesOrdered<Ack> = FuturesOrdered::new();
        while self.open || !self.waiting.is_empty() {
            while self.sent < self.waiting.len() && acks.len() < WINDOW {
                if !jetstream {
                    self.send_plain().await?;
                } else if let Some(ack) = self.send().await? {
                    acks.push_back(ack);
                }
            }
            tokio::select! {
                Some(ack) = acks.next() => {
                    ack?;
                    self.acknowledged();
                }
                batch = batches.recv(), if self.open => self.take(batch),
                () = bus.lost_since(losses) => return Err("the connection was lost".into()),
            }
        }
        bus.client.flush().await?;
        Ok(())
    }

    async fn send(&mut self) -> Result<Option<Ack>, async_nats::Error> {
        let batch = self.waiting[self.sent].clone();
        let headers = stream::headers((&self.worker, self.rank), &batch);
        match self.context.publish_with_headers(self.subject.clone(), headers, batch.payload).await {
            Ok(ack) => {
                self.sent += 1;
                Ok(Some(Box::pin(IntoFuture::into_future(ack))))
            }
            Err(error) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                self.discard(self.sent, "larger than the server takes");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn send_plain(&mut self) -> Result<(), async_nats::Error> {
        let batch = self.waiting[self.sent].clone();
        let headers = stream::headers((&self.worker, self.rank), &batch);
        match self.bus.client.publish_with_headers(self.subject.clone(), headers, batch.payload).await {
            Ok(()) => self.acknowledged(),
            Err(error) if error.kind() == async_nats::client::PublishErrorKind::MaxPayloadExceeded => {
                self.discard(self.sent, "larger than the server takes");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn acknowledged(&mut self) {
        if let Some(batch) = self.waiting.pop_front() {
            self.bytes -= batch.payload.len();
            self.sent = self.sent.saturating_sub(1);
            self.counts.published.fetch_add(1, Ordering::Relaxed);
        }
        self.measure();
    }
}
