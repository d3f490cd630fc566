//! The event bus inside one process: demo and tests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use super::Message;

/// Batches that wait for a subscriber; beyond, they are dropped, and the gap in their numbers is noticed.
const CAPACITY: usize = 8192;

/// Connects the engines of one process with its router. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LocalBus {
    lines: Arc<Mutex<HashMap<(String, u32), Line>>>,
}

#[derive(Debug)]
struct Line {
    sender: mpsc::Sender<Message>,
    receiver: Option<mpsc::Receiver<Message>>,
}

impl LocalBus {
    /// A bus without messages.
    pub fn new() -> Self {
        Self::default()
    }

    /// Publishes a batch of one (worker, rank). Never waits; returns whether there was room.
    pub fn publish(&self, worker: &str, rank: u32, message: Message) -> bool {
        self.with_line(worker, rank, |line| line.sender.try_send(message).is_ok())
    }

    /// All batches of one (worker, rank), from the first one on. The last subscriber gets them; there is one.
    pub fn subscribe(&self, worker: &str, rank: u32) -> mpsc::Receiver<Message> {
        self.with_line(worker, rank, |line| match line.receiver.take() {
            Some(receiver) => receiver,
            None => {
                let (sender, receiver) = mpsc::channel(CAPACITY);
                line.sender = sender;
                receiver
            }
        })
    }

    fn with_line<T>(&self, worker: &str, rank: u32, act: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry((worker.to_owned(), rank)).or_insert_with(|| {
            let (sender, receiver) = mpsc::channel(CAPACITY);
            Line { sender, receiver: Some(receiver) }
        });
        act(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(seq: u64) -> Message {
        Message { payload: vec![0].into(), seq: Some(seq), epoch: None }
    }

    #[test]
    fn what_was_published_before_the_subscription_is_not_lost() {
        let bus = LocalBus::new();
        assert!(bus.publish("a", 0, message(0)) && bus.publish("b", 0, message(7)));
        let mut events = bus.subscribe("a", 0);
        assert_eq!(events.try_recv().map(|message| message.seq), Ok(Some(0)));
        assert!(events.try_recv().is_err());
        assert!(bus.publish("a", 0, message(1)));
        assert_eq!(events.try_recv().map(|message| message.seq), Ok(Some(1)));
    }

    #[test]
    fn a_bus_that_nobody_reads_is_bounded() {
        let bus = LocalBus::new();
        let sent = (0..=CAPACITY).filter(|_| bus.publish("a", 0, message(0))).count();
        assert_eq!(sent, CAPACITY);
    }
}
