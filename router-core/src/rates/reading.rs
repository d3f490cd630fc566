//! What is known of workers at one moment.

use std::sync::MutexGuard;

use super::seen::{ByNow, Seen};
use super::work::{Amount, Work};
use super::worker::Worker;
use super::{END_TO_END_MS, State};
use crate::ids::Slot;
use crate::real::{Number, smaller};
use crate::shape::Shape;
use crate::units::Blocks;

/// What a request can expect of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook<N = f64> {
    /// ms until the engine comes to it.
    pub wait: N,
    /// ms to compute it.
    pub own: N,
    /// Of these, what others lose by it: ms by which it makes a step longer that there is anyway.
    pub more: N,
    /// ms that it takes from those together that wait for their first token from the step in which it is computed.
    pub step: N,
}

/// Some who come to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow<N = f64> {
    /// How many in a ms.
    pub per_ms: N,
    /// ms of computing that what the worker holds saves each of them, on average.
    pub saved: N,
}

/// Those who come to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regulars<N = f64> {
    /// They who go on with what they were told there, by how many there are.
    pub sessions: Flow<N>,
    /// All others, by those who came last.
    pub others: Flow<N>,
}

impl<N: Number> Regulars<N> {
    /// How many in a ms.
    #[inline(always)]
    pub fn per_ms(&self) -> N {
        self.sessions.per_ms + self.others.per_ms
    }

    /// What those of a ms lose where each has to wait so much `more`, or what it would have saved there, if that is less: then
    /// it goes elsewhere.
    #[inline(always)]
    pub fn lose(&self, more: N) -> N {
        let lose = |flow: Flow<N>| smaller(more, flow.saved) * flow.per_ms;
        lose(self.sessions) + lose(self.others)
    }
}

/// Those who will come for what prompts have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Returning {
    /// How often, as far as a copy would still be there.
    pub times: f64,
    /// ms that each of those times somebody missed on average for lack of one, with those who came at once.
    pub missed: f64,
    /// For how many blocks.
    pub blocks: Blocks,
    /// How many candidates hold all of these.
    pub holders: u32,
    /// Pairs of them that will come at once after this one: of `n` these are `n·(n − 1)/2`.
    pub pairs: f64,
}

impl Returning {
    /// Whether anybody would have anything of a copy.
    pub fn is_wished_for(&self) -> bool {
        self.times * self.missed > 0.0 || self.pairs > 0.0
    }
}

/// All that is known at one moment.
pub struct Reading<'a> {
    pub(super) state: MutexGuard<'a, State>,
    pub(super) now: f64,
    /// What a request brings.
    pub(super) usual: Work,
    /// How long answers take that do not come as streams, in ms; 0 before one has ended.
    pub(super) whole: f64,
}

impl<'a> Reading<'a> {
    pub(super) fn of(state: MutexGuard<'a, State>, now: f64) -> Self {
        let (usual, whole) = (state.usual(), state.end_to_end.learned().unwrap_or(0.0));
        Self { state, now, usual, whole }
    }

    /// Whether no answer that is on its way comes in one piece, so that nobody is past a prompt unheard.
    pub fn all_stream(&self) -> bool {
        self.state.wholes == 0
    }

    /// What is known of one worker, or of each of some, where nothing of it has to be told from the time, and nobody there has
    /// anything to fetch.
    #[inline(always)] // A call would pass through memory what is asked of every worker for every request.
    pub fn of_plain<N: Number>(&self, slots: N::Each<Slot>) -> Option<Seen<'_, N>> {
        Seen::plain(self, slots)
    }

    /// The same of any.
    pub fn of_workers<N: Number>(&self, slots: N::Each<Slot>) -> ByNow<'_, N> {
        ByNow::of(self, slots)
    }

    /// What the time of so much work depends on.
    pub fn amount(&self, work: &Work) -> Amount {
        self.state.line.amount(work)
    }

    #[inline(always)]
    pub(super) fn worker(&self, slot: Slot) -> &Worker {
        let worker = self.state.workers.get(slot.index()).unwrap_or(&self.state.nobody);
        debug_assert!(worker.is_row_right(), "{worker:?}");
        worker
    }

    /// ms until a `share` of those in flight at a worker has gone, by how long those stay who are in flight anywhere; those who
    /// came together go together.
    #[inline(never)] // Seldom is there no room.
    pub fn until_gone(&self, slot: Slot, share: f64) -> f64 {
        self.state.end_to_end.until_gone(&self.worker(slot).guests, share, self.now)
    }

    /// Who will come back for what a prompt has in common with others, where it has: as often as others came before, at other
    /// times, as far as copies stay that long; and at once, as it followed elsewhere.
    pub fn returning(&self, shape: &Shape) -> Option<Returning> {
        let Self { state, now, .. } = self;
        let at = shape.fork?;
        let cold = state.line.ms(&Work::cold(shape));
        Some(Returning {
            times: state.returns.ahead(*now, at, cold),
            missed: state.returns.missed(at),
            blocks: at.blocks,
            holders: at.holders,
            pairs: state.returns.pairs_ahead(*now, at, shape.trunk),
        })
    }

    /// ms to compute what a request brings on average, on a worker like most.
    pub fn mean_request_ms(&self) -> f64 {
        self.state.line.ms(&self.usual)
    }

    /// Requests that arrive in a ms, over all workers; 0 before a second burst.
    pub fn arrivals(&self) -> f64 {
        self.state.arrivals.per_ms()
    }

    /// The same where each counts by the share of it that has to be computed: who finds most of it somewhere goes there, not to
    /// whoever has time.
    pub fn newcomers(&self) -> f64 {
        self.arrivals() * self.state.computed.get()
    }

    /// Mean time from the first token to the end, in ms.
    pub fn decode_ms(&self) -> f64 {
        (self.end_to_end() - self.state.ttft.get()).max(0.0)
    }

    /// Mean time to first token over mean time to the end; 0 before a first token.
    pub fn first_share(&self) -> f64 {
        (self.state.ttft.get() / self.end_to_end()).min(1.0)
    }

    /// Mean time to the end, in ms. Before a request has ended, whose answers may take half a minute in a fleet that has just
    /// begun, it is what the first has taken so far.
    fn end_to_end(&self) -> f64 {
        self.state.end_to_end.learned().unwrap_or_else(|| self.now.max(END_TO_END_MS))
    }
}
