//! The first worker dies in the middle of a trace, with all that it held and computed, and comes back after a while. What
//! had no first token there goes elsewhere, as the gateway does it; what had one has failed. The router takes the worker out
//! and brings it back as the gateway does, and learns that its cache is empty from what the new process sends.

use warmpath_core::ids::Slot;
use warmpath_core::observe::Side;
use warmpath_core::slot_set::SlotSet;

use super::World;
use crate::clock::Ms;
use crate::fleet::ScenarioError;
use crate::fleet::agenda::Happening;
use crate::fleet::outcome::Failure;

/// Who dies.
const WORKER: Slot = Slot(0);
/// Health checks in a row that change what is thought of a worker, as in the gateway.
const CHECKS: u32 = 2;

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::fleet) enum Stage {
    /// The process ends.
    Dies,
    /// Another one begins.
    Rises,
    /// Its health is checked.
    Checked,
}

/// A worker that dies and comes back.
#[derive(Debug)]
pub(super) struct Restart {
    /// How long it is gone.
    gone: Ms,
    is_down: bool,
    /// Whether the router gives it nothing.
    is_out: bool,
    /// Requests in a row that failed through its fault.
    strikes: u32,
    /// Checks in a row that spoke against what the router thinks of it.
    checks: u32,
}

impl Restart {
    pub(super) fn new(gone: Ms) -> Self {
        Self { gone, is_down: false, is_out: false, strikes: 0, checks: 0 }
    }

    /// Whether there is no process in this slot.
    pub(super) fn is_down(&self, slot: Slot) -> bool {
        self.is_down && slot == WORKER
    }
}

impl World<'_> {
    /// Enters when the worker dies, if one does: half-way between the first arrival and the last.
    pub(super) fn await_death(&mut self) {
        if self.restart.is_some() {
            let at = Ms(self.prepared.span().0 / self.scenario.speed / 2.0);
            self.agenda.enter(at, Happening::Restart(Stage::Dies));
        }
    }

    pub(super) fn is_down(&self, slot: Slot) -> bool {
        self.restart.as_ref().is_some_and(|restart| restart.is_down(slot))
    }

    pub(super) fn restart(&mut self, stage: Stage) -> Result<(), ScenarioError> {
        match stage {
            Stage::Dies => self.die()?,
            Stage::Rises => {
                if let Some(restart) = &mut self.restart {
                    (restart.is_down, restart.strikes) = (false, 0);
                }
            }
            Stage::Checked => self.check_health(),
        }
        Ok(())
    }

    fn die(&mut self) -> Result<(), ScenarioError> {
        let Some(restart) = &mut self.restart else { return Ok(()) };
        restart.is_down = true;
        let gone = restart.gone;
        self.outcome.preemptions += self.members[WORKER.index()].restart(self.now)?;
        if let Some(audit) = &mut self.audit {
            audit.restarted(WORKER.index());
        }
        self.agenda.enter(self.now + gone, Happening::Restart(Stage::Rises));
        // Somewhere between two checks.
        let half = Ms(self.check_interval().0 / 2.0);
        self.agenda.enter(self.now + half, Happening::Restart(Stage::Checked));
        for (number, started) in self.router.requests_on(WORKER) {
            if started {
                self.fail(number);
                self.close(number, Some(Failure::WorkerDied));
            } else {
                self.go_elsewhere(number, WORKER);
            }
        }
        Ok(())
    }

    /// A request that has no first token yet is given to another worker than this one, which is gone.
    pub(super) fn go_elsewhere(&mut self, number: usize, slot: Slot) {
        self.fail(number);
        self.attempt(number, &[slot].into_iter().collect::<SlotSet>());
    }

    /// An attempt ends through the worker's fault.
    fn fail(&mut self, number: usize) {
        self.router.failed(self.now, number, Side::Worker);
        if let Some(audit) = &mut self.audit {
            audit.failed(number);
        }
        if let Some(restart) = &mut self.restart {
            restart.strikes += 1;
            if restart.strikes >= self.scenario.router.breaker.strikes {
                self.set_out(true);
            }
        }
    }

    /// Checks go on until the worker is back and nothing speaks against it.
    fn check_health(&mut self) {
        let Some(restart) = &mut self.restart else { return };
        let is_news = restart.is_down != restart.is_out;
        restart.checks = if is_news { restart.checks + 1 } else { 0 };
        let (is_down, is_due) = (restart.is_down, restart.checks >= CHECKS);
        if is_due {
            self.set_out(is_down);
        }
        if self.restart.as_ref().is_some_and(|restart| restart.is_down || restart.is_out) {
            self.agenda.enter(self.now + self.check_interval(), Happening::Restart(Stage::Checked));
        }
    }

    /// The router takes the worker out, or brings it back.
    fn set_out(&mut self, out: bool) {
        let Some(restart) = self.restart.as_mut().filter(|restart| restart.is_out != out) else { return };
        (restart.is_out, restart.checks, restart.strikes) = (out, 0, 0);
        self.router.set_available(self.now, WORKER, !out, &self.scenario.router.breaker);
    }

    fn check_interval(&self) -> Ms {
        Ms(self.scenario.router.breaker.interval.as_secs_f64() * 1e3)
    }
}
