//! What is known of the processes before the present one, so far as times tell them apart.

use super::Stamp;

/// The lives before the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Past {
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

/// No wall clock has shown less since 2001: such times are of another clock, and say nothing of when a process was started.
const WALL_CLOCK: f64 = 1e9;

impl Past {
    /// A life has ended whose latest time was `newest`, with the batch of this stamp. Epochs tell lives apart by themselves.
    pub(super) fn end(&mut self, newest: Option<f64>, stamp: &Stamp) {
        self.dead = match (stamp.epoch, stamp.ts) {
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
