//! Workers that register themselves in a NATS key-value bucket.
//!
//! The bucket is watched, and who was not heard of for a lease by the router's own clock is asked for once more before it
//! is let go: a server that does not answer is no proof that a worker is gone. While the bus is away nobody goes, and when it
//! is back everybody has a whole lease to be heard again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::Client;
use async_nats::connection::State;
use async_nats::jetstream::kv::{Entry, Operation, Store};
use async_nats::jetstream::{self, Context, stream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc::Sender;
use tokio::time::{MissedTickBehavior, timeout};

use super::leases::Leases;
use super::registration::{self, RegisteredEvents, Registration};
use super::{Found, Origin, WORKERS_MAX};
use crate::config::{Config, EventSource, Worker};
use crate::error::BoxError;
use crate::shutdown::Lasting;

/// Waits between attempts to watch.
const RETRY: Duration = Duration::from_millis(500);

/// How long the server may take for an answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(200);

/// Entries that are refused with a reason of their own.
const REFUSALS_MAX: usize = 16;

/// What the bucket holds at most.
const BUCKET_BYTES: i64 = 16 << 20;

/// Follows a bucket.
pub struct Registrations {
    client: Client,
    context: Context,
    config: Arc<Config>,
    tell: Sender<Found>,
    leases: Leases,
    /// When entries were refused, and why, by key.
    refused: BTreeMap<String, (Instant, String)>,
    trouble: Option<String>,
    last: Option<Found>,
}

impl Registrations {
    /// Those of the fleet that `config` names, over `client`.
    pub fn new(client: Client, config: Arc<Config>, tell: Sender<Found>) -> Self {
        let leases = Leases::new(config.discovery.nats.lease.get(), WORKERS_MAX);
        let context = jetstream::new(client.clone());
        Self { client, context, config, tell, leases, refused: BTreeMap::new(), trouble: None, last: None }
    }
}

impl Lasting for Registrations {
    /// Tells who is registered, whenever that changes. Ends with its listener.
    async fn work(&mut self) {
        while !self.tell.is_closed() {
            if let Err(error) = self.watch().await {
                let reason = if self.is_up() { error.to_string() } else { "it is not connected".to_owned() };
                self.trouble =
                    Some(format!("the event bus does not tell who is registered ({reason}): nobody is let go"));
                self.report().await;
            }
            tokio::time::sleep(RETRY).await;
            // Whoever could not be heard was not silent.
            self.leases.extend(Instant::now());
        }
    }
}

impl Registrations {
    fn is_up(&self) -> bool {
        self.client.connection_state() == State::Connected
    }

    /// Watches until the bus is lost or the watch ends.
    async fn watch(&mut self) -> Result<(), BoxError> {
        let store = timeout(PATIENCE, open(&self.context, &self.config.events.nats.prefix)).await??;
        let mut entries = timeout(PATIENCE, store.watch_with_history(">")).await??;
        self.trouble = None;
        // What is still there is told again.
        self.refused.clear();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.tell.is_closed() {
            tokio::select! {
                entry = entries.next() => {
                    let (mut next, mut is_news) = (Some(entry), false);
                    // Those that are there already are told together with it, and none waits for a tick.
                    while let Some(entry) = next {
                        is_news |= self.take(&entry.ok_or("the watch ended")??);
                        next = entries.next().now_or_never();
                    }
                    if is_news {
                        self.report().await;
                    }
                }
                _ = ticks.tick() => {
                    if !self.is_up() {
                        return Err("the connection is lost".into());
                    }
                    self.let_go(&store).await?;
                    self.report().await;
                }
            }
        }
        Ok(())
    }

    /// Returns whether somebody came, went or changed.
    fn take(&mut self, entry: &Entry) -> bool {
        self.refused.remove(&entry.key);
        if entry.operation != Operation::Put {
            return self.leases.remove(&entry.key);
        }
        match Registration::read(&entry.key, &entry.value) {
            Ok(registration) => return self.leases.heard(Instant::now(), entry.revision, registration),
            Err(error) if self.refused.len() < REFUSALS_MAX => {
                let key: String = entry.key.chars().take(128).collect();
                let why = format!("the registration under `{key}` is refused: {error}");
                self.refused.insert(entry.key.clone(), (Instant::now(), why));
            }
            Err(_) => {}
        }
        false
    }

    /// Lets those go that were not heard for a lease, unless the bucket has something else of them. What was refused says no
    /// word when it expires.
    async fn let_go(&mut self, store: &Store) -> Result<(), BoxError> {
        let (now, lease) = (Instant::now(), self.config.discovery.nats.lease.get());
        self.refused.retain(|_, (at, _)| now.saturating_duration_since(*at) < lease);
        for (key, revision) in self.leases.overdue(now) {
            match timeout(PATIENCE, store.entry(key.as_str())).await?? {
                Some(entry) if entry.revision != revision && entry.operation == Operation::Put => {
                    self.take(&entry);
                }
                _ => {
                    self.leases.remove(&key);
                    self.refused.remove(&key);
                }
            }
        }
        Ok(())
    }

    async fn report(&mut self) {
        let mut trouble: Vec<String> =
            self.trouble.iter().chain(self.refused.values().map(|(_, why)| why)).cloned().collect();
        let two = self.leases.disputed(Instant::now());
        trouble.extend(two.map(|(key, used, other)| {
            format!("two workers register under `{key}`: the one at {used} is used, the one at {other} is not")
        }));
        let mut workers = Vec::new();
        for registration in self.leases.registrations() {
            match described(registration, &self.config) {
                Ok(worker) => workers.push(worker),
                Err(reason) => trouble.push(reason),
            }
            trouble.extend(other_block_size(registration, &self.config));
        }
        let found = Found { origin: Origin::Nats, workers: Some(workers), trouble };
        if self.last.as_ref() != Some(&found) {
            self.last = Some(found.clone());
            // Without a listener there is nobody to tell, and the loop ends.
            let _ = self.tell.send(found).await;
        }
    }
}

/// The bucket of the fleet with this prefix, made if it is not there yet.
///
/// # Errors
/// When the server does not answer, has no JetStream, or does not let us.
pub async fn open(context: &Context, prefix: &str) -> Result<Store, BoxError> {
    let bucket = registration::bucket(prefix);
    if let Ok(store) = context.get_key_value(&bucket).await {
        return Ok(store);
    }
    // What a bucket is to a server. The client's own way asks for the account first, and cannot read what servers before
    // 2.10 answer.
    let made = context.create_stream(stream::Config {
        name: format!("KV_{bucket}"),
        subjects: vec![format!("$KV.{bucket}.>")],
        max_messages_per_subject: 1,
        max_age: registration::LEASE,
        duplicate_window: registration::LEASE,
        max_bytes: BUCKET_BYTES,
        discard: stream::DiscardPolicy::New,
        allow_rollup: true,
        deny_delete: true,
        allow_direct: true,
        ..stream::Config::default()
    });
    made.await?;
    Ok(context.get_key_value(&bucket).await?)
}

/// The worker that registered, as the configuration would describe it.
fn described(registration: &Registration, config: &Config) -> Result<Worker, String> {
    let Registration { id, model, url, dp_ranks, capacity_blocks, max_num_seqs, .. } = registration;
    if !config.models.iter().any(|served| served.name.value == *model) {
        return Err(format!("worker `{id}` registered for `{model}`, and no model is named so"));
    }
    let events = match registration.events {
        RegisteredEvents::Nats => EventSource::Nats,
        RegisteredEvents::None => EventSource::None,
    };
    let mut worker = Worker::at(id.clone(), url.clone(), model.clone());
    worker.api_key = config.discovery.nats.api_key.clone();
    worker.dp_ranks = (*dp_ranks).into();
    worker.events = Some(events.into());
    worker.capacity_blocks = *capacity_blocks;
    worker.max_num_seqs = max_num_seqs.unwrap_or(worker.max_num_seqs);
    Ok(worker)
}

/// Such a worker serves, but nothing of its cache is ever found.
fn other_block_size(registration: &Registration, config: &Config) -> Option<String> {
    let model = config.models.iter().find(|model| model.name.value == registration.model)?;
    (model.block_size != registration.block_size).then(|| {
        format!(
            "worker `{}` has blocks of {} tokens, and its model is configured with {}: its cache is not used",
            registration.id,
            registration.block_size.get(),
            model.block_size.get()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration(model: &str) -> Registration {
        let text = format!(
            "{{\"v\":1,\"id\":\"a\",\"model\":\"{model}\",\"url\":\"http://a:1\",\"block_size\":32,\"dp_ranks\":2,\"epoch\":1,\"capacity_blocks\":9,\"events\":\"nats\"}}"
        );
        Registration::read("a", text.as_bytes()).unwrap()
    }

    fn config() -> Config {
        let text = "models: [{name: m}]\nworkers: [{id: b, url: 'http://b:1', model: m}]\n\
                    discovery: {nats: {api_key: k}}\n";
        Config::parse("a test", text.to_owned()).unwrap()
    }

    #[test]
    fn a_registration_becomes_a_worker() {
        let worker = described(&registration("m"), &config()).unwrap();
        assert_eq!((worker.id.as_str(), worker.url.to_string()), ("a", "http://a:1".to_owned()));
        assert_eq!((worker.dp_ranks.get(), worker.max_num_seqs.get()), (2, 256));
        assert_eq!((worker.capacity_blocks.map(|blocks| blocks.get()), worker.api_key), (Some(9), Some("k".into())));
        assert_eq!(worker.events.map(|events| events.value), Some(EventSource::Nats));
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let reason = described(&registration("x"), &config()).unwrap_err();
        assert_eq!(reason, "worker `a` registered for `x`, and no model is named so");
        let reason = "worker `a` has blocks of 32 tokens, and its model is configured with 16: its cache is not used";
        assert_eq!(other_block_size(&registration("m"), &config()).as_deref(), Some(reason));
    }
}
