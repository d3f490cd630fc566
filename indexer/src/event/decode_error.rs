//! Why bytes are no events: the reason of a rejected event, and the error of a message.

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
    /// The message is too long to be looked at.
    #[error("message of {len} bytes (limit: {limit})")]
    TooLong {
        /// Its length.
        len: usize,
        /// The longest that is looked at.
        limit: usize,
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
    /// All of a slower tier was emptied, which nothing here can follow.
    #[error("`cleared` of the tier `{tier}` (known: device)")]
    ClearedTier {
        /// The tier, shortened.
        tier: String,
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
