//! What is known of workers at one moment.

use std::sync::MutexGuard;

use super::view::View;
use super::work::Work;
use super::{END_TO_END_MS, State};
use crate::ids::Slot;
use crate::real::smaller;
use crate::shape::Shape;
use crate::units::Blocks;

/// What a request can expect of one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    /// ms until the engine comes to it.
    pub wait: f64,
    /// ms to compute it.
    pub own: f64,
    /// Of these, what others lose by it: ms by which it makes a step longer that there is anyway.
    pub more: f64,
    /// ms that it takes from those together that wait for their first token from the step in which it is computed.
    pub step: f64,
}

/// Some who come to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// How many in a ms.
    pub per_ms: f64,
    /// ms of computing that what the worker holds saves each of them, on average.
    pub saved: f64,
}

/// Those who come to one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Regulars {
    /// They who go on with what they were told there, by how many there are.
    pub sessions: Flow,
    /// All others, by those who came last.
    pub others: Flow,
}

impl Regulars {
    /// How many in a ms.
    #[inline]
    pub fn per_ms(&self) -> f64 {
        self.sessions.per_ms + self.others.per_ms
    }

    /// What those of a ms lose where each has to wait so much `more`, or what it would have saved there, if that is less: then
    /// it goes elsewhere.
    #[inline]
    pub fn lose(&self, more: f64) -> f64 {
        let lose = |flow: Flow| smaller(more, flow.saved) * flow.per_ms;
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
    state: MutexGuard<'a, State>,
    now: f64,
    /// What a request brings.
    usual: Work,
}

impl<'a> Reading<'a> {
    pub(super) fn of(state: MutexGuard<'a, State>, now: f64) -> Self {
        let usual = state.usual();
        Self { state, now, usual }
    }

    /// What so much work can expect of a worker on which `waiting` requests have no first token yet, by the account of the
    /// router and what the engine says: more than are known here are foreign, and taken for usual ones.
    #[inline(always)] // A call would pass through memory what is asked of every worker for every request.
    pub fn outlook(&self, slot: Slot, work: &Work, waiting: u32) -> Outlook {
        let Self { state, now, usual } = self;
        let line = &state.line;
        let Some(worker) = state.workers.get(slot.index()) else {
            let more = line.more_ms(work, 0.0);
            let own = line.ms_beside(work, 0.0);
            return Outlook { wait: line.ms(&usual.times(f64::from(waiting))), own, more, step: 0.0 };
        };
        let progress = worker.progress_by(*now, line);
        let worker = View::of(worker, progress.as_ref());
        let foreign = waiting.saturating_sub(worker.without_first_token());
        let whole = state.end_to_end.learned().unwrap_or(0.0);
        let decode = line.decode_ms(worker.decoding());
        let (wait, slow) = worker.wait(*now, line, (foreign, *usual), (whole, decode));
        let wait = wait + worker.mute(*now, state.longest);
        let step = slow * worker.in_step(*now, work.tokens, line.more_ms(work, 0.0));
        let more = line.more_ms(work, decode);
        Outlook { wait, own: slow * line.ms_beside(work, decode), more: slow * more, step }
    }

    /// Requests on a worker that are past their prompts by all that is known, though no first token tells: their answers come
    /// in one piece. The account of the router has them among those that wait for theirs.
    #[inline]
    pub fn unheard(&self, slot: Slot) -> u32 {
        if self.state.wholes == 0 { 0 } else { self.unheard_of(slot) }
    }

    #[inline(never)] // Fleets that stream never ask.
    fn unheard_of(&self, slot: Slot) -> u32 {
        let Self { state, now, .. } = self;
        state
            .workers
            .get(slot.index())
            .map_or(0, |worker| View::of(worker, worker.progress_by(*now, &state.line).as_ref()).unheard())
    }

    /// ms between two tokens of a stream on a worker; 0 where nobody decodes.
    pub fn gap(&self, slot: Slot) -> f64 {
        self.state.workers.get(slot.index()).map_or(0.0, |worker| View::of(worker, None).gap())
    }

    /// Who comes to a worker.
    pub fn regulars(&self, slot: Slot) -> Regulars {
        let visits = self.state.workers.get(slot.index()).map(|worker| &worker.visits);
        let others =
            visits.map(|visits| Flow { per_ms: visits.per_ms(self.now), saved: visits.saved() }).unwrap_or_default();
        Regulars { sessions: self.state.sessions.at(slot), others }
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

    /// ms until a `share` of those in flight on a worker has gone, by how long those stay who are in flight anywhere; those who
    /// came together go together.
    pub fn until_gone(&self, slot: Slot, share: f64) -> f64 {
        let (state, now) = (&self.state, self.now);
        match state.workers.get(slot.index()) {
            Some(worker) => state.end_to_end.until_gone(&worker.guests, share, now),
            None => state.end_to_end.until_gone_evenly(share, now),
        }
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
