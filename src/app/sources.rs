//! Where the workers' events come from, and how that goes.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use warmpath_core::blocks::Root;
use warmpath_core::ids::Rank;
use warmpath_core::namespace::Namespace;
use warmpath_indexer::tree::SharedTree;

use super::StartError;
use super::build::setup;
use crate::config::{Config, EventSource, JetStream, Worker as WorkerConfig};
use crate::events::local::LocalBus;
use crate::events::nats::{self, NatsBus, NatsSettings};
use crate::events::{EventTask, Message};
use crate::fleet::{Fleet, Worker};
use crate::shutdown::Tasks;
use crate::telemetry::metrics::Metrics;

/// Every event task, seen from outside.
pub(super) struct Sources {
    connected: Option<watch::Receiver<bool>>,
    index: Arc<SharedTree>,
    workers: Vec<Arc<Worker>>,
    metrics: Metrics,
}

impl Sources {
    /// Starts a task for each (worker, rank) that has events.
    pub(super) async fn start(
        config: &Config,
        local: Option<LocalBus>,
        (fleet, index): (&Fleet, &Arc<SharedTree>),
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> Result<Arc<Self>, StartError> {
        let bus = match settings(config) {
            Some(settings) => {
                let connecting = NatsBus::connect(settings).await;
                Some(connecting.map_err(|error| setup("the NATS settings cannot be used", error))?)
            }
            None => None,
        };
        for worker in fleet.workers() {
            let described = config.workers.iter().find(|described| described.id.value == worker.id);
            let described = described.expect("the fleet was built from this configuration");
            let queue = match described.event_source(bus.is_some()) {
                EventSource::None => continue,
                EventSource::Local => local_queue(local.as_ref(), worker)?,
                EventSource::Nats => nats_queue(bus.as_ref(), worker, tasks)?,
            };
            tasks.spawn(task(config, described, worker, index).run(queue));
        }
        let sources = Self {
            connected: bus.as_ref().map(NatsBus::connected),
            index: Arc::clone(index),
            workers: fleet.workers().to_vec(),
            metrics: metrics.clone(),
        };
        Ok(Arc::new(sources))
    }

    /// Whether the bus is connected, or there is none.
    pub(super) fn are_up(&self) -> bool {
        self.connected.as_ref().is_none_or(|connected| *connected.borrow())
    }

    /// What does not work, in words.
    pub(super) fn complaints(&self) -> Vec<String> {
        if self.are_up() {
            return Vec::new();
        }
        vec!["the event bus is not connected: requests are routed by load and by what was known before".to_owned()]
    }

    /// Brings the gauges up to date.
    pub(super) fn measure(&self) {
        self.metrics.bus_up.set(if self.are_up() { 1.0 } else { 0.0 });
        for worker in &self.workers {
            worker.metrics.index_blocks.set(crate::telemetry::hit_rate::count(self.index.blocks_of(worker.slot)));
        }
    }
}
