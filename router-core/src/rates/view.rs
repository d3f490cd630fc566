//! What one worker looks like at one moment: how far it must have come, and what a new request would wait for there.

use super::ONE_STEP_MS;
use super::line::Line;
use super::work::{Decoding, STEP, Work};
use super::worker::{Pending, Worker};
use crate::real::{larger, smaller};

/// How much slower at most a request that lets its first token wait makes a worker seem, at once. What it waits beyond that
/// is waited for by others, too.
const DISPROVED_MAX: f64 = 2.0;

/// Requests of one step that are looked at.
pub(super) const STEP_MATES_MAX: usize = 64;

/// How far a worker has come with what it was sent. Times are in ms since the first observation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// Those that were sent and are taken to be past their prompts by now, the first of them.
    pub(super) passed: usize,
    /// What the others bring.
    pub(super) queued: Work,
    /// Since when the first of these is computed.
    pub(super) head: f64,
    pub(super) decoding: u32,
    /// What those attend to, as in [`Decoding`].
    pub(super) context: f64,
    /// Of those that decode, they of whom nothing was heard: they were overtaken, or come in one piece.
    pub(super) unheard: u32,
    /// When the worker was heard of last, or sent something of which nothing is heard after that.
    pub(super) silent: f64,
}

/// What one worker looks like at one moment. Looking changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    worker: &'a Worker,
    progress: &'a Progress,
}

impl Progress {
    pub(super) fn decoding(&self) -> Decoding {
        Decoding { streams: f64::from(self.decoding), context: self.context }
    }

    pub(super) fn begin_decoding(&mut self, pending: &Pending) {
        self.decoding = self.decoding.saturating_add(1);
        self.context += pending.context;
    }

    /// One that attended to `context` decodes no more.
    pub(super) fn end_decoding(&mut self, context: f64, is_unheard: bool) {
        self.decoding = self.decoding.saturating_sub(1);
        // What rounding left goes with the last.
        self.context = if self.decoding == 0 { 0.0 } else { (self.context - context).max(0.0) };
        self.unheard = self.unheard.saturating_sub(u32::from(is_unheard));
    }

    /// `work` waits no more, of all there is where it was the last.
    pub(super) fn dequeue(&mut self, work: Work, is_last: bool) {
        self.queued = if is_last { Work::default() } else { self.queued.without(work) };
    }
}

impl<'a> View<'a> {
    /// The worker when it must have come so far; none: as far as was noted.
    #[inline]
    pub(super) fn of(worker: &'a Worker, progress: Option<&'a Progress>) -> Self {
        Self { worker, progress: progress.unwrap_or(&worker.progress) }
    }

    /// Requests whose first tokens were not heard of.
    pub(super) fn without_first_token(&self) -> u32 {
        let waiting = self.worker.pending.len() - self.progress.passed;
        u32::try_from(waiting).unwrap_or(u32::MAX).saturating_add(self.progress.unheard)
    }

    /// Of those that it decodes, they of whom nothing was heard.
    pub(super) fn unheard(&self) -> u32 {
        self.progress.unheard
    }

    /// The streams that it decodes.
    #[inline]
    pub(super) fn decoding(&self) -> Decoding {
        self.progress.decoding()
    }

    /// ms until it comes to a new request, and how much slower than the fleet's line it is. In its queue wait so many `foreign`
    /// requests, each of which brings what is `usual`; `whole` is how long answers take that do not come as streams; `decode`
    /// is by how much its own make a step longer.
    #[inline(always)]
    pub(super) fn wait(
        &self,
        now: f64,
        line: &Line,
        (foreign, usual): (u32, Work),
        (whole, decode): (f64, f64),
    ) -> (f64, f64) {
        let slow = self.worker.slow;
        if self.worker.pending.len() == self.progress.passed {
            let ahead = if foreign == 0 { 0.0 } else { line.ms(&usual.times(f64::from(foreign))) };
            return (slow * ahead + self.rest_of_step(now), slow);
        }
        let queued_ms = match foreign {
            0 => line.ms_beside(&self.progress.queued, decode),
            _ => line.ms_beside(&self.progress.queued.and(usual.times(f64::from(foreign))), decode),
        };
        let first = &self.worker.pending[self.progress.passed];
        let elapsed = larger(now - self.progress.head, 0.0);
        let alone = slow * line.ms_beside(&first.work, decode);
        // Its token comes with the step, in which others are computed, too.
        let expected = if elapsed > alone { slow * line.ms_beside(&self.step(), decode) } else { alone };
        // Of an answer that is no stream nothing is heard before it is whole.
        let heard = if self.worker.streams { expected } else { larger(expected, whole) };
        if heard <= 0.0 || !(self.worker.streams || whole > 0.0) {
            return (larger(slow * queued_ms - elapsed, 0.0), slow);
        }
        // What takes longer than it should is slower than it seemed, and what has taken long already will take as long again:
        // an estimate that was disproved must not make the queue look empty.
        let slow = slow * smaller(larger(elapsed / heard, 1.0), DISPROVED_MAX);
        let silent = larger(elapsed - DISPROVED_MAX * heard, 0.0);
        (larger(slow * queued_ms - elapsed, 0.0) + silent, slow)
    }

