//! What speaks for and against a target's view. Without a clock and without a lock: times are arguments.

use std::time::{Duration, Instant};

use super::reason::Reason;
use super::verdicts::Verdicts;
use super::window::{FORGIVEN, HOPELESS};
use crate::shape::TenantId;
use crate::units::{BlockSize, Tokens};

/// One answered request with one prompt and one sequence, whose token ids are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// When it was sent.
    pub sent: Instant,
    /// Who sent it.
    pub sender: Option<TenantId>,
    /// Tokens of its prompt as the router counts them.
    pub prompt: Tokens,
    /// Cached tokens that were promised.
    pub promised: Tokens,
    /// Tokens of its prompt as the engine counts them, where it says so.
    pub counted: Option<Tokens>,
    /// Tokens that the engine found in its cache, where it says so.
    pub reported: Option<Tokens>,
    /// Tokens in a block.
    pub block_size: BlockSize,
}

/// What a target's events have come to since the router started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventsHeard {
    /// Events or blocks that said something of use; only its growth counts.
    pub total: u64,
    /// Blocks that were refused because they are of another size than the pool's.
    pub wrong_size: u64,
}

/// The engine's own totals of prompt tokens that were looked for in its cache, and found there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixCounters {
    /// Looked for.
    pub queries: u64,
    /// Found.
    pub hits: u64,
}

/// Sums over all compared requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests whose cached tokens were promised and reported.
    pub compared: u64,
    /// Tokens promised in them.
    pub promised: u64,
    /// Tokens reported in them.
    pub reported: u64,
}

/// Requests that must have made an event before silence means something.
const UNHEARD_MIN: u32 = 4;

/// Blocks of the wrong size before they mean something.
const WRONG_SIZE_MIN: u64 = 8;

/// Blocks after which older ones count half.
const SIZES_MAX: u64 = 1024;

/// Readings of the engine's totals over which they may come to agree with the requests that were answered.
const READINGS_MAX: u32 = 8;

/// See [`Trust`](super::Trust).
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// How long events may be silent; none where none are expected.
    silence: Option<Duration>,
    pub(super) totals: Totals,
    counts: Verdicts,
    difference: u32,
    too_much: Verdicts,
    too_little: Verdicts,
    last_too_much: (Tokens, Tokens),
    last_too_little: (Tokens, Tokens),
    heard: EventsHeard,
    heard_at: Option<Instant>,
    unheard: u32,
    unheard_since: Option<Instant>,
    right_size: u64,
    wrong_size: u64,
    tally: Tally,
}

/// Requests since the engine's totals were last compared.
#[derive(Debug, Default)]
struct Tally {
    mark: Option<PrefixCounters>,
    prompt: u64,
    promised: u64,
    /// Requests among them whose usage did not tell.
    untold: u32,
    readings: u32,
}

impl Evidence {
    pub(super) fn expecting_events(silence: Duration) -> Self {
        Self { silence: Some(silence), ..Self::default() }
    }

    pub(super) fn answered(&mut self, now: Instant, answered: &Answered) {
        let Answered { prompt, promised, counted, reported, block_size, sent, sender } = *answered;
        if let Some(counted) = counted {
            self.counts.push(now, sender, counted != prompt);
            if counted != prompt {
                self.difference = counted.0.abs_diff(prompt.0);
            }
        }
        match reported {
            Some(reported) => {
                self.totals.compared += 1;
                self.totals.promised += u64::from(promised.0);
                self.totals.reported += u64::from(reported.0);
                self.judge(now, sender, (promised, reported), block_size);
            }
            None => self.tally.untold = self.tally.untold.saturating_add(1),
        }
        self.tally.prompt += u64::from(counted.unwrap_or(prompt).0);
        self.tally.promised += u64::from(promised.0);
        let known = promised.max(reported.unwrap_or_default());
        let filled = prompt.reusable_blocks(block_size).tokens(block_size) > known;
        if filled && self.silence.is_some() && self.heard_at.is_none_or(|heard| heard < sent) {
            self.unheard = self.unheard.saturating_add(1);
            self.unheard_since.get_or_insert(now);
        }
    }

    /// Off by more than a block and more than a quarter: less is what an eviction or an event under way explains.
    fn judge(
        &mut self,
        now: Instant,
        sender: Option<TenantId>,
        (promised, reported): (Tokens, Tokens),
        block_size: BlockSize,
    ) {
        // Without events nothing is promised but what is in flight.
        if self.silence.is_none() || promised.max(reported) == Tokens(0) {
            return;
        }
        let slack = block_size.get().max(promised.max(reported).0 / 4);
        let too_much = promised.saturating_sub(reported).0 > slack;
        let too_little = reported.saturating_sub(promised).0 > slack;
        self.too_much.push(now, sender, too_much);
        self.too_little.push(now, sender, too_little);
        if too_much {
            self.last_too_much = (promised, reported);
        }
        if too_little {
            self.last_too_little = (promised, reported);
        }
    }

