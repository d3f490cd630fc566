//! Names of things: workers, slots, ranks, hashes. Two names of different things never convert into each other.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A token's number in its model's vocabulary.
///
/// An alias, not a newtype: a prompt arrives as a slice of `u32` and is hashed where it lies, without a copy.
pub type TokenId = u32;

/// One engine replica, as `workers[].id` names it. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(Arc<str>);

impl WorkerId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for WorkerId {
    fn from(id: &str) -> Self {
        Self(id.into())
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A data-parallel rank inside a worker; 0 where there is only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

/// The dense index of a routing target, that is of one (worker, rank). Reused only after it was forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u16);

impl Slot {
    /// The slot as an index into arrays by slot.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Who the targets of a pool are: equal for equal names in equal slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Roll(pub u64);

/// Hash of the tokens of one block alone, without what stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockHash(pub u64);

/// Hash of a block and of all before it, rooted in its namespace: equal sequence hashes mean equal prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SequenceHash(pub u64);

/// What an engine calls a block. Opaque, and comparable within that engine only: two workers may name equal blocks
/// differently and different blocks alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct EngineHash(pub u64);

/// One request on its way through the router; unique within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestKey(pub u64);
