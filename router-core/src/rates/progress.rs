//! How far a worker has come with what it was sent.

use std::collections::VecDeque;

use super::ONE_STEP_MS;
use super::work::{Decoding, STEP, Work};
use super::worker::Pending;
use crate::real::larger;

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
    /// How many are queued, and what the first of them brings: noted, as every request asks every worker.
    pub(super) waiting: u32,
    pub(super) first: Work,
    /// What is computed in one step with the first.
    pub(super) step: Work,
    /// The step in which work that is sent now begins: before any of what is queued does, and once a step of that is under way.
    pub(super) steps: [NextStep; 2],
}

/// A step that work can join.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NextStep {
    /// Those who wait for their first tokens from it.
    pub(super) mates: f64,
    /// Thousands of tokens that it has room for.
    pub(super) room: f64,
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

    /// Takes note of who waits. To be told whenever that or the step under way is another. O(requests of two steps).
    pub(super) fn note(&mut self, pending: &VecDeque<Pending>) {
        let Some(first) = pending.get(self.passed) else {
            (self.waiting, self.first, self.step, self.steps) = Default::default();
            return;
        };
        self.waiting = u32::try_from(pending.len() - self.passed).unwrap_or(u32::MAX);
        self.first = first.work;
        self.step = self.first_step(pending);
        self.steps = [(0.0, 0), self.under_way(pending)].map(|begun| self.step_behind(pending, begun));
    }

    /// The step in which work begins that is sent now, while so many thousands of tokens and requests are in the one under way.
    fn step_behind(&self, pending: &VecDeque<Pending>, (under_way, done): (f64, usize)) -> NextStep {
        // What is queued fills one step after the other; the last of them is the one.
        let ahead = larger(self.queued.tokens - under_way, 0.0);
        let filled = ahead % STEP;
        let mut taken = 0.0;
        let queued = pending.range(self.passed + done..).rev().take(STEP_MATES_MAX);
        let mates = queued.take_while(|pending| {
            let joins = taken <= filled;
            taken += pending.work.tokens;
            joins
        });
        NextStep { mates: f64::from(u32::try_from(mates.count()).unwrap_or(u32::MAX)), room: STEP - filled }
    }

    /// Thousands of tokens in the step under way, and how many requests end in it, of those that had been sent when it
    /// began.
    fn under_way(&self, pending: &VecDeque<Pending>) -> (f64, usize) {
        let (mut tokens, mut requests) = (0.0, 0);
        let mates = pending.range(self.passed..).take_while(|pending| pending.sent <= self.head + ONE_STEP_MS);
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
    fn first_step(&self, pending: &VecDeque<Pending>) -> Work {
        let queued = pending.range(self.passed..).take(STEP_MATES_MAX).enumerate();
        let mut step = Work::default();
        for (at, Pending { work, .. }) in queued.take_while(|(at, it)| *at == 0 || it.sent <= self.head + ONE_STEP_MS) {
            let room = larger(STEP - step.tokens, 0.0);
            if at > 0 && work.tokens > room {
                return step.and(work.times(room / work.tokens));
            }
            step = step.and(*work);
        }
        step
    }
}
