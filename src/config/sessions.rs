//! `routing.sessions`: requests that belong together and prefer the worker of the last one.

use std::num::NonZeroU32;

use http::HeaderName;
use serde::{Deserialize, Deserializer, Serialize, de};
use warmpath_core::cost::Weight;
use warmpath_core::session::SessionRule;

use super::quantity::Period;
use super::queue::HeaderField;

/// How sessions are known, and how much they are kept together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sessions {
    /// What the last worker is worth, as a share of what it would be worth to find the whole prompt cached; 0 for nothing.
    pub weight: Weight,
    /// The header that names a session.
    pub header: Option<HeaderField>,
    /// The field of the body that names it where the header does not.
    pub field: SessionField,
    /// How long after its last request a session is remembered.
    pub ttl: Period,
    /// Sessions that are remembered of each model.
    #[serde(deserialize_with = "sessions")]
    pub sessions_max: NonZeroU32,
}

/// A field of the body that names a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionField {
    /// OpenAI's `prompt_cache_key`.
    PromptCacheKey,
    /// OpenAI's `user`: all of a user's conversations count as one session.
    User,
    /// None of them.
    None,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            weight: Weight::try_from(0.0).expect("0 is a weight"),
            header: Some(HeaderField::of(HeaderName::from_static("x-session-id"))),
            field: SessionField::PromptCacheKey,
            ttl: Period::seconds(1_800),
            sessions_max: NonZeroU32::new(65_536).expect("a constant above 0"),
        }
    }
}

impl Sessions {
    /// What the core needs of it; nothing where a session's last worker is worth nothing.
    pub fn rule(&self) -> Option<SessionRule> {
        let sessions_max = usize::try_from(self.sessions_max.get()).unwrap_or(usize::MAX);
        (self.weight.get() > 0.0).then(|| SessionRule { weight: self.weight, ttl: self.ttl.get(), sessions_max })
    }
}

/// A session takes 24 bytes: so many are 400 MB.
const SESSIONS_MAX: u32 = 1 << 24;

fn sessions<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let sessions = NonZeroU32::deserialize(deserializer)?;
    if sessions.get() <= SESSIONS_MAX {
        Ok(sessions)
    } else {
        Err(de::Error::custom(format_args!("must be at most {SESSIONS_MAX}, got {sessions}")))
    }
}
