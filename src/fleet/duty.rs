//! What operators do with workers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use warmpath_core::ids::WorkerId;

use super::{Fleet, Worker};

/// What an operator wants of a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Duty {
    /// To serve.
    #[default]
    Active,
    /// To finish what it has, and be given nothing more.
    Draining,
    /// To be given nothing more; what it has not begun to answer goes to others.
    Ejected,
}

impl Duty {
    /// The word for it in answers and labels.
    pub fn label(self) -> &'static str {
        match self {
            Duty::Active => "active",
            Duty::Draining => "draining",
            Duty::Ejected => "ejected",
        }
    }
}

/// How long it is remembered what operators want of a worker that is away: longer than any engine takes to start anew.
const REMEMBERED: Duration = Duration::from_hours(1);

/// The most workers of which it is.
const AWAY_MAX: usize = 1024;

/// What operators want of workers that left while they were not to serve, and when they left.
#[derive(Debug, Default)]
pub(super) struct Away(Mutex<HashMap<WorkerId, (Duty, Instant)>>);

impl Away {
    /// A worker leaves. One that is to serve begins so anyhow.
    pub(super) fn went(&self, now: Instant, id: &WorkerId, duty: Duty) {
        let mut away = self.lock(now);
        if duty != Duty::Active && (away.len() < AWAY_MAX || away.contains_key(id)) {
            away.insert(id.clone(), (duty, now));
        }
    }

    /// A worker is there: what is wanted of it, if that is not as with any other.
    pub(super) fn came(&self, now: Instant, id: &WorkerId) -> Option<Duty> {
        self.lock(now).remove(id).map(|(duty, _)| duty)
    }

    /// Changes what is wanted of a worker that is away. Returns what it was, if that is remembered.
    fn set(&self, now: Instant, id: &WorkerId, duty: Duty) -> Option<Duty> {
        let was = self.came(now, id)?;
        self.went(now, id, duty);
        Some(was)
    }

    fn lock(&self, now: Instant) -> MutexGuard<'_, HashMap<WorkerId, (Duty, Instant)>> {
        let mut away = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        away.retain(|_, (_, left)| now.saturating_duration_since(*left) < REMEMBERED);
        away
    }
}

/// Why an operator's wish was not fulfilled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DutyError {
    /// There is no such worker.
    #[error("there is no worker `{0}`")]
    Unknown(WorkerId),
    /// It is as it was wished already.
    #[error("worker `{0}` is {word} already", word = .1.label())]
    Already(WorkerId, Duty),
}

impl Fleet {
    /// Sets what operators want of a worker, all its ranks together. Of one that is away, it is changed for when it returns.
    /// An ejection reaches those, too, that left under this name and still have requests.
    ///
    /// # Errors
    /// When there is no such worker, or it is so already.
    pub fn set_duty(&self, id: &WorkerId, duty: Duty) -> Result<(), DutyError> {
        // Whoever comes in its place meanwhile would not hear of it.
        let slots = self.lock();
        let roster = self.roster();
        let is_here = |worker: &Arc<Worker>| roster.worker(worker.slot).is_some_and(|here| Arc::ptr_eq(here, worker));
        let left = slots.holders().filter(|worker| duty == Duty::Ejected && worker.id == *id && !is_here(worker));
        let is_reached = left.filter(|worker| worker.set_duty(duty)).count() > 0;
        let mut ranks = roster.ranks_of(id).peekable();
        if ranks.peek().is_none() {
            return match self.away.set(Instant::now(), id, duty) {
                Some(was) if was == duty && !is_reached => Err(DutyError::Already(id.clone(), duty)),
                None if !is_reached => Err(DutyError::Unknown(id.clone())),
                _ => Ok(()),
            };
        }
        let ranks: Vec<_> = ranks.map(|worker| (worker, None)).collect();
        let mut changed = false;
        for (worker, _) in &ranks {
            changed |= worker.set_duty(duty);
        }
        self.settle_locked(&ranks);
        if changed { Ok(()) } else { Err(DutyError::Already(id.clone(), duty)) }
    }

    /// What the requests of this worker have shown is forgotten, at an operator's word, on all its ranks: its strikes and
    /// its trial, and that it was taken out. Where its checks fail, the next one takes it out again.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn reset_breaker(&self, id: &WorkerId) -> Result<(), DutyError> {
        let _one_at_a_time = self.lock();
        let roster = self.roster();
        let pardoned = roster.ranks_of(id).map(|worker| {
            let mut health = worker.lock_health();
            let was_out = !health.is_available();
            health.pardon();
            (worker, was_out.then(Instant::now))
        });
        let ranks: Vec<_> = pardoned.collect();
        self.settle_locked(&ranks);
        if ranks.is_empty() { Err(DutyError::Unknown(id.clone())) } else { Ok(()) }
    }

    /// An operator had the cache of this worker emptied: what is known of it is emptied, too.
    pub fn reset_view(&self, id: &WorkerId) {
        for worker in self.roster().ranks_of(id) {
            self.forget(worker.slot);
            worker.view_reset.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_of_whom_is_away_is_remembered_once_and_not_for_ever() {
        let (away, start, id) =
            (Away::default(), Instant::now(), |number: usize| WorkerId::from(format!("w{number}").as_str()));
        away.went(start, &id(1), Duty::Draining);
        away.went(start, &id(2), Duty::Active);
        assert_eq!((away.came(start, &id(1)), away.came(start, &id(1))), (Some(Duty::Draining), None));
        assert_eq!(away.came(start, &id(2)), None);
        away.went(start, &id(1), Duty::Ejected);
        assert_eq!(away.set(start, &id(1), Duty::Active), Some(Duty::Ejected));
        assert_eq!(away.came(start, &id(1)), None);
        away.went(start, &id(1), Duty::Ejected);
        assert_eq!(away.came(start + REMEMBERED, &id(1)), None);
        (0..=AWAY_MAX).for_each(|number| away.went(start, &id(number), Duty::Draining));
        assert_eq!([0, AWAY_MAX].map(|number| away.came(start, &id(number))), [Some(Duty::Draining), None]);
    }
}
