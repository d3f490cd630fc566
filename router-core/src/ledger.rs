//! What is in flight where. A [`Reservation`] holds a request's share of a worker and gives it back when dropped.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::SequenceHash;
use crate::units::{BlockSize, Blocks, Tokens};

/// How many emptied hash lists an account keeps for the next reservations.
const SPARE_LISTS: usize = 16;

/// What the router has sent to one target and has not seen finished. Exact at once, unlike scraped metrics.
///
/// Counters are read without a lock while placements race: two placements may read one load. Each counter is exact by
/// itself; together they may be a request apart for a moment.
#[derive(Debug, Default)]
pub struct Account {
    requests: AtomicU32,
    sequences: AtomicU32,
    before_first_token: AtomicU32,
    prefill_tokens: AtomicU32,
    active_blocks: AtomicU32,
    peak_blocks: AtomicU32,
    shared: Mutex<Shared>,
}

/// Blocks by how many requests in flight hold them, and lists to reuse.
#[derive(Default)]
struct Shared {
    holders: HashMap<SequenceHash, u32, BuildHasherDefault<Mixed>>,
    spare: Vec<Vec<SequenceHash>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} blocks", self.holders.len())
    }
}

/// Sequence hashes are mixed already: hashing them again would only cost.
#[derive(Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// One reading of an [`Account`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Requests.
    pub requests: u32,
    /// Sequences: what occupies the engine's slots.
    pub sequences: u32,
    /// Requests without a first token yet.
    pub before_first_token: u32,
    /// Uncached prompt tokens of the requests without a first token yet.
    pub prefill_tokens: Tokens,
    /// Blocks of all requests, prompt and generated so far; a block shared by several counts once.
    pub active_blocks: Blocks,
    /// The most blocks seen so far.
    pub peak_blocks: Blocks,
}

impl Account {
    /// What is in flight now.
    pub fn read(&self) -> InFlight {
        InFlight {
            requests: self.requests.load(Ordering::Relaxed),
            sequences: self.sequences.load(Ordering::Relaxed),
            before_first_token: self.before_first_token.load(Ordering::Relaxed),
            prefill_tokens: Tokens(self.prefill_tokens.load(Ordering::Relaxed)),
            active_blocks: Blocks(self.active_blocks.load(Ordering::Relaxed)),
            peak_blocks: Blocks(self.peak_blocks.load(Ordering::Relaxed)),
        }
    }

