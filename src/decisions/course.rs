//! What becomes of a request after it was decided.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Duration;

use warmpath_core::units::Tokens;

/// What became of a request after it was sent; written by whoever relays its answer.
#[derive(Debug)]
pub struct Course {
    state: AtomicU8,
    first_token_ms: AtomicU32,
    reported: AtomicU32,
}

/// Nothing was told.
const UNKNOWN: u32 = u32::MAX;

impl Default for Course {
    fn default() -> Self {
        Self { state: AtomicU8::new(0), first_token_ms: AtomicU32::new(UNKNOWN), reported: AtomicU32::new(UNKNOWN) }
    }
}

/// How a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has not ended.
    UnderWay,
    /// It was answered whole.
    Answered,
    /// The worker failed it; another one may have served it.
    Failed,
    /// The client left, or its time was over.
    GivenUp,
}

impl Course {
    /// The first token came so long after the request.
    pub fn first_token(&self, after: Duration) {
        let ms = u32::try_from(after.as_millis()).unwrap_or(UNKNOWN - 1).min(UNKNOWN - 1);
        self.first_token_ms.store(ms, Ordering::Relaxed);
    }

    /// The request has ended; so many of its prompt's tokens were cached, as the engine says.
    pub fn ended(&self, standing: Standing, reported: Option<Tokens>) {
        if let Some(Tokens(reported)) = reported {
            self.reported.store(reported.min(UNKNOWN - 1), Ordering::Relaxed);
        }
        let state = match standing {
            Standing::UnderWay => 0,
            Standing::Answered => 1,
            Standing::Failed => 2,
            Standing::GivenUp => 3,
        };
        self.state.store(state, Ordering::Relaxed);
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        match self.state.load(Ordering::Relaxed) {
            0 => Standing::UnderWay,
            1 => Standing::Answered,
            2 => Standing::Failed,
            _ => Standing::GivenUp,
        }
    }

    /// Milliseconds from the request's arrival to its first token.
    pub fn first_token_ms(&self) -> Option<u32> {
        Some(self.first_token_ms.load(Ordering::Relaxed)).filter(|ms| *ms != UNKNOWN)
    }

    /// Cached tokens of its prompt, as the engine said.
    pub fn reported(&self) -> Option<u32> {
        Some(self.reported.load(Ordering::Relaxed)).filter(|tokens| *tokens != UNKNOWN)
    }
}
