//! Counts with their units, and the only conversions between them.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// A count of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tokens(pub u32);

/// A count of whole KV-cache blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blocks(pub u32);

/// A count in the units of a history: tokens, characters where token ids are unknown, or blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Units(pub u32);

/// Tokens in a block; equals the engines' `--block-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockSize(NonZeroU32);

impl Tokens {
    /// Whole blocks that these tokens fill; the remainder is dropped, since engines cache full blocks only.
    pub fn whole_blocks(self, size: BlockSize) -> Blocks {
        Blocks(self.0 / size.get())
    }

    /// Blocks that these tokens occupy, the last one perhaps partly.
    pub fn blocks_occupied(self, size: BlockSize) -> Blocks {
        Blocks(self.0.div_ceil(size.get()))
    }

    /// The most leading blocks that an engine can take from its cache: it always computes one token itself, so a
    /// prompt of exactly `k` blocks hits `k − 1` (vLLM v1; R-083).
    pub fn reusable_blocks(self, size: BlockSize) -> Blocks {
        Blocks(self.0.saturating_sub(1) / size.get())
    }

    /// The difference, never below zero.
    pub fn saturating_sub(self, other: Tokens) -> Tokens {
        Tokens(self.0.saturating_sub(other.0))
    }

    /// The sum, saturating.
    pub fn saturating_add(self, other: Tokens) -> Tokens {
        Tokens(self.0.saturating_add(other.0))
    }
}

impl Blocks {
    /// Tokens in this many full blocks, saturating.
    pub fn tokens(self, size: BlockSize) -> Tokens {
        Tokens(self.0.saturating_mul(size.get()))
    }
}

#[expect(clippy::len_without_is_empty, reason = "a block is never empty")]
impl BlockSize {
    /// A block size; `None` for zero.
    pub fn new(tokens: u32) -> Option<Self> {
        NonZeroU32::new(tokens).map(Self)
    }

    /// Tokens in one block.
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Tokens in one block, as the length of a slice.
    pub fn len(self) -> usize {
        usize::try_from(self.0.get()).expect("usize holds a u32 on every supported target")
    }
}

/// Where a cached block lies, fastest first. A block in several tiers counts under its fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// GPU memory.
    Device,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// Storage shared by a fleet.
    External,
}

impl Tier {
    /// Every tier, fastest first.
    pub const ALL: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];

    /// The tier's place in [`Tier::ALL`].
    pub fn index(self) -> usize {
        match self {
            Tier::Device => 0,
            Tier::Host => 1,
            Tier::Disk => 2,
            Tier::External => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_of_whole_blocks_reuses_one_less() {
        let size = BlockSize::new(4).unwrap();
        assert_eq!(Tokens(8).reusable_blocks(size), Blocks(1));
        assert_eq!(Tokens(9).reusable_blocks(size), Blocks(2));
        assert_eq!(Tokens(0).reusable_blocks(size), Blocks(0));
        assert_eq!(Tokens(8).whole_blocks(size), Blocks(2));
        assert_eq!(Tokens(9).blocks_occupied(size), Blocks(3));
    }

    #[test]
    fn a_block_size_of_zero_does_not_exist() {
        assert_eq!(BlockSize::new(0), None);
    }
}
