//! The event bus over NATS: JetStream where the server has it, so that nothing is lost while the link is down; core
//! NATS otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::OrderedConfig;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectOptions, Event, RequestErrorKind, ServerAddr};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::{mpsc, watch};

pub use settings::{Credentials, NatsSettings};

use super::subject;
use super::{Heard, Message};

mod settings;

/// Waits between attempts to subscribe.
const RETRY: Duration = Duration::from_millis(500);

/// How long events are kept for routers that start or come back.
const KEPT: Duration = Duration::from_secs(3600);

/// Asks what our account may keep in streams.
const ACCOUNT_QUERY: &str = "$JS.API.INFO";

/// The answer to it, as far as it says yes or no.
#[derive(Deserialize)]
struct AccountAnswer {
    error: Option<IgnoredAny>,
}

/// A connection that comes back by itself.
#[derive(Clone, Debug)]
pub struct NatsBus {
    client: Client,
    settings: NatsSettings,
    link: watch::Receiver<Link>,
    missing: Arc<AtomicUsize>,
}

/// How the connection is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Link {
    up: bool,
    /// How often it was lost: what was received across a change of this may have holes.
    losses: u64,
    /// Why it is down, as far as anybody said.
    trouble: Option<String>,
}

impl Link {
    fn note(&mut self, event: Event) {
        match event {
            Event::Connected => {
                tracing::info!("event bus connected");
                *self = Self { up: true, losses: self.losses, trouble: None };
            }
            Event::Disconnected | Event::Closed => {
                tracing::warn!("event bus lost; connecting again");
                self.up = false;
                self.losses += 1;
            }
            other => {
                let trouble = other.to_string();
                // The same fault comes with every attempt; it is told once.
                if self.trouble.as_ref() != Some(&trouble) {
                    tracing::warn!(event = trouble, "event bus");
                }
                self.trouble = Some(trouble).filter(|_| !self.up);
            }
        }
    }
}

/// A subscription that is wanted and not made yet, counted.
struct Missing(Arc<AtomicUsize>);

impl Missing {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One (worker, rank)'s subscription, and how far it has come.
struct Line {
    subject: String,
    to: mpsc::Sender<Heard>,
    missing: Option<Missing>,
    /// The stream that was read last, and the last message of it that was handed on.
    read: Option<(stream::Info, u64)>,
}

impl NatsBus {
    /// Starts to connect and returns at once: a bus that is down costs nobody a start.
    ///
    /// # Errors
    /// When the URL or the credentials cannot be read.
    pub async fn connect(settings: NatsSettings) -> Result<Self, async_nats::Error> {
        let (state, link) = watch::channel(Link::default());
        let server: ServerAddr = settings.url.parse()?;
        let options = match settings.credentials.clone() {
            Credentials::Anonymous => match (server.username(), server.password()) {
                (Some(user), password) => {
                    ConnectOptions::with_user_and_password(user.to_owned(), password.unwrap_or_default().to_owned())
                }
                (None, _) => ConnectOptions::new(),
            },
            Credentials::User { user, password } => ConnectOptions::with_user_and_password(user, password),
            Credentials::Token(token) => ConnectOptions::with_token(token),
            Credentials::Nkey(seed) => ConnectOptions::with_nkey(seed),
            Credentials::Creds(text) => ConnectOptions::with_credentials(&text)?,
        };
        let longest = settings.reconnect_delay_max;
        let client = options
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(settings.connect_timeout)
            .subscription_capacity(settings.queue_messages)
            .reconnect_delay_callback(move |attempt| {
                let doubled = u32::try_from(attempt).unwrap_or(u32::MAX).min(6);
                Duration::from_millis(5).saturating_mul(1 << doubled).min(longest)
            })
            .event_callback(move |event| {
                state.send_modify(|link| link.note(event));
                std::future::ready(())
            })
            .connect(server)
            .await?;
        Ok(Self { client, settings, link, missing: Arc::default() })
    }

    /// The connection, for what else is read over it.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Waits until the connection is up; returns whether it is, for the client may be gone for good.
    pub async fn connected(&self) -> bool {
        self.link.clone().wait_for(|link| link.up).await.is_ok()
    }

    /// What keeps events from arriving, in words; none while the connection is up and every subscription is made.
    pub fn trouble(&self) -> Option<String> {
        let link = self.link.borrow();
        if !link.up {
            return Some(link.trouble.clone().unwrap_or_else(|| "no server answers".to_owned()));
        }
        let missing = self.missing.load(Ordering::Relaxed);
        (missing > 0).then(|| format!("{missing} subscriptions are being made"))
    }

    /// Hands on one (worker, rank)'s batches, subscribing again whenever the subscription ends; the future ends when
    /// `to` is closed.
    pub fn follow(
        self,
        model: &str,
        worker: &str,
        rank: u32,
        to: mpsc::Sender<Heard>,
    ) -> impl Future<Output = ()> + use<> {
        let subject = subject::events_of(&self.settings.prefix, model, worker, rank);
        let line = Line { subject, to, missing: Some(Missing::new(&self.missing)), read: None };
        self.keep_following(line)
    }

