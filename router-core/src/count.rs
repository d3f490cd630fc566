//! Counts as real numbers, for means and shares.

/// A count as a float: exact up to 2^53.
#[expect(clippy::as_conversions, reason = "no lossless conversion exists; counts stay far below 2^53")]
pub fn real(count: u64) -> f64 {
    count as f64
}

/// A length as a float.
pub fn real_len(len: usize) -> f64 {
    real(u64::try_from(len).unwrap_or(u64::MAX))
}
