//! What is in flight where. A [`Reservation`] holds a request's share of a worker and gives it back when dropped.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::engine_load::{Beyond, EngineLoad};
use crate::overlay::Stay;
use crate::units::{BlockSize, Blocks, Tokens};

/// What the router has sent to one target and has not seen finished. Exact at once, unlike scraped metrics.
///
/// Counters are read without a lock while placements race: two placements may read one load. Each counter is exact by
/// itself; together they may be a request apart for a moment.
///
/// Every placement reads every account of its pool: all that it reads lies in one line of the processor's cache.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Account {
    requests: AtomicU32,
    sequences: AtomicU32,
    before_first_token: AtomicU32,
    prefill_tokens: AtomicU32,
    active_blocks: AtomicU32,
    peak_blocks: AtomicU32,
    engine: EngineLoad,
    /// Of `active_blocks`, those of requests whose size is a guess, or that an engine may not even take: what several of them
    /// share as often, so that the rest is proven whoever leaves first. Placements read nothing of what follows.
    unproven_blocks: AtomicU32,
    /// Blocks that were given back so far; it wraps.
    left_blocks: AtomicU32,
    /// The most blocks of one request that was seen to be computed.
    largest: AtomicU32,
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
    /// The most blocks seen so far of requests whose size is known and that have their first tokens: no guess says how large a
    /// cache is, nor does what waits for room in it, or is refused.
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

    /// Books a request, whose prompts are `stay`.
    pub fn reserve(self: &Arc<Self>, share: Share, stay: Stay) -> Reservation {
        let blocks = stay.new_blocks().0.saturating_add(share.tail.0);
        // Those that it shares, too: whoever has them may leave first. What is longer than all before may be refused.
        let own = share.blocks();
        let is_usual = share.size == Size::Known && own <= self.largest.load(Ordering::Relaxed);
        let unproven = if is_usual { 0 } else { own };
        // Before they are active, and given back after they were: what is unproven never seems to be proven.
        self.unproven_blocks.fetch_add(unproven, Ordering::AcqRel);
        let left = self.left_blocks.load(Ordering::Acquire);
        let ahead = self.active_blocks.fetch_add(blocks, Ordering::AcqRel).saturating_add(blocks);
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.sequences.fetch_add(share.sequences, Ordering::Relaxed);
        self.before_first_token.fetch_add(1, Ordering::Relaxed);
        self.prefill_tokens.fetch_add(share.new_tokens.0, Ordering::Relaxed);
        Reservation {
            account: Arc::clone(self),
            share,
            stay,
            private: share.tail.0,
            unproven,
            ahead,
            left,
            room: share.room,
            prefilling: true,
            queued: share.new_tokens,
            release: None,
        }
    }

    /// Takes note of what the engine says is running, waiting and in use, beside what was in flight when it was asked: the
    /// most of before and after.
    pub fn report(&self, now: Instant, said: Said, own: InFlight) {
        let sequences = said.running.saturating_add(said.waiting).saturating_sub(own.sequences);
        let blocks = said.blocks.map_or(0, |blocks| blocks.0.saturating_sub(own.active_blocks.0));
        // More may wait than is foreign: some of it is ours, in the engine's queue.
        let waiting = said.waiting.saturating_sub(own.before_first_token).min(sequences);
        self.engine.report(now, Beyond { sequences, waiting, blocks: Blocks(blocks) });
    }

    /// Whether the last reports showed that the engine has anything beyond what is in flight.
    #[inline]
    pub fn has_beyond(&self) -> bool {
        self.engine.has_any()
    }

    /// What the engine has beyond what is in flight, by its last reports. It fades with their age.
    pub fn beyond(&self, now: Instant, half_life: Duration) -> Beyond {
        self.engine.read(now, half_life)
    }

    /// A request was seen to be computed, which had `ahead` blocks before it and of its own when so many had `left`: an engine
    /// takes them in the order in which they come, so those of them that have not been given back since are in its cache; at
    /// least, for those who came later may have left as well.
    fn prove(&self, ahead: u32, left: u32) {
        let gone = self.left_blocks.load(Ordering::Acquire).wrapping_sub(left);
        let unproven = self.unproven_blocks.load(Ordering::Acquire);
        let proven = self.active_blocks.load(Ordering::Acquire).saturating_sub(unproven);
        self.peak_blocks.fetch_max(proven.min(ahead.saturating_sub(gone)), Ordering::Relaxed);
    }
}

