//! How many tokens an engine puts into one event of its streams: one, unless it gathers some, to send fewer.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use warmpath_core::units::Tokens;

/// One token, in the unit of what is learned.
const ONE: u32 = 1_000;

/// Tokens that an event counts as at most, whatever an engine says.
const TOKENS_MAX: u64 = 64;

/// Events after which older ones count half.
const EVENTS_MAX: u64 = 4_096;

/// What is known of one engine. Events alone do not tell their tokens; what an engine says at the end of an answer does.
#[derive(Debug)]
pub struct Packing {
    /// Thousandths of a token in an event.
    per_event: AtomicU32,
    /// Tokens and events of answers that told both.
    told: Mutex<(u64, u64)>,
}

impl Default for Packing {
    fn default() -> Self {
        Self { per_event: AtomicU32::new(ONE), told: Mutex::default() }
    }
}

impl Packing {
    /// An answer of so many events had so many tokens, its engine says. Events without any, as at its beginning and end, make
    /// no event worth less than one.
    pub fn learn(&self, events: u32, tokens: Tokens) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut all, mut of) = *told;
        of += u64::from(events);
        all += u64::from(tokens.0).min(u64::from(events) * TOKENS_MAX);
        let per_event = (all * u64::from(ONE)).checked_div(of).and_then(|it| u32::try_from(it).ok()).unwrap_or(ONE);
        self.per_event.store(per_event.max(ONE), Ordering::Relaxed);
        *told = if of > EVENTS_MAX { (all / 2, of / 2) } else { (all, of) };
    }

    /// Counts the tokens of an answer that begins now, of so many sequences.
    pub fn counter(&self, sequences: u32) -> Counter {
        let per_event = u64::from(self.per_event.load(Ordering::Relaxed));
        Counter { per_event, sequences: u64::from(sequences.max(1)), events: 0 }
    }
}

/// Tokens of one answer.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    per_event: u64,
    sequences: u64,
    events: u64,
}

impl Counter {
    /// So many events more came. Returns how many tokens more these are taken for: of all sequences together, and of each,
    /// since those of several come side by side.
    pub fn pass(&mut self, events: u32) -> (Tokens, Tokens) {
        let before = self.tokens();
        self.events += u64::from(events);
        let after = self.tokens();
        let more = |after: u64, before: u64| Tokens(u32::try_from(after - before).unwrap_or(u32::MAX));
        let of_each = |all: u64| all.div_ceil(self.sequences);
        (more(after, before), more(of_each(after), of_each(before)))
    }

    fn tokens(&self) -> u64 {
        self.events * self.per_event / u64::from(ONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of so many events is taken for.
    fn each(packing: &Packing, sequences: u32, events: u32) -> Vec<(u32, u32)> {
        let mut counter = packing.counter(sequences);
        (0..events).map(|_| counter.pass(1)).map(|(all, each)| (all.0, each.0)).collect()
    }

    #[test]
    fn an_event_is_a_token_until_an_engine_says_otherwise() {
        let packing = Packing::default();
        assert_eq!(each(&packing, 1, 3), [(1, 1); 3]);
        // 100 tokens, a beginning and an end.
        packing.learn(102, Tokens(100));
        assert_eq!(each(&packing, 1, 1_000), [(1, 1); 1_000]);
        // 13 of eight each, and two without any.
        (0..1_000).for_each(|_| packing.learn(15, Tokens(104)));
        assert_eq!(each(&packing, 1, 15).iter().map(|(all, _)| all).sum::<u32>(), 103);
        assert_eq!(packing.counter(1).pass(15), (Tokens(103), Tokens(103)));
    }

    #[test]
    fn tokens_of_several_sequences_come_side_by_side() {
        let packing = Packing::default();
        let told = each(&packing, 4, 9);
        assert_eq!(told.iter().map(|(_, each)| *each).collect::<Vec<_>>(), [1, 0, 0, 0, 1, 0, 0, 0, 1]);
        assert!(told.iter().all(|(all, _)| *all == 1));
    }

    #[test]
    fn what_no_engine_sends_is_not_believed_and_what_was_is_forgotten() {
        let packing = Packing::default();
        packing.learn(10, Tokens(u32::MAX));
        assert_eq!(packing.counter(1).pass(1).0, Tokens(64));
        packing.learn(0, Tokens(5));
        (0..100).for_each(|_| packing.learn(1_000, Tokens(1_000)));
        assert_eq!(packing.counter(1).pass(1_000).0, Tokens(1_000));
    }
}
