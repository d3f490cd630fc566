//! What a cached block is worth by the tier in which it lies.

use serde::{Deserialize, Serialize};

use super::Share;
use crate::overlap::TierBlocks;
use crate::units::{Tier, Tokens};

/// The share of a block's prefill that finding it in a tier saves. Defaults: device, host and disk as Dynamo 1.x credits
/// them; a fleet's shared store comes over a network on top of its disks, so it is worth less than a local disk, and more
/// than nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierWeights {
    /// Of GPU memory.
    pub device: Share,
    /// Of the host's memory.
    pub host: Share,
    /// Of a local disk.
    pub disk: Share,
    /// Of storage that a fleet shares.
    pub external: Share,
}

impl Default for TierWeights {
    fn default() -> Self {
        Self {
            device: Share::constant(1.0),
            host: Share::constant(0.75),
            disk: Share::constant(0.25),
            external: Share::constant(0.2),
        }
    }
}

impl TierWeights {
    fn of(&self, tier: Tier) -> f64 {
        match tier {
            Tier::Device => self.device,
            Tier::Host => self.host,
            Tier::Disk => self.disk,
            Tier::External => self.external,
        }
        .get()
    }

    /// Whether all of a promise counts. So it is in most of a healthy fleet: nothing is weighed, and nothing needs to be divided.
    #[inline]
    pub fn is_sure(&self, held: TierBlocks, trust: f64) -> bool {
        trust * self.device.get() >= 1.0 && held.is_on_device()
    }

    /// Of `cached` tokens, which lie in `held` blocks, as many as count where a promise is worth `trust`, from 0 to 1.
    /// Rounded down; all of them where every block is worth 1.
    pub fn believed(&self, held: TierBlocks, cached: Tokens, trust: f64) -> Believed {
        if self.is_sure(held, trust) {
            return Believed { all: cached, on_device: cached, below: Tokens(0) };
        }
        let blocks = held.total().0;
        if blocks == 0 {
            return Believed::default();
        }
        let worth = |tier: Tier| f64::from(held.get(tier).0) * self.of(tier);
        let sum: f64 = Tier::ALL.iter().map(|&tier| worth(tier)).sum();
        let believed = |worth: f64| {
            let share = (worth / f64::from(blocks) * trust).clamp(0.0, 1.0);
            // A rounding error of the division must not cost a token.
            #[expect(
                clippy::as_conversions,
                reason = "a product of a u32 and a factor from 0 to 1, to be rounded down"
            )]
            let believed = (f64::from(cached.0) * share + 1e-6) as u32;
            Tokens(believed.min(cached.0))
        };
        let below = f64::from(blocks - held.get(Tier::Device).0);
        Believed { all: believed(sum), on_device: believed(worth(Tier::Device)), below: believed(below) }
    }
}

/// What counts of a promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Believed {
    /// Tokens of all tiers, by what these are worth.
    pub all: Tokens,
    /// Of these, those on the device.
    pub on_device: Tokens,
    /// Those below the device as they are, for who reckons what it takes to fetch them.
    pub below: Tokens,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Blocks;

    fn held(blocks: [u32; 4]) -> TierBlocks {
        let mut held = TierBlocks::default();
        for (tier, blocks) in Tier::ALL.into_iter().zip(blocks) {
            held.add(tier, Blocks(blocks));
        }
        held
    }

    fn believed(blocks: [u32; 4], trust: f64) -> u32 {
        let cached = Tokens(blocks.iter().sum::<u32>() * 16);
        TierWeights::default().believed(held(blocks), cached, trust).all.0
    }

    #[test]
    fn for_equal_blocks_a_faster_tier_is_worth_more_and_any_more_than_none() {
        let worth = [[8, 0, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8], [0; 4]].map(|held| believed(held, 1.0));
        assert_eq!(worth, [128, 96, 32, 25, 0]);
    }

    #[test]
    fn what_lies_on_the_device_is_told_beside_the_sum() {
        let believed = TierWeights::default().believed(held([3, 1, 0, 0]), Tokens(64), 0.5);
        assert_eq!(believed, Believed { all: Tokens(30), on_device: Tokens(24), below: Tokens(8) });
        let believed = TierWeights::default().believed(held([0, 0, 0, 16]), Tokens(256), 1.0);
        assert_eq!(believed, Believed { all: Tokens(51), on_device: Tokens(0), below: Tokens(256) });
    }

    #[test]
    fn tiers_add_up_and_trust_takes_its_share() {
        assert_eq!(believed([3, 1, 0, 0], 1.0), 60);
        assert_eq!(believed([3, 1, 0, 0], 0.5), 30);
        assert_eq!(believed([3, 1, 0, 0], 0.0), 0);
        assert_eq!([1, 3, 7, 1_000_003].map(|blocks| believed([blocks, 0, 0, 0], 1.0)), [16, 48, 112, 16_000_048]);
    }
}
