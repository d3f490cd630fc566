//! Virtual time.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

/// A point in virtual time, or a span of it, in milliseconds. Points count from the start of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Ms(pub f64);

impl Ms {
    /// The start of the run; an empty span.
    pub const ZERO: Self = Self(0.0);
}

impl Add for Ms {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Ms {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Ms {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Sum for Ms {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_add_up_and_say_their_unit() {
        let mut now = Ms::ZERO;
        now += Ms(1.5);
        assert_eq!(now + Ms(2.0) - Ms(0.5), Ms(3.0));
        assert_eq!([Ms(1.0), Ms(2.0)].into_iter().sum::<Ms>().to_string(), "3 ms");
    }
}
