//! Durations and sizes as people write them.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A length of time, written `250ms`, `5s`, `2m` or `1h`: from one millisecond to a week, so that no wait is endless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Period(Duration);

/// A length of time that may be none: written as a [`Period`], or `0s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Allowance(Option<Period>);

/// A number of bytes, written `512B`, `64KiB`, `16MiB` or `1GiB`, or plainly in bytes. At least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ByteSize(u64);

/// Units of time in milliseconds, largest first.
pub(super) const TIME_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Units of size in bytes, largest first.
pub(super) const SIZE_UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

const WEEK_MS: u64 = 7 * 24 * 3_600_000;

impl Period {
    /// The same for the standard library.
    pub fn get(self) -> Duration {
        self.0
    }

    pub(super) const fn seconds(seconds: u64) -> Self {
        Self(Duration::from_secs(seconds))
    }

    pub(super) const fn milliseconds(milliseconds: u64) -> Self {
        Self(Duration::from_millis(milliseconds))
    }
}

impl Allowance {
    /// The same for the standard library.
    pub fn get(self) -> Duration {
        self.0.map_or(Duration::ZERO, Period::get)
    }

    pub(super) const fn seconds(seconds: u64) -> Self {
        Self(Some(Period::seconds(seconds)))
    }

    pub(super) const fn milliseconds(milliseconds: u64) -> Self {
        Self(Some(Period::milliseconds(milliseconds)))
    }
}

impl ByteSize {
    /// The bytes.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// The bytes, for limits of what lies in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }

    pub(super) const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    pub(super) const fn mib(count: u64) -> Self {
        Self(count << 20)
    }
}

/// `digits` and the rest of `text` after them.
fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim_start()))
}

fn in_units(number: u64, units: &[(&str, u64)]) -> String {
    let fitting = units.iter().find(|(_, size)| number.is_multiple_of(*size));
    fitting.map_or_else(String::new, |(unit, size)| format!("{}{unit}", number / size))
}

impl TryFrom<String> for Period {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = split_number(&text).and_then(|(number, unit)| {
            let (_, size) = TIME_UNITS.iter().find(|(name, _)| *name == unit)?;
            number.checked_mul(*size)
        });
        match parsed {
            Some(ms @ 1..=WEEK_MS) => Ok(Self(Duration::from_millis(ms))),
            Some(_) => Err(format!("a duration is at least 1ms and at most 168h, got `{text}`")),
            None => Err(format!("expected a duration such as 250ms, 5s, 2m or 1h, got `{text}`")),
        }
    }
}

impl TryFrom<String> for Allowance {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match split_number(&text) {
            Some((0, unit)) if TIME_UNITS.iter().any(|(name, _)| *name == unit) => Ok(Self(None)),
            _ => Period::try_from(text).map(|period| Self(Some(period))),
        }
    }
}

impl TryFrom<String> for ByteSize {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parsed = split_number(&text).and_then(|(number, unit)| {
            let unit = if unit.is_empty() { "B" } else { unit };
            let (_, size) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
            number.checked_mul(*size)
        });
        match parsed {
            Some(0) => Err(format!("a size is at least 1B, got `{text}`")),
            Some(bytes) => Ok(Self(bytes)),
            None => Err(format!("expected a size such as 512B, 64KiB, 16MiB or 1GiB, got `{text}`")),
        }
    }
}

impl From<Period> for String {
    fn from(period: Period) -> String {
        in_units(u64::try_from(period.0.as_millis()).unwrap_or(WEEK_MS), &TIME_UNITS)
    }
}

impl From<Allowance> for String {
    fn from(allowance: Allowance) -> String {
        allowance.0.map_or_else(|| "0s".to_owned(), String::from)
    }
}

impl From<ByteSize> for String {
    fn from(size: ByteSize) -> String {
        in_units(size.0, &SIZE_UNITS)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_in_their_largest_unit() {
        for (text, ms, canonical) in [
            ("250ms", 250, "250ms"),
            ("5s", 5_000, "5s"),
            ("2 m", 120_000, "2m"),
            ("60m", 3_600_000, "1h"),
            ("90s", 90_000, "90s"),
        ] {
            let period = Period::try_from(text.to_owned()).unwrap();
            assert_eq!((period.get().as_millis(), period.to_string().as_str()), (ms, canonical));
        }
    }

    #[test]
    fn an_allowance_may_be_none() {
        for (text, ms, canonical) in [("0s", 0, "0s"), ("0 ms", 0, "0s"), ("30s", 30_000, "30s"), ("1ms", 1, "1ms")] {
            let allowance = Allowance::try_from(text.to_owned()).unwrap();
            assert_eq!((allowance.get().as_millis(), String::from(allowance).as_str()), (ms, canonical));
        }
        let message = "expected a duration such as 250ms, 5s, 2m or 1h, got `0`".to_owned();
        assert_eq!(Allowance::try_from("0".to_owned()), Err(message));
        let message = "a duration is at least 1ms and at most 168h, got `169h`".to_owned();
        assert_eq!(Allowance::try_from("169h".to_owned()), Err(message));
    }

    #[test]
    fn sizes_are_read_and_written_in_their_largest_unit() {
        for (text, bytes, canonical) in [
            ("4096", 4_096, "4KiB"),
            ("16MiB", 16_777_216, "16MiB"),
            ("1025B", 1_025, "1025B"),
            ("1 GiB", 1 << 30, "1GiB"),
        ] {
            let size = ByteSize::try_from(text.to_owned()).unwrap();
            assert_eq!((size.bytes(), size.to_string().as_str()), (bytes, canonical));
        }
    }

    #[test]
    fn what_has_no_unit_no_number_or_no_bound_is_refused() {
        for text in ["", "5", "s", "-5s", "1.5s", "5 sec", "99999999999999999999s", "18446744073709551615h"] {
            let message = format!("expected a duration such as 250ms, 5s, 2m or 1h, got `{text}`");
            assert_eq!(Period::try_from(text.to_owned()), Err(message));
        }
        for text in ["0s", "169h"] {
            let message = format!("a duration is at least 1ms and at most 168h, got `{text}`");
            assert_eq!(Period::try_from(text.to_owned()), Err(message));
        }
        assert_eq!(ByteSize::try_from("0".to_owned()), Err("a size is at least 1B, got `0`".to_owned()));
        for text in ["16MB", "-1", "1e6", "18446744073709551615KiB"] {
            let message = format!("expected a size such as 512B, 64KiB, 16MiB or 1GiB, got `{text}`");
            assert_eq!(ByteSize::try_from(text.to_owned()), Err(message));
        }
    }
}
