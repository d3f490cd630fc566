//! `events.zmq`: events straight from the engines.

use std::num::{NonZeroU16, NonZeroU32};

use serde::{Deserialize, Serialize};

use super::endpoint::ZmqEndpoint;
use super::place::Spanned;
use super::quantity::Period;

/// How engines' ZeroMQ sockets are read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Zmq {
    /// The port of the events, on the host of a worker's `url`; rank r of a worker has this plus r.
    pub port: Spanned<NonZeroU16>,
    /// The same of the socket that replays; `None`: engines have none.
    pub replay_port: Option<Spanned<NonZeroU16>>,
    /// Where engines connect to; `None`: the router connects to each.
    pub bind: Option<Spanned<ZmqEndpoint>>,
    /// The topic that engines are configured with. Others are read too, and counted.
    pub topic: String,
    /// Bound on making a connection.
    pub connect_timeout: Period,
    /// Bound on the pause between two attempts. They never end.
    pub reconnect_delay_max: Period,
    /// After this long without a word the engine is asked for a sign of life; after twice as long it counts as gone.
    pub heartbeat: Period,
    /// Bound on the wait for each next batch of a replay.
    pub replay_idle_timeout: Period,
    /// Bound on a replay as a whole.
    pub replay_timeout: Period,
    /// Batches that may wait, for each worker and rank.
    pub queue_messages: NonZeroU32,
}

impl Default for Zmq {
    fn default() -> Self {
        Self {
            port: NonZeroU16::new(5557).expect("5557 is not 0").into(),
            replay_port: None,
            bind: None,
            topic: String::new(),
            connect_timeout: Period::seconds(2),
            reconnect_delay_max: Period::milliseconds(250),
            heartbeat: Period::seconds(5),
            replay_idle_timeout: Period::seconds(2),
            replay_timeout: Period::seconds(30),
            queue_messages: NonZeroU32::new(16_384).expect("16 384 is not 0"),
        }
    }
}
