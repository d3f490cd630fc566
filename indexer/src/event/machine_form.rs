//! The machine-readable form of a batch, which `warmpath events decode` prints: fields may be added, never renamed.

use serde::ser::{Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use warmpath_core::ids::{BlockHash, EngineHash, TokenId};
use warmpath_core::units::Tier;

use super::{Attention, CacheEvent, Content, EventBatch, Medium, Rejected, Removed, Stored};

impl Serialize for EventBatch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut batch = serializer.serialize_struct("EventBatch", 5)?;
        batch.serialize_field("ts", &self.ts)?;
        batch.serialize_field("dp_rank", &self.dp_rank)?;
        batch.serialize_field("events", &Events(self))?;
        batch.serialize_field("rejected", &self.rejected)?;
        batch.serialize_field("rejected_unlisted", &self.rejected_unlisted)?;
        batch.end()
    }
}

/// The events of a batch, each with the batch's rank.
struct Events<'a>(&'a EventBatch);

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut events = serializer.serialize_seq(Some(self.0.events.len()))?;
        for event in &self.0.events {
            events.serialize_element(&Ranked { event, dp_rank: self.0.dp_rank })?;
        }
        events.end()
    }
}

struct Ranked<'a> {
    event: &'a CacheEvent,
    dp_rank: Option<u32>,
}

/// What every kind of event has in this form, so that a reader needs no case distinction.
struct Common<'a> {
    kind: &'static str,
    tier: Tier,
    group: Option<u32>,
    hashes: &'a [EngineHash],
    parent: Option<EngineHash>,
    tokens: &'a [TokenId],
    block_size: Option<u32>,
    adapter: Option<&'a str>,
    salt: Option<&'a str>,
}

impl<'a> Common<'a> {
    fn of(event: &'a CacheEvent) -> Self {
        let none = Self {
            kind: "cleared",
            tier: Tier::Device,
            group: None,
            hashes: &[],
            parent: None,
            tokens: &[],
            block_size: None,
            adapter: None,
            salt: None,
        };
        match event {
            CacheEvent::Cleared => none,
            CacheEvent::Removed(Removed { hashes, tier, group, .. }) => {
                Self { kind: "removed", tier: *tier, group: *group, hashes, ..none }
            }
            CacheEvent::Stored(stored) => Self {
                kind: "stored",
                tier: stored.tier,
                group: stored.group,
                hashes: &stored.hashes,
                parent: stored.parent,
                tokens: if let Content::Tokens(tokens) = &stored.content { tokens } else { &[] },
                block_size: stored.block_size,
                adapter: stored.adapter.as_deref(),
                salt: stored.salt.as_deref(),
            },
        }
    }
}

impl Serialize for Ranked<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let common = Common::of(self.event);
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("kind", common.kind)?;
        map.serialize_entry("tier", &common.tier)?;
        map.serialize_entry("dp_rank", &self.dp_rank)?;
        map.serialize_entry("group", &common.group)?;
        map.serialize_entry("engine_hashes", common.hashes)?;
        map.serialize_entry("parent", &common.parent)?;
        map.serialize_entry("token_ids", common.tokens)?;
        map.serialize_entry("block_size", &common.block_size)?;
        map.serialize_entry("namespace", &Names { adapter: common.adapter, salt: common.salt })?;
        match self.event {
            CacheEvent::Stored(stored) => stored_extras(stored, &mut map)?,
            CacheEvent::Removed(removed) => {
                if let Some(counts) = &removed.remaining_copy_counts {
                    map.serialize_entry("remaining_copy_counts", counts)?;
                }
            }
            CacheEvent::Cleared => {}
        }
        map.end()
    }
}

fn stored_extras<M: SerializeMap>(stored: &Stored, map: &mut M) -> Result<(), M::Error> {
    let blocks: &[BlockHash] = if let Content::Hashes(blocks) = &stored.content { blocks } else { &[] };
    map.serialize_entry("block_hashes", blocks)?;
    map.serialize_entry("placeholder", &matches!(stored.content, Content::Nothing))?;
    map.serialize_entry("prefix_attention", &stored.attention.may_feed())?;
    map.serialize_entry("media", &stored.media)?;
    map.serialize_entry("blocks_cut", &stored.cut)
}

impl Attention {
    /// Whether the kind says that the index may be fed; none where the event does not say.
    fn may_feed(self) -> Option<bool> {
        match self {
            Self::Unstated => None,
            Self::Prefix => Some(true),
            Self::Other => Some(false),
        }
    }
}

struct Names<'a> {
    adapter: Option<&'a str>,
    salt: Option<&'a str>,
}

impl Serialize for Names<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut names = serializer.serialize_struct("Names", 2)?;
        names.serialize_field("adapter", &self.adapter)?;
        names.serialize_field("salt", &self.salt)?;
        names.end()
    }
}

impl Serialize for Medium {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut medium = serializer.serialize_struct("Medium", 2)?;
        medium.serialize_field("block", &self.block)?;
        medium.serialize_field("identifier", &self.identifier)?;
        medium.end()
    }
}

impl Serialize for Rejected {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rejected = serializer.serialize_struct("Rejected", 3)?;
        rejected.serialize_field("index", &self.index)?;
        rejected.serialize_field("at", &self.at)?;
        rejected.serialize_field("reason", &format_args!("{}", self.reason))?;
        rejected.end()
    }
}
