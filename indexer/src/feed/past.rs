//! What is known of the processes before the present one, so far as times tell them apart.

use std::collections::VecDeque;

use super::Stamp;

/// Batches whose times are remembered.
const REMEMBERED: usize = 64;

/// What was applied, and the lives before the present one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Past {
    /// Numbers and times of the last batches of the present life that were applied, where no epochs tell lives apart.
    applied: VecDeque<(u64, f64)>,
    dead: Option<Dead>,
    /// When the present process was started, where somebody else saw that.
    process: Option<f64>,
    /// The epoch that this ended for certain, and when.
    ended: Option<(u64, f64)>,
}

/// The life before the present one: what the path or a replay brings of it is dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Dead {
    /// The latest time that was known of it.
    newest: f64,
    /// The batch of the present life that gave the restart away. Within a life numbers and times rise together.
    seq: u64,
    ts: f64,
}

/// No wall clock has shown less since 2001, in seconds: such times are of another clock, and say nothing of when a process was
/// started.
pub const WALL_CLOCK: f64 = 1e9;

impl Past {
    /// A batch of the present life was applied.
    pub(super) fn note_applied(&mut self, stamp: &Stamp) {
        if let (None, Some(ts)) = (stamp.epoch, stamp.ts) {
            if self.applied.len() == REMEMBERED {
                self.applied.pop_front();
            }
            self.applied.push_back((stamp.seq, ts));
        }
    }

    /// The lowest number that is remembered.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.applied.front().map(|&(seq, _)| seq)
    }

    /// Whether another batch was applied under this number, earlier: a process that took over unseen says other things
    /// under the same numbers.
    pub(super) fn has_another(&self, seq: u64, ts: f64) -> bool {
        let known = self.applied.binary_search_by_key(&seq, |&(seq, _)| seq);
        known.is_ok_and(|at| self.applied.get(at).is_some_and(|&(_, then)| then < ts))
    }

    /// A life has ended whose latest time was `newest`, with the batch of this stamp. Epochs tell lives apart by themselves.
    pub(super) fn end(&mut self, newest: Option<f64>, stamp: &Stamp) {
        let applied = std::mem::take(&mut self.applied);
        self.dead = match (stamp.epoch, stamp.ts) {
            (None, Some(ts)) if newest >= Some(ts) && !applied.is_empty() => {
                // What was applied since is of the life that begins.
                let newest = applied.iter().rev().map(|&(_, then)| then).find(|&then| then < ts);
                Some(Dead { newest: newest.unwrap_or(f64::NEG_INFINITY), seq: stamp.seq, ts })
            }
            (None, Some(ts)) => Some(Dead { newest: newest.unwrap_or(f64::NEG_INFINITY), seq: stamp.seq, ts }),
            _ => None,
        };
    }

    /// Whether a batch without an epoch is of a life that has ended.
    pub(super) fn has(&self, seq: u64, ts: f64) -> bool {
        self.dead.is_some_and(|dead| ts <= dead.newest || (seq > dead.seq && ts < dead.ts))
    }

    /// The process was started then, by the engine's clock; later than one before, whose batches had this epoch, if there was one.
    pub(super) fn note_process(&mut self, at: f64, before: Option<u64>) {
        self.process = Some(at);
        self.ended = before.map(|epoch| (epoch, at)).or(self.ended);
    }

    /// Whether a batch is of an epoch that ended before it could have been made by the present process.
    pub(super) fn has_ended(&self, epoch: u64, ts: f64) -> bool {
        self.ended.is_some_and(|(ended, at)| epoch <= ended && ts >= WALL_CLOCK && ts < at)
    }

    /// What looked like batches from before may be of the present life: a clock was set back.
    pub(super) fn forget(&mut self) {
        (self.dead, self.process) = (None, None);
    }

    /// Whether what somebody has kept is from before the process: a history goes on behind a restart until the new process
    /// says something. What comes live is not judged by it, lest a clock that is set back make anybody deaf. None where that
    /// time does not tell.
    pub(super) fn was_before(&self, ts: f64) -> Option<bool> {
        self.process.filter(|_| ts >= WALL_CLOCK).map(|process| ts < process)
    }
}

/// The later of two times.
pub(super) fn later(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.max(other)),
        (one, other) => one.or(other),
    }
}
