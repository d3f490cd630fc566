//! A mean that forgets.

use crate::real::larger;

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

    /// The mean, drawn towards a larger `value` as far as one sample of many draws it.
    pub(super) fn leaning_to(&self, value: f64) -> f64 {
        self.value + larger(value - self.value, 0.0) * self.least
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
}
