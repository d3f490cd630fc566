//! What is read of a fleet from time to time: the engines' metrics by the router, and the fleet for the report.

use warmpath_core::ids::Slot;

use super::World;
use crate::clock::Ms;
use crate::fleet::Reports;
use crate::fleet::agenda::Happening;

/// Samples at most; an even number. The last request may end long after the last arrival.
const SAMPLES_MAX: usize = 4096;
/// Readings of the engines' metrics in a row that find nothing in flight, after which another one tells nothing new.
const IDLE_REPORTS: f64 = 1000.0;

impl World<'_> {
    pub(super) fn report(&mut self) {
        self.report_all();
        if let Reports::Every(period) = self.scenario.reports
            && self.left > 0
        {
            self.agenda.enter(self.now + self.until_report(period), Happening::Report);
        }
    }

    /// How long from this reading of the engines' metrics to the next. Where nothing is in flight for longer than that makes a
    /// difference, all but the last of them before the next arrival are left out: a trace may have years of that.
    fn until_report(&self, period: Ms) -> Ms {
        if self.in_flight > 0 || !self.held.is_empty() {
            return period;
        }
        // All that have arrived have ended.
        let next = self.arrival(self.prepared.len() - self.left);
        let idle = ((next - self.now).0 / period.0).floor() - IDLE_REPORTS;
        Ms(period.0 * idle.max(1.0))
    }

    pub(super) fn report_all(&mut self) {
        let restart = self.restart.as_ref();
        for (member, slot) in self.members.iter_mut().zip((0..).map(Slot)) {
            if !restart.is_some_and(|restart| restart.is_down(slot)) {
                member.hearing.process_seen();
                self.router.report(self.now, slot, &member.engine.stats(), member.hearing.heard());
            }
        }
    }

    pub(super) fn look(&mut self) {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let stats: Vec<_> = self.members.iter().map(|member| member.engine.stats()).collect();
        self.sample.at = self.now;
        self.sample.balance = self.router.balance();
        self.sample.waiting = stats.iter().map(|stats| count(stats.levels.waiting)).collect();
        self.sample.running = stats.iter().map(|stats| count(stats.levels.running)).collect();
        self.outcome.samples.push(self.sample.clone());
        if self.outcome.samples.len() > SAMPLES_MAX {
            // From here on half as often, and as if it had always been so.
            let mut is_kept = false;
            self.outcome.samples.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.sample_every = Ms(self.sample_every.0 * 2.0);
        }
        if self.left > 0 {
            self.agenda.enter(self.now + self.sample_every, Happening::Sample);
        }
    }
}
