//! What is known of one worker at one moment, or of each of some, and what a request can expect of it.

use super::line::slowed_ms;
use super::reading::{Flow, Outlook, Reading, Regulars};
use super::row::Row;
use super::view::View;
use super::work::Amount;
use crate::ids::Slot;
use crate::real::Number;

/// One worker at one moment, or each of some.
pub struct Seen<'a, N: Number> {
    reading: &'a Reading<'a>,
    slots: N::Each<Slot>,
    view: View<'a, N>,
}

/// Some workers by how far they must have come by now.
pub struct ByNow<'a, N: Number> {
    reading: &'a Reading<'a>,
    slots: N::Each<Slot>,
    rows: N::Each<Row>,
}

impl<'a, N: Number> ByNow<'a, N> {
    pub(super) fn of(reading: &'a Reading<'a>, slots: N::Each<Slot>) -> Self {
        let rows = N::map(&slots, |slot| reading.worker(slot).row_by(reading.now, &reading.state.line));
        Self { reading, slots, rows }
    }

    /// What is known of them.
    pub fn seen(&self) -> Seen<'_, N> {
        let Self { reading, slots, rows } = self;
        Seen { reading, slots: *slots, view: View::of(N::refs(rows), &reading.state.line) }
    }
}

impl<'a, N: Number> Seen<'a, N> {
    /// Of workers of whom all was noted, and who have nothing to fetch.
    #[inline(always)]
    pub(super) fn plain(reading: &'a Reading<'a>, slots: N::Each<Slot>) -> Option<Self> {
        if !reading.all_stream() {
            return None;
        }
        let view = View::plain(N::map(&slots, |slot| &reading.worker(slot).row))?;
        Some(Self { reading, slots, view })
    }

    /// What so much work can expect of it where `waiting` requests have no first token yet, by the account of the router and
    /// what the engine says: more than are known here are foreign, and taken for usual ones.
    #[inline(always)]
    pub fn outlook(&self, work: &Amount<N>, waiting: N) -> Outlook<N> {
        let Reading { state, now, usual, whole } = self.reading;
        let (view, line) = (&self.view, &state.line);
        let alone = work.tokens.if_positive(line.alone_ms(work));
        let decode = line.decode_ms(view.decoding());
        let more = alone + slowed_ms(work, decode);
        let own = work.tokens.if_positive(line.step_ms(decode) + more);
        let (wait, slow) = view.wait(*now, line, (view.foreign(waiting), usual), (*whole, decode));
        let wait = wait + view.mute(*now, state.end_to_end.longest(state.longest));
        let step = slow * view.in_step(*now, work.tokens, alone);
        Outlook { wait, own: slow * own, more: slow * more, step }
    }

    /// Requests on it that are past their prompts by all that is known, though no first token tells: their answers come in one
    /// piece. The account of the router has them among those that wait for theirs.
    #[inline(always)]
    pub fn unheard(&self) -> N {
        if self.reading.all_stream() { N::all(0.0) } else { self.view.unheard() }
    }

    /// ms between two tokens of a stream; 0 where nobody decodes.
    pub fn gap(&self) -> N {
        self.view.gap()
    }

    /// Who comes there.
    #[inline(always)]
    pub fn regulars(&self) -> Regulars<N> {
        let Reading { state, now, .. } = self.reading;
        let sessions = N::map(&self.slots, |slot| state.sessions.at(slot));
        let sessions = Flow { per_ms: N::of(&sessions, |it| it.per_ms), saved: N::of(&sessions, |it| it.saved) };
        Regulars { sessions, others: self.view.visits(*now) }
    }
}
