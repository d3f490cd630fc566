//! How to reach a NATS server, and who we are to it.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::ConnectOptions;

/// Where answers come unless somebody wants another place.
pub const INBOX: &str = "_INBOX";

/// How to reach a NATS server.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// `nats://host:port`, or `tls://host:port`.
    pub url: String,
    /// First token of every subject.
    pub prefix: String,
    /// Whether JetStream may be used where the server has it.
    pub jetstream: bool,
    /// Who we are.
    pub credentials: Credentials,
    /// Whom we trust, and who we are, where the connection is encrypted (`tls://`, or the server asks for it).
    pub tls: Tls,
    /// First token of the subjects on which answers come. One of our own keeps others from being allowed to listen.
    pub inbox: String,
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
            tls: Tls::default(),
            inbox: INBOX.to_owned(),
            connect_timeout: Duration::from_secs(2),
            reconnect_delay_max: Duration::from_millis(250),
            queue_messages: 16_384,
        }
    }
}

/// Files of an encrypted connection. They are read anew with each connection, so that they may be renewed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Certificates of authorities that are trusted beside the system's, as PEM.
    pub authorities: Option<PathBuf>,
    /// Our own certificate and its key, as PEM, where the server asks for them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(super) fn apply(&self, options: ConnectOptions) -> ConnectOptions {
        let options = match &self.authorities {
            Some(authorities) => options.add_root_certificates(authorities.clone()),
            None => options,
        };
        match &self.identity {
            Some((certificate, key)) => options.add_client_certificate(certificate.clone(), key.clone()),
            None => options,
        }
    }
}

/// Who we are, to a NATS server.
#[derive(Clone, Default)]
pub enum Credentials {
    /// Nobody in particular, or whom the URL names.
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
