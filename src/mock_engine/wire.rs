//! Cache events of the simulated engine as the bytes that a real engine would send.

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode::{self, HashForm};
use warmpath_indexer::event::EventBatch;
use warmpath_simulator::BlockEvent;

use crate::events::Message;
use crate::events::publish::Publisher;
use crate::events::publish::faults::{EventFaults, FaultyWay};
use crate::events::publish::zmq::ReplayFault;
use crate::wall_clock;

/// Encodes one batch a step, numbers it, and publishes it.
pub(super) struct Wire {
    publisher: Publisher,
    form: encode::Form,
    hashes: HashForm,
    block_size: BlockSize,
    rank: u32,
    way: FaultyWay<Message>,
    late: mpsc::Sender<(Instant, Message)>,
    epoch: u64,
    next: u64,
}

/// How events are written, and what goes wrong with them.
pub(super) struct WireSettings {
    pub form: encode::Form,
    pub hashes: HashForm,
    pub block_size: BlockSize,
    pub faults: EventFaults,
    pub seed: u64,
    pub rank: u32,
}

/// Batches that are on a slow way at once; more are lost.
const LATE_MAX: usize = 65_536;

impl Wire {
    /// A wire of an engine process that starts now, and the work of the slow way.
    pub(super) fn new(publisher: Publisher, settings: WireSettings) -> (Self, impl Future<Output = ()> + use<>) {
        let WireSettings { form, hashes, block_size, faults, seed, rank } = settings;
        let (late, mut queue) = mpsc::channel::<(Instant, Message)>(LATE_MAX);
        let to = publisher.clone();
        let delaying = async move {
            while let Some((due, message)) = queue.recv().await {
                sleep_until(due).await;
                to.publish(message);
            }
        };
        let way = FaultyWay::new(faults, seed);
        (Self { publisher, form, hashes, block_size, rank, way, late, epoch: epoch(), next: 0 }, delaying)
    }

    /// The engine's process starts anew.
    pub(super) fn restart(&mut self) {
        self.publisher.restart();
        self.way.clear();
        (self.epoch, self.next) = (epoch().max(self.epoch + 1), 0);
    }

    /// What goes wrong from now on.
    pub(super) fn set_faults(&mut self, faults: EventFaults, replay: ReplayFault) {
        self.way.set(faults);
        self.publisher.set_replay_fault(replay);
    }

    /// Publishes the events of one step; none is no batch.
    pub(super) fn publish(&mut self, events: &[BlockEvent]) {
        if events.is_empty() {
            return;
        }
        let ts = wall_clock::now().as_secs_f64();
        let batch = EventBatch {
            ts: Some(ts),
            dp_rank: Some(self.rank),
            events: events.iter().map(|event| event.clone().announced(self.block_size)).collect(),
            ..EventBatch::default()
        };
        let payload = match encode::encode(&batch, self.form, self.hashes) {
            Ok(payload) => payload.into(),
            Err(error) => return tracing::error!(%error, "a batch could not be written"),
        };
        let message = Message { payload, seq: Some(self.next), epoch: Some(self.epoch) };
        self.next += 1;
        self.publisher.keep(&message);
        let (delay, publisher, late) = (self.way.delay(), &self.publisher, &self.late);
        self.way.pass(message, |message| {
            if delay.is_zero() {
                publisher.publish(message);
            } else if late.try_send((Instant::now() + delay, message)).is_err() {
                tracing::warn!("too many batches are on their way; one is lost");
            }
        });
    }
}

/// Microseconds since 1970: higher for each later process.
fn epoch() -> u64 {
    u64::try_from(wall_clock::now().as_micros()).unwrap_or(0)
}
