//! Workers that say that they have too much to do.

use std::time::{Duration, Instant};

use warmpath_core::workers::Ramp;

use super::{Fleet, Worker};

/// How long a worker that has too much to do is given nothing, where it does not say; and the longest that one is believed.
/// A limit of its own may be over as soon as another client's request ends.
const REST: Duration = Duration::from_secs(1);
const REST_MAX: Duration = Duration::from_secs(5);

/// The shortest time over which a worker can be given more and more.
const AT_ONCE: Duration = Duration::from_millis(1);

impl Fleet {
    /// A worker said that it has too much to do, and perhaps for how long: until then it counts as full, and then it is given
    /// what it was. One that was just being given more and more begins with one request once more, in the time that is left:
    /// with none it would be left alone for far longer than it asked. What it says while it rests is no news. O(workers).
    pub fn rest(&self, worker: &Worker, now: Instant, asked: Option<Duration>) {
        let rest = asked.unwrap_or(REST).min(REST_MAX);
        let _one_at_a_time = self.lock();
        let roster = self.roster.load_full();
        let Some(target) = roster.table().get(worker.slot) else { return };
        if rest.is_zero() || target.ramp.is_some_and(|ramp| ramp.since > now) {
            return;
        }
        let left = target.ramp.map(|ramp| (ramp.since + ramp.over).saturating_duration_since(now)).unwrap_or_default();
        let ramp = Ramp { since: now + rest, over: left.max(AT_ONCE), from: 1 };
        self.publish(roster.changed(worker.slot, |target| target.ramp = Some(ramp)));
    }
}
