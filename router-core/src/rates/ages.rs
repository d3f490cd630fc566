//! How likely somebody is to go on with a prompt, by how long ago it came.

/// Ages that are told apart: the first ends after [`FIRST_MS`], each of the others lasts to √2 times the end of the one before, so
/// the last to 12 minutes.
pub(super) const AGES: usize = 28;

/// See [`AGES`].
const FIRST_MS: f64 = 64.0;

/// What is left of what was seen when one more went on: half after 700.
const KEEP: f64 = 0.999;

/// Of prompts of each age, how many ms they waited together for somebody to go on with them, and how many were gone on with.
#[derive(Debug)]
pub(super) struct Ages {
    ends: [f64; AGES],
    waited: [f64; AGES],
    went_on: [f64; AGES],
}

impl Default for Ages {
    fn default() -> Self {
        let mut ends = [FIRST_MS; AGES];
        (1..AGES).for_each(|age| ends[age] = ends[age - 1] * std::f64::consts::SQRT_2);
        Self { ends, waited: [0.0; AGES], went_on: [0.0; AGES] }
    }
}

impl Ages {
    /// When an age ends, in ms.
    pub(super) fn end(&self, age: usize) -> f64 {
        self.ends[age]
    }

    /// When it begins.
    fn begin(&self, age: usize) -> f64 {
        age.checked_sub(1).map_or(0.0, |before| self.ends[before])
    }

    /// A prompt came to be so many ms old, and waits no more for somebody at this age.
    pub(super) fn waited(&mut self, age: usize, ms: f64) {
        self.waited[age] += ms.min(self.ends[age]) - self.begin(age);
    }

    /// Somebody went on with one of this age.
    pub(super) fn went_on(&mut self, age: usize) {
        self.waited.iter_mut().chain(&mut self.went_on).for_each(|seen| *seen *= KEEP);
        self.went_on[age] += 1.0;
    }

    /// What was said last of one of this age does not count.
    pub(super) fn take_back(&mut self, age: usize) {
        self.went_on[age] = (self.went_on[age] - 1.0).max(0.0);
    }

    /// How many in a ms go on with one of each age: as if one more had been of that age to its end, for nothing.
    pub(super) fn per_ms(&self) -> [f64; AGES] {
        std::array::from_fn(|age| self.went_on[age] / (self.waited[age] + self.ends[age]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_age_ends_later_by_a_root_of_two() {
        let ages = Ages::default();
        let minutes = ages.end(AGES - 1) / 60_000.0;
        assert!((ages.end(2) - 128.0).abs() < 1e-9 && (12.0..13.0).contains(&minutes), "{minutes}");
    }

    #[test]
    fn who_goes_on_after_as_long_as_others_did_is_told_by_that_age() {
        let mut ages = Ages::default();
        // All are gone on with 100 ms after they came, in the third age, which begins at 90.5.
        for _ in 0..200 {
            (0..2).for_each(|age| ages.waited(age, ages.end(age)));
            ages.waited(2, 100.0);
            ages.went_on(2);
        }
        let [first, second, third, fourth, ..] = ages.per_ms();
        assert_eq!([first, second, fourth], [0.0; 3]);
        assert!((third * (100.0 - ages.end(1)) - 1.0).abs() < 0.1, "{third}");
    }

    #[test]
    fn before_many_were_seen_somebody_who_waits_in_vain_is_believed() {
        let mut ages = Ages::default();
        ages.waited(0, 32.0);
        ages.went_on(0);
        assert_eq!(ages.per_ms()[0], 1.0 / (32.0 * KEEP + 64.0));
        ages.take_back(0);
        assert_eq!(ages.per_ms()[0], 0.0);
    }
}
