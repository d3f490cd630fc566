//! The event bus over NATS: JetStream where the server has it, so that nothing is lost while the link is down; core
//! NATS otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::jetstream;
use async_nats::{Client, ConnectOptions, Request, RequestErrorKind, ServerAddr};
use futures_util::FutureExt;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::sync::watch;

pub use outbox::{OUTBOX_BATCHES, Outbox, OutboxCounts};
pub use settings::{Credentials, INBOX, NatsSettings, Tls};

use super::Message;
use super::subject;
use link::Link;

mod follow;
mod link;
pub mod load;
mod outbox;
mod reader;
mod replay;
pub mod replicas;
mod settings;
pub mod snapshots;
pub(super) mod stream;

/// Waits between attempts to subscribe.
const RETRY: Duration = Duration::from_millis(500);

/// How long an answer is waited for, and how often it is asked for: no subscription is made in the meantime.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);
const TRIES: u32 = 2;

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

/// What is said where the server refuses a subscription.
fn refuses(subject: &str) -> String {
    format!("the server refuses the subscription to `{subject}`: permissions?")
}

/// How the connection is. See [`NatsBus::standing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NatsStanding {
    /// Host and port, without what is secret in the address.
    pub at: String,
    /// Whether it is up.
    pub up: bool,
    /// Since when, or since it is wanted.
    pub since: std::time::Instant,
    /// How often it was lost.
    pub losses: u64,
    /// Bursts of which messages found no room.
    pub drops: u64,
    /// Why it is down, or what the server last refused.
    pub error: Option<String>,
}

impl NatsBus {
    /// Starts to connect and returns at once: a bus that is down costs nobody a start.
    ///
    /// # Errors
    /// When the URL or the credentials cannot be read.
    pub async fn connect(settings: NatsSettings) -> Result<Self, async_nats::Error> {
        let (state, link) = watch::channel(Link::new(tokio::time::Instant::now(), &settings.prefix));
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
            // The client wants a line's end behind the last line, which a file may lack.
            Credentials::Creds(text) => ConnectOptions::with_credentials(&format!("{}\n", text.trim_end()))?,
        };
        let (longest, at) = (settings.reconnect_delay_max, (server.host().to_owned(), server.port()));
        let client = settings
            .tls
            .apply(options)
            .custom_inbox_prefix(&settings.inbox)
            .retry_on_initial_connect()
            .max_reconnects(None)
            .connection_timeout(settings.connect_timeout)
            .subscription_capacity(settings.queue_messages)
            .reconnect_delay_callback(move |attempt| {
                let doubled = u32::try_from(attempt).unwrap_or(u32::MAX).min(6);
                Duration::from_millis(5).saturating_mul(1 << doubled).min(longest)
            })
            .event_callback(move |event| {
                let (state, at) = (state.clone(), at.clone());
                async move {
                    let is_known = state.borrow().cause.is_some();
                    let cause = if is_known { None } else { link::cause(&event, (&at.0, at.1)).await };
                    state.send_modify(|link| link.note(event, cause));
                }
            })
            .connect(server)
            .await?;
        Ok(Self { client, settings, link, missing: Arc::default() })
    }

    /// Waits until the connection is up; returns whether it is, for the client may be gone for good.
    pub async fn connected(&self) -> bool {
        self.link.clone().wait_for(|link| link.up).await.is_ok()
    }

    /// What keeps events from arriving, in words; none while the connection is up and every subscription is made.
    pub fn trouble(&self) -> Option<String> {
        let link = self.link.borrow();
        if !link.up {
            return Some(format!("{}: {}", self.at(), link.trouble.as_deref().unwrap_or("no server answers")));
        }
        let missing = self.missing.load(Ordering::Relaxed);
        let mut refused = link.refused.keys();
        match (missing, refused.next()) {
            (0, _) => None,
            (_, None) => Some(format!("{missing} subscriptions are being made")),
            (_, Some(subject)) => {
                let more = refused.len();
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Some(format!("{}: {}{more}", self.at(), refuses(subject)))
            }
        }
    }

    /// How the connection is, for people.
    pub fn standing(&self) -> NatsStanding {
        let error = self.trouble();
        let link = self.link.borrow();
        NatsStanding {
            at: self.at(),
            up: link.up,
            since: link.since.into_std(),
            losses: link.losses,
            drops: link.drops,
            error: error.or_else(|| link.complaint.clone()),
        }
    }

    /// Host and port of the server, without what is secret in its address.
    fn at(&self) -> String {
        let server: Option<ServerAddr> = self.settings.url.parse().ok();
        server.map(|server| format!("{}:{}", server.host(), server.port())).unwrap_or_default()
    }

    /// The subject prefix of the fleet.
    pub fn prefix(&self) -> &str {
        &self.settings.prefix
    }

    /// Whether the connection is up now.
    pub fn is_up(&self) -> bool {
        self.link.borrow().up
    }

    /// The client, for what is no stream of events: load, snapshots, registrations.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// How often the server refused this subscription since the connection is up.
    fn refusals(&self, subject: &str) -> u64 {
        self.link.borrow().refusals(subject)
    }

    /// Waits until the server refuses this subscription, which it had refused so many times.
    async fn refused_since(&self, subject: &str, refusals: u64) {
        if self.link.clone().wait_for(|link| link.refusals(subject) > refusals).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the connection has been lost since it was lost so many times.
    async fn lost_since(&self, losses: u64) {
        // When nobody can tell any more, the client is gone, and its subscriptions end by themselves.
        if self.link.clone().wait_for(|link| link.losses != losses).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Whether the server has JetStream, for us. No answer while the connection stays up is a no: the account may not
    /// ask. Asked in the raw: the client's own query cannot read what nats-server 2.9 says of an account.
    async fn has_jetstream(&self, losses: u64) -> Result<bool, async_nats::Error> {
        let mut tried = 1;
        loop {
            let ask = Request::new().timeout(Some(ANSWERED_WITHIN));
            let error = match self.client.send_request(ACCOUNT_QUERY, ask).await {
                Ok(answer) => {
                    let answer: AccountAnswer = serde_json::from_slice(&answer.payload)?;
                    return Ok(answer.error.is_none());
                }
                Err(error) if self.link.borrow().losses != losses => return Err(error.into()),
                Err(error) => error,
            };
            match error.kind() {
                RequestErrorKind::NoResponders => return Ok(false),
                RequestErrorKind::TimedOut if tried < TRIES => tried += 1,
                _ => {
                    tracing::warn!(error = %error, "JetStream cannot be asked for; events may be lost");
                    return Ok(false);
                }
            }
        }
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
        let headers = stream::headers((worker, rank), &message);
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
                Ok(true) => stream::ensure(&self.client, &self.settings.prefix).await,
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
