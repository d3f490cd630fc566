//! Weights and shares in cost functions.

use serde::{Deserialize, Serialize};

/// From 0 to a billion, so that no sum of products is beyond all numbers. A bad value fails while it is parsed, so the
/// error has its line and column.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Weight(f64);

/// Why a number is not a [`Weight`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NotAWeight {
    /// It is below nothing, or no number.
    #[error("weight must be finite and at least 0, got {0}")]
    TooLight(f64),
    /// It is beyond what means anything.
    #[error("weight must be at most {MOST}, got {0:e}")]
    TooHeavy(f64),
}

/// The heaviest weight.
const MOST: f64 = 1e9;

impl Weight {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// For constants of this crate, all of which are valid.
    pub(crate) const fn constant(value: f64) -> Self {
        Self(value)
    }
}

impl TryFrom<f64> for Weight {
    type Error = NotAWeight;

    fn try_from(value: f64) -> Result<Self, NotAWeight> {
        match value {
            0.0..=MOST => Ok(Self(value)),
            _ if value.is_finite() && value > MOST => Err(NotAWeight::TooHeavy(value)),
            _ => Err(NotAWeight::TooLight(value)),
        }
    }
}

/// From 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share(f64);

/// Why a number is not a [`Share`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a share must be from 0 to 1, got {0}")]
pub struct NotAShare(f64);

impl Share {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// For constants of this crate, all of which are valid.
    pub(crate) const fn constant(value: f64) -> Self {
        Self(value)
    }
}

impl TryFrom<f64> for Share {
    type Error = NotAShare;

    fn try_from(value: f64) -> Result<Self, NotAShare> {
        if (0.0..=1.0).contains(&value) { Ok(Self(value)) } else { Err(NotAShare(value)) }
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> f64 {
        share.0
    }
}

impl From<Weight> for f64 {
    fn from(weight: Weight) -> f64 {
        weight.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_from_zero_to_a_billion_are_weights() {
        assert_eq!([0.0, 0.3, 1e9].map(|good| Weight::try_from(good).map(Weight::get)), [Ok(0.0), Ok(0.3), Ok(1e9)]);
        for bad in [-2.0, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Weight::try_from(bad), Err(NotAWeight::TooLight(bad)));
        }
        assert_eq!(Weight::try_from(1.5e9).unwrap_err().to_string(), "weight must be at most 1000000000, got 1.5e9");
        assert!(Weight::try_from(f64::NAN).is_err());
        assert_eq!(Weight::try_from(-2.0).unwrap_err().to_string(), "weight must be finite and at least 0, got -2");
    }

    #[test]
    fn only_numbers_from_zero_to_one_are_shares() {
        assert_eq!([0.0, 1.0].map(|good| Share::try_from(good).map(Share::get)), [Ok(0.0), Ok(1.0)]);
        assert!([-0.1, 1.1, f64::NAN, f64::INFINITY].iter().all(|&bad| Share::try_from(bad).is_err()));
    }
}
