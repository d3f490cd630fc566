//! The fleet at one moment: the table that placements go by, and the workers that it speaks of.

use std::collections::HashMap;
use std::sync::Arc;

use warmpath_core::ids::{Slot, WorkerId};
use warmpath_core::workers::{Pool, Target, WorkerTable};

use super::lacking::Lacking;
use super::{Newcomer, Worker};
use crate::openai::Dialect;

/// By the model's name.
type OfModel<T> = HashMap<Arc<str>, T, foldhash::fast::RandomState>;

#[cfg(test)]
thread_local!(/// Those that this thread has made out of others.
    pub(crate) static MADE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });

/// A table and its workers, never changed: whoever holds one finds in a slot whom its table meant, and keeps the slot
/// from being given to another.
#[derive(Default)]
pub struct Roster {
    table: WorkerTable,
    workers: Vec<Option<Arc<Worker>>>,
    /// What those who serve a model had said of it when this was made.
    dialects: OfModel<Dialect>,
    /// Which of them lack what; anew for what they have said when this was made, if not before.
    lacking: Arc<Lacking>,
}

impl Roster {
    /// One of these pools, in which nobody serves yet.
    pub(super) fn new(pools: Vec<Pool>) -> Self {
        Self { table: WorkerTable::new(Vec::new(), pools), ..Self::default() }
    }

    /// What placements go by.
    pub fn table(&self) -> &WorkerTable {
        &self.table
    }

    /// The worker in `slot`.
    pub fn worker(&self, slot: Slot) -> Option<&Arc<Worker>> {
        self.workers.get(slot.index())?.as_ref()
    }

    /// Every routing target's worker, ascending by slot.
    pub fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers.iter().flatten()
    }

    /// Those of one model, in the same order.
    pub fn serving(&self, model: &str) -> impl Iterator<Item = &Arc<Worker>> {
        let targets = self.table.pool(model).into_iter().flat_map(|pool| &pool.targets);
        targets.filter_map(|slot| self.worker(*slot))
    }

    /// The routing targets of one worker.
    pub fn ranks_of(&self, id: &WorkerId) -> impl Iterator<Item = &Arc<Worker>> {
        self.workers().filter(move |worker| worker.id == *id)
    }

    /// How the engines of this model read requests, as the first of them had said; as vLLM's where none had.
    pub fn dialect(&self, model: &str) -> Dialect {
        self.dialects.get(model).copied().unwrap_or_default()
    }

    pub(super) fn lacking(&self) -> &Lacking {
        &self.lacking
    }

    /// This and `joined`, each with what is new of it.
    pub(super) fn with<'a>(&self, joined: impl Iterator<Item = (&'a Arc<Worker>, &'a Newcomer)>) -> Self {
        let mut targets: Vec<Target> = self.table.iter().cloned().collect();
        let mut workers = self.workers.clone();
        for (worker, newcomer) in joined {
            targets.push(target(worker, newcomer));
            let place = worker.slot.index();
            workers.resize(workers.len().max(place + 1), None);
            workers[place] = Some(Arc::clone(worker));
        }
        self.of(targets, workers)
    }

    /// This without the worker of this id.
    pub(super) fn without(&self, id: &WorkerId) -> Self {
        let targets = self.table.iter().filter(|target| target.worker != *id).cloned().collect();
        let stays = |worker: &Option<Arc<Worker>>| worker.clone().filter(|worker| worker.id != *id);
        self.of(targets, self.workers.iter().map(stays).collect())
    }

    /// This with one target changed.
    pub(super) fn changed(&self, slot: Slot, change: impl Fn(&mut Target)) -> Self {
        self.changed_where(|target| target.slot == slot, change)
    }

    /// This with the targets changed of which `which` holds.
    pub(super) fn changed_where(&self, which: impl Fn(&Target) -> bool, change: impl Fn(&mut Target)) -> Self {
        let mut targets: Vec<Target> = self.table.iter().cloned().collect();
        targets.iter_mut().filter(|target| which(target)).for_each(change);
        // Who lacks what has not changed.
        Self { lacking: Arc::clone(&self.lacking), ..self.of(targets, self.workers.clone()) }
    }

    /// This with what its workers have said of their models since it was made.
    pub(super) fn heard(&self) -> Self {
        self.of(self.table.iter().cloned().collect(), self.workers.clone())
    }

    /// O(workers + pools).
    fn of(&self, targets: Vec<Target>, mut workers: Vec<Option<Arc<Worker>>>) -> Self {
        #[cfg(test)]
        MADE.with(|made| made.set(made.get() + 1));
        let last = workers.iter().rposition(Option::is_some);
        workers.truncate(last.map_or(0, |last| last + 1));
        let (mut serving, mut dialects) = (OfModel::<Vec<Slot>>::default(), OfModel::default());
        for worker in workers.iter().flatten() {
            serving.entry(Arc::clone(&worker.model)).or_default().push(worker.slot);
            if let Some(dialect) = worker.offer.load().as_ref().and_then(|offer| offer.dialect()) {
                dialects.entry(Arc::clone(&worker.model)).or_insert(dialect);
            }
        }
        let mut served =
            |pool: &Pool| Pool { targets: serving.remove(&pool.model).unwrap_or_default(), ..pool.clone() };
        let pools = self.table.pools().iter().map(&mut served).collect();
        Self { table: WorkerTable::new(targets, pools), workers, dialects, lacking: Arc::default() }
    }
}

fn target(worker: &Worker, newcomer: &Newcomer) -> Target {
    Target {
        slot: worker.slot,
        worker: worker.id.clone(),
        rank: worker.rank.unwrap_or_default(),
        role: newcomer.contract.role,
        limits: newcomer.contract.limits,
        available: worker.may_serve(),
        ramp: None,
        account: Arc::default(),
        trust: Arc::new(newcomer.trust()),
    }
}