    /// ms for which it has been silent beyond what can be, where answers in one piece took as long as `longest`: it may hang,
    /// and then will for as long again.
    pub(super) fn mute(&self, now: f64, longest: f64) -> f64 {
        let may_hang = self.progress.unheard > 0 && longest > 0.0;
        if may_hang { (now - self.progress.silent - DISPROVED_MAX * longest).max(0.0) } else { 0.0 }
    }

    /// ms by which work of so many thousands of `tokens`, sent now, delays the first tokens of others, where all of it takes
    /// `more` ms: those that come from the step in which it begins. It cannot delay a step under way.
    #[inline(always)]
    pub(super) fn in_step(&self, now: f64, tokens: f64, more: f64) -> f64 {
        let nobody = tokens <= 0.0 || self.worker.pending.len() == self.progress.passed;
        if nobody { 0.0 } else { self.beside_others(now, tokens, more) }
    }

    fn beside_others(&self, now: f64, tokens: f64, more: f64) -> f64 {
        let Progress { passed, queued, .. } = self.progress;
        let (under_way, done) = self.under_way(now);
        // What is queued fills one step after the other; the last of them is the one.
        let ahead = (queued.tokens - under_way).max(0.0);
        // A remainder of real numbers is slow, and there is seldom more than a step.
        let filled = if ahead < STEP { ahead } else { ahead % STEP };
        let mut taken = 0.0;
        let queued = self.worker.pending.range(passed + done..).rev().take(STEP_MATES_MAX);
        let mates = queued.take_while(|pending| {
            let joins = taken <= filled;
            taken += pending.work.tokens;
            joins
        });
        let mates = f64::from(u32::try_from(mates.count()).unwrap_or(u32::MAX));
        mates * more * smaller((STEP - filled) / tokens, 1.0)
    }

    /// Thousands of tokens in the step under way, and how many requests end in it, of those that had been sent when it
    /// began.
    fn under_way(&self, now: f64) -> (f64, usize) {
        let (mut tokens, mut requests) = (0.0, 0);
        let Progress { passed, head, .. } = *self.progress;
        if now - head < ONE_STEP_MS {
            return (tokens, requests);
        }
        let mates = self.worker.pending.range(passed..).take_while(|pending| pending.sent <= head + ONE_STEP_MS);
        for pending in mates.take(STEP_MATES_MAX) {
            tokens += pending.work.tokens;
            if tokens > STEP {
                return (STEP, requests);
            }
            requests += 1;
        }
        (tokens, requests)
    }

    /// What is computed in the step in which the first that is queued is: it, and those that were there when it began, as far
    /// as a step has room.
    #[inline(never)] // Asked only of a first that is late.
    fn step(&self) -> Work {
        let Progress { passed, head, .. } = *self.progress;
        let queued = self.worker.pending.range(passed..).take(STEP_MATES_MAX).enumerate();
        let mut step = Work::default();
        for (at, Pending { work, .. }) in queued.take_while(|(at, it)| *at == 0 || it.sent <= head + ONE_STEP_MS) {
            let room = larger(STEP - step.tokens, 0.0);
            if at > 0 && work.tokens > room {
                return step.and(work.times(room / work.tokens));
            }
            step = step.and(*work);
        }
        step
    }

    /// ms between two tokens of the streams that it decodes; 0 where there are none.
    pub(super) fn gap(&self) -> f64 {
        let (time, count) = self.worker.gaps;
        if self.progress.decoding > 0 && count > 0.0 { time / count } else { 0.0 }
    }

    /// A new request joins the next step.
    pub(super) fn rest_of_step(&self, now: f64) -> f64 {
        let gap = self.gap();
        match self.worker.last_token {
            Some(last) if now - last < gap => gap - (now - last),
            _ => gap / 2.0,
        }
    }
}
