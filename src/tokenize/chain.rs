//! From a text to the hashes of its blocks, part by part, each part found again by all that stands before it.
//!
//! A text is cut where its tokens may be ([`Cuts`](super::cuts::Cuts)), and by what it says, so texts that begin alike have
//! the same first parts. The name of a part is made of the name of what is before it and its own text. What is kept under
//! that name is what the part came to: how many tokens the text has up to its end, the blocks that end in it, and the ids
//! that are left over for the next block. So as long as parts are found no id is needed; a part that is not is encoded,
//! and the text goes on from there. A chat that goes on from a known one is taken up where that one was left ([`Seam`]), and
//! what is before is not even looked at.

use std::sync::Arc;

use smallvec::SmallVec;
use warmpath_core::blocks::{Root, step};
use warmpath_core::ids::{SequenceHash, TokenId};

use super::byte_cache::Weigh;
use super::shared::TokenizeShared;
use super::{ModelTokenizer, TokenizeError};

/// A prompt by its blocks: all that placing needs of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hashed {
    /// The hash of each full block.
    pub blocks: Vec<SequenceHash>,
    /// Its tokens, exactly.
    pub tokens: u32,
    /// Bytes of the text that it was made from.
    pub bytes: usize,
}

impl Weigh for Hashed {
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.blocks.capacity() * size_of::<SequenceHash>()
    }
}

/// What one part came to. Ids that are left over are fewer than a block has, mostly 16.
pub(super) struct Part {
    tokens: u32,
    blocks: Box<[SequenceHash]>,
    rest: SmallVec<[TokenId; 16]>,
}

impl Weigh for Part {
    fn bytes(&self) -> usize {
        let rest = if self.rest.spilled() { size_of_val(&*self.rest) } else { 0 };
        size_of::<Self>() + size_of_val(&*self.blocks) + rest
    }
}

/// What is known of a text's beginning.
pub(super) struct Progress {
    at: usize,
    key: u128,
    tokens: u32,
    blocks: Vec<SequenceHash>,
    rest: Vec<TokenId>,
    /// Bytes whose parts were found, and bytes that were encoded.
    pub(super) found: usize,
    pub(super) encoded: usize,
}

impl Progress {
    /// The beginning. `key` names all that the ids depend on beside the text; `before` are ids that stand in front of it.
    pub(super) fn begin(key: u128, root: &Root, before: &[TokenId], text_len: usize) -> Self {
        // About four bytes a token.
        let blocks = Vec::with_capacity(text_len / 4 / root.block_size().len() + 1);
        let mut progress = Self { at: 0, key, tokens: 0, blocks, rest: Vec::with_capacity(1024), found: 0, encoded: 0 };
        progress.rest.extend_from_slice(before);
        progress.hash_rest(root, 0);
        progress
    }

    /// What `seam` was made of, where the text is the same up to there. `text_len` as for [`begin`](Self::begin).
    pub(super) fn resumed(seam: &Seam, root: &Root, text_len: usize) -> Self {
        let Place { at, key, tokens, blocks: known, rest } = &seam.place;
        let mut progress = Self::begin(*key, root, rest, text_len);
        progress.blocks.extend_from_slice(&seam.hashed.blocks[..*known]);
        Self { at: *at, tokens: *tokens, found: *at, ..progress }
    }

    /// Where it is, if that is between the text's beginning and `end`.
    pub(super) fn place_before(&self, end: usize) -> Option<Place> {
        let Self { at, key, tokens, blocks, rest, .. } = self;
        let place =
            || Place { at: *at, key: *key, tokens: *tokens, blocks: blocks.len(), rest: rest.as_slice().into() };
        (1..end).contains(at).then(place)
    }

