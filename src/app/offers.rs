//! Reads what every worker serves, from its own `/v1/models`. One that does not answer keeps what it said before.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use tokio::time::MissedTickBehavior;

use crate::config::{Engines, Timeouts};
use crate::fleet::offer::{ANSWER_MAX, Offer};
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;

/// How workers are asked, and whom it is told.
#[derive(Clone)]
pub(super) struct Offers {
    client: reqwest::Client,
    interval: Duration,
    adapters_max: NonZeroU32,
    fleet: Arc<Fleet>,
}

impl Offers {
    pub(super) fn new(fleet: &Arc<Fleet>, (engines, timeouts): (&Engines, &Timeouts)) -> Self {
        let client = reqwest::Client::builder()
            .timeout(timeouts.health_check.get())
            .pool_idle_timeout(timeouts.worker_idle.get())
            .build();
        let client = client.expect("a client without TLS has nothing to fail on");
        let interval = engines.models_interval.get();
        Self { client, interval, adapters_max: engines.adapters, fleet: Arc::clone(fleet) }
    }

    /// Starts to ask one worker, for all its ranks.
    pub(super) fn start(&self, ranks: Vec<Arc<Worker>>, tasks: &Tasks) {
        tasks.spawn(self.clone().follow(ranks));
    }

    async fn follow(self, ranks: Vec<Arc<Worker>>) {
        let Some(first) = ranks.first() else { return };
        let url = format!("{}/v1/models", first.base());
        let adapters_max = usize::try_from(self.adapters_max.get()).unwrap_or(usize::MAX);
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let mut request = self.client.get(&url);
            if let Some(key) = &first.authorization {
                request = request.header(AUTHORIZATION, key.clone());
            }
            let answer = limited(request, ANSWER_MAX).await;
            let Some(offer) = answer.and_then(|answer| Offer::read(&answer, adapters_max)) else { continue };
            let (models, adapters) = (offer.cards().len(), offer.adapters().count());
            if self.fleet.offered(&ranks, offer) {
                tracing::info!(worker = %first.id, models, adapters, "serves");
            }
        }
    }
}

/// The body of a successful answer, if it has at most `max` bytes.
pub(super) async fn limited(request: reqwest::RequestBuilder, max: usize) -> Option<Vec<u8>> {
    let mut answer = request.send().await.ok()?.error_for_status().ok()?;
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        if body.len() + chunk.len() > max {
            return None;
        }
        body.extend_from_slice(&chunk);
    }
    Some(body)
}
