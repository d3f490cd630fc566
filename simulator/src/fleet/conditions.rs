//! What lies between clients and engines besides events and metrics, most of which is as if it were not there unless it is
//! asked for.

use warmpath_core::blocks::step;
use warmpath_core::count::real;
use warmpath_core::ids::{BlockHash, SequenceHash, TokenId};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Prepared, Scenario};
use crate::clock::Ms;
use crate::engine_config::MAX_BLOCKS;

/// Under which conditions a fleet serves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Requests in flight at most: what arrives beyond waits at its client until another has ended, and counts from then;
    /// none where requests are sent when they arrive, whatever became of others. A loop that is closed hides overload.
    pub clients: Option<usize>,
    /// For each prompt token, how long its KV travels before the request's first token can be generated, as where one engine
    /// computes prompts and another their answers. Later tokens are as much later.
    pub kv_transfer: Ms,
    /// The share of prompts that the router takes for other tokens than engines do, from some block on: its tokenizer or
    /// template is not theirs.
    pub misread: f64,
    /// Whether an engine's cache is as large as it is said to be, so that it may overflow; if not, it holds the whole trace.
    pub overflow: bool,
    /// Whether requests that warm the caches count in no figure.
    pub warm_up: bool,
    /// Routers before the fleet, to which requests go in turn. All of them hear the same events and read the same metrics; of
    /// what the others have sent they know only by these.
    pub routers: u16,
    /// Whether the router is told how many tokens a request generates, as clients do that ask for so many.
    pub output_known: bool,
    /// How long the first worker is gone after it has died in the middle of the trace, with all that it held and computed;
    /// none where nobody dies. The router learns of it as in life: by what breaks, by health checks, and by the numbers of
    /// the new process's events, or its metrics.
    pub restart: Option<Ms>,
}

impl Default for Conditions {
    fn default() -> Self {
        Self {
            clients: None,
            kv_transfer: Ms::ZERO,
            misread: 0.0,
            overflow: true,
            warm_up: true,
            routers: 1,
            output_known: true,
            restart: None,
        }
    }
}

impl Conditions {
    /// Requests in flight for each worker where the loop is closed to see what the open one is worth.
    pub const CLIENTS_PER_WORKER: usize = 16;

    /// The first full block of `blocks` from which on the router reads request `number` otherwise than engines; none where
    /// it reads all of it as they do.
    pub(super) fn misread_from(&self, seed: u64, number: usize, blocks: usize) -> Option<usize> {
        let chance = |salt: u64| xxh3_64_with_seed(&number.to_le_bytes(), seed ^ salt);
        let is_misread = real(chance(MISREAD) >> 11) / real(1 << 53) < self.misread;
        let at = chance(!MISREAD).checked_rem(u64::try_from(blocks).unwrap_or(u64::MAX))?;
        usize::try_from(at).ok().filter(|_| is_misread)
    }
}

/// Blocks that a fleet gets at most so that its caches do not overflow: 3 GB of bookkeeping.
const FLEET_BLOCKS: u32 = 1 << 26;

/// Keeps these chances apart from all others that hang on a request's number.
const MISREAD: u64 = 0x4d49_5352_4541_4421;

/// The names of a prompt's blocks as the router has them that reads another prompt from block `from` on.
pub(super) fn misread_blocks(sequences: &[SequenceHash], from: usize) -> Vec<SequenceHash> {
    let mut misread = sequences[..from].to_vec();
    let mut last = sequences[from];
    for sequence in &sequences[from..] {
        last = step(last, BlockHash(sequence.0 ^ MISREAD));
        misread.push(last);
    }
    misread
}

/// The same of its tokens.
pub(super) fn misread_tokens(tokens: &mut [TokenId]) {
    tokens.iter_mut().for_each(|token| *token ^= 1);
}

impl Scenario {
    /// The same with caches that hold the whole trace, where they are not to overflow. With `polynomial` timing tokens are
    /// generated faster then, for it goes by the share of the cache that is in use.
    #[must_use]
    pub fn fitted(&self, prepared: &Prepared) -> Self {
        let mut fitted = self.clone();
        if !self.conditions.overflow {
            let size = u64::from(prepared.block_size().get());
            let blocks = |number| {
                let (input, output) = prepared.lengths(number);
                (u64::from(input) + u64::from(output)).div_ceil(size)
            };
            // Partial blocks and copies of each request are its own.
            let all = (0..prepared.len()).map(blocks).fold(u64::from(self.engine.blocks), u64::saturating_add);
            let most = (FLEET_BLOCKS / u32::from(self.workers.max(1))).min(MAX_BLOCKS);
            fitted.engine.blocks = u32::try_from(all).unwrap_or(u32::MAX).min(most).max(self.engine.blocks);
        }
        fitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_prompts_are_misread_as_are_said_to_be_each_from_some_block_on() {
        let conditions = |misread| Conditions { misread, ..Conditions::default() };
        let from = |misread, number| conditions(misread).misread_from(7, number, 5);
        assert!((0..100).all(|number| from(0.0, number).is_none() && from(1.0, number).is_some_and(|at| at < 5)));
        let misread = (0..10_000).filter(|number| from(0.3, *number).is_some()).count();
        assert!((2_800..3_200).contains(&misread), "{misread}");
        assert_eq!(conditions(1.0).misread_from(7, 1, 0), None, "it has no full block");
        let places: std::collections::BTreeSet<_> = (0..100).filter_map(|number| from(1.0, number)).collect();
        assert_eq!(places.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_is_read_alike_keeps_its_names_and_what_is_not_has_others() {
        let names: Vec<_> = (1..=4).map(SequenceHash).collect();
        let misread = misread_blocks(&names, 2);
        assert_eq!((&misread[..2], misread.len()), (&names[..2], 4));
        assert!(misread[2..].iter().all(|name| !names.contains(name)));
        assert_eq!(misread, misread_blocks(&names, 2), "equal prompts that are misread alike are equal");
        assert_ne!(misread_blocks(&names, 1)[2], misread[2]);
    }
}