    /// Books a request. O(blocks), and allocates nothing once warm.
    ///
    /// `hashes` are the full blocks of its prompts, `tail` the blocks that they fill partly: those are nobody else's.
    pub fn reserve(self: &Arc<Self>, share: Share, hashes: &[SequenceHash]) -> Reservation {
        let blocks = {
            let mut shared = self.shared();
            let mut list = shared.spare.pop().unwrap_or_default();
            list.extend_from_slice(hashes);
            let mut new = 0;
            for hash in hashes {
                let holders = shared.holders.entry(*hash).or_insert(0);
                new += u32::from(*holders == 0);
                *holders += 1;
            }
            self.grow(new + share.tail.0);
            list
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.sequences.fetch_add(share.sequences, Ordering::Relaxed);
        self.before_first_token.fetch_add(1, Ordering::Relaxed);
        self.prefill_tokens.fetch_add(share.new_tokens.0, Ordering::Relaxed);
        Reservation {
            account: Arc::clone(self),
            share,
            blocks,
            private: share.tail.0,
            room: share.room,
            prefilling: true,
        }
    }

    fn grow(&self, blocks: u32) {
        let now = self.active_blocks.fetch_add(blocks, Ordering::Relaxed).saturating_add(blocks);
        self.peak_blocks.fetch_max(now, Ordering::Relaxed);
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Shared> {
        // Nothing panics while the lock is held, so a poisoned lock still guards whole data.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request takes of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Sequences that will be decoded.
    pub sequences: u32,
    /// Prompt tokens that the engine will have to compute.
    pub new_tokens: Tokens,
    /// Blocks that the prompts fill only partly, or all their blocks where no hashes are known.
    pub tail: Blocks,
    /// Tokens that still fit into the last partly filled block.
    pub room: Tokens,
    /// Tokens in a block.
    pub block_size: BlockSize,
}

/// A request's share of its target. Given back when dropped, however the request ends.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    share: Share,
    blocks: Vec<SequenceHash>,
    private: u32,
    room: Tokens,
    prefilling: bool,
}

impl Reservation {
    /// The first token was seen: the prefill part is given back. Later calls do nothing.
    pub fn first_token(&mut self) {
        if std::mem::take(&mut self.prefilling) {
            self.account.prefill_tokens.fetch_sub(self.share.new_tokens.0, Ordering::Relaxed);
            self.account.before_first_token.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// `tokens` more were generated: they fill blocks of their own.
    pub fn generated(&mut self, tokens: Tokens) {
        if tokens <= self.room {
            self.room = self.room.saturating_sub(tokens);
            return;
        }
        let beyond = tokens.saturating_sub(self.room);
        let blocks = beyond.blocks_occupied(self.share.block_size);
        self.room = blocks.tokens(self.share.block_size).saturating_sub(beyond);
        self.private = self.private.saturating_add(blocks.0);
        self.account.grow(blocks.0);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.first_token();
        let mut blocks = std::mem::take(&mut self.blocks);
        let mut freed = self.private;
        {
            let mut shared = self.account.shared();
            for hash in &blocks {
                let Some(holders) = shared.holders.get_mut(hash) else { continue };
                *holders -= 1;
                if *holders == 0 {
                    shared.holders.remove(hash);
                    freed += 1;
                }
            }
            blocks.clear();
            if shared.spare.len() < SPARE_LISTS {
                shared.spare.push(blocks);
            }
        }
        self.account.active_blocks.fetch_sub(freed, Ordering::Relaxed);
        self.account.sequences.fetch_sub(self.share.sequences, Ordering::Relaxed);
        self.account.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(new_tokens: u32) -> Share {
        Share {
            sequences: 1,
            new_tokens: Tokens(new_tokens),
            tail: Blocks(1),
            room: Tokens(2),
            block_size: BlockSize::new(4).unwrap(),
        }
    }

    fn hashes(names: &[u64]) -> Vec<SequenceHash> {
        names.iter().copied().map(SequenceHash).collect()
    }

    #[test]
    fn a_shared_block_counts_once_and_goes_with_its_last_holder() {
        let account = Arc::new(Account::default());
        let first = account.reserve(share(10), &hashes(&[1, 2]));
        let second = account.reserve(share(4), &hashes(&[1, 3]));
        let seen = account.read();
        assert_eq!((seen.requests, seen.sequences, seen.before_first_token), (2, 2, 2));
        assert_eq!((seen.prefill_tokens, seen.active_blocks), (Tokens(14), Blocks(5)));
        drop(first);
        assert_eq!(account.read().active_blocks, Blocks(3));
        drop(second);
        assert_eq!(account.read(), InFlight { peak_blocks: Blocks(5), ..InFlight::default() });
    }

    #[test]
    fn the_prefill_part_goes_at_the_first_token_and_once_only() {
        let account = Arc::new(Account::default());
        let mut reservation = account.reserve(share(10), &[]);
        reservation.first_token();
        reservation.first_token();
        let seen = account.read();
        assert_eq!((seen.prefill_tokens, seen.before_first_token, seen.requests), (Tokens(0), 0, 1));
        drop(reservation);
        assert_eq!(account.read().requests, 0);
    }

    #[test]
    fn generated_tokens_fill_the_open_block_before_they_take_another() {
        let account = Arc::new(Account::default());
        let mut reservation = account.reserve(share(0), &[]);
        reservation.generated(Tokens(2));
        assert_eq!(account.read().active_blocks, Blocks(1));
        reservation.generated(Tokens(1));
        assert_eq!(account.read().active_blocks, Blocks(2));
        reservation.generated(Tokens(8));
        assert_eq!(account.read().active_blocks, Blocks(4));
        drop(reservation);
        assert_eq!(account.read().active_blocks, Blocks(0));
    }

    #[test]
    fn a_request_that_repeats_a_block_returns_it_as_often() {
        let account = Arc::new(Account::default());
        drop(account.reserve(share(1), &hashes(&[7, 7])));
        assert_eq!(account.read().active_blocks, Blocks(0));
    }
}
