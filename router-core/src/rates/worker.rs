//! One worker as its answers show it: what it has still to compute, how fast it is, how far apart its tokens are.

use std::collections::VecDeque;

use super::ONE_STEP_MS;
use super::line::Line;
use super::visits::Visits;
use super::work::{Decoding, STEP, Work};
use crate::ids::RequestKey;

/// The assumption that a worker is like the others weighs as much as this many ms of intervals.
const ASSUMED_MS: f64 = 2_000.0;

/// An interval counts as so many times longer or shorter than this worker's should be at most: a hang is no rate. Who
/// really is that slow soon counts as several times that.
const OFF_MAX: f64 = 5.0;

/// What a worker is slower or faster by, as a natural logarithm, up to which it is taken for chance or for load that the
/// line does not know: a fifth. Twice that is believed whole.
const CHANCE: f64 = 0.2;

/// How much slower at most a request that lets its first token wait makes a worker seem, at once. What it waits beyond that
/// is waited for by others, too.
const DISPROVED_MAX: f64 = 2.0;

/// Steps of which the mean gap between tokens is.
const STEPS: f64 = 16.0;

/// Requests of one step that are looked at.
const STEP_MATES_MAX: usize = 64;

/// So many tokens in the unit of [`Decoding::context`].
pub(super) fn context_of(tokens: f64) -> f64 {
    tokens * 1e-5
}

/// A request that is not past its prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) key: RequestKey,
    pub(super) work: Work,
    pub(super) sent: f64,
    /// What it will attend to, as in [`Decoding`].
    pub(super) context: f64,
    /// Nothing will be heard of its first token: its answer comes in one piece.
    pub(super) whole: bool,
}

/// How far a request had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Not past its prompt.
    Pending,
    /// Past it, though nothing was heard of it.
    Unheard,
    /// Its first token came.
    Decoding,
}

/// An interval of work that ended with a first token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Interval {
    pub(super) ms: f64,
    pub(super) work: Work,
}

/// What is known of a worker. Times are in ms since the first observation.
#[derive(Debug)]
pub(super) struct Worker {
    /// In the order in which they were sent, which is the order in which engines take them.
    pending: VecDeque<Pending>,
    queued: Work,
    /// Since when the first of them is computed.
    head: f64,
    decoding: u32,
    /// What those attend to, as in [`Decoding`].
    context: f64,
    /// Of those that decode, they of whom nothing was heard: they were overtaken, or come in one piece.
    unheard: u32,
    /// When the worker was heard of last, or sent something of which nothing is heard after that.
    silent: f64,
    /// How long its intervals were and how long they should have been, in ms, old ones counting less.
    taken: (f64, f64),
    /// How much slower than the fleet's line.
    slow: f64,
    /// The last interval; others that end in the same step still join it.
    last: Option<Interval>,
    /// Whether its answers come as streams, so that the time of a first token says something.
    streams: bool,
    /// Time that streams spent between tokens and the tokens, old ones counting less.
    gaps: (f64, f64),
    last_token: Option<f64>,
    pub(super) visits: Visits,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            pending: VecDeque::new(),
            queued: Work::default(),
            head: 0.0,
            decoding: 0,
            context: 0.0,
            unheard: 0,
            silent: 0.0,
            taken: (0.0, 0.0),
            slow: 1.0,
            last: None,
            streams: false,
            gaps: (0.0, 0.0),
            last_token: None,
            visits: Visits::default(),
        }
    }
}

impl Worker {
    /// Requests whose first tokens were not heard of.
    pub(super) fn without_first_token(&self) -> u32 {
        u32::try_from(self.pending.len()).unwrap_or(u32::MAX).saturating_add(self.unheard)
    }

    pub(super) fn placed(&mut self, now: f64, pending: Pending) {
        if self.pending.is_empty() {
            self.head = now + self.rest_of_step(now);
        }
        self.queued = self.queued.and(pending.work);
        self.pending.push_back(pending);
        self.last_token = None;
    }

    /// Answers that come in one piece are past their prompts when these should have been computed, step by step: `passed`
    /// is called for each. A wrong guess corrects itself, for what is left takes as much longer or less.
    pub(super) fn settle(&mut self, now: f64, line: &Line, mut passed: impl FnMut(RequestKey)) {
        while let Some((work, count)) = self.whole_step() {
            let done = self.head + self.slow * line.ms(&work.beside(self.decoding()));
            if now < done {
                return;
            }
            for pending in self.pending.drain(..count) {
                self.decoding = self.decoding.saturating_add(1);
                self.context += pending.context;
                self.silent = if self.unheard == 0 { self.silent.max(pending.sent) } else { self.silent };
                self.unheard = self.unheard.saturating_add(1);
                passed(pending.key);
            }
            self.dequeue(work);
            self.head = self.pending.front().map_or(done, |first| first.sent.max(done));
        }
    }

