//! What many measurements say together.

use std::time::Duration;

/// Times in microseconds, to be told by their percentiles.
#[derive(Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Adds one.
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e6);
    }

    /// The smallest time that at least `percent` of all do not exceed; 0 without times.
    pub(crate) fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort_unstable_by(f64::total_cmp);
        let at = (self.0.len() * percent).div_ceil(100).saturating_sub(1);
        self.0.get(at).copied().unwrap_or(0.0)
    }
}

/// The middle one, or the mean of the two in the middle; 0 of none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_occurred() {
        let mut times = Times((1..=200).rev().map(f64::from).collect());
        assert_eq!((times.percentile(50), times.percentile(99), times.percentile(100)), (100.0, 198.0, 200.0));
        assert_eq!(Times::default().percentile(50), 0.0);
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
    }
}
