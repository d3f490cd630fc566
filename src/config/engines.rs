//! `engines`: what engines say of themselves, and how long it counts.

use serde::{Deserialize, Serialize};

use super::quantity::Period;

/// The engines' own metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Engines {
    /// Between two readings of a worker's `/metrics`.
    pub metrics_interval: Period,
    /// What a reading says counts half after this.
    pub half_life: Period,
}

impl Default for Engines {
    fn default() -> Self {
        Self { metrics_interval: Period::seconds(1), half_life: Period::seconds(5) }
    }
}
