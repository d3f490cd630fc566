//! What every request asks of a worker.

use super::progress::Progress;
use super::work::Work;
use super::worker::Worker;
use crate::real::Number;

/// What every request asks of a worker, noted when it changes. What is looked at together lies together, as four numbers of
/// each of four workers are turned around at once. Times are in ms since the first observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// How much slower than the fleet's line it is, how many streams it decodes, to what they attend, and how many requests
    /// wait there.
    pub(super) pace: [f64; 4],
    /// Since when the first of these is computed, when it was heard of last, of how many that decode nothing was heard, and
    /// whether a first token says something: 1, or 0.
    pub(super) heard: [f64; 4],
    /// Tokens and pairs of all that wait, and of the first of them.
    pub(super) queue: [f64; 4],
    /// Tokens and pairs of the step that this one is in, the time between two tokens of a stream, and when the last came.
    pub(super) step: [f64; 4],
    /// Those who wait for their first tokens from the next step, and the room in it: before what is queued has begun, and after.
    pub(super) next: [f64; 4],
    /// Who comes there, as in [`Visits::numbers`](super::visits::Visits::numbers).
    pub(super) visits: [f64; 4],
    /// What all that wait, the first, and its step have to fetch; none where nobody has.
    pub(super) fetched: Option<[[f64; 3]; 3]>,
}

impl Row {
    /// The worker when it must have come so far.
    pub(super) fn of(worker: &Worker, progress: &Progress) -> Self {
        let Progress { queued, first, step, steps: [before, after], .. } = progress;
        let decoding = progress.decoding();
        let (time, count) = worker.gaps;
        let gap = if decoding.streams > 0.0 && count > 0.0 { time / count } else { 0.0 };
        Self {
            pace: [worker.slow, decoding.streams, decoding.context, f64::from(progress.waiting)],
            heard: [progress.head, progress.silent, f64::from(progress.unheard), f64::from(u8::from(worker.streams))],
            queue: [queued.tokens, queued.pairs, first.tokens, first.pairs],
            step: [step.tokens, step.pairs, gap, worker.last_token.unwrap_or(f64::NEG_INFINITY)],
            next: [before.mates, before.room, after.mates, after.room],
            visits: worker.visits.numbers(),
            fetched: queued.fetches().then(|| [queued, first, step].map(|Work { fetched, .. }| *fetched)),
        }
    }

    /// ms until the next step, which a new request joins where nobody waits.
    pub(super) fn rest_of_step(&self, now: f64) -> f64 {
        let [.., gap, last] = self.step;
        rest_of_step([gap, last], now)
    }
}

/// The same by the time between two tokens of a stream, and when the last came.
#[inline(always)]
pub(super) fn rest_of_step<N: Number>([gap, last]: [N; 2], now: f64) -> N {
    let since = N::all(now) - last;
    gap.if_above(since, gap - since, gap / N::all(2.0))
}
