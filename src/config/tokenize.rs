//! `tokenize`: what it may cost to find out of which tokens prompts are made.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use super::quantity::{ByteSize, Period};

/// Bounds on tokenizing, all models together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tokenize {
    /// Memory for what was tokenized before.
    pub cache_bytes: ByteSize,
    /// Requests with larger bodies are not tokenized.
    pub body_bytes: ByteSize,
    /// Long requests that are worked on at once.
    pub jobs: NonZeroU32,
    /// Long requests that may wait for that.
    pub queue: u32,
    /// How long a request waits for its turn and the work together.
    pub wait: Period,
    /// One prompt in so many is compared with the reference tokenizer; 0: none.
    pub check_every: u32,
}

impl Default for Tokenize {
    fn default() -> Self {
        Self {
            cache_bytes: ByteSize::mib(64),
            body_bytes: ByteSize::mib(4),
            jobs: NonZeroU32::new(2).expect("2 is not 0"),
            queue: 64,
            wait: Period::milliseconds(250),
            check_every: 10_000,
        }
    }
}
