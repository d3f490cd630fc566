//! What a candidate costs.

pub mod weight;
pub use weight::Weight;

use serde::{Deserialize, Serialize};

/// Weights of the `kv` policy. Defaults and formula: Dynamo 0.1's scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KvWeights {
    /// Weight of the load deviation while the fleet is balanced; missing prefill weighs `1 − alpha`.
    pub alpha: Weight,
    /// The same while it is not.
    pub alpha_imbalanced: Weight,
    /// Weight of the share of occupied slots.
    pub gamma: Weight,
    /// The fleet counts as imbalanced when the loads' deviation exceeds this share of their average.
    pub imbalance: Weight,
}

impl Default for KvWeights {
    fn default() -> Self {
        Self {
            alpha: Weight::constant(0.3),
            alpha_imbalanced: Weight::constant(0.7),
            gamma: Weight::constant(0.1),
            imbalance: Weight::constant(0.1),
        }
    }
}

/// Weights of the `logit` policy. Defaults and formula: Dynamo 0.1's example router.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogitWeights {
    /// Weight of the share of the prompt that is cached.
    pub hit: Weight,
    /// Weight of the share of the KV cache that is in use.
    pub usage: Weight,
    /// Weight of the waiting requests, relative to the most that any worker has.
    pub waiting: Weight,
}

impl Default for LogitWeights {
    fn default() -> Self {
        Self { hit: Weight::constant(2.0), usage: Weight::constant(1.0), waiting: Weight::constant(1.0) }
    }
}
