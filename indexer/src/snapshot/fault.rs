//! What may be wrong with a snapshot.

/// Why a snapshot was refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chunk {chunk}, byte {at}: {fault}")]
pub struct SnapshotError {
    /// The chunk, from 0, as they were given.
    pub chunk: u32,
    /// The byte in it.
    pub at: usize,
    /// What is wrong there.
    pub fault: SnapshotFault,
}

/// What is wrong with a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotFault {
    /// It does not begin as one.
    #[error("this is no snapshot")]
    NotASnapshot,
    /// It is of another time.
    #[error("version {0} is not read here")]
    Version(u16),
    /// The chunk ends too early, or goes on behind its end.
    #[error("the chunk has {got} bytes and should have {expected}")]
    Length {
        /// As it says itself, or at least.
        expected: usize,
        /// As it is.
        got: usize,
    },
    /// No chunk is so large.
    #[error("a chunk of {0} bytes is more than is read")]
    TooLong(usize),
    /// A chunk is missing, came twice or at the wrong time.
    #[error("chunk {got} came where {expected} was due")]
    Order {
        /// The number that was due.
        expected: u32,
        /// The one that came.
        got: u32,
    },
    /// Nothing may follow the last chunk, or a fault.
    #[error("nothing more is read")]
    Over,
    /// It ended before its last chunk.
    #[error("the last chunk is missing")]
    Incomplete,
    /// Another model, block size or seed.
    #[error("it is of another model, block size or seed")]
    OtherPool,
    /// Another worker or rank.
    #[error("it is of another worker or rank")]
    OtherOwner,
    /// It says other things about the whole than the chunks before.
    #[error("it is of another snapshot")]
    OtherSnapshot,
    /// A bit is not what it was.
    #[error("the checksum does not fit")]
    Checksum,
    /// Bytes that stand for nothing.
    #[error("{0} cannot be read")]
    Malformed(&'static str),
    /// There is more or less than it says.
    #[error("{what}: {got}, but {expected} were announced")]
    Count {
        /// Of what.
        what: &'static str,
        /// As announced.
        expected: u64,
        /// As found.
        got: u64,
    },
    /// A block follows one that was not told before.
    #[error("a block follows an unknown one")]
    UnknownParent,
    /// A name stands for two blocks.
    #[error("a name occurs twice")]
    NamedTwice,
    /// Who it is of has left meanwhile.
    #[error("its worker has left")]
    Retired,
}
