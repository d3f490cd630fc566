//! The event bus over NATS: JetStream where the server has it, so that nothing is lost while the link is down; core
//! NATS otherwise.

use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::OrderedConfig;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectOptions, Event};
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};

use super::Message;
use super::subject;

/// Waits between attempts to subscribe.
const RETRY: Duration = Duration::from_millis(500);

/// How long events are kept for routers that start or come back.
const KEPT: Duration = Duration::from_secs(3600);

/// How to reach a NATS server.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// `nats://host:port`.
    pub url: String,
    /// First token of every subject.
    pub prefix: String,
    /// Whether JetStream may be used where the server has it.
    pub jetstream: bool,
    /// Who we are.
    pub credentials: Credentials,
    /// Bound on making a connection.
    pub connect_timeout: Duration,
    /// Longest wait between attempts to connect: the client's default of 4 s would be 4 s of stale views.
    pub reconnect_delay_max: Duration,
    /// Messages that may wait in each subscription.
    pub queue_messages: usize,
}

impl NatsSettings {
    /// The settings of an engine or a demo that publishes to `url`.
    pub fn publisher(url: String, prefix: String) -> Self {
        Self {
            url,
            prefix,
            jetstream: true,
            credentials: Credentials::Anonymous,
            connect_timeout: Duration::from_secs(2),
            reconnect_delay_max: Duration::from_millis(250),
            queue_messages: 16_384,
        }
    }
}

/// Who we are, to a NATS server.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nobody in particular.
    #[default]
    Anonymous,
    /// User and password.
    User {
        /// The user.
        user: String,
        /// The password.
        password: String,
    },
    /// A token.
    Token(String),
    /// The seed of an nkey.
    Nkey(String),
    /// The text of a credentials file: a JWT and its seed.
    Creds(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Credentials::Anonymous => "Anonymous",
            Credentials::User { .. } => "User(redacted)",
            Credentials::Token(_) => "Token(redacted)",
            Credentials::Nkey(_) => "Nkey(redacted)",
            Credentials::Creds(_) => "Creds(redacted)",
        })
    }
}

/// A connection that comes back by itself.
#[derive(Clone, Debug)]
pub struct NatsBus {
    client: Client,
    settings: NatsSettings,
    connected: watch::Receiver<bool>,
}

impl NatsBus {
    /// Starts to connect and returns at once: a bus that is down costs nobody a start.
    ///
    /// # Errors
    /// When the URL or the credentials cannot be read.
    pub async fn connect(settings: NatsSettings) -> Result<Self, async_nats::Error> {
        let (state, connected) = watch::channel(false);
        let options = match settings.credentials.clone() {
            Credentials::Anonymous => ConnectOptions::new(),
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
                let state = state.clone();
                async move {
                    match event {
                        Event::Connected => {
                            tracing::info!("event bus connected");
                            state.send_replace(true);
                        }
                        Event::Disconnected | Event::Closed => {
                            tracing::warn!("event bus lost; connecting again");
                            state.send_replace(false);
                        }
                        Event::SlowConsumer(_) => tracing::warn!("event bus: batches were dropped for want of room"),
                        // One for each attempt while the bus is away.
                        other => tracing::debug!(event = %other, "event bus"),
                    }
                }
            })
            .connect(&settings.url)
            .await?;
        Ok(Self { client, settings, connected })
    }

    /// Whether the connection is up, and changes of that.
    pub fn connected(&self) -> watch::Receiver<bool> {
        self.connected.clone()
    }

    /// Hands on one (worker, rank)'s batches, subscribing again whenever the subscription ends; returns when `to` is
    /// closed.
    pub async fn follow(self, model: String, worker: String, rank: u32, to: mpsc::Sender<Message>) {
        let subject = subject::events_of(&self.settings.prefix, &model, &worker, rank);
        let mut connected = self.connected.clone();
        while !to.is_closed() {
            if connected.wait_for(|up| *up).await.is_err() {
                return;
            }
            let ended = if self.settings.jetstream && self.has_jetstream().await {
                self.follow_stream(&subject, &to).await
            } else {
                self.follow_core(&subject, &to).await
            };
            if let Err(error) = ended {
                tracing::warn!(%subject, error = %error, "event subscription ended; subscribing again");
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn has_jetstream(&self) -> bool {
        jetstream::new(self.client.clone()).query_account().await.is_ok()
    }

    async fn follow_stream(&self, subject: &str, to: &mpsc::Sender<Message>) -> Result<(), async_nats::Error> {
        let stream = ensure_stream(&self.client, &self.settings.prefix).await?;
        let consumer = stream
            .create_consumer(OrderedConfig {
                deliver_subject: self.client.new_inbox(),
                filter_subject: subject.to_owned(),
                deliver_policy: DeliverPolicy::All,
                ..OrderedConfig::default()
            })
            .await?;
        let mut messages = consumer.messages().await?;
        while let Some(message) = messages.next().await {
            if to.send(plain(&message?.message)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    async fn follow_core(&self, subject: &str, to: &mpsc::Sender<Message>) -> Result<(), async_nats::Error> {
        let mut messages = self.client.subscribe(subject.to_owned()).await?;
        while let Some(message) = messages.next().await {
            if to.send(plain(&message)).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Publishes a batch of one (worker, rank).
    ///
    /// # Errors
    /// When the client's own queue is closed.
    pub async fn publish(
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
        self.client.publish_with_headers(subject, headers, message.payload).await
    }

    /// Makes sure that the server keeps events from now on, if it has JetStream.
    pub async fn prepare(&self) {
        if self.settings.jetstream
            && self.has_jetstream().await
            && let Err(error) = ensure_stream(&self.client, &self.settings.prefix).await
        {
            tracing::warn!(error = %error, "the event stream could not be made; events are not kept");
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
