//! `queue`: what happens to requests while every worker is full.

use std::num::NonZeroU32;

use http::HeaderName;
use serde::{Deserialize, Serialize};

use super::quantity::Period;

/// How many wait, in which order, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Queue {
    /// Requests of a model that wait for a worker; beyond it 503.
    pub requests: NonZeroU32,
    /// The same of one tenant; beyond it 429.
    pub requests_per_tenant: NonZeroU32,
    /// How long a request waits; then 503.
    pub timeout: Period,
    /// Shares of the classes.
    pub weights: ClassWeights,
    /// The header that tells tenants apart; `None`: `Authorization`.
    pub tenant_header: Option<HeaderField>,
    /// The header that tells a request's class; `None`: the body's `priority`.
    pub class_header: Option<HeaderField>,
}

/// What the classes are given of each other's sum while all of them wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassWeights {
    /// Priorities below 0.
    pub high: NonZeroU32,
    /// Priority 0.
    pub normal: NonZeroU32,
    /// Priorities above 0.
    pub low: NonZeroU32,
}

/// The name of a header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HeaderField(HeaderName);

impl HeaderField {
    pub(super) const fn of(name: HeaderName) -> Self {
        Self(name)
    }

    /// The name.
    pub fn name(&self) -> &HeaderName {
        &self.0
    }
}

impl TryFrom<String> for HeaderField {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("expected the name of a header such as x-tenant, got `{text}`"))
    }
}

impl From<HeaderField> for String {
    fn from(field: HeaderField) -> String {
        field.0.as_str().to_owned()
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            requests: NonZeroU32::new(4_096).expect("4 096 is not 0"),
            requests_per_tenant: NonZeroU32::new(1_024).expect("1 024 is not 0"),
            timeout: Period::seconds(60),
            weights: ClassWeights::default(),
            tenant_header: None,
            class_header: None,
        }
    }
}

impl Default for ClassWeights {
    fn default() -> Self {
        Self {
            high: NonZeroU32::new(16).expect("16 is not 0"),
            normal: NonZeroU32::new(4).expect("4 is not 0"),
            low: NonZeroU32::MIN,
        }
    }
}
