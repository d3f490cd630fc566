//! Reads what every worker serves, from its own `/v1/models`. One that does not answer keeps what it said before.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::config::{Engines, Timeouts};
use crate::fleet::offer::{ANSWER_MAX, Offer};
use crate::fleet::{Fleet, Worker};
use crate::link::Outgoing;
use crate::openai::Dialect;
use crate::shutdown::{Restarts, Tasks};
use http::header::AUTHORIZATION;

/// After a worker did not answer it is asked again so soon, and after twice the time each time that it does not, but as often
/// as any other.
const SOON: Duration = Duration::from_millis(250);

/// How long after the start requests are kept away until workers have said what they serve: one that answers its checks and
/// not this must not keep the router out.
pub(super) const READING: Duration = Duration::from_secs(10);

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
        let mut soon = SOON;
        loop {
            let began = Instant::now();
            let answered = self.ask(&ranks).await;
            let pause = if answered { self.interval } else { soon.min(self.interval) };
            soon = if answered { SOON } else { pause * 2 };
            tokio::time::sleep_until((began + pause).into()).await;
        }
    }

    /// Returns whether there was an answer.
    async fn ask(&self, ranks: &[Arc<Worker>]) -> bool {
        let Some(first) = ranks.first() else { return false };
        let adapters_max = usize::try_from(self.adapters_max.get()).unwrap_or(usize::MAX);
        let mut ask = Outgoing::get("/v1/models");
        if let Some(key) = first.authorization() {
            ask.headers.insert(AUTHORIZATION, key);
        }
        let Ok((status, answer)) = first.control.ask(&ask, self.patience, ANSWER_MAX).await else { return false };
        ranks.iter().for_each(|worker| worker.set_asked());
        let read = status.is_success().then(|| Offer::read(&answer, adapters_max));
        if let Some(offer) = read.flatten() {
            let (models, adapters) = (offer.cards().len(), offer.adapters().count());
            if self.fleet.offered(ranks, offer) {
                tracing::info!(worker = %first.id, models, adapters, "serves");
                if let Some(what) = misnamed(&self.fleet, first) {
                    tracing::warn!(worker = %first.id, "{what}");
                }
            }
        }
        true
    }
}

/// That a worker lists other models than its own, in words, where its engine answers to no other name. SGLang's do to any.
pub(super) fn misnamed(fleet: &Fleet, worker: &Worker) -> Option<String> {
    let offer = worker.offer.load();
    let offer = offer.as_ref().filter(|offer| offer.dialect() == Some(Dialect::Vllm))?;
    let named = offer.cards().iter().find(|card| card.parent.is_none())?;
    let model = &worker.model;
    (!offer.has_name(model)).then(|| {
        format!(
            "serves `{}`, not `{model}`: start it with --served-model-name {}, or correct its `model`",
            named.id,
            served_names(fleet, model)
        )
    })
}

/// The names that a model's engines are to answer to, as their option takes them.
fn served_names(fleet: &Fleet, model: &Arc<str>) -> String {
    let roster = fleet.roster();
    let aliases = roster.table().pool(model).map_or(&[][..], |pool| &pool.aliases[..]);
    std::iter::once(model).chain(aliases).map(|name| &**name).collect::<Vec<_>>().join(" ")
}

/// Whether everybody who serves has answered what, if only that nobody is told.
pub(super) fn are_read(fleet: &Fleet) -> bool {
    let roster = fleet.roster();
    let mut serving = roster.workers().filter(|worker| worker.may_serve() && worker.health().is_ready());
    serving.all(|worker| worker.was_asked())
}