    /// The work of the step under way, and how many requests it is of, where the first of them come in one piece.
    fn whole_step(&self) -> Option<(Work, usize)> {
        let first = self.pending.front().filter(|first| first.whole)?;
        let (mut work, mut count) = (first.work, 1);
        let mates = self.pending.iter().skip(1).take(STEP_MATES_MAX);
        for mate in mates.take_while(|mate| mate.whole && mate.sent <= self.head + ONE_STEP_MS) {
            if work.tokens + mate.work.tokens > STEP {
                break;
            }
            (work, count) = (work.and(mate.work), count + 1);
        }
        Some((work, count))
    }

    /// A first token came. Those that were sent before have been computed, too, though nothing was heard of them:
    /// `overtaken` is called for each. Returns the interval; none for a request that was overtaken before.
    pub(super) fn first_token(
        &mut self,
        now: f64,
        key: RequestKey,
        mut overtaken: impl FnMut(RequestKey),
    ) -> Option<Interval> {
        self.silent = now;
        let Some(at) = self.pending.iter().position(|pending| pending.key == key) else {
            self.unheard = self.unheard.saturating_sub(1);
            return None;
        };
        let beside = self.decoding();
        let mut work = Work::default();
        for pending in self.pending.drain(..=at) {
            work = work.and(pending.work);
            self.decoding = self.decoding.saturating_add(1);
            self.context += pending.context;
            if pending.key != key {
                self.unheard = self.unheard.saturating_add(1);
                overtaken(pending.key);
            }
        }
        self.dequeue(work);
        let ms = (now - std::mem::replace(&mut self.head, now)).max(0.0);
        self.last_token = None;
        Some(Interval { ms, work: work.beside(beside) })
    }

    /// Learns from an interval, once it is sure that a token ended it: of this worker at once, for the fleet's `line` when
    /// no other can join it any more. Returns whether there was something to learn.
    pub(super) fn learn(&mut self, interval: Interval, line: &mut Line) -> bool {
        self.streams = true;
        if interval.ms < ONE_STEP_MS {
            if let Some(last) = &mut self.last {
                last.work = last.work.and(interval.work);
            }
            return false;
        }
        let Some(Interval { ms, work }) = self.last.replace(interval) else { return false };
        let expected = line.ms(&work);
        if expected <= 0.0 {
            return false;
        }
        let own = expected * self.slow;
        self.taken.0 += ms.clamp(own / OFF_MAX, own * OFF_MAX);
        self.taken.1 += expected;
        line.add(&work, ms);
        true
    }

    /// What was learned counts less, by `keep`. Called for every interval of the fleet, so that a worker that nobody goes to
    /// any more, since it seemed slow, becomes one like the others again.
    pub(super) fn age(&mut self, keep: f64) {
        self.taken = (self.taken.0 * keep, self.taken.1 * keep);
        let ratio = ((self.taken.0 + ASSUMED_MS) / (self.taken.1 + ASSUMED_MS)).ln();
        let beyond = (ratio.abs() - CHANCE).max(0.0);
        self.slow = (ratio.signum() * (2.0 * beyond).min(ratio.abs())).exp();
    }

    fn decoding(&self) -> Decoding {
        Decoding { streams: f64::from(self.decoding), context: self.context }
    }

    /// Tokens of an answer came. Gaps count while nothing but decoding is done: else they are the prompts' fault.
    pub(super) fn tokens(&mut self, now: f64, tokens: f64) {
        self.silent = now;
        self.context += context_of(tokens);
        if !self.pending.is_empty() || self.decoding == 0 {
            return;
        }
        if let Some(last) = self.last_token {
            let streams = f64::from(self.decoding);
            let keep = 1.0 - 1.0 / (STEPS * streams);
            let (time, count) = self.gaps;
            self.gaps = (time * keep + (now - last) * streams, count * keep + tokens);
        }
        self.last_token = Some(now);
    }

    /// A request ended that had come so far and attended to `context`. `told` says whether it came as a stream, where that is known.
    pub(super) fn ended(&mut self, now: f64, key: RequestKey, (stage, context): (Stage, f64), told: Option<bool>) {
        self.streams = told.unwrap_or(self.streams);
        if stage != Stage::Pending {
            self.decoding = self.decoding.saturating_sub(1);
            // What rounding left goes with the last.
            self.context = if self.decoding == 0 { 0.0 } else { (self.context - context).max(0.0) };
            self.unheard = self.unheard.saturating_sub(u32::from(stage == Stage::Unheard));
        } else if let Some(at) = self.pending.iter().position(|pending| pending.key == key) {
            if let Some(pending) = self.pending.remove(at) {
                self.dequeue(pending.work);
            }
            if at == 0 {
                self.head = now;
            }
        }
    }