/// What an engine says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Sequences that run.
    pub running: u32,
    /// Sequences that wait.
    pub waiting: u32,
    /// Blocks in use, where it tells.
    pub blocks: Option<Blocks>,
}

impl InFlight {
    /// The larger of both, figure by figure.
    pub fn most(self, other: Self) -> Self {
        Self {
            requests: self.requests.max(other.requests),
            sequences: self.sequences.max(other.sequences),
            before_first_token: self.before_first_token.max(other.before_first_token),
            prefill_tokens: self.prefill_tokens.max(other.prefill_tokens),
            active_blocks: self.active_blocks.max(other.active_blocks),
            peak_blocks: self.peak_blocks.max(other.peak_blocks),
        }
    }
}

/// How much is known of a request's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Its tokens were counted.
    Known,
    /// Nobody has read its prompt: it may be anything.
    Guessed,
}

/// What a request takes of its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Sequences that will be decoded.
    pub sequences: u32,
    /// Prompt tokens that the engine will have to compute.
    pub new_tokens: Tokens,
    /// Of how many prompts, which it computes one after the other.
    pub prompts: NonZeroU32,
    /// Blocks that the prompts fill, by whose hashes they are shared.
    pub full: Blocks,
    /// Blocks that the prompts fill only partly, or all their blocks where no hashes are known.
    pub tail: Blocks,
    /// Tokens that still fit into the last partly filled block.
    pub room: Tokens,
    /// Tokens in a block.
    pub block_size: BlockSize,
    /// Whether all of that is known. A guess is a load, and teaches nothing.
    pub size: Size,
}

impl Share {
    /// Blocks of the prompts, shared ones too.
    fn blocks(&self) -> u32 {
        self.full.0.saturating_add(self.tail.0)
    }
}

/// Is told of reservations. Called wherever one may be dropped: short.
pub trait Release: std::fmt::Debug + Send + Sync {
    /// A reservation was made.
    fn reserved(&self);

    /// It is no more, and the account says so already: somebody may have been waiting for that.
    fn released(&self);
}

/// A request's share of its target. Given back when dropped, however the request ends.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    share: Share,
    stay: Stay,
    private: u32,
    /// Of the account's unproven blocks, those that it has booked.
    unproven: u32,
    /// Blocks that were active when it was booked, and its own.
    ahead: u32,
    /// Blocks of the account that had been given back by then.
    left: u32,
    room: Tokens,
    prefilling: bool,
    /// Of its new tokens, those that are still to be computed by all that is known.
    queued: Tokens,
    release: Option<Arc<dyn Release>>,
}

impl Reservation {
    /// Tells `release` of it, now and when it was given back.
    pub fn telling(mut self, release: Option<Arc<dyn Release>>) -> Self {
        self.release = release.inspect(|release| release.reserved());
        self
    }

    /// The first token was seen: the prefill part is given back, and the prompts soon count as cached by events alone. Of
    /// several prompts it is that of one: of the others nothing tells when they were computed, before the end. Later calls do
    /// nothing.
    pub fn first_token(&mut self, now: Instant) {
        if self.end_prefill() {
            let further = self.share.new_tokens.0 - self.share.new_tokens.0.div_ceil(self.share.prompts.get());
            self.compute_all_but(Tokens(further));
            self.stay.first_token(now);
            if self.share.size == Size::Known {
                self.account.largest.fetch_max(self.share.blocks(), Ordering::Relaxed);
                self.account.unproven_blocks.fetch_sub(std::mem::take(&mut self.unproven), Ordering::AcqRel);
                self.account.prove(self.ahead, self.left);
            }
        }
    }

