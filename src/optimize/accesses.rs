//! A trace as a cache sees it: blocks by dense numbers, and of each request how many are stored and how many can hit.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use foldhash::fast::FixedState;

use crate::replay::trace::{Access, TraceRequest};

/// Which blocks of a prompt count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// Every id of the trace, the last one of a prompt included, though it may be partial.
    #[default]
    AnyBlock,
    /// The engine's own: only full blocks are stored, and of a prompt of `n` tokens at most `⌊(n−1)/block⌋` hit, since at
    /// least one token is computed.
    Engine,
}

/// What a cache looks up and stores, in order.
#[derive(Clone, Debug)]
pub struct Accesses {
    /// The blocks of all requests, one request after the other; a block's number is its place among the different ones.
    blocks: Vec<u32>,
    requests: Vec<Request>,
    unique: usize,
    block_size: u32,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Arrival in ms.
    pub at_ms: u64,
    /// Prompt tokens.
    pub input_length: u32,
    /// What it does.
    pub access: Access,
    /// The same for requests that belong together: of one session, or else with the same first block among those that
    /// not all requests of the trace begin with.
    pub affinity: u64,
    from: usize,
    stored: usize,
    reusable: usize,
}

/// Blocks and tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Blocks.
    pub blocks: u64,
    /// Tokens.
    pub tokens: u64,
}

impl Accesses {
    /// The accesses of `requests`, whose ids stand for `block_size` tokens, in their order. O(ids).
    pub fn new(requests: &[TraceRequest], block_size: u32, rule: Rule) -> Self {
        let block_size = block_size.max(1);
        let mut numbers: HashMap<u64, u32, FixedState> = HashMap::default();
        let mut accesses = Self { blocks: Vec::new(), requests: Vec::new(), unique: 0, block_size };
        let shared = shared_by_all(requests);
        for request in requests {
            let ids = &request.hash_ids;
            let whole = |tokens: u32| ids.len().min(usize::try_from(tokens / block_size).unwrap_or(usize::MAX));
            let (stored, reusable) = match rule {
                Rule::AnyBlock => (ids.len(), ids.len()),
                Rule::Engine => (whole(request.input_length), whole(request.input_length.saturating_sub(1))),
            };
            let from = accesses.blocks.len();
            for id in &ids[..stored] {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                accesses.blocks.push(*numbers.entry(*id).or_insert(next));
            }
            let affinity = match request.session() {
                Some(session) => xxhash_rust::xxh3::xxh3_64(session.as_bytes()),
                None => ids.get(shared).or(ids.last()).copied().unwrap_or(0),
            };
            let access = request.access();
            let reusable = if access == Access::Write { 0 } else { reusable };
            let (at_ms, input_length) = (request.at_ms, request.input_length);
            accesses.requests.push(Request { at_ms, input_length, access, affinity, from, stored, reusable });
        }
        accesses.unique = numbers.len();
        accesses
    }

    /// The requests, in order.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Different blocks: a cache with room for so many never evicts.
    pub fn unique(&self) -> usize {
        self.unique
    }

    /// All stored blocks, repeats included.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether nothing is ever stored.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Whether look-ups and stores are lines of their own, so that a look-up stores nothing.
    pub fn is_split(&self) -> bool {
        self.requests.iter().any(|request| request.access != Access::Request)
    }

    /// The blocks that a request stores.
    pub fn stored(&self, request: &Request) -> &[u32] {
        &self.blocks[request.from..request.from + request.stored]
    }

    /// The blocks that it looks up, the leading ones of those.
    pub fn looked_up(&self, request: &Request) -> &[u32] {
        &self.stored(request)[..request.reusable]
    }

    /// Tokens in the `place`-th block of a request.
    pub fn tokens(&self, request: &Request, place: usize) -> u32 {
        let before = u32::try_from(place).unwrap_or(u32::MAX).saturating_mul(self.block_size);
        request.input_length.saturating_sub(before).min(self.block_size)
    }

    /// What is asked for: blocks that are looked up, and prompt tokens.
    pub fn asked(&self) -> Volume {
        let mut sum = Volume::default();
        for request in self.requests.iter().filter(|request| request.access != Access::Write) {
            sum.blocks += u64::try_from(request.reusable).unwrap_or(0);
            sum.tokens += u64::from(request.input_length);
        }
        sum
    }

    /// The first and the last arrival in ms.
    pub fn span_ms(&self) -> (u64, u64) {
        let times = || self.requests.iter().map(|request| request.at_ms);
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }
}

/// How many leading ids all requests have in common: a system prompt, which tells none from another.
fn shared_by_all(requests: &[TraceRequest]) -> usize {
    let mut prompts = requests.iter().map(|request| &request.hash_ids).filter(|ids| !ids.is_empty());
    let Some(first) = prompts.next() else { return 0 };
    prompts.fold(first.len(), |shared, ids| {
        ids.iter().zip(&first[..shared]).take_while(|(one, other)| one == other).count()
    })
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AnyBlock => "any-block",
            Self::Engine => "engine",
        })
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "any-block" => Ok(Self::AnyBlock),
            "engine" => Ok(Self::Engine),
            _ => Err(format!("no rule is called `{text}` (known: any-block, engine)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(input_length: u32, ids: &[u64]) -> TraceRequest {
        TraceRequest { input_length, hash_ids: ids.to_vec(), ..TraceRequest::default() }
    }

    #[test]
    fn the_rules_differ_in_the_last_block() {
        let requests = [request(8, &[10, 11]), request(10, &[10, 11, 12])];
        let any = Accesses::new(&requests, 4, Rule::AnyBlock);
        assert_eq!((any.asked(), any.len(), any.unique()), (Volume { blocks: 5, tokens: 18 }, 5, 3));
        let last = &any.requests()[1];
        assert_eq!([0, 1, 2].map(|place| any.tokens(last, place)), [4, 4, 2]);
        let engine = Accesses::new(&requests, 4, Rule::Engine);
        assert_eq!((engine.asked(), engine.len(), engine.unique()), (Volume { blocks: 3, tokens: 18 }, 4, 2));
        assert_eq!(engine.stored(&engine.requests()[1]), [0, 1]);
        assert_eq!(engine.looked_up(&engine.requests()[0]), [0]);
    }

    #[test]
    fn requests_belong_together_by_the_first_block_that_not_all_share() {
        let requests = [request(4, &[0, 7, 8]), request(4, &[0, 7, 9]), request(4, &[0, 5]), request(4, &[0])];
        let accesses = Accesses::new(&requests, 1, Rule::AnyBlock);
        let affinities: Vec<_> = accesses.requests().iter().map(|request| request.affinity).collect();
        assert_eq!(affinities, [7, 7, 5, 0]);
        assert!(Accesses::new(&[], 1, Rule::AnyBlock).is_empty());
    }
}
