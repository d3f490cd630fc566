//! What is known of one worker at one moment, and what a request can expect of it.

use super::line::slowed_ms;
use super::progress::Progress;
use super::reading::{Outlook, Reading, Regulars};
use super::view::View;
use super::work::Work;
use super::worker::Worker;
use crate::ids::Slot;

/// One worker at one moment.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    reading: &'a Reading<'a>,
    slot: Slot,
    worker: &'a Worker,
}

impl<'a> Seen<'a> {
    #[inline(always)]
    pub(super) fn of(reading: &'a Reading<'a>, slot: Slot) -> Self {
        Self { reading, slot, worker: reading.state.workers.get(slot.index()).unwrap_or(&reading.state.nobody) }
    }

    /// What so much work can expect of it where `waiting` requests have no first token yet, by the account of the router and
    /// what the engine says: more than are known here are foreign, and taken for usual ones.
    #[inline(always)]
    pub fn outlook(&self, work: &Work, waiting: u32) -> Outlook {
        let Reading { state, now, usual, whole } = self.reading;
        let by_now;
        let worker = if self.reading.all_stream() {
            View::of(self.worker, &self.worker.progress)
        } else {
            by_now = self.progress();
            View::of(self.worker, &by_now)
        };
        let line = &state.line;
        let alone = if work.is_none() { 0.0 } else { line.alone_ms(work) };
        let decode = line.decode_ms(worker.decoding());
        let more = alone + slowed_ms(work, decode);
        let own = if work.is_none() { 0.0 } else { line.step_ms(decode) + more };
        let foreign = worker.foreign(waiting);
        let (wait, slow) = worker.wait(*now, line, (foreign, usual), (*whole, decode));
        let wait = wait + worker.mute(*now, state.longest);
        let step = slow * worker.in_step(*now, work.tokens, alone);
        Outlook { wait, own: slow * own, more: slow * more, step }
    }

    /// Requests on it that are past their prompts by all that is known, though no first token tells: their answers come in one
    /// piece. The account of the router has them among those that wait for theirs.
    #[inline]
    pub fn unheard(&self) -> u32 {
        if self.reading.all_stream() { 0 } else { self.count_unheard() }
    }

    #[inline(never)]
    fn count_unheard(&self) -> u32 {
        self.progress().unheard
    }

    fn progress(&self) -> Progress {
        self.worker.progress_by(self.reading.now, &self.reading.state.line)
    }

    /// ms between two tokens of a stream; 0 where nobody decodes.
    pub fn gap(&self) -> f64 {
        View::of(self.worker, &self.worker.progress).gap()
    }

    /// Who comes there.
    #[inline(always)]
    pub fn regulars(&self) -> Regulars {
        let Reading { state, now, .. } = self.reading;
        Regulars { sessions: state.sessions.at(self.slot), others: self.worker.visits.flow(*now) }
    }

    /// ms until a `share` of those in flight has gone, by how long those stay who are in flight anywhere; those who came
    /// together go together.
    #[inline(never)] // Seldom is there no room.
    pub fn until_gone(&self, share: f64) -> f64 {
        let Reading { state, now, .. } = self.reading;
        state.end_to_end.until_gone(&self.worker.guests, share, *now)
    }
}
