//! One worker as its answers show it: what it has still to compute, how fast it is, how far apart its tokens are.

use std::collections::VecDeque;

use super::ONE_STEP_MS;
use super::line::Line;
use super::progress::{Progress, STEP_MATES_MAX};
use super::row::Row;
use super::stays::Guests;
use super::visits::Visits;
use super::work::{STEP, Work};
use crate::ids::RequestKey;

/// The assumption that a worker is like the others weighs as much as this many ms of intervals.
const ASSUMED_MS: f64 = 2_000.0;

/// An interval counts as so many times longer or shorter than this worker's should be at most: a hang is no rate. Who
/// really is that slow soon counts as several times that.
const OFF_MAX: f64 = 5.0;

/// What a worker is slower or faster by, as a natural logarithm, up to which it is taken for chance or for load that the
/// line does not know: a fifth. Twice that is believed whole.
const CHANCE: f64 = 0.2;

/// Steps of which the mean gap between tokens is.
const STEPS: f64 = 16.0;

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
    /// What it will attend to, as in [`Decoding`](super::work::Decoding).
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
    pub(super) pending: VecDeque<Pending>,
    /// Those of them of which a first prompt was computed, and the others are still to be: nothing more is heard of these.
    begun: Vec<RequestKey>,
    /// Whether prompts of such requests have been passed since the last first token, by a guess: then the next ends no
    /// interval.
    is_blurred: bool,
    pub(super) progress: Progress,
    /// How long its intervals were and how long they should have been, in ms, old ones counting less.
    taken: (f64, f64),
    /// How much slower than the fleet's line.
    pub(super) slow: f64,
    /// The last interval; others that end in the same step still join it.
    last: Option<Interval>,
    /// Whether its answers come as streams, so that the time of a first token says something.
    pub(super) streams: bool,
    /// Time that streams spent between tokens and the tokens, old ones counting less.
    pub(super) gaps: (f64, f64),
    pub(super) last_token: Option<f64>,
    pub(super) visits: Visits,
    pub(super) guests: Guests,
    /// Of all this, what every request asks.
    pub(super) row: Row,
}

impl Default for Worker {
    fn default() -> Self {
        let mut nobody = Self {
            pending: VecDeque::new(),
            begun: Vec::new(),
            is_blurred: false,
            progress: Progress::default(),
            taken: (0.0, 0.0),
            slow: 1.0,
            last: None,
            streams: false,
            gaps: (0.0, 0.0),
            last_token: None,
            visits: Visits::default(),
            guests: Guests::default(),
            row: Row::default(),
        };
        nobody.note();
        nobody
    }
}

impl Worker {
    fn note(&mut self) {
        self.row = Row::of(self, &self.progress);
    }

    /// Whether nothing has changed that was not noted.
    pub(super) fn is_row_right(&self) -> bool {
        self.row == Row::of(self, &self.progress)
    }

    /// What every request asks of it, when it must have come as far as it must by now.
    pub(super) fn row_by(&self, now: f64, line: &Line) -> Row {
        if self.is_noted() { self.row } else { Row::of(self, &self.progress_by(now, line)) }
    }

    /// It is there from now on.
    pub(super) fn begin(&mut self, now: f64) {
        self.visits.begin(now);
        self.note();
    }

    /// Somebody came who does not go on with a session, and was saved so many ms.
    pub(super) fn visited(&mut self, now: f64, saved: f64) {
        self.visits.add(now, saved);
        self.note();
    }

    pub(super) fn placed(&mut self, now: f64, pending: Pending) {
        if self.pending.is_empty() {
            self.progress.head = now + self.row.rest_of_step(now);
        }
        self.progress.queued = self.progress.queued.and(pending.work);
        self.guests.come(pending.sent);
        self.pending.push_back(pending);
        self.progress.note(&self.pending);
        self.last_token = None;
        self.note();
    }

    /// Those that must be past their prompts by now are: `passed` is called for each.
    pub(super) fn settle(&mut self, now: f64, line: &Line, mut passed: impl FnMut(RequestKey)) {
        if self.is_noted() {
            return;
        }
        self.progress = self.progress_by(now, line);
        let settled = std::mem::take(&mut self.progress.passed);
        for pending in self.pending.drain(..settled) {
            self.is_blurred |= pending.work.further > 0.0 || self.begun.contains(&pending.key);
            passed(pending.key);
        }
        self.note();
    }

    /// Whether what was noted is all that can be said of how far it has come.
    pub(super) fn is_noted(&self) -> bool {
        self.pending.front().is_none_or(|first| !first.whole)
    }

    /// How far it must have come by now. Answers that come in one piece are past their prompts when these should have been
    /// computed, step by step. A wrong guess corrects itself, for what is left takes as much longer or less.
    #[inline(never)] // Fleets that stream never ask.
    pub(super) fn progress_by(&self, now: f64, line: &Line) -> Progress {
        let mut at = self.progress;
        while let Some((work, count)) = self.whole_step(&at) {
            let ms = line.ms_beside(&line.amount(&work), line.decode_ms(at.decoding()));
            let done = at.head + self.slow * ms;
            if now < done {
                break;
            }
            let passed = self.pending.range(at.passed..at.passed + count);
            for pending in passed.filter(|pending| !self.begun.contains(&pending.key)) {
                at.silent = if at.unheard == 0 { at.silent.max(pending.sent) } else { at.silent };
                at.unheard = at.unheard.saturating_add(1);
                at.begin_decoding(pending);
            }
            at.passed += count;
            let next = self.pending.get(at.passed);
            at.dequeue(work, next.is_none());
            at.head = next.map_or(done, |first| first.sent.max(done));
        }
        if at.passed > 0 {
            at.note(&self.pending);
        }
        at
    }

