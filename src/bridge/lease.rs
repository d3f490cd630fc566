//! The engine's entry in the bucket of registrations, for as long as it is healthy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::poll::{Engine, Polled};
use crate::events::nats::NatsBus;
use crate::fleet::discovery::nats::open;
use crate::fleet::discovery::registration::{REFRESH, Registration};

/// How long the server may take; a refresh that takes longer is left to the next one.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// Keeps the entry.
pub(super) struct Lease {
    bus: NatsBus,
    /// What is known of the worker without asking it. Its block size counts only if it was given.
    base: Registration,
    block_size_is_given: bool,
    epoch: Arc<AtomicU64>,
    is_held: bool,
    /// What has kept it from being written since it was; each is told once.
    trouble: Option<String>,
}

impl Lease {
    /// No entry yet.
    pub(super) fn new(bus: NatsBus, base: Registration, block_size_is_given: bool, epoch: Arc<AtomicU64>) -> Self {
        Self { bus, base, block_size_is_given, epoch, is_held: false, trouble: None }
    }

    /// Writes the entry while the engine is healthy, and takes it away when it is not, until `stop`; then takes it away.
    pub(super) async fn run(mut self, mut polled: Polled, stop: impl Future<Output = ()>) {
        let mut due = interval(REFRESH);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(stop);
        loop {
            let engine = tokio::select! {
                () = &mut stop => break,
                _ = due.tick() => polled.engine(),
                engine = polled.next(), if !self.is_held || !polled.engine().is_up => engine,
            };
            if let Some(registration) = self.registration(&engine) {
                self.write(&registration).await;
            } else if self.is_held {
                self.remove().await;
            }
        }
        if self.is_held {
            self.remove().await;
        }
    }

    /// The entry, if there is to be one.
    fn registration(&self, engine: &Engine) -> Option<Registration> {
        let block_size = if self.block_size_is_given { Some(self.base.block_size) } else { engine.block_size };
        let registration = Registration {
            block_size: block_size?,
            epoch: self.epoch.load(Ordering::Relaxed),
            capacity_blocks: engine.blocks,
            ..self.base.clone()
        };
        engine.is_up.then_some(registration)
    }

    async fn write(&mut self, registration: &Registration) {
        if !self.bus.is_up() {
            return;
        }
        let writing = async {
            let store = open(&jetstream::new(self.bus.client().clone()), self.bus.prefix()).await?;
            store.put(registration.key(), registration.to_json().into()).await?;
            Ok::<(), async_nats::Error>(())
        };
        let error = match timeout(ANSWERED_WITHIN, writing).await {
            Ok(Ok(())) => {
                self.trouble = None;
                if !std::mem::replace(&mut self.is_held, true) {
                    tracing::info!(worker = %registration.id, "registered");
                }
                return;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the server does not answer".to_owned(),
        };
        if self.trouble.as_ref() != Some(&error) {
            tracing::warn!(worker = %registration.id, error, "not registered: it is tried again and again");
            self.trouble = Some(error);
        }
    }

    async fn remove(&mut self) {
        let key = self.base.key();
        let removing = async {
            open(&jetstream::new(self.bus.client().clone()), self.bus.prefix()).await?.delete(&key).await?;
            Ok::<(), async_nats::Error>(())
        };
        match timeout(ANSWERED_WITHIN, removing).await {
            Ok(Ok(())) => tracing::info!(worker = %self.base.id, "no longer registered"),
            Ok(Err(error)) => tracing::warn!(worker = %self.base.id, error = %error, "still registered"),
            Err(_) => tracing::warn!(worker = %self.base.id, "still registered: the server does not answer"),
        }
        self.is_held = false;
    }
}
