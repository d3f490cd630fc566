//! How much of a prompt earlier ones began with, wherever they went: the bound on what any router and any cache can reuse.
//!
//! Of each prompt some prefixes are remembered, by their sequence hashes: after 1 to 16 blocks, then each a sixteenth longer
//! than the last, and the whole. So the answer is too small by a sixteenth at most, and a prompt of 100 000 tokens costs
//! some hundred entries.

use std::collections::HashSet;

use warmpath_core::ids::SequenceHash;
use warmpath_core::units::Blocks;

/// Prefixes of a generation. Of two generations, the older is forgotten when the newer is full; 5 MB at most.
const GENERATION: usize = 1 << 17;

/// The prefixes of the last prompts.
#[derive(Default)]
pub(super) struct Sharing {
    newer: HashSet<SequenceHash, foldhash::fast::RandomState>,
    older: HashSet<SequenceHash, foldhash::fast::RandomState>,
    /// Ends of the prefixes of one prompt, in blocks; kept for its memory.
    marks: Vec<usize>,
}

impl Sharing {
    /// How many blocks a prompt has in common with any one before it, and which; and remembers it. Two look-ups where `cached`,
    /// what the index holds of it, is as much, else O(log blocks); and an insertion for each prefix that is new.
    pub(super) fn add(&mut self, prompt: &[SequenceHash], cached: Blocks) -> (Blocks, Option<SequenceHash>) {
        let Self { newer, older, marks } = self;
        let cached = usize::try_from(cached.0).unwrap_or(usize::MAX);
        marks.clear();
        marks.extend(ends(prompt.len()));
        if newer.len() + marks.len() > GENERATION {
            std::mem::swap(newer, older);
            newer.clear();
        }
        let hash = |mark: usize| prompt[mark - 1];
        let is_known = |mark: &usize| newer.contains(&hash(*mark)) || older.contains(&hash(*mark));
        let (held, beyond) = marks.split_at(marks.partition_point(|mark| *mark <= cached));
        let known = match (held.split_last(), beyond.split_first()) {
            (Some((last, shorter)), _) if !is_known(last) => shorter.partition_point(is_known),
            (_, Some((next, longer))) if is_known(next) => held.len() + 1 + longer.partition_point(is_known),
            _ => held.len(),
        };
        let shared = known.checked_sub(1).map_or(0, |last| marks[last]);
        // What is remembered of an older generation comes into the newer whole, so that of any prefix all shorter ones are
        // there as long as it is.
        let is_old = shared > 0 && !newer.contains(&hash(shared));
        newer.extend(marks[if is_old { 0 } else { known }..].iter().map(|mark| hash(*mark)));
        (Blocks(u32::try_from(shared).unwrap_or(u32::MAX)), shared.checked_sub(1).map(|last| prompt[last]))
    }
}

/// Where the prefixes of a prompt of so many blocks end.
fn ends(blocks: usize) -> impl Iterator<Item = usize> {
    let marks = std::iter::successors(Some(1_usize), |mark| Some(mark + (mark / 16).max(1)));
    marks.take_while(move |mark| *mark < blocks).chain((blocks > 0).then_some(blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of blocks 0 to `len`, that differs from others from block `fork` on.
    fn prompt(len: u64, fork: u64, branch: u64) -> Vec<SequenceHash> {
        (0..len).map(|block| SequenceHash(block + if block >= fork { branch * 1_000_000 } else { 0 })).collect()
    }

    #[test]
    fn a_prompt_shares_what_any_one_before_it_began_with() {
        let mut sharing = Sharing::default();
        let mut add = |prompt: &[SequenceHash]| sharing.add(prompt, Blocks(0)).0;
        assert_eq!(add(&[]), Blocks(0));
        assert_eq!(add(&prompt(10, 10, 0)), Blocks(0));
        assert_eq!(add(&prompt(10, 10, 0)), Blocks(10));
        assert_eq!(add(&prompt(12, 7, 1)), Blocks(7));
        assert_eq!(add(&prompt(5, 5, 0)), Blocks(5));
        assert_eq!(add(&prompt(12, 0, 2)), Blocks(0));
        // Long ones are told within a sixteenth; whole ones and their continuations too.
        assert_eq!(add(&prompt(3001, 0, 3)), Blocks(0));
        assert_eq!(add(&prompt(3001, 0, 3)), Blocks(3001));
        let Blocks(told) = add(&prompt(5000, 0, 3));
        assert!((3001 - 3001 / 16..=3001).contains(&told), "{told}");
    }

    #[test]
    fn what_the_index_holds_changes_nothing_but_where_the_search_begins() {
        for len in [0, 1, 7, 40, 300] {
            for cached in [0, 1, 6, 7, 8, 39, 40, 41, 299, 300, u32::MAX] {
                let mut sharing = Sharing::default();
                sharing.add(&prompt(300, 300, 0), Blocks(0));
                let told = [0, 7, 300].map(|fork| sharing.add(&prompt(len, fork, fork + 1), Blocks(cached)).0.0);
                let len = u32::try_from(len).unwrap();
                assert_eq!(told, [0, len.min(7), len], "{len} blocks, {cached} cached");
            }
        }
    }

    #[test]
    fn memory_is_bounded_and_what_is_in_use_stays() {
        let mut sharing = Sharing::default();
        sharing.add(&prompt(40, 40, 0), Blocks(0));
        for branch in 1..20_000 {
            // All begin with the same 20 blocks.
            let (Blocks(told), which) = sharing.add(&prompt(40, 20, branch), Blocks(20));
            assert_eq!((told, which), (20, Some(SequenceHash(19))), "{branch}");
            assert!(sharing.newer.len() <= GENERATION && sharing.older.len() <= GENERATION);
        }
        assert!(!sharing.older.is_empty());
        assert_eq!(sharing.add(&prompt(40, 40, 0), Blocks(0)).0, Blocks(20), "nobody has sent the rest for long");
    }

    #[test]
    fn prefixes_end_ever_farther_apart() {
        assert_eq!(ends(3).collect::<Vec<_>>(), [1, 2, 3]);
        let all: Vec<usize> = ends(6_250).collect();
        assert_eq!((&all[..17], all.last()), (&(1..=17).collect::<Vec<_>>()[..], Some(&6_250)));
        assert!(all.windows(2).all(|pair| pair[0] < pair[1] && pair[1] <= pair[0] + pair[0] / 16 + 1));
        assert!(all.len() < 128, "{}", all.len());
        assert_eq!(ends(0).count(), 0);
    }
}
