//! What operators do with workers.

use std::time::Instant;

use warmpath_core::ids::WorkerId;

use super::Fleet;

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
    /// Sets what operators want of a worker, all its ranks together.
    ///
    /// # Errors
    /// When there is no such worker, or it is so already.
    pub fn set_duty(&self, id: &WorkerId, duty: Duty) -> Result<(), DutyError> {
        let roster = self.roster();
        let mut ranks = roster.ranks_of(id).peekable();
        if ranks.peek().is_none() {
            return Err(DutyError::Unknown(id.clone()));
        }
        let mut changed = false;
        for worker in ranks {
            changed |= worker.set_duty(duty);
            self.settle(worker, None);
        }
        if changed { Ok(()) } else { Err(DutyError::Already(id.clone(), duty)) }
    }

    /// What the requests of this worker have shown is forgotten, at an operator's word, on all its ranks: its strikes and
    /// its trial, and that it was taken out. Where its checks fail, the next one takes it out again.
    ///
    /// # Errors
    /// When there is no such worker.
    pub fn reset_breaker(&self, id: &WorkerId) -> Result<(), DutyError> {
        let roster = self.roster();
        let mut known = false;
        for worker in roster.ranks_of(id) {
            known = true;
            let was_out = {
                let mut health = worker.lock_health();
                let was_out = !health.is_available();
                health.pardon();
                was_out
            };
            self.settle(worker, was_out.then(Instant::now));
        }
        if known { Ok(()) } else { Err(DutyError::Unknown(id.clone())) }
    }

    /// An operator had the cache of this worker emptied: what is known of it is emptied, too. Returns how many ranks.
    pub fn reset_view(&self, id: &WorkerId) -> usize {
        let roster = self.roster();
        let ranks = roster.ranks_of(id).inspect(|worker| {
            self.forget(worker.slot);
            worker.view_reset.notify_one();
        });
        ranks.count()
    }
}
