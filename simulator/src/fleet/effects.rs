//! What the model of a fleet consists of, each part of which can be left out to see what it is worth.

use std::fmt;
use std::str::FromStr;

use super::{Conditions, EventWay, Reports, Scenario};
use crate::clock::Ms;

/// Something that is modelled because routing results hang on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Events reach the router after the step that made them, and the network. Without: when the step begins.
    EventDelay,
    /// The events of a step leave the engine together, when it ends. Without: each when it happens.
    Batching,
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
    /// The router takes some prompts for other tokens than engines do. Without: none.
    Tokenisation,
    /// Requests are sent when they arrive. Without: at most 16 a worker at once, and the next when one has ended.
    OpenLoop,
    /// Requests that warm the caches count in no figure. Without: they count.
    WarmUp,
    /// Caches are too small for all that is asked. Without: each holds the whole trace.
    Overflow,
    /// Host memory and storage lie below the caches. Without: what a cache lets go is gone.
    Tiers,
    /// Steps last longer or shorter by chance. Without: as long as the timing says.
    Jitter,
    /// A prompt's KV travels to another engine before the first token. Without: it is there.
    KvTransfer,
}

impl Effect {
    /// Every effect.
    pub const ALL: [Self; 19] = [
        Self::EventDelay,
        Self::Batching,
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
        Self::Tokenisation,
        Self::OpenLoop,
        Self::WarmUp,
        Self::Overflow,
        Self::Tiers,
        Self::Jitter,
        Self::KvTransfer,
    ];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EventDelay => "event-delay",
            Self::Batching => "batching",
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
            Self::Tokenisation => "tokenisation",
            Self::OpenLoop => "open-loop",
            Self::WarmUp => "warm-up",
            Self::Overflow => "overflow",
            Self::Tiers => "tiers",
            Self::Jitter => "jitter",
            Self::KvTransfer => "kv-transfer",
        }
    }
}

impl Scenario {
    /// The same without one effect.
    #[must_use]
    pub fn without(mut self, effect: Effect) -> Self {
        let workers = usize::from(self.workers);
        let (reuse, realism) = (&mut self.engine.reuse, &mut self.engine.realism);
        let conditions = &mut self.conditions;
        match effect {
            Effect::EventDelay => self.events = EventWay::AtOnce,
            Effect::Batching => {
                if let EventWay::AfterStep(delay) = self.events {
                    self.events = EventWay::Singly(delay);
                }
            }
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
            Effect::Tokenisation => conditions.misread = 0.0,
            Effect::OpenLoop => {
                let most = workers * Conditions::CLIENTS_PER_WORKER;
                conditions.clients = Some(conditions.clients.map_or(most, |clients| clients.min(most)));
            }
            Effect::WarmUp => conditions.warm_up = false,
            Effect::Overflow => conditions.overflow = false,
            Effect::Tiers => (self.engine.tiers, self.shared_pages) = (None, 0),
            Effect::Jitter => realism.jitter = 0.0,
            Effect::KvTransfer => conditions.kv_transfer = Ms::ZERO,
        }
        self
    }

    /// Whether there is anything of an effect that could be left out.
    pub fn has(&self, effect: Effect) -> bool {
        let (reuse, realism, conditions) = (&self.engine.reuse, &self.engine.realism, &self.conditions);
        match effect {
            Effect::EventDelay => self.events != EventWay::AtOnce,
            Effect::Batching => matches!(self.events, EventWay::AfterStep(_)),
            Effect::Staleness => self.reports != Reports::Fresh,
            Effect::LastToken => reuse.last_token,
            Effect::HitAttention => realism.hit_attention,
            Effect::ChunkInterference => realism.chunk_interference,
            Effect::Preemption => realism.preemption,
            Effect::IdleCached => reuse.late_eviction,
            Effect::ReverseAppend => reuse.reverse_append,
            Effect::Duplicates => reuse.duplicates,
            Effect::OutputBlocks => reuse.output_blocks,
            Effect::InFlightCredit => !self.router.in_flight_credit.is_zero(),
            Effect::Tokenisation => conditions.misread > 0.0,
            Effect::OpenLoop => conditions.clients.is_none(),
            Effect::WarmUp => conditions.warm_up,
            Effect::Overflow => conditions.overflow,
            Effect::Tiers => self.engine.tiers.is_some(),
            Effect::Jitter => realism.jitter > 0.0,
            Effect::KvTransfer => conditions.kv_transfer > Ms::ZERO,
        }
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
        assert!(error.starts_with("unknown effect `tokens` (known: event-delay, batching, staleness,"), "{error}");
    }
}
