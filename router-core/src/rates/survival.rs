//! How much of what workers hold is still there when somebody comes for it.

/// How much one holder counts less with each fork that is looked at after it.
const FORGOTTEN: f64 = 0.01;

/// The holders that forks had when somebody parted there, beside the one that computed it last, and those of them that still
/// held it when the next came. Where caches are small, copies that nobody asks for in time are evicted.
#[derive(Debug, Default)]
pub(super) struct Survival {
    left: f64,
    of: f64,
}

impl Survival {
    /// `now` hold what `before` held. One of them says nothing: who came went there, if only since nobody else had it. O(1).
    pub(super) fn add(&mut self, before: u32, now: u32) {
        if before < 2 {
            return;
        }
        self.left += f64::from(now.clamp(1, before) - 1) - FORGOTTEN * self.left;
        self.of += f64::from(before - 1) - FORGOTTEN * self.of;
    }

    /// The share of copies that are still there when the next comes; all of them where nothing is known.
    pub(super) fn share(&self) -> f64 {
        (self.left + 1.0) / (self.of + 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(holders: impl Iterator<Item = (u32, u32)>) -> f64 {
        let mut survival = Survival::default();
        holders.for_each(|(before, now)| survival.add(before, now));
        survival.share()
    }

    fn assert_near(share: f64, expected: f64) {
        assert!((share - expected).abs() < 1e-3, "{share} for {expected}");
    }

    #[test]
    fn copies_stay_as_those_before_did() {
        let of_three = |now| share(std::iter::repeat_n((3, now), 10_000));
        // What came elsewhere meanwhile makes up for nothing, and the last holder is no copy.
        for (now, expected) in [(4, 1.0), (3, 1.0), (2, 101.0 / 201.0), (1, 1.0 / 201.0), (0, 1.0 / 201.0)] {
            assert_near(of_three(now), expected);
        }
    }

    #[test]
    fn where_there_are_no_copies_nothing_is_learned() {
        assert_eq!(share(std::iter::empty()), 1.0);
        assert_eq!(share([(0, 0), (1, 0), (1, 1), (0, 5)].into_iter()), 1.0);
    }

    #[test]
    fn what_is_long_ago_counts_less() {
        let all = |now: u32, count: usize| std::iter::repeat_n((2, now), count);
        let share = share(all(2, 10_000).chain(all(1, 500)));
        assert!(share < 0.02, "{share}");
    }
}
