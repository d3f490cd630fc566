//! The sending side of the event bus.

use super::Message;
use super::local::LocalBus;
use super::nats::NatsBus;

/// Where one (worker, rank)'s events go.
#[derive(Clone, Debug)]
pub struct Publisher {
    model: String,
    worker: String,
    rank: u32,
    bus: Bus,
}

/// A bus that can be published to.
#[derive(Clone, Debug)]
pub enum Bus {
    /// Inside this process.
    Local(LocalBus),
    /// Over NATS.
    Nats(Box<NatsBus>),
    /// Nowhere.
    Silent,
}

impl Publisher {
    /// A publisher for this worker.
    pub fn new(bus: Bus, model: &str, worker: &str, rank: u32) -> Self {
        Self { model: model.to_owned(), worker: worker.to_owned(), rank, bus }
    }

    /// Publishes a batch. Never waits; what cannot be published is lost, as it would be with a real engine.
    pub fn publish(&self, message: Message) {
        match &self.bus {
            Bus::Silent => {}
            Bus::Local(bus) => {
                if !bus.publish(&self.worker, self.rank, message) {
                    tracing::warn!(worker = self.worker, "event queue full; batch dropped");
                }
            }
            Bus::Nats(bus) => {
                let line = (self.model.as_str(), self.worker.as_str(), self.rank);
                if let Err(error) = bus.publish(line, message) {
                    tracing::warn!(worker = self.worker, error = %error, "batch dropped");
                }
            }
        }
    }
}
