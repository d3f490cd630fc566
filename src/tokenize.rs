//! From a request to the token ids that the engine will see, or to the hashes of the blocks that they make.
//!
//! The ids decide only where a request is sent, never what an engine answers: it tokenizes for itself. So a request whose
//! ids cannot be reproduced is no error. It is [`Prompts::Unknown`], is routed by load and counted by its [`Reason`].
//! The rules followed are those of vLLM 0.32 (its chat renderer and tokenization parameters) and of Hugging Face's
//! `apply_chat_template`, which it calls.
//!
//! Placing needs no ids, but the hashes of full blocks and the number of tokens. So a text that begins like one that was
//! seen before is not tokenised again up to where it differs (`chain`), and a chat that is repeated is not even rendered
//! (`work`). Of others, messages that are repeated are not parsed, and where their form is known nothing is rendered (`chat`).

use std::sync::Arc;

use warmpath_core::blocks::Root;
use warmpath_core::units::Tokens;

mod awkward;
mod byte_cache;
pub mod bytes;
mod chain;
pub mod characters;
pub mod chat;
mod checked;
mod course;
mod cuts;
mod fast;
mod handle;
pub mod hf;
mod keys;
mod model;
mod pipeline;
mod pool;
mod reason;
pub mod remote;
mod shared;
mod word_ends;
mod word_memory;
mod word_table;
mod work;

pub use chain::Hashed;
pub use chat::ChatTemplate;
pub use handle::{TokenizerHandle, TokenizerState};
pub use model::ModelTokenizer;
pub use reason::Reason;
pub use shared::{TokenizeLimits, TokenizeShared};

/// Turns text into token ids.
pub trait Tokenizer: Send + Sync {
    /// Appends the ids of `text` to `ids`, with the tokenizer's own special tokens (such as a BOS) if `special`. CPU-bound:
    /// up to a second for a hostile megabyte.
    ///
    /// # Errors
    /// [`TokenizeError`] if the tokenizer cannot encode the text; `ids` is then as before.
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError>;
}

impl<T: Tokenizer + ?Sized> Tokenizer for Arc<T> {
    fn encode(&self, text: &str, special: bool, ids: &mut Vec<u32>) -> Result<(), TokenizeError> {
        (**self).encode(text, special, ids)
    }
}

/// A text that a tokenizer cannot encode. Says nothing of the text itself, which may be private.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tokenizer cannot encode the text")]
pub struct TokenizeError;

/// What is known of a request's prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompts {
    /// The ids of each prompt, in order, as the engine will see them.
    Ids(Vec<Vec<u32>>),
    /// The blocks of each prompt that they make, and their number.
    Hashed(Vec<Arc<Hashed>>),
    /// The ids cannot be told; route by load.
    Unknown(Reason),
    /// The policy needs none, or the engine goes by none that it holds: so many tokens, about.
    Unread(Tokens),
}

impl Prompts {
    /// Whether what the engine reports as cached can be compared with what was promised: one prompt, its ids known.
    pub fn is_comparable(&self) -> bool {
        self.count() == Some(1)
    }

    /// How many prompts there are, if they are known.
    pub fn count(&self) -> Option<usize> {
        match self {
            Self::Ids(prompts) => Some(prompts.len()),
            Self::Hashed(prompts) => Some(prompts.len()),
            Self::Unknown(_) | Self::Unread(_) => None,
        }
    }

    /// Their tokens together, if they are known, or about as many; saturating.
    pub fn tokens(&self) -> Option<Tokens> {
        let total = match self {
            Self::Ids(prompts) => prompts.iter().map(|ids| u32::try_from(ids.len()).unwrap_or(u32::MAX)).fold(0, sum),
            Self::Hashed(prompts) => prompts.iter().map(|hashed| hashed.tokens).fold(0, sum),
            Self::Unread(tokens) => return Some(*tokens),
            Self::Unknown(_) => return None,
        };
        Some(Tokens(total))
    }

    /// The prompts for placing; none where they are not known. `root` is the one that they were hashed below.
    pub fn below(&self, root: Root) -> Vec<warmpath_core::shape::Prompt<'_>> {
        use warmpath_core::shape::Prompt;
        match self {
            Self::Ids(prompts) => prompts.iter().map(|ids| Prompt::of(root, ids)).collect(),
            Self::Hashed(prompts) => {
                prompts.iter().map(|hashed| Prompt::hashed(root, &hashed.blocks, Tokens(hashed.tokens))).collect()
            }
            Self::Unread(tokens) => vec![Prompt::unread(root, *tokens)],
            Self::Unknown(_) => Vec::new(),
        }
    }
}

impl From<Result<Vec<Vec<u32>>, Reason>> for Prompts {
    fn from(ids: Result<Vec<Vec<u32>>, Reason>) -> Self {
        ids.map_or_else(Self::Unknown, Self::Ids)
    }
}

fn sum(total: u32, more: u32) -> u32 {
    total.saturating_add(more)
}