    /// So much work beside what it decodes.
    pub(super) fn beside(&self, work: Work) -> Work {
        work.beside(self.decoding())
    }

    /// ms until it comes to a new request, and how much slower than the fleet's line it is. `foreign` is work of others
    /// that waits in its queue; `whole` is how long answers take that do not come as streams.
    #[inline]
    pub(super) fn wait(&self, now: f64, line: &Line, foreign: &Work, whole: f64) -> (f64, f64) {
        let Some(first) = self.pending.front() else {
            return (self.slow * line.ms(foreign) + self.rest_of_step(now), self.slow);
        };
        let queued = if foreign.is_none() { self.queued } else { self.queued.and(*foreign) };
        let elapsed = (now - self.head).max(0.0);
        let beside = self.decoding();
        let expected = self.slow * line.ms(&first.work.beside(beside));
        // Of an answer that is no stream nothing is heard before it is whole.
        let heard = if self.streams { expected } else { expected.max(whole) };
        if heard <= 0.0 || !(self.streams || whole > 0.0) {
            return ((self.slow * line.ms(&queued.beside(beside)) - elapsed).max(0.0), self.slow);
        }
        // What takes longer than it should is slower than it seemed, and what has taken long already will take as long again:
        // an estimate that was disproved must not make the queue look empty.
        let slow = self.slow * (elapsed / heard).clamp(1.0, DISPROVED_MAX);
        let silent = (elapsed - DISPROVED_MAX * heard).max(0.0);
        ((slow * line.ms(&queued.beside(beside)) - elapsed).max(0.0) + silent, slow)
    }

    /// ms for which it has been silent beyond what can be, where answers in one piece took as long as `longest`: it may hang,
    /// and then will for as long again.
    pub(super) fn mute(&self, now: f64, longest: f64) -> f64 {
        let may_hang = self.unheard > 0 && longest > 0.0;
        if may_hang { (now - self.silent - DISPROVED_MAX * longest).max(0.0) } else { 0.0 }
    }

    /// ms by which `work`, sent now, delays the first tokens of others: those that come from the step in which it begins. It
    /// cannot delay a step under way.
    #[inline]
    pub(super) fn in_step(&self, now: f64, work: &Work, line: &Line) -> f64 {
        if work.is_none() || self.pending.is_empty() {
            return 0.0;
        }
        let (tokens, done) = self.under_way(now);
        // What is queued fills one step after the other; the last of them is the one.
        let ahead = (self.queued.tokens - tokens).max(0.0);
        // A remainder of real numbers is slow, and there is seldom more than a step.
        let filled = if ahead < STEP { ahead } else { ahead % STEP };
        let mut taken = 0.0;
        let queued = self.pending.iter().skip(done).rev().take(STEP_MATES_MAX);
        let mates = queued.take_while(|pending| {
            let joins = taken <= filled;
            taken += pending.work.tokens;
            joins
        });
        let mates = f64::from(u32::try_from(mates.count()).unwrap_or(u32::MAX));
        mates * line.more_ms(work) * ((STEP - filled) / work.tokens).min(1.0)
    }

    /// Thousands of tokens in the step under way, and how many requests end in it, of those that had been sent when it
    /// began.
    fn under_way(&self, now: f64) -> (f64, usize) {
        let (mut tokens, mut requests) = (0.0, 0);
        if now - self.head < ONE_STEP_MS {
            return (tokens, requests);
        }
        for pending in
            self.pending.iter().take_while(|pending| pending.sent <= self.head + ONE_STEP_MS).take(STEP_MATES_MAX)
        {
            tokens += pending.work.tokens;
            if tokens > STEP {
                return (STEP, requests);
            }
            requests += 1;
        }
        (tokens, requests)
    }

    /// A new request joins the next step.
    fn rest_of_step(&self, now: f64) -> f64 {
        let (time, count) = self.gaps;
        if self.decoding == 0 || count <= 0.0 {
            return 0.0;
        }
        let gap = time / count;
        match self.last_token {
            Some(last) if now - last < gap => gap - (now - last),
            _ => gap / 2.0,
        }
    }

    fn dequeue(&mut self, work: Work) {
        self.queued = if self.pending.is_empty() { Work::default() } else { self.queued.without(work) };
    }
}
