//! How the connection to the server is, and what was lost on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::Event;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::NatsBus;

/// How often drops are told of at most: a burst has thousands, and each telling begins a repair.
const DROPS_APART: Duration = Duration::from_millis(100);

/// How the connection is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) up: bool,
    /// How often it was lost: what was received across a change of this may have holes.
    pub(super) losses: u64,
    /// How often the client had no room for a message of some subscription and dropped it. It tells of each burst at least
    /// once, and nobody else does.
    pub(super) drops: u64,
    /// Why it is down, as far as anybody said.
    pub(super) trouble: Option<String>,
    /// Since when it is up, or down.
    pub(super) since: Option<Instant>,
    /// What the client complained of last.
    pub(super) complaint: Option<String>,
}

impl Link {
    /// Takes note of what the client tells.
    pub(super) fn note(&mut self, event: Event) {
        match event {
            Event::Connected => {
                tracing::info!("event bus connected");
                (self.up, self.trouble, self.complaint) = (true, None, None);
                self.since = Some(Instant::now());
            }
            Event::Disconnected | Event::Closed => {
                tracing::warn!("event bus lost; connecting again");
                if std::mem::replace(&mut self.up, false) {
                    self.since = Some(Instant::now());
                }
                self.losses += 1;
            }
            Event::SlowConsumer(_) => {
                if self.drops == 0 {
                    tracing::warn!("events arrive faster than they are taken; some were dropped");
                }
                self.drops += 1;
            }
            other => {
                let trouble = other.to_string();
                // The same fault comes with every attempt; it is told once.
                if self.complaint.as_ref() != Some(&trouble) {
                    tracing::warn!(event = trouble, "event bus");
                }
                self.trouble = Some(trouble.clone()).filter(|_| !self.up);
                self.complaint = Some(trouble);
            }
        }
    }
}

/// Tells of messages that the client had no room for, seldom.
pub(super) struct Drops {
    link: watch::Receiver<Link>,
    told: u64,
    next: Instant,
}

impl Drops {
    /// Of those from now on.
    pub(super) fn new(bus: &NatsBus) -> Self {
        let link = bus.link.clone();
        let told = link.borrow().drops;
        Self { link, told, next: Instant::now() }
    }

    /// Waits for drops that were not told of. Cancelling it loses none.
    pub(super) async fn more(&mut self) {
        let told = self.told;
        sleep_until(self.next).await;
        let drops = self.link.wait_for(|link| link.drops != told).await.map(|link| link.drops);
        match drops {
            Ok(drops) => self.told = drops,
            Err(_) => std::future::pending().await,
        }
        self.next = Instant::now() + DROPS_APART;
    }
}

/// A subscription that is wanted and not made yet, counted.
pub(super) struct Missing(Arc<AtomicUsize>);

impl Missing {
    /// One more, until this is dropped.
    pub(super) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
