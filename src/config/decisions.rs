//! `decisions`: what is kept of the last decisions.

use serde::{Deserialize, Deserializer, Serialize, de};

use super::quantity::ByteSize;

/// More is no help to whoever looks, and takes memory at once: eight bytes each.
const KEPT_MAX: u32 = 1_000_000;

/// The decisions that can be looked at and explained afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Decisions {
    /// So many at most; 0: none.
    #[serde(deserialize_with = "kept")]
    pub kept: u32,
    /// Fewer, where what they were made of takes more memory than this.
    pub memory: ByteSize,
}

impl Default for Decisions {
    fn default() -> Self {
        Self { kept: 10_000, memory: ByteSize::mib(64) }
    }
}

fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let kept = u32::deserialize(deserializer)?;
    if kept <= KEPT_MAX {
        Ok(kept)
    } else {
        Err(de::Error::custom(format_args!("must be at most {KEPT_MAX}, got {kept}")))
    }
}