    /// The work of the step under way, and how many requests it is of, where the first of them come in one piece.
    fn whole_step(&self, at: &Progress) -> Option<(Work, usize)> {
        let mut pending = self.pending.range(at.passed..);
        let first = pending.next().filter(|first| first.whole)?;
        let (mut work, mut count) = (first.work, 1);
        let mates = pending.take(STEP_MATES_MAX);
        for mate in mates.take_while(|mate| mate.whole && mate.sent <= at.head + ONE_STEP_MS) {
            if work.tokens + mate.work.tokens > STEP {
                break;
            }
            (work, count) = (work.and(mate.work), count + 1);
        }
        Some((work, count))
    }

    /// A first token came. Those that were sent before have been computed, too, though nothing was heard of them:
    /// `overtaken` is called for each. Returns the interval; none for a request that was overtaken before, and none where some
    /// of what was computed is of several prompts: what of these had been, nobody knows. The others of its own are still to be.
    pub(super) fn first_token(
        &mut self,
        now: f64,
        key: RequestKey,
        mut overtaken: impl FnMut(RequestKey),
    ) -> Option<Interval> {
        let Self { progress, pending, begun, .. } = self;
        progress.silent = now;
        let Some(at) = pending.iter().position(|pending| pending.key == key) else {
            progress.unheard = progress.unheard.saturating_sub(1);
            self.note();
            return None;
        };
        let (beside, mut is_blurred) = (progress.decoding(), std::mem::take(&mut self.is_blurred));
        let rest = Some(pending[at]).filter(|pending| pending.work.further > 0.0 && !pending.whole);
        let mut work = Work::default();
        for pending in pending.drain(..=at) {
            work = work.and(pending.work);
            if begun.contains(&pending.key) {
                is_blurred = true;
                continue;
            }
            progress.begin_decoding(&pending);
            if pending.key != key {
                progress.unheard = progress.unheard.saturating_add(1);
                overtaken(pending.key);
            }
        }
        progress.dequeue(work, pending.is_empty());
        is_blurred |= work.further > 0.0;
        if let Some(rest) = rest.map(|first| Pending { work: first.work.behind_first(), whole: true, ..first }) {
            progress.queued = progress.queued.and(rest.work);
            pending.push_front(rest);
            begun.push(key);
        }
        let ms = (now - std::mem::replace(&mut progress.head, now)).max(0.0);
        progress.note(pending);
        self.last_token = None;
        self.note();
        (!is_blurred).then(|| Interval { ms, work: work.beside(beside) })
    }

    /// Learns from an interval, once it is sure that a token ended it: of this worker at once, for the fleet's `line` when
    /// no other can join it any more. Returns whether there was something to learn.
    pub(super) fn learn(&mut self, interval: Interval, line: &mut Line) -> bool {
        self.streams = true;
        self.note();
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

    /// An answer in one piece took so many times what the fleet's do. It counts as an interval of its prompt, whose time it
    /// does not tell apart from that of its tokens.
    pub(super) fn answered(&mut self, times: f64, prompt_ms: f64) {
        let slow = self.slow;
        self.taken.0 += prompt_ms * times.clamp(slow / OFF_MAX, slow * OFF_MAX);
        self.taken.1 += prompt_ms;
    }

    /// What was learned counts less, by `keep`. Called for every interval of the fleet, so that a worker that nobody goes to
    /// any more, since it seemed slow, becomes one like the others again.
    pub(super) fn age(&mut self, keep: f64) {
        self.taken = (self.taken.0 * keep, self.taken.1 * keep);
        let ratio = ((self.taken.0 + ASSUMED_MS) / (self.taken.1 + ASSUMED_MS)).ln();
        let beyond = (ratio.abs() - CHANCE).max(0.0);
        self.slow = (ratio.signum() * (2.0 * beyond).min(ratio.abs())).exp();
        self.note();
    }

    /// Tokens of an answer came. Gaps count while nothing but decoding is done: else they are the prompts' fault.
    pub(super) fn tokens(&mut self, now: f64, tokens: f64) {
        self.progress.silent = now;
        self.progress.context += context_of(tokens);
        if !self.pending.is_empty() || self.progress.decoding == 0 {
            self.note();
            return;
        }
        if let Some(last) = self.last_token {
            let streams = f64::from(self.progress.decoding);
            let keep = 1.0 - 1.0 / (STEPS * streams);
            let (time, count) = self.gaps;
            self.gaps = (time * keep + (now - last) * streams, count * keep + tokens);
        }
        self.last_token = Some(now);
        self.note();
    }

    /// A request ended that was `sent` then, had come so far and attended to `context`. `told` says whether it came as a stream, where that is known.
    pub(super) fn ended(
        &mut self,
        now: f64,
        (key, sent): (RequestKey, f64),
        (stage, context): (Stage, f64),
        told: Option<bool>,
    ) {
        self.guests.go(sent);
        self.streams = told.unwrap_or(self.streams);
        let Self { progress, pending, begun, .. } = self;
        let is_begun = begun.iter().position(|other| *other == key).map(|at| begun.swap_remove(at)).is_some();
        if stage != Stage::Pending {
            progress.end_decoding(context, stage == Stage::Unheard);
        }
        // Who decodes waits for nothing but further prompts of its own.
        let waits = stage == Stage::Pending || is_begun;
        if let Some(at) = pending.iter().position(|pending| waits && pending.key == key) {
            if let Some(ended) = pending.remove(at) {
                progress.dequeue(ended.work, pending.is_empty());
            }
            if at == 0 {
                progress.head = now;
            }
            progress.note(pending);
        }
        self.note();
    }
}
