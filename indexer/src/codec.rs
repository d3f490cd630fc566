//! Bytes <-> event batches. Decoders are total: any bytes give a batch or an error, never a panic, and no count off the
//! wire reserves memory before it has met a limit and the bytes that are there.
//!
//! Three encodings meet here: MessagePack batches with events as arrays (vLLM up to 0.23, SGLang up to August 2026),
//! the same with events as maps (later versions; both may occur in one stream), and the JSON bus events of Dynamo 0.1.

mod cursor;
pub mod encode;
mod extra_keys;
mod fields;
pub mod json;
pub mod line;
mod msgpack;

pub use crate::event::DecodeError;
pub use json::{BusEvent, decode_json};
pub use msgpack::{decode, rank_of};

/// The longest message that is looked at, in bytes. A prefill of 2 million tokens makes 10 MB.
pub const MAX_MESSAGE_BYTES: usize = 32 << 20;
/// The most events in a batch. An engine that evicts a whole cache block by block sends one event for each.
pub const MAX_EVENTS: usize = 1 << 18;
/// The most hashes in an event.
pub const MAX_HASHES: usize = 1 << 18;
/// The most tokens in an event: above the longest context that any engine serves.
pub const MAX_TOKENS: usize = 1 << 21;
/// The longest name, salt or media identifier, in bytes.
pub const MAX_TEXT_BYTES: usize = 4096;
/// The most media and other extra keys in an event.
pub const MAX_EXTRA_KEYS: usize = 1 << 14;
/// The most rejected events that a batch lists; the rest is only counted.
pub const MAX_LISTED_REJECTS: usize = 256;

/// How a message is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A MessagePack batch, as engines publish it over ZMQ and bridges over NATS.
    Msgpack,
    /// One JSON event, as publishers of Dynamo's form put it on NATS.
    Json,
}

/// A name off the wire, short enough for an error message.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
