//! Reuse distances: one pass over a trace tells what an LRU cache of every capacity would have hit.
//!
//! A block's distance is the number of different blocks that were used since it was last used, itself included. An LRU
//! cache holds just the most recently used blocks, so a cache of `c` blocks holds it exactly if the distance is at most `c`
//! (Mattson and others, 1970). Last uses are counted in a Fenwick tree: O(log n) a block.

use std::fmt;
use std::str::FromStr;

use super::accesses::{Accesses, Request};

/// Which of the blocks that are used together counts as used earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The later in the prompt, as engines free their blocks: a prefix outlives what hangs on it.
    #[default]
    SuffixOlder,
    /// The earlier in the prompt, as the optimizer of the Tair KVCache manager inserts them.
    PrefixOlder,
}

/// A block that was looked up.
#[derive(Clone, Copy, Debug)]
pub struct LookUp<'a> {
    /// By which request.
    pub request: &'a Request,
    /// Its tokens.
    pub tokens: u32,
    /// How it would be found; none where it, or a block before it in the prompt, was never used.
    pub reuse: Option<Reuse>,
}

/// What it takes to find a block together with all before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// The least capacity in blocks.
    pub distance: u32,
    /// The longest time since any of them was used, in ms.
    pub age_ms: u64,
}

/// Walks one cache's requests in order and tells of every block that is looked up, before its request uses it. O(n log n)
/// for n blocks.
pub fn walk<'a>(
    accesses: &'a Accesses,
    requests: impl Iterator<Item = &'a Request> + Clone,
    order: Order,
    mut visit: impl FnMut(&LookUp<'a>),
) {
    let uses = requests.clone().map(|request| accesses.stored(request).len()).sum();
    let mut stack = Stack::new(accesses.unique(), uses);
    for request in requests {
        let mut run = Some(Reuse::default());
        for (place, block) in accesses.looked_up(request).iter().enumerate() {
            let here = run.and_then(|_| stack.reuse(*block, request.at_ms));
            run = run.zip(here).map(|(run, here)| Reuse {
                distance: run.distance.max(here.distance),
                age_ms: run.age_ms.max(here.age_ms),
            });
            visit(&LookUp { request, tokens: accesses.tokens(request, place), reuse: run });
        }
        let blocks = accesses.stored(request);
        match order {
            Order::SuffixOlder => blocks.iter().rev().for_each(|block| stack.touch(*block, request.at_ms)),
            Order::PrefixOlder => blocks.iter().for_each(|block| stack.touch(*block, request.at_ms)),
        }
    }
}

/// When each block was last used, and how many were used last at or before any moment.
struct Stack {
    last: Vec<Use>,
    /// Over moments from 1: 1 where a block was used last, summed as Fenwick does.
    counts: Vec<u32>,
    clock: u32,
    live: u32,
}

#[derive(Clone, Copy, Default)]
struct Use {
    /// 0 for never.
    moment: u32,
    at_ms: u64,
}

impl Stack {
    fn new(blocks: usize, uses: usize) -> Self {
        Self { last: vec![Use::default(); blocks], counts: vec![0; uses + 1], clock: 0, live: 0 }
    }

    fn reuse(&self, block: u32, now_ms: u64) -> Option<Reuse> {
        let last = self.last[index(block)];
        if last.moment == 0 {
            return None;
        }
        let distance = self.live - self.used_before(last.moment);
        Some(Reuse { distance, age_ms: now_ms.saturating_sub(last.at_ms) })
    }

    fn touch(&mut self, block: u32, now_ms: u64) {
        let last = self.last[index(block)].moment;
        if last > 0 {
            self.add(last, u32::wrapping_sub, 1);
        } else {
            self.live += 1;
        }
        self.clock += 1;
        self.add(self.clock, u32::wrapping_add, 1);
        self.last[index(block)] = Use { moment: self.clock, at_ms: now_ms };
    }

    /// Blocks whose last use was before `moment`.
    fn used_before(&self, moment: u32) -> u32 {
        let (mut sum, mut at) = (0, moment - 1);
        while at > 0 {
            sum += self.counts[index(at)];
            at &= at - 1;
        }
        sum
    }

    fn add(&mut self, moment: u32, change: fn(u32, u32) -> u32, by: u32) {
        let mut at = moment;
        while let Some(count) = self.counts.get_mut(index(at)) {
            *count = change(*count, by);
            at += at & at.wrapping_neg();
        }
    }
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SuffixOlder => "suffix-older",
            Self::PrefixOlder => "prefix-older",
        })
    }
}

impl FromStr for Order {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "suffix-older" => Ok(Self::SuffixOlder),
            "prefix-older" => Ok(Self::PrefixOlder),
            _ => Err(format!("no order is called `{text}` (known: suffix-older, prefix-older)")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::accesses::Rule;
    use super::*;
    use crate::replay::trace::TraceRequest;

    fn distances(prompts: &[&[u64]], order: Order) -> Vec<Option<u32>> {
        let request = |ids: &&[u64]| TraceRequest { input_length: 64, hash_ids: ids.to_vec(), ..Default::default() };
        let requests: Vec<_> = prompts.iter().map(request).collect();
        let accesses = Accesses::new(&requests, 1, Rule::AnyBlock);
        let mut found = Vec::new();
        walk(&accesses, accesses.requests().iter(), order, |seen| found.push(seen.reuse.map(|reuse| reuse.distance)));
        found
    }

    #[test]
    fn the_distance_counts_different_blocks_and_a_suffix_is_farther_than_its_prefix() {
        let prompts: [&[u64]; 3] = [&[1, 2], &[3], &[1, 2, 3]];
        // 3 was used last, before it 1, before that 2; what stands behind 2 takes as much room as 2.
        assert_eq!(distances(&prompts, Order::SuffixOlder), [None, None, None, Some(2), Some(3), Some(3)]);
        // 2 was used after 1, but is no use without it.
        assert_eq!(distances(&prompts, Order::PrefixOlder), [None, None, None, Some(3), Some(3), Some(3)]);
    }

    #[test]
    fn behind_a_block_that_was_never_used_nothing_is_found() {
        assert_eq!(distances(&[&[1, 2], &[9, 2], &[1]], Order::SuffixOlder)[2..], [None, None, Some(3)]);
    }

    #[test]
    fn repeated_use_keeps_a_block_near() {
        let prompts: [&[u64]; 4] = [&[1], &[1], &[1], &[2]];
        assert_eq!(distances(&prompts, Order::SuffixOlder), [None, Some(1), Some(1), None]);
    }
}
