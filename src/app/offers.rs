//! Reads what every worker serves, from its own `/v1/models`. One that does not answer keeps what it said before.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use tokio::time::MissedTickBehavior;

use crate::config::{Engines, Timeouts};
use crate::fleet::offer::{ANSWER_MAX, Offer};
use crate::fleet::{Fleet, Worker};
use crate::link::Outgoing;
use crate::shutdown::{Restarts, Tasks};

/// How workers are asked, and whom it is told.
#[derive(Clone)]
pub(super) struct Offers {
    patience: Duration,
    interval: Duration,
    adapters_max: NonZeroU32,
    fleet: Arc<Fleet>,
}

impl Offers {
    pub(super) fn new(fleet: &Arc<Fleet>, (engines, timeouts): (&Engines, &Timeouts)) -> Self {
        let (patience, interval) = (timeouts.health_check.get(), engines.models_interval.get());
        Self { patience, interval, adapters_max: engines.adapters, fleet: Arc::clone(fleet) }
    }

    /// Starts to ask one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, (tasks, restarts): (&Tasks, Restarts)) {
        let this = self.clone();
        tasks.supervise(restarts, move || this.clone().follow(ranks.clone()));
    }

    async fn follow(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let adapters_max = usize::try_from(self.adapters_max.get()).unwrap_or(usize::MAX);
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut ask = Outgoing::get("/v1/models");
            if let Some(key) = first.authorization() {
                ask.headers.insert(AUTHORIZATION, key);
            }
            let Ok((status, answer)) = first.control.ask(&ask, self.patience, ANSWER_MAX).await else { continue };
            let read = status.is_success().then(|| Offer::read(&answer, adapters_max));
            let Some(offer) = read.flatten() else { continue };
            let (models, adapters) = (offer.cards().len(), offer.adapters().count());
            if self.fleet.offered(&ranks, offer) {
                tracing::info!(worker = %first.id, models, adapters, "serves");
            }
        }
    }
}
