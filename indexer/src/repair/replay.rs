//! What a replay brings, and what its end tells.

use std::time::Instant;

use super::{AskId, Cold, Doubt, Emptied, Outcome, Repair, ReplayEnd, Step};
use crate::feed::{HoldMax, Stamp, Verdict};

/// A replay that was asked for and has not ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) id: AskId,
    pub(super) from: u64,
    /// The highest number that its first batch may have, so that nothing is missing, and it is seen to be of the process
    /// that the view is of: without epochs it has to overlap with what was applied.
    pub(super) need: u64,
    pub(super) next_before: u64,
    /// When the source was heard last.
    pub(super) heard: Instant,
    /// Whether it began early enough.
    pub(super) reached: bool,
    /// Whether something of it looked like a dead process's.
    pub(super) outdated: bool,
    /// The highest number in it.
    pub(super) highest: Option<u64>,
    /// Whether nobody wants to know any more.
    pub(super) void: bool,
}

impl Asked {
    /// Whether all that a process has said, asked for from the beginning, ends before the end of the view: the view is of
    /// another process, since within one numbers only rise.
    fn is_of_a_younger(&self) -> bool {
        self.from == 0 && self.highest.is_some_and(|highest| highest.saturating_add(1) < self.next_before)
    }
}

/// Batches of an answer that tell neither epoch nor time. They wait for its end: a source may have kept more than one life,
/// and a number 0 behind others says that those were of a dead one.
pub(super) struct Bare<T> {
    batches: Vec<(Stamp, (T, usize))>,
    bytes: usize,
    /// Whether some found no room: they are asked for again.
    overflowed: bool,
}

impl<T> Default for Bare<T> {
    fn default() -> Self {
        Self { batches: Vec::new(), bytes: 0, overflowed: false }
    }
}

