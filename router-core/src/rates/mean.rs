//! A mean that forgets.

use crate::real::{larger, smaller};

/// The mean of what was added: of all of it at first, then of about the last `1/least`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    value: f64,
    /// What it is worth: those that were added, and the belief before them.
    samples: f64,
    least: f64,
    learned: bool,
}

impl Mean {
    /// Nothing was added. A sample weighs `least` at least.
    pub(super) fn new(least: f64) -> Self {
        Self::believed(0.0, 0.0, least)
    }

    /// The same where a belief weighs as much as so many samples.
    pub(super) fn believed(value: f64, samples: f64, least: f64) -> Self {
        Self { value, samples, least, learned: false }
    }

    pub(super) fn add(&mut self, value: f64) {
        self.learned = true;
        self.samples += 1.0;
        self.value += (value - self.value) * (1.0 / self.samples).max(self.least);
    }

    /// The same where a value counts as so many `times` the mean at most.
    pub(super) fn add_at_most(&mut self, value: f64, times: f64) {
        self.add(if self.value > 0.0 { value.min(times * self.value) } else { value });
    }

    /// The mean of the same values less a `share` of one of them that is like the others: of as large a sum.
    pub(super) fn without(&mut self, share: f64) {
        let weight = (1.0 / larger(self.samples, 2.0)).max(self.least).min(0.5);
        self.value /= 1.0 - weight * share;
    }

    /// The mean, drawn towards a larger `value` as far as one sample of many draws it.
    pub(super) fn leaning_to(&self, value: f64) -> f64 {
        self.value + larger(value - self.value, 0.0) * self.least
    }

    /// The mean of these and of so many more, whose sum that is, as far as it is young: what is not over yet is not like what
    /// is, and counts for less and less beside it. One of them is so many `times` the mean at most.
    pub(super) fn joined_by(&self, (sum, count): (f64, u32), times: f64) -> f64 {
        let more = f64::from(count) * larger(1.0 - self.samples * self.least, 0.0);
        if more <= 0.0 {
            return self.value;
        }
        let each = smaller(sum / f64::from(count), times * self.value);
        (self.value * self.samples + each * more) / (self.samples + more)
    }

    /// Where nothing was added, what is believed, or 0.
    pub(super) fn get(&self) -> f64 {
        self.value
    }

    /// None where nothing was added.
    pub(super) fn learned(&self) -> Option<f64> {
        self.learned.then_some(self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_count_alike_and_the_old_ones_less_and_less() {
        let mut mean = Mean::new(0.25);
        assert!(mean.get().abs() < f64::EPSILON);
        [2.0, 4.0, 6.0].into_iter().for_each(|value| mean.add(value));
        assert!((mean.get() - 4.0).abs() < 1e-12);
        [0.0, 8.0].into_iter().for_each(|value| mean.add(value));
        assert!((mean.get() - 4.25).abs() < 1e-12);
        assert!([8.25, 4.25, 0.0].map(|value| mean.leaning_to(value)) == [5.25, 4.25, 4.25]);
    }
    #[test]
    fn what_is_far_off_counts_as_so_many_times_the_mean() {
        let mut mean = Mean::new(0.005);
        mean.add_at_most(100.0, 16.0);
        (1..500).for_each(|_| mean.add_at_most(100.0, 16.0));
        mean.add_at_most(1e6, 16.0);
        assert!((mean.get() - 107.5).abs() < 1e-9, "{}", mean.get());
    }

    #[test]
    fn a_belief_gives_way_to_samples() {
        let mut mean = Mean::believed(100.0, 10.0, 0.005);
        assert_eq!((mean.get(), mean.learned()), (100.0, None));
        mean.add(1.0);
        assert!((mean.get() - 91.0).abs() < 1e-12, "{}", mean.get());
        (0..89).for_each(|_| mean.add(1.0));
        assert!((mean.get() - 10.9).abs() < 1e-9, "{}", mean.get());
    }

    #[test]
    fn what_is_not_over_counts_while_there_is_little_that_is() {
        let mut mean = Mean::believed(2.0, 2.0, 0.1);
        // Two that bring 6 each, beside a belief of 2 that is two of the ten of which the mean will be.
        let joined = |mean: &Mean, sum, count| mean.joined_by((sum, count), 4.0);
        assert!((joined(&mean, 12.0, 2) - (4.0 + 6.0 * 1.6) / 3.6).abs() < 1e-12);
        // None of a million counts as more than four usual ones, and none at all as nothing.
        assert!((joined(&mean, 1e6, 1) - (4.0 + 8.0 * 0.8) / 2.8).abs() < 1e-12);
        assert_eq!([joined(&mean, 0.0, 0), mean.get()], [2.0; 2]);
        (0..8).for_each(|_| mean.add(2.0));
        assert_eq!(joined(&mean, 1e6, 50), 2.0);
    }
}
