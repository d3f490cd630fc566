//! One worker's blocks as bytes, and back: the form in which a view travels and lies in files. Whoever has blocks writes
//! them ([`SnapshotEncoder`]), whoever wants them reads them ([`SnapshotDecoder`]); an index does both
//! ([`Writer::snapshot`](crate::index::Writer::snapshot), [`Writer::restore`](crate::index::Writer::restore)).
//!
//! A snapshot is a row of chunks, each at most [`CHUNK_MAX`] bytes, so that it passes a bus message by message; a file is
//! its chunks one after the other. Numbers are little-endian. A chunk:
//!
//! | byte | length | |
//! |---|---|---|
//! | 0 | 8 | `WARMSNAP` |
//! | 8 | 2 | version: 1, or 2 of a view that began in the middle. Readers refuse those that they do not know |
//! | 10 | 2 | flags: 1 last chunk, 2 the epoch is known, 4 the newest time is known, 8 the view began in the middle (in version 2 always, else never); others 0 |
//! | 12 | 4 | number of the chunk, from 0 |
//! | 16 | 8 | the pool: the root's sequence hash without adapter and salt, which tells model, block size and seed |
//! | 24 | 8 | the owner: [`owner_of`] worker and rank |
//! | 32 | 8 | epoch of the worker's stream, or 0 |
//! | 40 | 8 | number of the batch that comes next in it |
//! | 48 | 8 | its newest time stamp in seconds as a binary64, or 0 |
//! | 56 | 8 | when the snapshot was taken, in milliseconds since 1970, or 0 |
//! | 64 | 8 | names that the view had: there are no more records than these |
//! | 72 | 4 | records in this chunk |
//! | 76 | 4 | bytes of the body |
//! | 80 | | the body |
//! | | 8 | xxh3-64 of all that comes before in the chunk, seeded with that of the chunk before, of the first with 0 |
//!
//! So whoever reads version 1 alone refuses only views that it would take for whole and that are not.
//!
//! All but flags, number and lengths is the same in every chunk. The chain of checksums ties the chunks of one snapshot
//! together: the last one covers all. The body of chunk 0 begins with what the view knows beside its blocks: a byte (1 the
//! plain group is known, 2 a block is named 0), the plain group (4, or 0), how many groups have told their attention
//! (1), and of each its number (4) and whether its blocks stand for their prefix (1). The body of the last chunk ends with
//! the number of all records (8) and of names that were left out (8). Between them are records:
//!
//! | length | |
//! |---|---|
//! | 1 | bits 0–3 the tiers in which there are copies: device, host, disk, external; 16: copies are counted; bits 5 and 6 what it follows: 0 the block of the record before in this chunk, 1 a root, 2 a block by name; 128: there are bridges |
//! | 8 | the root's hash or the parent's name, where it does not follow the record before |
//! | 2 + 8 each | bridges, where there are: how many, and the sequence hashes of blocks that stand between the parent and the block but are not held, in order |
//! | 8 | the block's sequence hash |
//! | 8 | the engine's name of it |
//! | 2 + 9 each | copies, where they are counted: how many, and of each its group (4), tier (1: 0–3) and number (4) |
//!
//! Parents come before what follows them. Copies that are not counted are one in each of the tiers, all of the plain group.
//! Two names of one block are two records. A name occurs once.
//!
//! A snapshot is believed as events are: whoever may write it may also name blocks that are not there, which costs speed,
//! never correctness.

mod decode;
mod encode;
mod fault;

use warmpath_core::ids::{EngineHash, SequenceHash};
use warmpath_core::units::Tier;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::feed::{Began, Position};
use crate::store::Tiers;

pub use decode::{SnapshotDecoder, chunk_len};
pub use encode::SnapshotEncoder;
pub use fault::{SnapshotError, SnapshotFault};

/// Bytes of a chunk at most: what buses take as one message.
pub const CHUNK_MAX: usize = 1 << 20;

/// Bytes of a chunk unless somebody wants another size.
pub const CHUNK_BYTES: usize = 256 << 10;