    pub(super) fn heard(&mut self, now: Instant, heard: EventsHeard) {
        let wrong = heard.wrong_size.saturating_sub(self.heard.wrong_size);
        let total = heard.total.saturating_sub(self.heard.total);
        self.heard = heard;
        if total > 0 || wrong > 0 {
            self.heard_at = Some(now);
            (self.unheard, self.unheard_since) = (0, None);
        }
        self.wrong_size = self.wrong_size.saturating_add(wrong);
        self.right_size = self.right_size.saturating_add(total);
        while self.wrong_size.saturating_add(self.right_size) > SIZES_MAX {
            (self.wrong_size, self.right_size) = (self.wrong_size / 2, self.right_size / 2);
        }
    }

    /// Compares only where every token that the engine looked for belongs to a request that was answered: then nobody
    /// else's requests are among them, and none is half done.
    pub(super) fn counters(&mut self, now: Instant, counters: PrefixCounters, block_size: BlockSize) {
        let since = self.tally.mark.and_then(|mark| {
            Some((counters.queries.checked_sub(mark.queries)?, counters.hits.checked_sub(mark.hits)?))
        });
        let Some((queries, hits)) = since else {
            self.tally = Tally { mark: Some(counters), ..Tally::default() };
            return;
        };
        let tally = &mut self.tally;
        if queries == 0 && tally.prompt == 0 {
            return;
        }
        if queries != tally.prompt {
            tally.readings += 1;
            if tally.readings >= READINGS_MAX {
                *tally = Tally { mark: Some(counters), ..Tally::default() };
            }
            return;
        }
        let (promised, untold) = (tally.promised, tally.untold);
        *tally = Tally { mark: Some(counters), ..Tally::default() };
        if untold > 0 {
            let tokens = |sum: u64| Tokens(u32::try_from(sum).unwrap_or(u32::MAX));
            self.judge(now, None, (tokens(promised), tokens(hits)), block_size);
        }
    }

    /// Another process answers from now on: what was seen was of the old one.
    pub(super) fn restarted(&mut self) {
        *self = Self {
            silence: self.silence,
            totals: self.totals,
            heard: self.heard,
            heard_at: self.heard_at,
            ..Self::default()
        };
    }

    /// How long the events were silent while requests that must have made some were answered.
    fn silent(&self, now: Instant) -> Option<Duration> {
        (self.unheard >= UNHEARD_MIN).then_some(now.saturating_duration_since(self.unheard_since?))
    }

    fn weight_of_silence(&self, now: Instant) -> f64 {
        let (Some(silent), Some(patience)) = (self.silent(now), self.silence) else { return 1.0 };
        // Whole until half of the patience is over, nothing when all of it is.
        let share = silent.as_secs_f64() / patience.as_secs_f64().max(f64::MIN_POSITIVE);
        (2.0 - 2.0 * share).clamp(0.0, 1.0)
    }

    fn weight_of_sizes(&self) -> f64 {
        if self.wrong_size < WRONG_SIZE_MIN {
            return 1.0;
        }
        let blocks = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
        blocks(self.right_size) / (blocks(self.right_size) + blocks(self.wrong_size))
    }

    /// What a promised block is worth: the least of what each question leaves of it.
    pub(super) fn weight(&self, now: Instant) -> f64 {
        let least = self.counts.weight().min(self.too_much.weight());
        least.min(self.weight_of_silence(now)).min(self.weight_of_sizes())
    }

    /// Whether what the router sent says more than the view. Not where engines find less than promised: what was sent
    /// promises at least as much.
    pub(super) fn falls_back(&self, now: Instant) -> bool {
        let blind = self.counts.bad() >= HOPELESS
            || self.too_little.bad() >= HOPELESS
            || self.weight_of_silence(now) <= 0.0
            || self.weight_of_sizes() < 0.5;
        blind && self.too_much.weight() > 0.0
    }

    pub(super) fn last_event(&self) -> Option<Instant> {
        self.heard_at
    }

    /// Every reason, the likeliest cause first.
    pub(super) fn reasons(
        &self,
        now: Instant,
        (carried, configured): (Option<u32>, BlockSize),
        reasons: &mut Vec<Reason>,
    ) {
        if self.weight_of_sizes() < 1.0 {
            let carried = carried.filter(|carried| *carried != configured.get());
            reasons.push(Reason::BlockSize { carried, configured });
        }
        if let Some(silent) = self.silent(now)
            && self.weight_of_silence(now) <= 0.0
        {
            reasons.push(Reason::NoEvents { silent });
        }
        if self.counts.bad() > FORGIVEN {
            reasons.push(Reason::TokenCounts { difference: self.difference });
        }
        if self.too_much.bad() > FORGIVEN {
            let (promised, reported) = self.last_too_much;
            reasons.push(Reason::PromisesTooMuch { promised, reported });
        }
        if self.too_little.bad() > FORGIVEN {
            let (promised, reported) = self.last_too_little;
            reasons.push(Reason::PromisesTooLittle { promised, reported });
        }
    }
}
