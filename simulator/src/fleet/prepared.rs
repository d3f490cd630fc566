//! A trace, made ready once for all runs: what each prompt's blocks are called.

use std::ops::Range;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks, step};
use warmpath_core::count::real;
use warmpath_core::ids::{BlockHash, SequenceHash, TokenId};
use warmpath_core::namespace::Namespace;
use warmpath_core::shape::AffinityKey;
use warmpath_core::units::BlockSize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::clock::Ms;
use crate::request::output_token;
use crate::sequence::PromptText;

/// The model's name in every simulated fleet.
pub const MODEL: &str = "simulated";

/// Prompt tokens are below this number.
const VOCABULARY: Range<TokenId> = 0..100_000;

/// One request of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// When it arrives, in ms since the trace began.
    pub at_ms: u64,
    /// Prompt tokens.
    pub input_tokens: u32,
    /// Tokens to generate.
    pub output_tokens: u32,
    /// A name for each block of the prompt together with all before it; the last block may be partial. Blocks for which
    /// there is no name are like no others.
    pub block_ids: &'a [u64],
    /// The session that it belongs to.
    pub session: Option<&'a str>,
}

/// A trace that is ready to be run, as often as one likes. About 24 bytes a block, and no tokens: these are made where
/// somebody reads them.
#[derive(Clone, Debug)]
pub struct Prepared {
    root: Root,
    requests: Vec<Ready>,
    ids: Vec<u64>,
    blocks: Vec<BlockHash>,
    sequences: Vec<SequenceHash>,
}

/// Where one request's blocks lie.
#[derive(Clone, Debug)]
struct Ready {
    at: Ms,
    input: u32,
    output: u32,
    ids: Range<usize>,
    full: Range<usize>,
    session: Option<AffinityKey>,
}

impl Prepared {
    /// Names the full blocks of every prompt. Requests are taken in order of arrival, equal ones as they stand. O(blocks).
    pub fn new<'a>(trace: impl IntoIterator<Item = Arrival<'a>>, block_size: BlockSize) -> Self {
        let root = Root::new(&Namespace::plain(MODEL, block_size), DEFAULT_ROOT_SEED);
        let mut prepared =
            Self { root, requests: Vec::new(), ids: Vec::new(), blocks: Vec::new(), sequences: Vec::new() };
        let mut arrivals: Vec<Arrival<'a>> = trace.into_iter().collect();
        arrivals.sort_by_key(|arrival| arrival.at_ms);
        for (number, arrival) in arrivals.iter().enumerate() {
            prepared.add(number, arrival);
        }
        prepared
    }

    fn add(&mut self, number: usize, arrival: &Arrival<'_>) {
        let size = self.block_size().get();
        let index = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
        let (full, all) = (index(arrival.input_tokens / size), index(arrival.input_tokens.div_ceil(size)));
        let (first_id, first) = (self.ids.len(), self.blocks.len());
        let id = |place: usize| arrival.block_ids.get(place).copied().unwrap_or_else(|| unnamed_block(number, place));
        self.ids.extend((0..all).map(id));
        let mut sequence = self.root.sequence;
        for place in first_id..first_id + full {
            let block = BlockHash(xxh3_64_with_seed(&self.ids[place].to_le_bytes(), 0));
            sequence = step(sequence, block);
            self.blocks.push(block);
            self.sequences.push(sequence);
        }
        self.requests.push(Ready {
            at: Ms(real(arrival.at_ms)),
            input: arrival.input_tokens,
            output: arrival.output_tokens.max(1),
            ids: first_id..self.ids.len(),
            full: first..self.blocks.len(),
            session: arrival.session.map(|name| AffinityKey(xxh3_64(name.as_bytes()))),
        });
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> BlockSize {
        self.root.block_size()
    }

    /// When a request arrives, at the speed of the trace.
    pub fn arrival(&self, number: usize) -> Ms {
        self.requests[number].at
    }

    /// From the first arrival to the last, at the speed of the trace.
    pub fn span(&self) -> Ms {
        match (self.requests.first(), self.requests.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => Ms::ZERO,
        }
    }

    /// Tokens of a request's prompt, and those that it generates.
    pub fn lengths(&self, number: usize) -> (u32, u32) {
        (self.requests[number].input, self.requests[number].output)
    }

    /// The session that a request belongs to.
    pub(super) fn session(&self, number: usize) -> Option<AffinityKey> {
        self.requests[number].session
    }

    /// The root of all prompts.
    pub(super) fn root(&self) -> Root {
        self.root
    }

    /// The router's names of a prompt's full blocks.
    pub(super) fn sequences(&self, number: usize) -> &[SequenceHash] {
        &self.sequences[self.requests[number].full.clone()]
    }

    /// The router's names of a prompt's full blocks where it is given like this.
    pub(super) fn sequences_of(&self, number: usize, text: &PromptText) -> Vec<SequenceHash> {
        match text {
            PromptText::Tokens(tokens) => {
                let mut hashes = Vec::new();
                hash_blocks(&self.root, tokens, &[], &mut hashes);
                hashes
            }
            PromptText::Hashed { .. } => self.sequences(number).to_vec(),
        }
    }

    /// The prompt as an engine is given it.
    pub(super) fn text(&self, number: usize, by_tokens: bool) -> PromptText {
        if by_tokens { PromptText::Tokens(self.tokens(number)) } else { self.hashed(number) }
    }

    /// The prompt without its tokens. Takes equal prompts for equal, and no others; blocks of its output are named with a
    /// seed that is not the prompts'.
    fn hashed(&self, number: usize) -> PromptText {
        let request = &self.requests[number];
        let len = usize::try_from(request.input).unwrap_or(usize::MAX);
        PromptText::Hashed { blocks: self.blocks[request.full.clone()].to_vec(), len, seed: !seed_of(number) }
    }

    /// The prompt's tokens: equal where its blocks' names are. O(tokens).
    fn tokens(&self, number: usize) -> Vec<TokenId> {
        let request = &self.requests[number];
        let len = usize::try_from(request.input).unwrap_or(usize::MAX);
        let size = self.block_size().len();
        let ids = &self.ids[request.ids.clone()];
        let tokens = ids.iter().flat_map(|&id| (0..size).map(move |place| output_token(id, place, &VOCABULARY)));
        tokens.take(len).collect()
    }
}

