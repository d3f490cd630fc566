//! What one worker looks like at one moment: what a new request would wait for there, and whom it would make wait.

use super::line::Line;
use super::progress::Progress;
use super::work::{Decoding, Work};
use super::worker::Worker;
use crate::real::{larger, smaller};

/// How much slower at most a request that lets its first token wait makes a worker seem, at once. What it waits beyond that
/// is waited for by others, too.
const DISPROVED_MAX: f64 = 2.0;

/// What one worker looks like at one moment. Looking changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    worker: &'a Worker,
    progress: &'a Progress,
}

impl<'a> View<'a> {
    /// The worker when it must have come so far.
    #[inline]
    pub(super) fn of(worker: &'a Worker, progress: &'a Progress) -> Self {
        Self { worker, progress }
    }

    /// How many of so many requests that wait for their first tokens are foreign: more than are known of here.
    #[inline]
    pub(super) fn foreign(&self, waiting: u32) -> u32 {
        waiting.saturating_sub(self.progress.waiting).saturating_sub(self.progress.unheard)
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
        (foreign, usual): (u32, &Work),
        (whole, decode): (f64, f64),
    ) -> (f64, f64) {
        let slow = self.worker.slow;
        if self.progress.waiting == 0 {
            let ahead = if foreign == 0 { 0.0 } else { line.ms(&usual.times(f64::from(foreign))) };
            return (slow * ahead + self.rest_of_step(now), slow);
        }
        let queued_ms = match foreign {
            0 => line.ms_beside(&self.progress.queued, decode),
            _ => line.ms_beside(&self.progress.queued.and(usual.times(f64::from(foreign))), decode),
        };
        let elapsed = larger(now - self.progress.head, 0.0);
        let alone = slow * line.ms_beside(&self.progress.first, decode);
        // Its token comes with the step, in which others are computed, too.
        let expected = if elapsed > alone { slow * line.ms_beside(&self.progress.step, decode) } else { alone };
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
        if self.progress.waiting == 0 || tokens <= 0.0 {
            return 0.0;
        }
        let step = self.progress.next_step(now);
        step.mates * more * smaller(step.room / tokens, 1.0)
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
