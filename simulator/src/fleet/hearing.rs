//! How the router of a simulated fleet hears of one cache: what it tells is decoded, ordered and applied as in the gateway.

use std::sync::Arc;
use std::time::Instant;

use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::trust::EventsHeard;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::decode;
use warmpath_indexer::codec::encode::{Form as Written, HashForm, encode};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::EventBatch;
use warmpath_indexer::feed::{Action, Patience, Stamp, WorkerFeed};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

use super::ScenarioError;
use super::agenda::{Form, Message};
use super::prepared::MODEL;
use crate::blocks::BlockEvent;
use crate::clock::Ms;

/// The feed and the view of one cache, and what its messages look like.
pub(super) struct Hearing {
    feed: WorkerFeed<EventBatch>,
    pub(super) writer: Writer<Chains>,
    actions: Vec<Action<EventBatch>>,
    heard: EventsHeard,
    /// Stored blocks that could not be applied, for what comes before them was unknown.
    pub(super) orphans: usize,
    block_size: BlockSize,
    /// Whether batches travel as bytes.
    wire: bool,
    /// Its process, of all that have had the cache, from 0.
    process: u32,
    /// Batches that this has sent, which is the number of the next.
    sent: u64,
    /// The process that the router knows of. What an earlier one has sent comes too late.
    known: u32,
}

impl Hearing {
    /// Of the cache in `slot`.
    pub(super) fn new(index: &Arc<ConcurrentIndex>, slot: Slot, block_size: BlockSize, wire: bool) -> Self {
        let pool = Namespace::plain(MODEL, block_size);
        let settings = ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 };
        Self {
            feed: WorkerFeed::new(Patience::NONE),
            writer: index.writer(slot, &settings),
            actions: Vec::new(),
            heard: EventsHeard::default(),
            orphans: 0,
            block_size,
            wire,
            process: 0,
            sent: 0,
            known: 0,
        }
    }

    /// Events as they travel together; none for none.
    pub(super) fn message(&mut self, now: Ms, events: Vec<BlockEvent>) -> Result<Option<Message>, ScenarioError> {
        if events.is_empty() {
            return Ok(None);
        }
        let batch = EventBatch {
            ts: Some(now.0 / 1e3),
            dp_rank: Some(0),
            events: events.into_iter().map(|event| event.announced(self.block_size)).collect(),
            ..EventBatch::default()
        };
        let form = if self.wire {
            let bytes = encode(&batch, Written::Map, HashForm::Int);
            Form::Bytes(bytes.map_err(|error| ScenarioError::Wire(error.to_string()))?)
        } else {
            Form::Decoded(Box::new(batch))
        };
        let seq = self.sent;
        self.sent += 1;
        Ok(Some(Message { process: self.process, seq, form }))
    }

    /// Its process has died, and another has begun: it numbers its batches from 0 again.
    pub(super) fn restart(&mut self) {
        (self.process, self.sent) = (self.process + 1, 0);
    }

    /// The metrics of its process were read: they tell when it began, even where no event has told that it is another.
    pub(super) fn process_seen(&mut self) {
        if std::mem::replace(&mut self.known, self.process) < self.process {
            self.writer.forget();
        }
    }

    /// The router receives a message. Once it knows of a process, what one before it has sent says nothing any more: epochs
    /// tell in life, or a connection that ended with its process.
    pub(super) fn receive(&mut self, message: Message, now: Instant) -> Result<(), ScenarioError> {
        if message.process < self.known {
            return Ok(());
        }
        self.known = message.process;
        let (batch, bytes) = match message.form {
            Form::Decoded(batch) => (*batch, 0),
            Form::Bytes(bytes) => {
                let batch = decode(&bytes).map_err(|error| ScenarioError::Wire(error.to_string()))?;
                (batch, bytes.len())
            }
        };
        let stamp = Stamp { seq: message.seq, epoch: None, ts: batch.ts };
        let Self { feed, writer, actions, heard, orphans, .. } = self;
        let orphan = |batch: &EventBatch| batch.events.iter().any(|event| writer.is_orphan(event));
        feed.push(stamp, (batch, bytes), orphan, now, actions);
        for action in actions.drain(..) {
            match action {
                Action::Apply(batch) => {
                    let applied = writer.apply(&batch.events);
                    heard.total += u64::try_from(applied.telling()).unwrap_or(u64::MAX);
                    heard.wrong_size += u64::try_from(applied.wrong_size).unwrap_or(u64::MAX);
                    *orphans += applied.orphans;
                }
                Action::Lost(_) | Action::Restarted => writer.forget(),
            }
        }
        Ok(())
    }

    /// What its events have come to.
    pub(super) fn heard(&self) -> EventsHeard {
        self.heard
    }
}
