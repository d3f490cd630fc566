//! What requests show of workers, and how many of them may be taken out for it.

use std::sync::Arc;
use std::time::Instant;

use warmpath_core::retry::Failure;

use super::Fleet;
use super::duty::Duty;
use super::worker::Worker;

impl Fleet {
    /// A request that was sent then failed. If it was through the worker's fault, too many in a row take it out. Unless nobody can even
    /// connect, half of those that would otherwise serve stay in whatever their requests say: checks pass there, so the
    /// fault may be that of the requests, and too few could not serve them all. O(workers) where it is taken out.
    pub fn request_failed(&self, worker: &Arc<Worker>, sent: Instant, failure: Failure) {
        if failure == Failure::Denied {
            worker.set_denies(true);
        }
        let strikes_max = self.conduct.load().strikes_max;
        if !failure.is_fault() || !worker.lock_health().failed((sent, Instant::now()), strikes_max) {
            return;
        }
        let one_at_a_time = self.lock();
        if failure != Failure::Connect && !self.may_lose(worker) {
            return;
        }
        worker.lock_health().condemn();
        let changed = self.settle_locked(&[(worker, None)]);
        drop(one_at_a_time);
        self.distrust(worker);
        if changed != [None] {
            tracing::warn!(worker = %worker.id, "taken out: its requests fail, one after the other");
        }
    }

    /// A worker answered a request that was sent then.
    pub fn request_answered(&self, worker: &Worker, sent: Instant) {
        worker.set_denies(false);
        worker.lock_health().answered(sent);
    }

    /// Whether at least half of those in the worker's pool that would serve, if it were not for their requests, is left
    /// without it. Whom checks or operators took out could not take over: they count neither here nor there.
    fn may_lose(&self, worker: &Worker) -> bool {
        let (left, lost) = self.by_requests(&worker.model, |other| other.slot != worker.slot);
        left > lost
    }

    /// How many of these that are on duty serve, and how many are out by their requests alone.
    fn by_requests(&self, model: &str, counts: impl Fn(&Worker) -> bool) -> (usize, usize) {
        let roster = self.roster.load();
        let Some(pool) = roster.table().pool(model) else { return (1, 0) };
        let workers = pool.targets.iter().filter_map(|slot| roster.worker(*slot));
        let (mut left, mut lost) = (0, 0);
        for health in workers.filter(|it| it.duty() == Duty::Active && counts(it)).map(|it| it.health()) {
            left += usize::from(health.is_available());
            lost += usize::from(health.is_out_by_requests());
        }
        (left, lost)
    }

    /// Brings those back that are out by their requests, and pass their checks, as far as too few are left since others went.
    /// A further fault takes them out again. For whoever makes changes already. O(workers) for each.
    pub(super) fn rescue(&self, model: &str) {
        loop {
            let (left, lost) = self.by_requests(model, |_| true);
            let roster = self.roster.load_full();
            let Some(pool) = roster.table().pool(model).filter(|_| left < lost) else { return };
            let workers = pool.targets.iter().filter_map(|slot| roster.worker(*slot));
            let Some(worker) = workers.filter(|it| it.duty() == Duty::Active).find(|it| it.lock_health().readmit())
            else {
                return;
            };
            self.settle_locked(&[(worker, None)]);
            tracing::warn!(worker = %worker.id, "back before its time: too few others are left");
        }
    }
}
