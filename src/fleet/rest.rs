//! Workers that say that they have too much to do.

use std::time::{Duration, Instant};

use warmpath_core::ids::Slot;
use warmpath_core::workers::{Pool, Ramp, Target, WorkerTable};

use super::roster::Roster;
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
    /// with none it would be left alone for far longer than it asked. What it says while it rests is no news; and where half
    /// of the pool rests already, it goes on: it may have told of a limit of one sender's. O(workers).
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
        // Asked before the roster is made: where half of a pool rests, everybody else is told so with every request.
        if may_rest(roster.table(), target, &worker.model, now) {
            self.publish_in(&worker.model, roster.changed(worker.slot, |target| target.ramp = Some(ramp)));
        }
    }
}

/// Whether no more than half of those that are up would rest if this target did, too.
fn may_rest(table: &WorkerTable, target: &Target, model: &str, now: Instant) -> bool {
    let Some(pool) = table.pool(model) else { return false };
    let (up, resting) = standing(pool, table, now);
    // One that is out takes no place of those that may rest, and is none.
    !target.available || resting.len() < up / 2
}

/// The same without the rests that are too many now that fewer others are left. O(workers).
pub(super) fn roused(roster: Roster, now: Instant) -> Roster {
    let surplus = surplus(roster.table(), now);
    if surplus.is_empty() {
        return roster;
    }
    let rouse = |target: &mut Target| target.ramp = target.ramp.map(|ramp| Ramp { since: now, ..ramp });
    roster.changed_where(|target| surplus.contains(&target.slot), rouse)
}

/// Those that rest beyond half of the targets of their pool that are up, the last to come back.
fn surplus(table: &WorkerTable, now: Instant) -> Vec<Slot> {
    table.pools().iter().flat_map(|pool| surplus_of(pool, table, now)).collect()
}

fn surplus_of(pool: &Pool, table: &WorkerTable, now: Instant) -> impl Iterator<Item = Slot> {
    let (up, mut resting) = standing(pool, table, now);
    resting.sort_unstable();
    resting.into_iter().skip(up / 2).map(|(_, slot)| slot)
}

/// How many targets of a pool are up, and which of them rest, and until when.
fn standing(pool: &Pool, table: &WorkerTable, now: Instant) -> (usize, Vec<(Instant, Slot)>) {
    let targets = pool.targets.iter().filter_map(|slot| table.get(*slot));
    let (mut up, mut resting) = (0, Vec::new());
    for target in targets.filter(|target| target.available) {
        up += 1;
        resting.extend(target.ramp.filter(|ramp| ramp.since > now).map(|ramp| (ramp.since, target.slot)));
    }
    (up, resting)
}
