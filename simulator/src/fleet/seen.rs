//! A prompt as the router has it: as its engine does, or with other tokens from some block on.

use std::borrow::Cow;

use warmpath_core::blocks::Root;
use warmpath_core::ids::{SequenceHash, TokenId};
use warmpath_core::shape::Prompt;
use warmpath_core::units::Tokens;

use super::conditions::{misread_blocks, misread_tokens};
use super::prepared::Prepared;
use super::{Conditions, Scenario};
use crate::sequence::PromptText;

/// What the router reads of one request.
pub(super) struct Seen<'a> {
    root: Root,
    len: Tokens,
    text: Text<'a>,
}

enum Text<'a> {
    Tokens(Cow<'a, [TokenId]>),
    Blocks(Cow<'a, [SequenceHash]>),
}

impl<'a> Seen<'a> {
    /// Of request `number`, whose prompt is `text` to its engine.
    pub(super) fn new(prepared: &'a Prepared, scenario: &Scenario, number: usize, text: &'a PromptText) -> Self {
        let text = match text {
            PromptText::Tokens(tokens) => {
                let mut tokens = Cow::Borrowed(tokens.as_slice());
                let blocks = prepared.sequences(number).len();
                if let Some(from) = scenario.conditions.misread_from(scenario.seed, number, blocks) {
                    misread_tokens(&mut tokens.to_mut()[from * prepared.block_size().len()..]);
                }
                Text::Tokens(tokens)
            }
            PromptText::Hashed { .. } => Text::Blocks(blocks(prepared, (&scenario.conditions, scenario.seed), number)),
        };
        Self { root: prepared.root(), len: Tokens(prepared.lengths(number).0), text }
    }

    pub(super) fn prompt(&self) -> Prompt<'_> {
        match &self.text {
            Text::Tokens(tokens) => Prompt::of(self.root, tokens),
            Text::Blocks(blocks) => Prompt::hashed(self.root, blocks, self.len),
        }
    }
}

/// The names of a prompt's full blocks as the router has them under these conditions, with this seed of chance.
pub(super) fn blocks<'a>(
    prepared: &'a Prepared,
    (conditions, seed): (&Conditions, u64),
    number: usize,
) -> Cow<'a, [SequenceHash]> {
    let blocks = prepared.sequences(number);
    match conditions.misread_from(seed, number, blocks.len()) {
        None => Cow::Borrowed(blocks),
        Some(from) => Cow::Owned(misread_blocks(blocks, from)),
    }
}