    fn compute_all_but(&mut self, left: Tokens) {
        let computed = std::mem::replace(&mut self.queued, left).saturating_sub(left);
        self.account.prefill_tokens.fetch_sub(computed.0, Ordering::Relaxed);
    }

    fn end_prefill(&mut self) -> bool {
        let prefilling = std::mem::take(&mut self.prefilling);
        if prefilling {
            self.account.before_first_token.fetch_sub(1, Ordering::Relaxed);
        }
        prefilling
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
        self.ahead = self.ahead.saturating_add(blocks.0);
        if self.share.size == Size::Guessed {
            self.unproven = self.unproven.saturating_add(blocks.0);
            self.account.unproven_blocks.fetch_add(blocks.0, Ordering::AcqRel);
        }
        self.account.active_blocks.fetch_add(blocks.0, Ordering::AcqRel);
        if self.share.size == Size::Known && !self.prefilling {
            self.account.prove(self.ahead, self.left);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.end_prefill();
        self.compute_all_but(Tokens(0));
        let freed = self.stay.leave().0.saturating_add(self.private);
        // Before they are active no more: of what was booked before, nothing that has left is taken to be there. Who is booked
        // between the two takes one request too many to be.
        self.account.left_blocks.fetch_add(freed, Ordering::AcqRel);
        self.account.active_blocks.fetch_sub(freed, Ordering::AcqRel);
        self.account.unproven_blocks.fetch_sub(self.unproven, Ordering::AcqRel);
        self.account.sequences.fetch_sub(self.share.sequences, Ordering::Relaxed);
        self.account.requests.fetch_sub(1, Ordering::Relaxed);
        if let Some(release) = self.release.take() {
            release.released();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{SequenceHash, Slot};
    use crate::overlay::Overlay;

    fn world() -> (Arc<Account>, Arc<Overlay>) {
        (Arc::default(), Arc::new(Overlay::new(std::time::Duration::ZERO)))
    }

    fn share(new_tokens: u32) -> Share {
        Share {
            sequences: 1,
            new_tokens: Tokens(new_tokens),
            prompts: NonZeroU32::MIN,
            full: Blocks(0),
            tail: Blocks(1),
            room: Tokens(2),
            block_size: BlockSize::new(4).unwrap(),
            size: Size::Known,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn now() -> Instant {
        Instant::now()
    }

    fn reserve(account: &Arc<Account>, overlay: &Arc<Overlay>, new_tokens: u32, names: &[u64]) -> Reservation {
        let hashes: Vec<SequenceHash> = names.iter().copied().map(SequenceHash).collect();
        let stay = overlay.enter(now(), Slot(0), std::iter::once(hashes.as_slice()));
        let full = Blocks(u32::try_from(names.len()).unwrap());
        account.reserve(Share { full, ..share(new_tokens) }, stay)
    }

    #[test]
    fn a_shared_block_counts_once_and_goes_with_its_last_holder() {
        let (account, overlay) = world();
        let first = reserve(&account, &overlay, 10, &[1, 2]);
        let second = reserve(&account, &overlay, 4, &[1, 3]);
        let seen = account.read();
        assert_eq!((seen.requests, seen.sequences, seen.before_first_token), (2, 2, 2));
        assert_eq!((seen.prefill_tokens, seen.active_blocks), (Tokens(14), Blocks(5)));
        drop(first);
        assert_eq!(account.read().active_blocks, Blocks(3));
        drop(second);
        // Neither was seen to be taken.
        assert_eq!(account.read(), InFlight::default());
    }

    #[test]
    fn of_several_prompts_the_first_token_gives_back_what_is_of_one() {
        let (account, overlay) = world();
        let share = Share { prompts: NonZeroU32::new(120).unwrap(), sequences: 120, ..share(120_000) };
        let mut several = account.reserve(share, overlay.enter(now(), Slot(0), std::iter::empty()));
        several.first_token(now());
        several.first_token(now());
        let seen = account.read();
        assert_eq!((seen.before_first_token, seen.prefill_tokens), (0, Tokens(119_000)));
        drop(several);
        assert_eq!(account.read().prefill_tokens, Tokens(0));
    }

    #[test]
    fn the_prefill_part_goes_at_the_first_token_and_once_only() {
        let (account, overlay) = world();
        let mut reservation = reserve(&account, &overlay, 10, &[]);
        reservation.first_token(now());
        reservation.first_token(now());
        let seen = account.read();
        assert_eq!((seen.prefill_tokens, seen.before_first_token, seen.requests), (Tokens(0), 0, 1));
        drop(reservation);
        assert_eq!(account.read().requests, 0);
    }

    #[test]
    fn generated_tokens_fill_the_open_block_before_they_take_another() {
        let (account, overlay) = world();
        let mut reservation = reserve(&account, &overlay, 0, &[]);
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
    fn what_an_engine_says_counts_beyond_what_is_in_flight() {
        let (account, overlay) = world();
        let held = [1, 2].map(|name| reserve(&account, &overlay, 10, &[name]));
        let (own, at) = (account.read(), now());
        assert_eq!((own.sequences, own.before_first_token, own.active_blocks), (2, 2, Blocks(4)));
        let beyond = |running, waiting, blocks| {
            let said = Said { running, waiting, blocks };
            (0..2).for_each(|_| account.report(at, said, own));
            let Beyond { sequences, waiting, blocks } = account.beyond(at, Duration::from_secs(5));
            (sequences, waiting, blocks.0)
        };
        assert_eq!(beyond(2, 0, Some(Blocks(4))), (0, 0, 0));
        assert_eq!(beyond(0, 1, None), (0, 0, 0));
        assert_eq!(beyond(4, 5, Some(Blocks(10))), (7, 3, 6));
        assert_eq!(beyond(u32::MAX, u32::MAX, Some(Blocks(0))), (u32::MAX - 2, u32::MAX - 2, 0));
        drop(held);
        assert_eq!(account.read().most(own), own);
    }

    #[test]
    fn a_guess_is_a_load_but_says_nothing_of_how_large_a_cache_is() {
        let (account, overlay) = world();
        let guessed = Share { tail: Blocks(5_000), size: Size::Guessed, ..share(9) };
        let mut guess = account.reserve(guessed, overlay.enter(now(), Slot(0), std::iter::empty()));
        guess.generated(Tokens(400));
        let blocks = |account: &Account| (account.read().active_blocks.0, account.read().peak_blocks.0);
        assert_eq!(blocks(&account), (5_100, 0));
        guess.first_token(now());
        let mut known = reserve(&account, &overlay, 10, &[1, 2]);
        assert_eq!(blocks(&account), (5_103, 0));
        known.first_token(now());
        assert_eq!(blocks(&account), (5_103, 3));
        known.generated(Tokens(6));
        assert_eq!(blocks(&account), (5_104, 4));
        drop(guess);
        assert_eq!(blocks(&account), (4, 4));
        drop(known);
        assert_eq!(blocks(&account), (0, 4));
        // Refused, or it waited until its client left.
        drop(reserve(&account, &overlay, 10, &[1, 2, 3, 4]));
        assert_eq!(blocks(&account), (0, 4));
        let mut waiting = [1, 2].map(|name| reserve(&account, &overlay, 10, &[name, 3]));
        assert_eq!(blocks(&account), (6, 4));
        waiting[0].first_token(now());
        assert_eq!(blocks(&account), (6, 4));
        waiting[1].first_token(now());
        assert_eq!(blocks(&account), (6, 6));
    }

    #[test]
    fn whoever_waits_proves_nothing_though_who_shared_its_blocks_has_left() {
        let (account, overlay) = world();
        let long: Vec<u64> = (1..100).collect();
        let [first, second] = [(), ()].map(|()| reserve(&account, &overlay, 400, &long));
        reserve(&account, &overlay, 4, &[900]).first_token(now());
        drop(first);
        reserve(&account, &overlay, 4, &[901]).first_token(now());
        assert_eq!((account.read().peak_blocks, account.read().active_blocks), (Blocks(2), Blocks(100)));
        drop(second);
    }

    /// Of one that begins, or ends in one piece, all that came before it and is still there was beside it.
    #[test]
    fn whoever_is_computed_proves_what_came_before_and_has_not_left() {
        let (account, overlay) = world();
        let peak = || account.read().peak_blocks.0;
        reserve(&account, &overlay, 4, &[100]).first_token(now());
        assert_eq!(peak(), 2);
        let mut all: Vec<_> = (1..=8).map(|name| reserve(&account, &overlay, 4, &[name])).collect();
        // Of sixteen blocks eight were there before the fourth, and all of these still are.
        all[3].first_token(now());
        assert_eq!(peak(), 8);
        drop(all.remove(0));
        all[6].first_token(now());
        assert_eq!(peak(), 14);
    }

    /// An engine that computes one after the other has room for one, however many wait.
    #[test]
    fn whoever_has_left_was_beside_nobody_who_begins_later() {
        let (account, overlay) = world();
        let waiting: Vec<_> = (1..=20).map(|name| reserve(&account, &overlay, 4, &[name])).collect();
        for mut each in waiting {
            each.first_token(now());
        }
        let waiting: Vec<_> = (1..=20).map(|name| reserve(&account, &overlay, 4, &[name])).collect();
        for mut each in waiting {
            each.first_token(now());
        }
        assert_eq!(account.read().peak_blocks, Blocks(2));
    }

    /// What all hold counts once, though some of them wait at any time.
    #[test]
    fn who_waits_takes_nothing_from_what_others_share_with_it() {
        let (account, overlay) = world();
        let shared = |name: u64| (1..=200).chain([name]).collect::<Vec<u64>>();
        let mut running = std::collections::VecDeque::new();
        for name in 1_000..1_100 {
            running.push_back(reserve(&account, &overlay, 4, &shared(name)));
            if running.len() > 12 {
                drop(running.pop_front());
                running[7].first_token(now());
            }
        }
        let peak = account.read().peak_blocks.0;
        assert!((210..=230).contains(&peak), "{peak}");
    }

    /// An engine may refuse what is longer than all that it has computed; shorter ones overtake it while it finds out.
    #[test]
    fn what_is_longer_than_all_before_proves_nothing_until_it_is_computed() {
        let (account, overlay) = world();
        let peak = || account.read().peak_blocks.0;
        reserve(&account, &overlay, 4, &[1, 2]).first_token(now());
        let long: Vec<u64> = (10..110).collect();
        let refused = reserve(&account, &overlay, 400, &long);
        reserve(&account, &overlay, 4, &[3, 4]).first_token(now());
        assert_eq!(peak(), 3);
        drop(refused);
        let mut computed = reserve(&account, &overlay, 400, &long);
        computed.first_token(now());
        assert_eq!(peak(), 101);
    }

    #[test]
    fn whoever_is_told_of_a_release_finds_it_done() {
        #[derive(Debug)]
        struct Seen(Arc<Account>, AtomicU32);
        impl Release for Seen {
            fn reserved(&self) {
                assert_eq!(self.1.fetch_add(1, Ordering::Relaxed), 0);
            }

            fn released(&self) {
                assert_eq!((self.0.read().requests, self.0.read().active_blocks), (0, Blocks(0)));
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let (account, overlay) = world();
        let seen = Arc::new(Seen(Arc::clone(&account), AtomicU32::new(0)));
        let release: Arc<dyn Release> = seen.clone();
        let reservation = reserve(&account, &overlay, 1, &[1, 2]).telling(Some(release));
        assert_eq!(seen.1.load(Ordering::Relaxed), 1);
        drop(reservation);
        assert_eq!(seen.1.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_request_that_repeats_a_block_returns_it_as_often() {
        let (account, overlay) = world();
        drop(reserve(&account, &overlay, 1, &[7, 7]));
        assert_eq!(account.read().active_blocks, Blocks(0));
    }
}
