//! A mean that forgets.

/// The mean of what was added: of all of it at first, then of about the last `1/least`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    value: f64,
    samples: f64,
    least: f64,
}

impl Mean {
    /// Nothing was added. A sample weighs `least` at least.
    pub(super) fn new(least: f64) -> Self {
        Self { value: 0.0, samples: 0.0, least }
    }

    pub(super) fn add(&mut self, value: f64) {
        self.samples += 1.0;
        self.value += (value - self.value) * (1.0 / self.samples).max(self.least);
    }

    /// The mean, drawn towards a larger `value` as far as one sample of many draws it.
    pub(super) fn leaning_to(&self, value: f64) -> f64 {
        self.value + (value - self.value).max(0.0) * self.least
    }

    /// 0 where nothing was added.
    pub(super) fn get(&self) -> f64 {
        self.value
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
}