    /// Hashes the full blocks of `rest`, of which the first `known` ids are counted already, and keeps what is left over.
    fn hash_rest(&mut self, root: &Root, known: usize) {
        let new = u32::try_from(self.rest.len() - known).unwrap_or(u32::MAX);
        self.tokens = self.tokens.saturating_add(new);
        let size = root.block_size().len();
        let mut sequence = self.blocks.last().copied().unwrap_or(root.sequence);
        for block in self.rest.chunks_exact(size) {
            sequence = step(sequence, root.block_hash(block));
            self.blocks.push(sequence);
        }
        let hashed = self.rest.len() / size * size;
        self.rest.drain(..hashed);
    }

    /// The whole text, with ids that stand behind it.
    pub(super) fn finish(mut self, root: &Root, behind: &[TokenId]) -> Hashed {
        let known = self.rest.len();
        self.rest.extend_from_slice(behind);
        self.hash_rest(root, known);
        Hashed { blocks: self.blocks, tokens: self.tokens, bytes: self.at }
    }
}

/// A place in a text where one part ends and the next begins, whatever follows.
pub(super) struct Place {
    pub(super) at: usize,
    key: u128,
    tokens: u32,
    /// How many blocks end before it.
    blocks: usize,
    rest: Box<[TokenId]>,
}

/// Where a text that begins as this one did can be taken up: a conversation's next turn.
pub(super) struct Seam {
    pub(super) place: Place,
    /// What the text came to.
    pub(super) hashed: Arc<Hashed>,
}

impl Weigh for Seam {
    /// The blocks may be kept for this alone.
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.place.rest) + self.hashed.bytes()
    }
}

/// What it takes to go on with a text.
pub(super) struct Chain<'a> {
    pub(super) tokenizer: &'a ModelTokenizer,
    pub(super) shared: &'a TokenizeShared,
    pub(super) root: &'a Root,
    /// Bytes of the text that are known and left out.
    pub(super) behind: usize,
}

impl Chain<'_> {
    /// Goes on with the parts of `text`, of which what is [`behind`](Self::behind) is given, that end before `until`, all of which is `true`, or until `may`, which is asked before
    /// so many bytes are encoded, none if a part was found, says no. Costs a hash and a look-up for a part that is found, its
    /// encoding for another.
    ///
    /// # Errors
    /// [`TokenizeError`] if a part cannot be encoded.
    pub(super) fn advance(
        &self,
        text: &str,
        progress: &mut Progress,
        until: usize,
        may: &mut dyn FnMut(usize) -> bool,
    ) -> Result<bool, TokenizeError> {
        let TokenizeShared { keys, parts, limits, .. } = self.shared;
        while progress.at < self.behind + text.len() {
            let begin = progress.at - self.behind;
            let end = self.tokenizer.part_end(text, begin, limits.part_min);
            if self.behind + end >= until {
                break;
            }
            let part = &text[begin..end];
            let key = keys.join(progress.key, keys.of(part.as_bytes()));
            let found = parts.get(key);
            if !may(if found.is_some() { 0 } else { part.len() }) {
                return Ok(false);
            }
            if let Some(found) = found {
                progress.tokens = found.tokens;
                progress.blocks.extend_from_slice(&found.blocks);
                progress.rest.clear();
                progress.rest.extend_from_slice(&found.rest);
                progress.found += part.len();
            } else {
                self.encode(part, key, progress)?;
            }
            progress.key = key;
            progress.at = self.behind + end;
        }
        Ok(true)
    }

    fn encode(&self, part: &str, key: u128, progress: &mut Progress) -> Result<(), TokenizeError> {
        let (known, blocks) = (progress.rest.len(), progress.blocks.len());
        self.tokenizer.encode_part(part, &mut progress.rest)?;
        progress.hash_rest(self.root, known);
        progress.encoded += part.len();
        let kept = Part {
            tokens: progress.tokens,
            blocks: progress.blocks[blocks..].into(),
            rest: progress.rest.as_slice().into(),
        };
        self.shared.parts.insert(key, Arc::new(kept));
        Ok(())
    }
}