impl<T> Bare<T> {
    fn add(&mut self, stamp: Stamp, sized: (T, usize)) {
        // Once one is missing, what follows it is of no use.
        let HoldMax { batches, bytes } = HoldMax::DEFAULT;
        self.overflowed |= self.batches.len() >= batches || self.bytes.saturating_add(sized.1) > bytes;
        if !self.overflowed {
            self.bytes += sized.1;
            self.batches.push((stamp, sized));
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl<T> Repair<T> {
    /// A batch that was asked for by this question.
    pub fn replayed(&mut self, id: AskId, stamp: Stamp, sized: (T, usize), now: Instant, steps: &mut Vec<Step<T>>) {
        if self.quarantine.is_some() {
            return;
        }
        let asked = self.asked.filter(|asked| asked.id == id);
        let awaited = asked.filter(|asked| !asked.void);
        if stamp.is_bare() {
            if let Some(asked) = awaited {
                self.replayed_bare(asked, stamp, sized, now);
            }
        } else if self.feed.judge(&stamp, || false) == Verdict::Restart && !self.feed.is_from_before(stamp.ts) {
            self.reborn(asked, stamp, sized, now);
        } else if let Some(asked) = awaited {
            self.replayed_here(asked, stamp, sized, now);
        }
        self.finish(now, steps);
    }

    /// An answer told of a restart.
    fn reborn(&mut self, asked: Option<Asked>, stamp: Stamp, sized: (T, usize), now: Instant) {
        self.feed.push(stamp, sized, |_| false, now, &mut self.actions);
        self.restarted(now);
        // An answer that begins at the beginning is just what would be asked for now.
        if let (0, Some(asked)) = (stamp.seq, asked) {
            let highest = Some(stamp.seq);
            self.asked =
                Some(Asked { need: 0, next_before: 0, heard: now, reached: true, void: false, highest, ..asked });
            self.suspect(now);
        }
    }

    /// A batch that looks as if it was of the life that the view is of, or of an earlier one.
    fn replayed_here(&mut self, mut asked: Asked, stamp: Stamp, sized: (T, usize), now: Instant) {
        asked.heard = now;
        asked.highest = asked.highest.max(Some(stamp.seq));
        let outdated = self.feed.is_outdated(&stamp) || self.feed.is_from_before(stamp.ts);
        asked.outdated |= outdated;
        asked.reached |= stamp.seq <= asked.need && !outdated;
        self.asked = Some(asked);
        if !outdated {
            self.note_replayed();
            self.fill(asked, stamp, sized, now);
        }
    }

    /// A batch that tells nothing of its life. A number that is known is no restart here: whoever is asked may tell all that
    /// it has, and begins with what was applied long ago. That the numbers begin anew within the answer is one, though.
    fn replayed_bare(&mut self, mut asked: Asked, stamp: Stamp, sized: (T, usize), now: Instant) {
        let seq = stamp.seq;
        let begins = seq == 0 && asked.highest.is_some();
        let rises = asked.highest.is_none_or(|highest| seq > highest);
        let repeats = asked.highest == Some(seq) && !begins;
        asked.heard = now;
        asked.highest = if begins { Some(0) } else { asked.highest.max(Some(seq)) };
        asked.reached |= seq <= asked.need;
        self.asked = Some(asked);
        self.note_replayed();
        if !rises && !repeats {
            // What came before was another life's, or may have been.
            self.bare.clear();
        }
        if (rises || begins) && seq >= self.feed.next_seq() {
            self.bare.add(stamp, sized);
        }
    }

    fn note_replayed(&mut self) {
        if let Some(doubt) = &mut self.doubt {
            doubt.replayed += 1;
        }
    }

    /// The answer is whole: what is left of its bare batches is of the last life in it.
    fn place_bare(&mut self, now: Instant) {
        let Bare { batches, overflowed, .. } = std::mem::take(&mut self.bare);
        for (stamp, sized) in batches {
            let Some(asked) = self.asked.filter(|asked| !asked.void) else { return };
            self.fill(asked, stamp, sized, now);
        }
        if let (true, Some(highest)) = (overflowed, self.asked.and_then(|asked| asked.highest)) {
            self.feed.note_seen(highest);
        }
        let (position, asked) = (self.feed.position(), self.asked.filter(|asked| asked.reached && !asked.void));
        if position.epoch.is_none() && position.newest.is_none() && asked.is_some() {
            // What came live since, out of its order, is of this life for certain.
            self.feed.go_on(&mut self.actions);
            self.feed.pause();
        }
    }

    /// One batch of the answer that is being waited for.
    fn fill(&mut self, asked: Asked, stamp: Stamp, (item, bytes): (T, usize), now: Instant) {
        if stamp.seq < self.feed.next_seq() {
            return;
        }
        if !asked.reached {
            if self.snapshot_can_be_asked(now) {
                return self.lose(Cold::HistoryGone, now);
            }
            self.pass_to(stamp.seq, Cold::HistoryGone);
            self.asked = Some(Asked { reached: true, ..asked });
        }
        if stamp.seq == self.feed.next_seq() {
            self.feed.take(stamp, item, &mut self.actions);
            if let Some(doubt) = &mut self.doubt
                && doubt.outcome == Outcome::Whole
            {
                doubt.outcome = Outcome::Replayed;
            }
        } else {
            // A hole in the answer: what is in it is asked for again.
            self.feed.push(stamp, (item, bytes), |_| false, now, &mut self.actions);
        }
    }

    /// Nothing more comes of this replay.
    pub fn replay_ended(&mut self, (id, end): (AskId, ReplayEnd), now: Instant, steps: &mut Vec<Step<T>>) {
        if end == ReplayEnd::Whole && self.asked.is_some_and(|asked| asked.id == id) {
            self.place_bare(now);
        }
        let Some(asked) = self.asked.take_if(|asked| asked.id == id) else { return };
        self.bare.clear();
        let doubt = self.doubt.filter(|doubt| !asked.void && !doubt.gone);
        if let Some(doubt) = doubt {
            let next = self.feed.next_seq();
            // Behind what was cut off there may be more: only what came live is known to be there, and where that is nothing
            // yet, who says nothing may have all. Who breaks off at the same place once more, with nothing new,
            // has no more to say, or no way to end.
            let has_begun = asked.highest.is_some();
            let broke_off = end == ReplayEnd::CutShort && (has_begun || next == 0);
            let stopped = (broke_off && has_begun && next == asked.next_before).then_some(next);
            let gives_up = stopped.is_some() && stopped == self.stopped_at;
            self.stopped_at = stopped;
            let complete = self.feed.is_complete() && (!broke_off || gives_up);
            if end == ReplayEnd::Whole && !self.feed.has_epoch() && asked.is_of_a_younger() {
                // Its clock was set back, or its batches would have told.
                self.begin_anew(now);
                steps.push(Step::Clear(Emptied::Restarted));
            } else if complete && (asked.reached || next == 0 || self.feed.has_epoch()) {
                self.settle(now);
                self.unproven |= gives_up;
            } else if !asked.reached && asked.from > 0 {
                // A process that is new has not come that far yet.
                self.doubt = Some(Doubt { from_start: true, ..doubt });
            } else if next == asked.next_before {
                if asked.outdated {
                    // Perhaps it was not: clocks are set back.
                    self.feed.forget_dead();
                }
                self.failed(now);
            }
        }
        self.finish(now, steps);
    }
}
