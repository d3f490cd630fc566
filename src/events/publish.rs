//! The sending side of the event bus.

use super::Message;
use super::local::LocalBus;
use super::nats::NatsBus;
use zmq::{ReplayFault, ZmqPublisher};

pub mod faults;
pub mod zmq;

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
    /// From sockets of its own, over ZeroMQ.
    Zmq(ZmqPublisher),
    /// Over all of these.
    Several(Vec<Bus>),
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
        self.bus.publish((&self.model, &self.worker, self.rank), message);
    }

    /// Keeps a batch for those who ask for it later, where the bus does so by itself.
    pub fn keep(&self, message: &Message) {
        self.bus.each_zmq(&mut |zmq| zmq.keep(message.clone()));
    }

    /// The engine's process starts anew: its sockets close, and what it kept is gone.
    pub fn restart(&self) {
        self.bus.each_zmq(&mut |zmq| zmq.restart());
    }

    /// How replays are answered from now on.
    pub fn set_replay_fault(&self, fault: ReplayFault) {
        self.bus.each_zmq(&mut |zmq| zmq.set_fault(fault));
    }
}

impl Bus {
    fn publish(&self, line: (&str, &str, u32), message: Message) {
        let (_, worker, rank) = line;
        match self {
            Bus::Silent => {}
            Bus::Local(bus) => {
                if !bus.publish(worker, rank, message) {
                    tracing::warn!(worker, "event queue full; batch dropped");
                }
            }
            Bus::Nats(bus) => {
                if let Err(error) = bus.publish(line, message) {
                    tracing::warn!(worker, error = %error, "batch dropped");
                }
            }
            Bus::Zmq(zmq) => zmq.send(message),
            Bus::Several(buses) => buses.iter().for_each(|bus| bus.publish(line, message.clone())),
        }
    }

    /// Every NATS bus in it.
    pub fn each_nats(&self, act: &mut impl FnMut(&NatsBus)) {
        match self {
            Bus::Nats(bus) => act(bus),
            Bus::Several(buses) => buses.iter().for_each(|bus| bus.each_nats(act)),
            Bus::Silent | Bus::Local(_) | Bus::Zmq(_) => {}
        }
    }

    fn each_zmq(&self, act: &mut impl FnMut(&ZmqPublisher)) {
        match self {
            Bus::Zmq(zmq) => act(zmq),
            Bus::Several(buses) => buses.iter().for_each(|bus| bus.each_zmq(act)),
            Bus::Silent | Bus::Local(_) | Bus::Nats(_) => {}
        }
    }
}