/// The smallest chunks that an encoder makes: any record fits.
const CHUNK_MIN: usize = 32 << 10;

/// Bridges of a record at most.
pub const BRIDGES_MAX: usize = 512;

/// Counted copies of a record at most: more than there are pairs of a group and a tier.
const COPIES_MAX: usize = 512;

/// Groups whose attention may be told.
const GROUPS_MAX: usize = 255;

const MAGIC: [u8; 8] = *b"WARMSNAP";
const VERSION: u16 = 1;
/// That of a view that began in the middle.
const VERSION_MIDDLE: u16 = 2;

/// The newest version that is read.
pub const NEWEST_VERSION: u16 = VERSION_MIDDLE;

/// Bytes before a chunk's body.
pub const HEADER_BYTES: usize = 80;
const CHECKSUM_BYTES: usize = 8;
/// What the last chunk's body ends with.
const TOTALS_BYTES: usize = 16;

const LAST: u16 = 1;
const HAS_EPOCH: u16 = 2;
const HAS_NEWEST: u16 = 4;
const IN_THE_MIDDLE: u16 = 8;

const HAS_GROUP: u8 = 1;
const ZERO_IS_A_NAME: u8 = 2;

const TIERS: u8 = 15;
const COUNTED: u8 = 16;
const FOLLOWS_ROOT: u8 = 32;
const FOLLOWS_NAME: u8 = 64;
const HAS_BRIDGES: u8 = 128;

/// Whose snapshot it is, and when it was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// [`owner_of`] the worker and its rank.
    pub owner: u64,
    /// How far the worker's stream was applied.
    pub position: Position,
    /// Where the view began.
    pub began: Began,
    /// Milliseconds since 1970; 0 where nobody knows.
    pub taken_ms: u64,
}

/// What every chunk says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// The root's sequence hash of the pool's namespace, without adapter and salt.
    pub pool: SequenceHash,
    /// Whose blocks they are, and when.
    pub mark: Mark,
    /// Names that the view had.
    pub names: u64,
}

/// What an engine's view knows beside its blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups {
    /// The group of the copies that are not counted; none where there never was a block.
    pub plain: Option<u32>,
    /// Groups that have told their attention, and whether their blocks stand for their prefix. At most 255.
    pub told: Vec<(u32, bool)>,
    /// Whether a block named 0 was ever stored: a parent 0 means none until then.
    pub zero_is_a_name: bool,
}

/// What a block follows, or the first of its bridges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// Nothing: it begins a prompt in the namespace of this root.
    Root(SequenceHash),
    /// The block of this name, whose record came before.
    Block(EngineHash),
}

/// One name of one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record<'a> {
    /// What comes before.
    pub parent: Parent,
    /// Blocks in between that are not held, at most [`BRIDGES_MAX`]: they say where the block belongs.
    pub bridges: &'a [SequenceHash],
    /// The block.
    pub hash: SequenceHash,
    /// What the engine calls it.
    pub name: EngineHash,
    /// Where there are copies; not empty.
    pub tiers: Tiers,
    /// The copies, where they are counted; in just those tiers. Empty: one in each tier, of the plain group.
    pub copies: &'a [CopyCount],
}

/// What a reader is handed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Told<'a> {
    /// What the whole is, and what the view knows beside its blocks. Once, and first.
    Head(&'a Head, &'a Groups),
    /// A name of a block.
    Record(Record<'a>),
}

/// Copies of one block in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCount {
    /// The KV-cache group.
    pub group: u32,
    /// The tier.
    pub tier: Tier,
    /// How many, at least one.
    pub count: u32,
}

/// What stands for a worker and its rank in a snapshot, so that nobody takes one worker's blocks for another's.
pub fn owner_of(worker: &str, rank: u32) -> u64 {
    xxh3_64_with_seed(worker.as_bytes(), u64::from(rank))
}

/// The checksum of a chunk, given that of the one before.
fn checksum(bytes: &[u8], before: u64) -> u64 {
    xxh3_64_with_seed(bytes, before)
}
