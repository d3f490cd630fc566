//! `events` and `index`: how the engines' KV-cache events reach the index.

use std::num::{NonZeroU16, NonZeroU32};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::address::{NatsUrl, Secret};
use super::place::Spanned;
use super::quantity::{Allowance, Period};
use super::zmq::Zmq;

/// Receiving and ordering.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Events {
    /// The event bus of a fleet.
    pub nats: Nats,
    /// Events straight from the engines.
    pub zmq: Zmq,
    /// Batches of a worker that are held while an earlier one is missing; one more, and it counts as lost.
    pub hold_batches: NonZeroU16,
    /// How long a batch is held so.
    pub hold_time: Period,
}

/// A NATS server and what is read from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Nats {
    /// The server; `None`: NATS is not used. Further servers of a cluster are learned from it.
    pub url: Option<Spanned<NatsUrl>>,
    /// First token of the subjects: `<prefix>.kv.<model>.<worker>.<rank>`.
    #[serde(deserialize_with = "prefix")]
    pub prefix: String,
    /// Whether a stream of the server is read where it has one.
    pub jetstream: JetStream,
    /// Authentication by user name, together with `password`.
    pub user: Option<Spanned<String>>,
    /// See `user`.
    pub password: Option<Spanned<Secret>>,
    /// Authentication by token.
    pub token: Option<Spanned<Secret>>,
    /// Authentication by the seed of an nkey.
    pub nkey_seed: Option<Spanned<Secret>>,
    /// Authentication by the text of a `.creds` file (JWT and seed).
    pub credentials: Option<Spanned<Secret>>,
    /// A file of certificates, as PEM, whose servers are trusted beside those that the system trusts. For `tls://`.
    pub tls_authorities: Option<PathBuf>,
    /// A file with our own certificate, as PEM, for servers that ask for one; together with `tls_key`.
    pub tls_certificate: Option<Spanned<PathBuf>>,
    /// See `tls_certificate`.
    pub tls_key: Option<Spanned<PathBuf>>,
    /// Bound on establishing a connection.
    pub connect_timeout: Period,
    /// Bound on the pause between two attempts to connect. They never end: a bus may be down for hours.
    pub reconnect_delay_max: Period,
    /// Messages that may wait, for each subscription. Beyond it they are dropped, and the gap is seen as such; of a stream
    /// no more are asked for than there is room.
    #[serde(deserialize_with = "queue_messages")]
    pub queue_messages: NonZeroU32,
}

impl Nats {
    /// Has relative paths start from `folder`.
    pub(super) fn start_from(&mut self, folder: &Path) {
        let own = [&mut self.tls_certificate, &mut self.tls_key].into_iter().flatten().map(|path| &mut path.value);
        for path in self.tls_authorities.as_mut().into_iter().chain(own) {
            *path = folder.join(&*path);
        }
    }
}

/// The fewest messages that a subscription has room for: of a stream up to 768 are on their way.
const QUEUE_MESSAGES_MIN: u32 = 1024;

fn queue_messages<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NonZeroU32, D::Error> {
    let messages = u32::deserialize(deserializer)?;
    let enough = NonZeroU32::new(messages).filter(|messages| messages.get() >= QUEUE_MESSAGES_MIN);
    enough.ok_or_else(|| de::Error::custom(format_args!("must be at least {QUEUE_MESSAGES_MIN}, got {messages}")))
}

/// Whether a stream of the server is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JetStream {
    /// If the server has one: what was missed can then be read again.
    #[default]
    Auto,
    /// Plain subscriptions only.
    Never,
}

/// The index of prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Index {
    /// Blocks that are remembered at most, over all workers; each worker's share is equal.
    pub max_entries: NonZeroU32,
    /// Seed of the root hashes.
    pub seed: u64,
    /// How long a prompt without a first token counts as cached by the worker that it was sent to; `0s`: it never does.
    pub in_flight_credit: Allowance,
    /// The folder in which workers' views outlive the router; `None`: they do not.
    #[serde(deserialize_with = "folder")]
    pub snapshots: Option<PathBuf>,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            nats: Nats::default(),
            zmq: Zmq::default(),
            hold_batches: NonZeroU16::new(64).expect("64 is not 0"),
            hold_time: Period::milliseconds(50),
        }
    }
}

impl Default for Nats {
    fn default() -> Self {
        Self {
            url: None,
            prefix: "warmpath".to_owned(),
            jetstream: JetStream::Auto,
            user: None,
            password: None,
            token: None,
            nkey_seed: None,
            credentials: None,
            tls_authorities: None,
            tls_certificate: None,
            tls_key: None,
            connect_timeout: Period::seconds(2),
            reconnect_delay_max: Period::milliseconds(250),
            queue_messages: NonZeroU32::new(16_384).expect("16 384 is not 0"),
        }
    }
}

impl Default for Index {
    fn default() -> Self {
        Self {
            max_entries: NonZeroU32::new(20_000_000).expect("20 000 000 is not 0"),
            seed: 1337,
            in_flight_credit: Allowance::seconds(30),
            snapshots: None,
        }
    }
}

fn folder<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    match Option::<PathBuf>::deserialize(deserializer)? {
        Some(path) if path.as_os_str().is_empty() => Err(de::Error::custom("expected the path of a folder, got ``")),
        path => Ok(path),
    }
}

/// The first tokens of subjects, as every party to a bus takes them.
///
/// # Errors
/// No server knows subjects that begin so, or they would stand for others.
pub fn subject_prefix(text: &str) -> Result<String, &'static str> {
    let is_token = |token: &str| {
        !token.is_empty() && token.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '='))
    };
    if text.len() <= 128 && text.split('.').all(is_token) {
        Ok(text.to_owned())
    } else {
        Err("a subject prefix is letters, digits, `_`, `-` and dots between them, at most 128")
    }
}

fn prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let text = String::deserialize(deserializer)?;
    subject_prefix(&text).map_err(|expected| de::Error::custom(format_args!("{expected}; got `{text}`")))
}
