//! What a simulated fleet takes of a configuration.

use std::sync::Arc;
use std::time::Duration;

use warmpath_core::admission::OnAllBusy;
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::Scheduler;
use warmpath_core::shape::{Class, Objectives};
use warmpath_simulator::fleet::{self, Breaker, RouterSettings};

use super::{Config, Routing};

impl Config {
    /// The router of a simulated fleet: `policy`, with all else as it is set here.
    pub fn simulated(&self, policy: PolicyName) -> RouterSettings {
        RouterSettings {
            policy,
            routing: Arc::new(self.routing.clone()),
            in_flight_credit: self.index.in_flight_credit.get(),
            half_life: self.engines.half_life.get(),
            index_entries: usize::try_from(self.index.max_entries.get()).unwrap_or(usize::MAX),
            breaker: Breaker {
                strikes: self.health.request_failures.get(),
                interval: self.timeouts.health_interval.get(),
                ramp: self.health.ramp.get(),
                ramp_from: self.health.ramp_from.get(),
            },
        }
    }
}

impl fleet::Routing for Routing {
    fn scheduler(&self, policy: PolicyName, in_flight_credit: Duration, half_life: Duration) -> Scheduler {
        let alone = Routing { shadow: Vec::new(), on_all_busy: OnAllBusy::LeastLoaded, ..self.clone() };
        alone.scheduler(policy, in_flight_credit, half_life)
    }

    fn objectives(&self) -> Objectives {
        self.objectives.of(Class::default())
    }

    fn event_silence(&self) -> Duration {
        self.trust.event_silence.get()
    }
}
