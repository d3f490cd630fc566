//! What the scheduler needs to know of a request.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::blocks::{MediaSpan, Root, hash_blocks};
use crate::ids::{RequestKey, SequenceHash, TokenId};
use crate::slot_set::SlotSet;
use crate::units::{BlockSize, Blocks, Tokens};

/// One prompt of a request.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// Where its namespace's chains begin.
    pub root: Root,
    /// Its tokens, exactly as the engine will see them.
    pub content: Content<'a>,
    /// Images and other media among the tokens.
    pub media: &'a [MediaSpan],
}

/// What is known of a prompt's tokens.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// Their ids.
    Tokens(&'a [TokenId]),
    /// Their number, and the hash of each full block below the prompt's root, media included: all that placing needs where
    /// nobody asks for the ids themselves.
    Hashed(&'a [SequenceHash], Tokens),
    /// About how many they are: it was not read, since no policy here looks at it, and nobody is known to hold any of it.
    Unread(Tokens),
}

impl<'a> Prompt<'a> {
    /// Token ids, no media.
    pub fn of(root: Root, tokens: &'a [TokenId]) -> Self {
        Self { root, content: Content::Tokens(tokens), media: &[] }
    }

    /// The blocks below `root` of a prompt of `len` tokens, whose ids are not told.
    pub fn hashed(root: Root, blocks: &'a [SequenceHash], len: Tokens) -> Self {
        Self { root, content: Content::Hashed(blocks, len), media: &[] }
    }

    /// A prompt of about `len` tokens that was not read.
    pub fn unread(root: Root, len: Tokens) -> Self {
        Self { root, content: Content::Unread(len), media: &[] }
    }

    /// Whether it was not read.
    pub fn is_unread(&self) -> bool {
        matches!(self.content, Content::Unread(_))
    }

    /// How many tokens it has, saturating.
    pub fn len(&self) -> Tokens {
        match self.content {
            Content::Tokens(ids) => Tokens(u32::try_from(ids.len()).unwrap_or(u32::MAX)),
            Content::Hashed(_, len) | Content::Unread(len) => len,
        }
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == Tokens(0)
    }

    /// Its token ids; none where only its blocks are told.
    pub fn ids(&self) -> &'a [TokenId] {
        match self.content {
            Content::Tokens(ids) => ids,
            Content::Hashed(..) | Content::Unread(_) => &[],
        }
    }

    /// How many full blocks it has.
    pub fn full_blocks(&self) -> usize {
        match self.content {
            Content::Tokens(ids) => ids.len() / self.root.block_size().len(),
            Content::Hashed(blocks, _) => blocks.len(),
            Content::Unread(_) => 0,
        }
    }

    /// Appends the hash of each of its full blocks. O(tokens), or O(blocks) where they are told.
    pub fn hash_into(&self, hashes: &mut Vec<SequenceHash>) {
        match self.content {
            Content::Tokens(ids) => hash_blocks(&self.root, ids, self.media, hashes),
            Content::Hashed(blocks, _) => hashes.extend_from_slice(blocks),
            Content::Unread(_) => {}
        }
    }
}

/// How urgent a request is; the lower the number, the sooner (as vLLM's `priority`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Class(pub i32);

/// Who sent a request, as far as fair sharing is concerned; none until tenants are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TenantId(pub u32);

/// Requests with equal keys prefer equal workers (a session, a user).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AffinityKey(pub u64);

/// The beginning of a request's first prompt, which many requests share: the xxh64 of its adapter's name and its first
/// characters, or the hash of its first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Opening(pub u64);

/// Where a prompt parts from others: all have the same in common up to there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// The last block in common.
    pub block: SequenceHash,
    /// How many blocks there are up to it, itself among them.
    pub blocks: Blocks,
    /// How many candidates hold all of them; 0 for a trunk, of which nobody asks.
    #[serde(default)]
    pub holders: u32,
}

/// A prompt as one of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Its last full block.
    pub end: SequenceHash,
    /// That of the prompt before, which this one goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<SequenceHash>,
}

/// What a class promises its requests; none is no promise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objectives {
    /// Time to first token.
    pub ttft: Option<Duration>,
    /// Mean gap between tokens.
    pub itl: Option<Duration>,
}

/// A request's size and standing: everything of it that a cost function may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Prompt tokens over all prompts; estimated where no token ids are known.
    pub prompt: Tokens,
    /// Tokens in a block of the request's pool.
    pub block_size: BlockSize,
    /// How many prompts these are.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub prompts: NonZeroU32,
    /// Sequences that will be decoded: one slot each (`n` × prompts).
    pub sequences: u32,
    /// Tokens that each sequence may produce, where the request says so.
    pub expected_output: Option<Tokens>,
    /// Urgency.
    pub class: Class,
    /// Sender.
    pub tenant: Option<TenantId>,
    /// Session.
    pub affinity: Option<AffinityKey>,
    /// How it begins, where a policy asks for that and its text is known; else the scheduler takes its first block.
    pub opening: Option<Opening>,
    /// Of how many characters `opening` is made; none where it is none of a text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opening_characters: Option<NonZeroU32>,
    /// Where its one prompt parts from all that any candidate holds. Filled by the scheduler where a policy asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    /// The fork before that one, where others parted earlier. Filled by the scheduler where a policy remembers such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trunk: Option<Fork>,
    /// Where its one prompt ends, and with which it goes on. Filled by the scheduler where a policy remembers such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Turn>,
    /// Whether its answer comes in one piece: then nothing is heard of it before its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
    /// Whether nobody has read what it asks for, so that its size is a guess, and what becomes of it is no prompt's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Promises.
    pub objectives: Objectives,
    /// What of the time to its first token has passed already.
    #[serde(default, skip_serializing_if = "Duration::is_zero")]
    pub waited: Duration,
}

impl Shape {
    /// One sequence of one prompt, whose answer is streamed; nothing else known.
    pub fn of(prompt: Tokens, block_size: BlockSize) -> Self {
        Self {
            prompt,
            block_size,
            prompts: NonZeroU32::MIN,
            sequences: 1,
            expected_output: None,
            class: Class::default(),
            tenant: None,
            affinity: None,
            opening: None,
            opening_characters: None,
            fork: None,
            trunk: None,
            turn: None,
            whole: false,
            unread: false,
            objectives: Objectives::default(),
            waited: Duration::ZERO,
        }
    }
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn is_one(prompts: &NonZeroU32) -> bool {
    *prompts == NonZeroU32::MIN
}

/// A request that looks for a worker.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The request's name in observations.
    pub key: RequestKey,
    /// Its size and standing.
    pub shape: Shape,
    /// Its prompts; none where token ids are unknown: then it is placed by load, or by `texts`.
    pub prompts: &'a [Prompt<'a>],
    /// The prompts' characters in the place of tokens, for policies that go by history; given where token ids are
    /// unknown. Their roots are of other block sizes than those of token ids, so that the two never match.
    pub texts: &'a [Prompt<'a>],
    /// Targets that have failed it already.
    pub avoid: &'a SlotSet,
}
