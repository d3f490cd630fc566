//! Where finished requests are recorded.

use std::path::PathBuf;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::quantity::ByteSize;

/// The most that one file of recorded requests may hold: at least 64 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ByteSize", into = "ByteSize")]
pub struct RecordSize(ByteSize);

impl RecordSize {
    /// In bytes.
    pub fn bytes(self) -> u64 {
        self.0.bytes()
    }
}

impl Default for RecordSize {
    fn default() -> Self {
        Self(ByteSize::mib(256))
    }
}

impl TryFrom<ByteSize> for RecordSize {
    type Error = &'static str;

    fn try_from(size: ByteSize) -> Result<Self, &'static str> {
        if size.bytes() < 64 << 10 { Err("a file of recorded requests holds at least 64KiB") } else { Ok(Self(size)) }
    }
}

impl From<RecordSize> for ByteSize {
    fn from(size: RecordSize) -> Self {
        size.0
    }
}

pub(super) fn file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    match Option::<PathBuf>::deserialize(deserializer)? {
        Some(path) if path.as_os_str().is_empty() => Err(de::Error::custom("expected the path of a file, got ``")),
        path => Ok(path),
    }
}
