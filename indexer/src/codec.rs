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

pub use json::{BusEvent, decode_json};
pub use msgpack::decode;

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

/// Why a message or an event is not understood. `at` is a byte of the message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The message ends too early.
    #[error("message ends at byte {at}, inside `{field}`")]
    Truncated {
        /// Where the message ends.
        at: usize,
        /// What was being read.
        field: &'static str,
    },
    /// Bytes follow the batch: whoever wrote them meant another structure.
    #[error("bytes follow the batch from byte {at} on")]
    TrailingBytes {
        /// Where the batch ends.
        at: usize,
    },
    /// The message is longer than [`MAX_MESSAGE_BYTES`].
    #[error("message of {len} bytes (limit: {MAX_MESSAGE_BYTES})")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// More of something than the limit allows.
    #[error("{count} elements in `{field}` at byte {at} (limit: {limit})")]
    TooMany {
        /// Where the thing begins.
        at: usize,
        /// What there is too much of.
        field: &'static str,
        /// How many were announced.
        count: u64,
        /// How many may be.
        limit: usize,
    },
    /// A value of another type than the field's.
    #[error("`{field}` at byte {at} is {found}")]
    WrongType {
        /// Where the value begins.
        at: usize,
        /// The field.
        field: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// A number that the field cannot be.
    #[error("`{field}` at byte {at} is out of range")]
    OutOfRange {
        /// Where the number begins.
        at: usize,
        /// The field.
        field: &'static str,
    },
    /// Text that is not UTF-8.
    #[error("`{field}` at byte {at} is not UTF-8")]
    NotText {
        /// Where the text begins.
        at: usize,
        /// The field.
        field: &'static str,
    },
    /// A field that must be there is not.
    #[error("`{field}` is missing at byte {at}")]
    MissingField {
        /// Where its event or batch begins.
        at: usize,
        /// The field.
        field: &'static str,
    },
    /// A list that must have one entry for each hash has another number of them.
    #[error("`{field}` at byte {at} is not aligned with the hashes")]
    Misaligned {
        /// Where the list begins.
        at: usize,
        /// The list.
        field: &'static str,
    },
    /// An event of a kind that no engine is known to send.
    #[error("unknown event `{kind}` at byte {at} (known: BlockStored, BlockRemoved, AllBlocksCleared)")]
    UnknownKind {
        /// The kind, shortened.
        kind: String,
        /// Where the event begins.
        at: usize,
    },
    /// A medium that no engine is known to name.
    #[error("unknown medium `{medium}` at byte {at}")]
    UnknownMedium {
        /// The medium, shortened.
        medium: String,
        /// Where its event begins.
        at: usize,
    },
    /// A stored event that names a block twice, or as its own ancestor.
    #[error("hash {hash} occurs twice in the chain stored at byte {at}")]
    RepeatedHash {
        /// The hash.
        hash: u64,
        /// Where the event begins.
        at: usize,
    },
    /// A stored event whose tokens do not fill a single block.
    #[error("the event at byte {at} has tokens for no whole block")]
    NoWholeBlock {
        /// Where the event begins.
        at: usize,
    },
    /// Text that is not JSON of the expected form.
    #[error("{reason} at byte {at}")]
    Json {
        /// Where it stops being so.
        at: usize,
        /// What is wrong.
        reason: String,
    },
    /// A line that is not hexadecimal.
    #[error("not a hexadecimal digit at byte {at}")]
    NotHex {
        /// The first byte that is none.
        at: usize,
    },
}

/// A name off the wire, short enough for an error message.
fn shortened(name: &str) -> String {
    name.chars().take(64).collect()
}
