//! What the model of a fleet consists of, each part of which can be left out to see what it is worth.

use std::fmt;
use std::str::FromStr;

use super::{EventWay, Reports, Scenario};

/// Something that is modelled because routing results hang on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Events reach the router after the step that made them, and the network. Without: when the step begins.
    EventDelay,
    /// Engines' metrics are some time old. Without: as they are at every placement.
    Staleness,
    /// A prompt's last token is always computed, with its block. Without: a wholly cached prompt uses all its blocks.
    LastToken,
    /// Computing a prompt costs attention to what was found in the cache. Without: only to what it computed itself.
    HitAttention,
    /// Prompts and decodes in one step cost time one after the other. Without: the step lasts as long as the longer.
    ChunkInterference,
    /// A running request takes another's blocks where none are left. Without: it goes on without blocks.
    Preemption,
    /// Cached blocks that nobody uses are kept until their place is needed. Without: they go when they are freed.
    IdleCached,
    /// A request's last blocks are evicted before its first. Without: its first.
    ReverseAppend,
    /// Equal blocks that are computed twice take two places. Without: only one of them is cached.
    Duplicates,
    /// Generated tokens fill blocks that are cached. Without: only prompts are.
    OutputBlocks,
    /// What was sent counts as cached while it is computed. Without: only what events tell.
    InFlightCredit,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 11] = [
        Self::EventDelay,
        Self::Staleness,
        Self::LastToken,
        Self::HitAttention,
        Self::ChunkInterference,
        Self::Preemption,
        Self::IdleCached,
        Self::ReverseAppend,
        Self::Duplicates,
        Self::OutputBlocks,
        Self::InFlightCredit,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EventDelay => "event-delay",
            Self::Staleness => "staleness",
            Self::LastToken => "last-token",
            Self::HitAttention => "hit-attention",
            Self::ChunkInterference => "chunk-interference",
            Self::Preemption => "preemption",
            Self::IdleCached => "idle-cached",
            Self::ReverseAppend => "reverse-append",
            Self::Duplicates => "duplicates",
            Self::OutputBlocks => "output-blocks",
            Self::InFlightCredit => "in-flight-credit",
        }
    }
}

impl Scenario {
    /// The same without one effect.
    #[must_use]
    pub fn without(mut self, effect: Effect) -> Self {
        let (reuse, realism) = (&mut self.engine.reuse, &mut self.engine.realism);
        match effect {
            Effect::EventDelay => self.events = EventWay::AtOnce,
            Effect::Staleness => self.reports = Reports::Fresh,
            Effect::LastToken => reuse.last_token = false,
            Effect::HitAttention => realism.hit_attention = false,
            Effect::ChunkInterference => realism.chunk_interference = false,
            Effect::Preemption => realism.preemption = false,
            Effect::IdleCached => reuse.late_eviction = false,
            Effect::ReverseAppend => reuse.reverse_append = false,
            Effect::Duplicates => reuse.duplicates = false,
            Effect::OutputBlocks => reuse.output_blocks = false,
            Effect::InFlightCredit => self.router.in_flight_credit = std::time::Duration::ZERO,
        }
        self
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// No effect has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown effect `{name}` (known: {})", Effect::ALL.map(Effect::as_str).join(", "))]
pub struct UnknownEffect {
    /// The name.
    name: String,
}

impl FromStr for Effect {
    type Err = UnknownEffect;

    fn from_str(text: &str) -> Result<Self, UnknownEffect> {
        let found = Self::ALL.into_iter().find(|effect| effect.as_str() == text);
        found.ok_or_else(|| UnknownEffect { name: text.chars().take(64).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_effect_is_read_back_from_its_name() {
        assert!(Effect::ALL.into_iter().all(|effect| effect.to_string().parse() == Ok(effect)));
        let error = "tokens".parse::<Effect>().unwrap_err().to_string();
        assert!(error.starts_with("unknown effect `tokens` (known: event-delay, staleness,"), "{error}");
    }
}
