//! What engines say about their caches, once decoded: the same values whatever the wire format was.

mod decode_error;
mod machine_form;

use std::sync::Arc;

use smallvec::SmallVec;
use warmpath_core::ids::{BlockHash, EngineHash, TokenId};
use warmpath_core::units::Tier;

pub use decode_error::DecodeError;

/// One message of one engine: events in the order in which they happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventBatch {
    /// When the engine made the batch, in seconds by its own wall clock; none if it did not say, or said no number.
    pub ts: Option<f64>,
    /// The data-parallel rank; none if the engine did not say, which means its only rank.
    pub dp_rank: Option<u32>,
    /// What happened.
    pub events: Vec<CacheEvent>,
    /// Events that could not be understood: the first of them, as many as the decoder lists.
    pub rejected: Vec<Rejected>,
    /// Rejected events beyond those that are listed.
    pub rejected_unlisted: usize,
    /// Whether one of the rejected took blocks away: nobody knows which, so nothing older can be believed.
    pub removal_rejected: bool,
}

impl EventBatch {
    /// How many events could not be understood.
    pub fn rejected_total(&self) -> usize {
        self.rejected.len().saturating_add(self.rejected_unlisted)
    }
}

/// An event that was left out of its batch, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The event's place in the batch, from 0.
    pub index: usize,
    /// The byte of the message where the event begins.
    pub at: usize,
    /// What is wrong with it.
    pub reason: DecodeError,
}

/// Something that happened in an engine's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks are cached now.
    Stored(Box<Stored>),
    /// Copies of blocks are gone.
    Removed(Removed),
    /// The device tier is empty.
    Cleared,
}

impl From<Stored> for CacheEvent {
    fn from(stored: Stored) -> Self {
        Self::Stored(Box::new(stored))
    }
}

/// A chain of blocks that is cached now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The engine's names of the blocks, each following the one before. No name repeats.
    pub hashes: Vec<EngineHash>,
    /// What the first block follows; none at the beginning of a prompt.
    pub parent: Option<EngineHash>,
    /// What the blocks hold.
    pub content: Content,
    /// Tokens in a block; 0 in placeholders, none where the format does not tell.
    pub block_size: Option<u32>,
    /// Where the blocks lie.
    pub tier: Tier,
    /// The KV-cache group, in engines that keep several.
    pub group: Option<u32>,
    /// Whether the group's attention lets a cached block stand for its whole prefix.
    pub attention: Attention,
    /// The LoRA adapter's name. An engine that tells only its number gets `#` and the number, which is distinct from
    /// the plain model and matches no request.
    pub adapter: Option<Arc<str>>,
    /// The cache salt. vLLM tells it with the first block of a prompt only; children inherit it through their parent.
    pub salt: Option<Arc<str>>,
    /// Media in the blocks, by block, in order.
    pub media: Vec<Medium>,
    /// Further blocks that the event named but did not describe in full: they were left out.
    pub cut: usize,
}

/// What the blocks of a [`Stored`] event hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The token ids of the blocks, one block after the other; for EAGLE's token pairs one id more.
    Tokens(Vec<TokenId>),
    /// One hash for each block, ready made by the publisher.
    Hashes(Vec<BlockHash>),
    /// Nothing: an offload placeholder, which only says that blocks known by name lie in one more tier.
    Nothing,
}

/// Something that stands among the tokens of a block and is part of its identity: an image, a sound, an embedding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Medium {
    /// The block's place in the event, from 0.
    pub block: usize,
    /// The engine's identifier of the medium.
    pub identifier: Box<str>,
}

/// Whether a group's blocks may feed the prefix index. With windowed attention or state-space layers a block does not
/// imply the blocks before it. The list of kinds is Dynamo's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attention {
    /// The event does not say: believed for no group or group 0 only.
    #[default]
    Unstated,
    /// Full, MLA or sink attention: may.
    Prefix,
    /// Any other kind, unknown ones included: must not.
    Other,
}

impl Attention {
    /// The attention that vLLM's `kv_cache_spec_kind` names.
    pub fn named(kind: &str) -> Self {
        match kind {
            "full_attention" | "mla_attention" | "sink_full_attention" => Self::Prefix,
            _ => Self::Other,
        }
    }
}

/// Copies of blocks that are gone from a tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The engine's names of the blocks; one copy of each is gone.
    pub hashes: SmallVec<[EngineHash; 2]>,
    /// Where they lay.
    pub tier: Tier,
    /// The KV-cache group.
    pub group: Option<u32>,
    /// How many copies of each block are left, aligned with `hashes`; none if the engine does not tell.
    pub remaining_copy_counts: Option<Vec<u32>>,
}

/// The tier that an engine's medium name means; `None` for names that nobody has told us. Names: vLLM (`FS` and `OBJ` of its
/// second tier since 0.26), SGLang, LMCache, llm-d (`SHARED_STORAGE`).
pub fn tier_of_medium(medium: &str) -> Option<Tier> {
    Some(match medium {
        "GPU" | "DEVICE" => Tier::Device,
        "CPU" | "CPU_PINNED" | "CPU_TIER1" => Tier::Host,
        "CPU_TIER2" | "DISK" | "NVME" | "STORAGE" | "FS" => Tier::Disk,
        "EXTERNAL" | "NETWORK" | "REMOTE" | "SHARED" | "SHARED_STORAGE" | "OBJ" => Tier::External,
        _ => return None,
    })
}

/// The medium name that an engine gives to a tier: the one of several that vLLM and SGLang themselves send.
pub fn medium_of_tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Device => "GPU",
        Tier::Host => "CPU",
        Tier::Disk => "DISK",
        Tier::External => "EXTERNAL",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tier_is_read_back_from_its_own_medium() {
        for tier in Tier::ALL {
            assert_eq!(tier_of_medium(medium_of_tier(tier)), Some(tier));
        }
    }

    #[test]
    fn media_map_to_four_tiers_and_unknown_names_to_none() {
        let table: [(&[&str], Tier); 4] = [
            (&["GPU", "DEVICE"], Tier::Device),
            (&["CPU", "CPU_PINNED", "CPU_TIER1"], Tier::Host),
            (&["CPU_TIER2", "DISK", "NVME", "STORAGE", "FS"], Tier::Disk),
            (&["EXTERNAL", "NETWORK", "REMOTE", "SHARED", "SHARED_STORAGE", "OBJ"], Tier::External),
        ];
        for (media, tier) in table {
            for medium in media {
                assert_eq!(tier_of_medium(medium), Some(tier), "{medium}");
            }
        }
        assert_eq!(tier_of_medium("TAPE"), None);
        assert_eq!(tier_of_medium("gpu"), None);
    }

    #[test]
    fn three_kinds_of_attention_may_feed_the_index() {
        for kind in ["full_attention", "mla_attention", "sink_full_attention"] {
            assert_eq!(Attention::named(kind), Attention::Prefix, "{kind}");
        }
        for kind in ["sliding_window", "sliding_window_mla", "mamba", "chunked_local_attention", "cross_attention", ""]
        {
            assert_eq!(Attention::named(kind), Attention::Other, "{kind}");
        }
    }
}