/// The name of a block for which the trace has none: like no other.
pub fn unnamed_block(number: usize, place: usize) -> u64 {
    xxh3_64_with_seed(&place.to_le_bytes(), !seed_of(number))
}

/// What makes a request's output its own.
pub(super) fn seed_of(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(at_ms: u64, input_tokens: u32, block_ids: &[u64]) -> Arrival<'_> {
        Arrival { at_ms, input_tokens, output_tokens: 0, block_ids, session: None }
    }

    fn prepared(arrivals: &[Arrival<'_>]) -> Prepared {
        Prepared::new(arrivals.iter().copied(), BlockSize::new(4).unwrap())
    }

    #[test]
    fn equal_names_are_equal_blocks_and_equal_tokens() {
        let prepared = prepared(&[arrival(0, 10, &[1, 2, 3]), arrival(5, 8, &[1, 2]), arrival(9, 8, &[7, 2])]);
        let (a, b, c) = (prepared.sequences(0), prepared.sequences(1), prepared.sequences(2));
        assert_eq!((a.len(), a, b.len()), (2, b, 2));
        assert!(c[0] != a[0] && c[1] != a[1], "a block is what it is below what stands before it");
        let (a, b, c) = (prepared.tokens(0), prepared.tokens(1), prepared.tokens(2));
        assert_eq!((a.len(), &a[..8]), (10, &b[..]));
        assert_eq!(a[4..8], c[4..8]);
        assert_ne!(a[..4], c[..4]);
        assert_eq!((prepared.lengths(0), prepared.span()), ((10, 1), Ms(9.0)));
    }

    #[test]
    fn requests_come_in_order_and_blocks_without_a_name_are_like_no_others() {
        let prepared = prepared(&[arrival(7, 12, &[1]), arrival(3, 12, &[1])]);
        assert_eq!((prepared.arrival(0), prepared.arrival(1)), (Ms(3.0), Ms(7.0)));
        let (a, b) = (prepared.sequences(0), prepared.sequences(1));
        assert!(a[0] == b[0] && a[1] != b[1] && a[2] != b[2]);
    }
}