    async fn keep_following(self, mut line: Line) {
        let mut link = self.link.clone();
        while !line.to.is_closed() {
            let losses = match link.wait_for(|link| link.up).await {
                Ok(link) => link.losses,
                Err(_) => return,
            };
            let ended = tokio::select! {
                ended = self.follow_once(&mut line, losses) => Some(ended),
                _ = self.lost_since(losses) => None,
            };
            line.missing.get_or_insert_with(|| Missing::new(&self.missing));
            match ended {
                None => continue,
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    let subject = &line.subject;
                    tracing::warn!(%subject, error = %error, "event subscription ended; subscribing again");
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Waits until the connection has been lost since it was lost so many times.
    async fn lost_since(&self, losses: u64) {
        // When nobody can tell any more, the client is gone, and its subscriptions end by themselves.
        if self.link.clone().wait_for(|link| link.losses != losses).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    async fn follow_once(&self, line: &mut Line, losses: u64) -> Result<(), async_nats::Error> {
        // Subscribed before the server is asked about JetStream: its answer says that the subscription is there.
        let mut messages = self.client.subscribe(line.subject.clone()).await?;
        if self.settings.jetstream && self.has_jetstream(losses).await? {
            drop(messages);
            return self.follow_stream(line).await;
        }
        if let Err(error) = self.client.flush().await {
            tracing::debug!(error = %error, "event bus not flushed");
        }
        line.missing = None;
        while let Some(message) = messages.next().await {
            if line.to.send(Heard::Live(plain(&message))).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Whether the server has JetStream, for us. No answer while the connection stays up is a no: the account may not
    /// ask. Asked in the raw: the client's own query cannot read what nats-server 2.9 says of an account.
    async fn has_jetstream(&self, losses: u64) -> Result<bool, async_nats::Error> {
        match self.client.request(ACCOUNT_QUERY, Bytes::new()).await {
            Ok(answer) => {
                let answer: AccountAnswer = serde_json::from_slice(&answer.payload)?;
                Ok(answer.error.is_none())
            }
            Err(error) if self.link.borrow().losses != losses => Err(error.into()),
            Err(error) => {
                if error.kind() != RequestErrorKind::NoResponders {
                    tracing::warn!(error = %error, "JetStream cannot be asked for; events may be lost");
                }
                Ok(false)
            }
        }
    }

    async fn follow_stream(&self, line: &mut Line) -> Result<(), async_nats::Error> {
        let stream = ensure_stream(&self.client, &self.settings.prefix).await?;
        let info = stream.cached_info().clone();
        // A stream that was made anew counts anew.
        let read = line.read.take().filter(|(read, _)| read.created == info.created).map_or(0, |(_, read)| read);
        let consumer = stream
            .create_consumer(OrderedConfig {
                deliver_subject: self.client.new_inbox(),
                filter_subject: line.subject.clone(),
                deliver_policy: match read {
                    0 => DeliverPolicy::All,
                    read => DeliverPolicy::ByStartSequence { start_sequence: read + 1 },
                },
                ..OrderedConfig::default()
            })
            .await?;
        let mut messages = consumer.messages().await?;
        line.missing = None;
        let (_, read) = line.read.insert((info, read));
        while let Some(message) = messages.next().await {
            let message = message?;
            let sequence = message.info()?.stream_sequence;
            if line.to.send(Heard::Live(plain(&message.message))).await.is_err() {
                break;
            }
            *read = sequence;
        }
        Ok(())
    }

    /// Publishes a batch of one (worker, rank). Never waits: what finds no room, because the bus has been down for
    /// long, is dropped, and the gap in the numbers is noticed.
    ///
    /// # Errors
    /// When the batch is too large or the client is closed.
    pub fn publish(
        &self,
        (model, worker, rank): (&str, &str, u32),
        message: Message,
    ) -> Result<(), async_nats::PublishError> {
        let subject = subject::events_of(&self.settings.prefix, model, worker, rank);
        let mut headers = async_nats::HeaderMap::new();
        if let (Some(seq), Some(epoch)) = (message.seq, message.epoch) {
            headers.insert(subject::SEQUENCE_HEADER, seq.to_string().as_str());
            headers.insert(subject::EPOCH_HEADER, epoch.to_string().as_str());
            headers.insert(subject::MESSAGE_ID_HEADER, format!("{worker}/{rank}/{epoch}/{seq}").as_str());
        }
        let publishing = self.client.publish_with_headers(subject, headers, message.payload);
        tokio::task::unconstrained(publishing).now_or_never().unwrap_or_else(|| {
            tracing::warn!(worker, "the queue to the event bus is full; batch dropped");
            Ok(())
        })
    }

    /// Makes sure that the server keeps events from now on, if it has JetStream. Waits for the connection.
    pub async fn prepare(&self) {
        if !self.settings.jetstream {
            return;
        }
        let mut link = self.link.clone();
        while let Ok(losses) = link.wait_for(|link| link.up).await.map(|link| link.losses) {
            let made = match self.has_jetstream(losses).await {
                Ok(false) => return,
                Ok(true) => ensure_stream(&self.client, &self.settings.prefix).await,
                Err(error) => Err(error),
            };
            match made {
                Ok(_) => return,
                Err(error) => tracing::warn!(error = %error, "the event stream could not be made; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Takes the stream of this prefix off the server: what a demo kept is nobody else's.
    pub async fn discard(&self) {
        let context = jetstream::new(self.client.clone());
        if let Err(error) = context.delete_stream(subject::stream_name(&self.settings.prefix)).await {
            tracing::debug!(error = %error, "no stream was deleted");
        }
    }
}

async fn ensure_stream(client: &Client, prefix: &str) -> Result<stream::Stream, async_nats::Error> {
    let context = jetstream::new(client.clone());
    let stream = context.get_or_create_stream(stream::Config {
        name: subject::stream_name(prefix),
        subjects: vec![subject::all_events(prefix)],
        max_age: KEPT,
        ..stream::Config::default()
    });
    Ok(stream.await?)
}

fn plain(message: &async_nats::Message) -> Message {
    let number = |name: &str| message.headers.as_ref()?.get(name)?.as_str().parse().ok();
    Message {
        payload: message.payload.clone(),
        seq: number(subject::SEQUENCE_HEADER),
        epoch: number(subject::EPOCH_HEADER),
    }
}
