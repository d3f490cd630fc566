//! `listen`, `metrics` and `log`: where Warmpath is reached and how it tells what it does.

use std::net::{Ipv4Addr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::address::{Secret, sent, socket};
use super::passthrough::{self, PassedPath};
use super::place::Spanned;
use super::tls::Tls;

/// The two ports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Listen {
    /// Clients' requests. Loopback by default: nothing checks who asks, so opening it is a decision.
    #[serde(deserialize_with = "spanned_socket")]
    pub data: Spanned<SocketAddr>,
    /// What its clients are shown.
    pub data_tls: Tls,
    /// Probes, metrics and changes. Beyond loopback only with `admin_token`, or with clients' certificates.
    #[serde(deserialize_with = "spanned_socket")]
    pub admin: Spanned<SocketAddr>,
    /// What its clients are shown.
    pub admin_tls: Tls,
    /// Asked for as `Authorization: Bearer …` on the admin port.
    #[serde(deserialize_with = "sent")]
    pub admin_token: Option<Secret>,
    /// Whether answers carry `x-warmpath-worker`, `x-warmpath-overlap-tokens` and `x-warmpath-decision`. They tell
    /// clients what others have asked before, so they are off by default.
    pub routing_headers: bool,
    /// Further paths of the data port: each goes to a worker by load, as it came.
    pub passthrough: Vec<PassedPath>,
}

/// How metrics are named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// What every name begins with, before an underscore.
    #[serde(deserialize_with = "metrics_prefix")]
    pub prefix: String,
}

/// What is logged and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Log {
    /// The form of a line.
    pub format: LogFormat,
    /// The least severe level that is written.
    pub level: LogLevel,
    /// Whether each request is a line with the target `access`.
    pub access: bool,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line, for collectors.
    Json,
}

/// How severe a log line is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Something was lost.
    Error,
    /// Something went wrong and was mended.
    Warn,
    /// What an operator wants to know: start, stop, workers that come and go.
    #[default]
    Info,
    /// Each request.
    Debug,
    /// Each step of a request.
    Trace,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            data: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)).into(),
            data_tls: Tls::default(),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 9090)).into(),
            admin_tls: Tls::default(),
            admin_token: None,
            routing_headers: false,
            passthrough: passthrough::default(),
        }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: LogLevel::default(), access: true }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { prefix: "warmpath".to_owned() }
    }
}

impl From<LogLevel> for tracing::Level {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

fn spanned_socket<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Spanned<SocketAddr>, D::Error> {
    #[derive(Deserialize)]
    struct Socket(#[serde(deserialize_with = "socket")] SocketAddr);

    let Spanned { value: Socket(value), place } = Spanned::deserialize(deserializer)?;
    Ok(Spanned { value, place })
}

fn metrics_prefix<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let prefix = String::deserialize(deserializer)?;
    let well_formed = prefix.len() <= 64
        && prefix.starts_with(|c: char| c.is_ascii_lowercase())
        && prefix.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if well_formed {
        Ok(prefix)
    } else {
        let expected = "a metrics prefix is a lower-case letter, then letters, digits and underscores, at most 64";
        Err(de::Error::custom(format_args!("{expected}; got `{prefix}`")))
    }
}
