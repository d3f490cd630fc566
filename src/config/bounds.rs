//! `limits`, `timeouts` and `retries`: everything that keeps one client or worker from costing others their answer.

use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, de};

use warmpath_core::cost::Share;

use super::quantity::{Allowance, ByteSize, Period};

/// Bounds on what clients may send, checked before memory is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// A request's body; beyond it 413.
    pub body_bytes: ByteSize,
    /// All requests' bodies at once, at least one of `body_bytes`; beyond it 503.
    pub all_body_bytes: ByteSize,
    /// A request's head, all lines together; beyond it 431.
    #[serde(deserialize_with = "header_bytes")]
    pub header_bytes: ByteSize,
    /// Header fields of a request; beyond it 431.
    pub headers: NonZeroU32,
    /// A request's target; beyond it 414.
    pub uri_bytes: ByteSize,
    /// Client connections at once; further ones are turned away.
    pub connections: NonZeroU32,
    /// The same of one address, or of one /64 network of IPv6.
    pub connections_per_address: NonZeroU32,
    /// Requests at once on one HTTP/2 connection.
    pub streams_per_connection: NonZeroU32,
    /// A request's body comes at least this fast, in bytes a second, after its first five seconds; else 408.
    pub body_rate: ByteSize,
    /// Messages of a chat, and prompts of a completion; beyond it 400.
    pub messages: NonZeroU32,
    /// Requests that are sent to workers at once, over all models; further ones wait in the queue.
    pub in_flight: NonZeroU32,
}

/// Bounds on waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeouts {
    /// A connection to a worker; then another worker is tried.
    pub connect: Period,
    /// A request's head from its first byte to its last.
    pub header_read: Period,
    /// A client's connection between two requests; then it is closed.
    pub client_idle: Period,
    /// A client that takes nothing of what it is sent; then its connection is cut.
    pub client_stall: Period,
    /// A request's body.
    pub body_read: Period,
    /// From sending to the first data of the worker's answer; then another worker is tried, or the client gets 504.
    pub first_byte: Period,
    /// Between two pieces of an answer; then the stream ends with an error.
    pub stream_idle: Period,
    /// A request as a whole, waiting and retries included; clients may shorten it.
    pub total: Period,
    /// An idle connection to a worker; then it is closed.
    pub worker_idle: Period,
    /// One check of a worker's health; then it has failed.
    pub health_check: Period,
    /// Between two checks of a worker.
    pub health_interval: Period,
    /// Until every worker is healthy at the start, where `ready_when` is `all`; then the router ends.
    pub start: Period,
    /// Between two looks at that.
    pub start_interval: Period,
    /// How long the data port goes on serving whoever comes once the router is no longer ready, since it is to end.
    pub shutdown_delay: Allowance,
    /// What runs at shutdown may take this long, after that; then it is cancelled.
    pub shutdown_grace: Period,
}

/// How workers are taken out and brought back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Health {
    /// Requests in a row that fail through a worker's fault before it is taken out.
    pub request_failures: NonZeroU32,
    /// How long a worker that came back is given less than it could take; `0s`: it is given everything at once.
    pub ramp: Allowance,
    /// Requests at once that it is given at first, a rank.
    pub ramp_from: NonZeroU32,
}

/// What is tried again, before the client has received anything.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Retries {
    /// Attempts after the first; 0: none.
    pub attempts: u8,
    /// Retries that may be under way at once, each until it is being served, as a share of the active requests of a model.
    pub budget: Share,
    /// The same as a number, at least.
    pub budget_min: u32,
    /// Whether 500 is tried again. Where no worker does better, the last of them is the answer.
    pub server_errors: bool,
    /// How long a request under which two workers broke is refused; `0s`: never.
    pub suspicion: Allowance,
}

/// The HTTP reader's smallest buffer.
const HEADER_BYTES_MIN: ByteSize = ByteSize::kib(8);

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: ByteSize::mib(16),
            all_body_bytes: ByteSize::mib(1024),
            header_bytes: ByteSize::kib(64),
            headers: NonZeroU32::new(100).expect("100 is not 0"),
            uri_bytes: ByteSize::kib(8),
            connections: NonZeroU32::new(16_384).expect("16 384 is not 0"),
            connections_per_address: NonZeroU32::new(8_192).expect("8 192 is not 0"),
            streams_per_connection: NonZeroU32::new(100).expect("100 is not 0"),
            body_rate: ByteSize::kib(1),
            messages: NonZeroU32::new(4_096).expect("4 096 is not 0"),
            in_flight: NonZeroU32::new(65_536).expect("65 536 is not 0"),
        }
    }
}

impl Default for Health {
    fn default() -> Self {
        Self {
            request_failures: NonZeroU32::new(3).expect("3 is not 0"),
            ramp: Allowance::seconds(30),
            ramp_from: NonZeroU32::new(4).expect("4 is not 0"),
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Period::milliseconds(1_500),
            header_read: Period::seconds(10),
            client_idle: Period::seconds(75),
            client_stall: Period::seconds(60),
            body_read: Period::seconds(30),
            first_byte: Period::seconds(300),
            stream_idle: Period::seconds(60),
            total: Period::seconds(3_600),
            worker_idle: Period::seconds(4),
            health_check: Period::seconds(2),
            health_interval: Period::milliseconds(500),
            start: Period::seconds(300),
            start_interval: Period::seconds(10),
            shutdown_delay: Allowance::milliseconds(100),
            shutdown_grace: Period::seconds(30),
        }
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            attempts: 2,
            budget: Share::try_from(0.2).expect("0.2 is a share"),
            budget_min: 3,
            server_errors: false,
            suspicion: Allowance::seconds(60),
        }
    }
}

fn header_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    if size >= HEADER_BYTES_MIN {
        Ok(size)
    } else {
        Err(de::Error::custom(format_args!("must be at least {HEADER_BYTES_MIN}, got {size}")))
    }
}
