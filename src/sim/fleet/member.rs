//! One engine of a simulated fleet, and the way of its events into the index.

use std::sync::Arc;
use std::time::Instant;

use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::trust::EventsHeard;
use warmpath_indexer::codec::decode;
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::EventBatch;
use warmpath_indexer::feed::{Action, Patience, Stamp, WorkerFeed};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

use super::agenda::Message;
use super::prepared::MODEL;
use super::{Scenario, ScenarioError};
use crate::sim::{BlockEvent, Engine, EngineConfig, Ms, TokenOut};

/// An engine, its step at hand, and the router's feed and view of it.
pub(super) struct Member {
    pub(super) engine: Engine,
    /// What the step at hand gives at its end; none while there is none.
    pub(super) step: Option<Ending>,
    feed: WorkerFeed<EventBatch>,
    pub(super) writer: Writer<Chains>,
    actions: Vec<Action<EventBatch>>,
    heard: EventsHeard,
    /// Whether batches travel as bytes.
    pub(super) wire: bool,
    /// Batches sent, which is the number of the next.
    sent: u64,
    /// Time spent in steps.
    pub(super) busy: Ms,
}

/// What a step gives at its end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) tokens: Vec<TokenOut>,
    /// Its events, unless they have left already.
    pub(super) message: Option<Message>,
}

impl Member {
    pub(super) fn new(scenario: &Scenario, slot: Slot, index: &Arc<ConcurrentIndex>) -> Result<Self, ScenarioError> {
        let seed = scenario.seed.wrapping_add(u64::from(slot.0)).wrapping_add(1);
        let config = EngineConfig { seed, ..scenario.engine.clone() };
        let pool = Namespace::plain(MODEL, config.block_size);
        let settings = ViewSettings { pool, seed: warmpath_core::blocks::DEFAULT_ROOT_SEED, blocks: 0 };
        Ok(Self {
            engine: Engine::new(config)?,
            step: None,
            feed: WorkerFeed::new(Patience::NONE),
            writer: index.writer(slot, &settings),
            actions: Vec::new(),
            heard: EventsHeard::default(),
            wire: scenario.wire,
            sent: 0,
            busy: Ms::ZERO,
        })
    }

    /// One step's events as they travel; none for none.
    pub(super) fn message(&self, now: Ms, events: Vec<BlockEvent>) -> Result<Option<Message>, ScenarioError> {
        if events.is_empty() {
            return Ok(None);
        }
        let block_size = self.engine.config().block_size;
        let batch = EventBatch {
            ts: Some(now.0 / 1e3),
            dp_rank: Some(0),
            events: events.into_iter().map(|event| event.announced(block_size)).collect(),
            ..EventBatch::default()
        };
        if !self.wire {
            return Ok(Some(Message::Decoded(Box::new(batch))));
        }
        let bytes = encode(&batch, Form::Map, HashForm::Int).map_err(|error| ScenarioError::Wire(error.to_string()))?;
        Ok(Some(Message::Bytes(bytes)))
    }

    /// The router receives a message: decoded, ordered and applied as in the gateway.
    pub(super) fn receive(&mut self, message: Message, now: Instant) -> Result<(), ScenarioError> {
        let (batch, bytes) = match message {
            Message::Decoded(batch) => (*batch, 0),
            Message::Bytes(bytes) => {
                let batch = decode(&bytes).map_err(|error| ScenarioError::Wire(error.to_string()))?;
                (batch, bytes.len())
            }
        };
        let stamp = Stamp { seq: self.sent, epoch: None, ts: batch.ts };
        self.sent += 1;
        let Self { feed, writer, actions, heard, .. } = self;
        let orphan = |batch: &EventBatch| batch.events.iter().any(|event| writer.is_orphan(event));
        feed.push(stamp, (batch, bytes), orphan, now, actions);
        for action in actions.drain(..) {
            match action {
                Action::Apply(batch) => {
                    let applied = writer.apply(&batch.events);
                    let useful = applied.stored + applied.copies + applied.reported + applied.removed + applied.orphans;
                    heard.total += u64::try_from(useful).unwrap_or(u64::MAX);
                    heard.wrong_size += u64::try_from(applied.wrong_size).unwrap_or(u64::MAX);
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
