//! Cache events of the simulated engine as the bytes that a real engine would send.

use std::time::{SystemTime, UNIX_EPOCH};

use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::codec::encode::{self, HashForm};
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Removed, Stored};

use crate::events::Message;
use crate::events::publish::Publisher;
use crate::sim::BlockEvent;

/// Encodes one batch a step, numbers it, and publishes it.
pub(super) struct Wire {
    publisher: Publisher,
    form: encode::Form,
    block_size: BlockSize,
    epoch: u64,
    next: u64,
}

impl Wire {
    /// A wire of an engine process that starts now.
    pub(super) fn new(publisher: Publisher, form: encode::Form, block_size: BlockSize) -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        Self { publisher, form, block_size, epoch: u64::try_from(epoch).unwrap_or(0), next: 0 }
    }

    /// Publishes the events of one step; none is no batch.
    pub(super) fn publish(&mut self, events: &[BlockEvent]) {
        if events.is_empty() {
            return;
        }
        let ts = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let batch = EventBatch {
            ts: Some(ts),
            dp_rank: Some(0),
            events: events.iter().map(|event| self.wire_event(event)).collect(),
            ..EventBatch::default()
        };
        let payload = match encode::encode(&batch, self.form, HashForm::Int) {
            Ok(payload) => payload.into(),
            Err(error) => return tracing::error!(%error, "a batch could not be written"),
        };
        let message = Message { payload, seq: Some(self.next), epoch: Some(self.epoch) };
        self.next += 1;
        self.publisher.publish(message);
    }

    fn wire_event(&self, event: &BlockEvent) -> CacheEvent {
        match event {
            BlockEvent::Stored { hashes, parent, tokens, salt, adapter } => Stored {
                hashes: hashes.clone(),
                parent: *parent,
                content: Content::Tokens(tokens.clone()),
                block_size: Some(self.block_size.get()),
                tier: Tier::Device,
                group: Some(0),
                attention: Attention::Prefix,
                adapter: adapter.clone(),
                salt: salt.clone(),
                media: Vec::new(),
                cut: 0,
            }
            .into(),
            BlockEvent::Removed { hash } => CacheEvent::Removed(Removed {
                hashes: [*hash].into_iter().collect(),
                tier: Tier::Device,
                group: Some(0),
                remaining_copy_counts: None,
            }),
            BlockEvent::Cleared => CacheEvent::Cleared,
        }
    }
}
