//! How a model's texts are tokenised: it begins fast, and what a comparison has shown to be wrong is never used again.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What is shared by those who tokenise and those who compare. Everything in it only ever goes one way.
#[derive(Debug, Default)]
pub(super) struct Course {
    reference_only: AtomicBool,
    whole: AtomicBool,
    generation: AtomicU64,
    equal: AtomicU64,
    different: AtomicU64,
    skipped: AtomicU64,
}

/// What became of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// Everything agreed.
    Equal,
    /// The fast tokenizer has other ids than the reference.
    FastDiffers,
    /// It has the same, but the parts that the text was cut into came to something else.
    PartsDiffer,
    /// There was no time for it.
    Skipped,
}

impl Course {
    /// Whether only the reference is to be used.
    pub(super) fn reference_only(&self) -> bool {
        self.reference_only.load(Ordering::Acquire)
    }

    /// Whether texts are not to be cut.
    pub(super) fn whole(&self) -> bool {
        self.whole.load(Ordering::Acquire)
    }

    /// Part of the name of whatever is kept: what was made before a change is not found any more.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The reference is used from now on.
    pub(super) fn leave_the_fast_one(&self) {
        self.reference_only.store(true, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes note of a comparison, and draws the conclusion.
    pub(super) fn compared(&self, result: Compared) {
        match result {
            Compared::Equal => self.equal.fetch_add(1, Ordering::Relaxed),
            Compared::Skipped => self.skipped.fetch_add(1, Ordering::Relaxed),
            Compared::FastDiffers | Compared::PartsDiffer => self.different.fetch_add(1, Ordering::Relaxed),
        };
        match result {
            Compared::FastDiffers => self.leave_the_fast_one(),
            Compared::PartsDiffer => {
                self.whole.store(true, Ordering::Release);
                self.generation.fetch_add(1, Ordering::AcqRel);
            }
            Compared::Equal | Compared::Skipped => {}
        }
    }

    /// How many comparisons were equal, different and skipped.
    pub(super) fn comparisons(&self) -> [u64; 3] {
        [&self.equal, &self.different, &self.skipped].map(|count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_changes_the_course_for_good_and_makes_what_was_kept_unfindable() {
        let course = Course::default();
        course.compared(Compared::Equal);
        course.compared(Compared::Skipped);
        assert_eq!((course.reference_only(), course.whole(), course.generation()), (false, false, 0));
        course.compared(Compared::PartsDiffer);
        assert_eq!((course.reference_only(), course.whole(), course.generation()), (false, true, 1));
        course.compared(Compared::FastDiffers);
        course.compared(Compared::Equal);
        assert_eq!((course.reference_only(), course.whole(), course.generation()), (true, true, 2));
        assert_eq!(course.comparisons(), [2, 2, 1]);
    }
}
