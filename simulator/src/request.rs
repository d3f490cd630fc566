//! What a simulated engine is asked for, and what it gives back.

use std::ops::Range;
use std::sync::Arc;

use warmpath_core::ids::TokenId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::clock::Ms;
use super::sequence::PromptText;

/// A request's name, unique within one engine while it is queued or runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// One request. Its output is a pure function of `seed`: see [`output_token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRequest {
    /// Its name.
    pub id: RequestId,
    /// Tokens to compute before the first one can be generated.
    pub prompt: PromptText,
    /// Tokens to generate at most.
    pub max_tokens: usize,
    /// Determines the generated tokens.
    pub seed: u64,
    /// Lower goes first, as in vLLM; equal ones in order of arrival.
    pub priority: i32,
    /// Isolates its cached blocks from those of other salts.
    pub salt: Option<Arc<str>>,
    /// The LoRA adapter, which isolates as well.
    pub adapter: Option<Arc<str>>,
    /// Generating one of these ends the request; it is given out like any other token.
    pub stop: Vec<TokenId>,
}

impl SimRequest {
    /// A request with seed 0, priority 0, no salt, adapter or stop tokens.
    pub fn new(id: RequestId, prompt: impl Into<PromptText>, max_tokens: usize) -> Self {
        let prompt = prompt.into();
        Self { id, prompt, max_tokens, seed: 0, priority: 0, salt: None, adapter: None, stop: Vec::new() }
    }
}

/// Why a request was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is nothing to compute.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// There is nothing to generate.
    #[error("max_tokens must be at least 1")]
    NoOutput,
    /// The prompt can never be computed here.
    #[error("the prompt has {tokens} tokens and this engine can hold {limit} at most")]
    TooLong {
        /// Tokens in the prompt.
        tokens: usize,
        /// What the engine can hold.
        limit: usize,
    },
    /// A request of this name is queued or runs.
    #[error("request {} is queued or runs already", id.0)]
    Duplicate {
        /// Its name.
        id: RequestId,
    },
}

/// Why a request ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// It generated `max_tokens`, or its context reached what the engine can hold.
    Length,
    /// It generated a stop token.
    Stop,
}

/// What is known of a request once it has its first token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstToken {
    /// Prompt tokens found in the cache when it was first admitted.
    pub cached_tokens: usize,
    /// From its arrival to the start of the step that first admitted it.
    pub queued: Ms,
}

/// One generated token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenOut {
    /// Whose.
    pub id: RequestId,
    /// The token.
    pub token: TokenId,
    /// How many tokens the request generated before it.
    pub index: usize,
    /// Set on the request's first token.
    pub first: Option<FirstToken>,
    /// Set on its last.
    pub finished: Option<FinishReason>,
}

/// The token that a request with this seed generates at `index`; 0 for an empty vocabulary.
pub fn output_token(seed: u64, index: usize, vocabulary: &Range<TokenId>) -> TokenId {
    let size = u64::from(vocabulary.end.saturating_sub(vocabulary.start));
    let hash = xxh3_64_with_seed(&index.to_le_bytes(), seed);
    let offset = hash.checked_rem(size).and_then(|offset| u32::try_from(offset).ok());
    offset.map_or(0, |offset| vocabulary.start + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_follow_from_seed_and_index_and_stay_in_the_vocabulary() {
        let vocabulary = 100..110;
        let of = |seed| -> Vec<_> { (0..50).map(|index| output_token(seed, index, &vocabulary)).collect() };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert!((100..110).all(|token| of(3).contains(&token)));
        assert!(of(4).iter().all(|token| vocabulary.contains(token)));
        assert_eq!(output_token(1, 0, &(5..5)), 0);
    }
}
