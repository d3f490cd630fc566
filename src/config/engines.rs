//! `engines`: what engines say of themselves, and how long it counts.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::quantity::Period;

/// The engines' own metrics and models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engines {
    /// Between two readings of a worker's `/metrics`.
    pub metrics_interval: Period,
    /// What a reading says counts half after this.
    pub half_life: Period,
    /// Between two readings of a worker's `/v1/models`.
    pub models_interval: Period,
    /// LoRA adapters of a worker that are known; those that it names beyond are not.
    pub adapters: NonZeroU32,
}

impl Default for Engines {
    fn default() -> Self {
        Self {
            metrics_interval: Period::seconds(1),
            half_life: Period::seconds(5),
            models_interval: Period::seconds(5),
            adapters: NonZeroU32::new(1024).expect("1024 is not 0"),
        }
    }
}
