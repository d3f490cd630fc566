//! A queued or running request.

use warmpath_core::ids::TokenId;

use super::clock::Ms;
use super::engine_config::EngineConfig;
use super::request::{FinishReason, FirstToken, RequestId, TokenOut, output_token};
use super::sequence::Sequence;

/// A request's place in the queue: priority, then arrival. A preempted request keeps its place, so that without
/// priorities it stands in front of all who never ran.
pub(super) type Place = (i32, u64);

/// A queued or running request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) id: RequestId,
    pub(super) place: Place,
    pub(super) sequence: Sequence,
    pub(super) seed: u64,
    pub(super) stop: Vec<TokenId>,
    pub(super) max_tokens: usize,
    /// Tokens generated so far, which are the last of `sequence`.
    pub(super) generated: usize,
    /// Leading tokens whose KV is there.
    pub(super) computed: usize,
    /// Of these, tokens that were found in the cache.
    pub(super) cached: usize,
    /// Tokens that the step at hand computes.
    pub(super) scheduled: usize,
    pub(super) submitted: Ms,
    /// Set when it was first admitted.
    pub(super) first: Option<FirstToken>,
}

impl Job {
    /// Whether the step at hand computes its newest generated token and nothing else.
    pub(super) fn decodes(&self) -> bool {
        self.generated > 0 && self.scheduled == 1 && self.computed + 1 == self.sequence.len()
    }

    /// Whether the step at hand ends with a token from it.
    pub(super) fn emits(&self) -> bool {
        self.scheduled > 0 && self.computed + self.scheduled == self.sequence.len()
    }

    /// Tokens of its prompt.
    pub(super) fn prompt_len(&self) -> usize {
        self.sequence.len() - self.generated
    }

    /// Generates the next token.
    pub(super) fn generate(&mut self, config: &EngineConfig) -> TokenOut {
        let index = self.generated;
        let token = output_token(self.seed, index, &config.vocabulary);
        self.sequence.push(token);
        self.generated += 1;
        let finished = if self.stop.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.generated >= self.max_tokens || self.sequence.len() >= config.longest() {
            Some(FinishReason::Length)
        } else {
            None
        };
        TokenOut { id: self.id, token, index, first: self.first.filter(|_| index == 0), finished }
    }
}
