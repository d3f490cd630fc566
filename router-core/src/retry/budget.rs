//! How many retries may be on trial at once.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::cost::Share;

/// A share of the active requests, and never less than a few. The rule is Envoy's; but a retry counts only until it is known
/// to be served, or has failed, not until its answer has ended. In a brown-out retries fail as soon as they begin, and it
/// is not made worse by trying everything again; where one worker has died the others serve, so that all of its requests get
/// their turns soon, however long their answers take.
#[derive(Debug)]
pub struct RetryBudget {
    share: Share,
    floor: u32,
    under_way: AtomicU32,
}

impl RetryBudget {
    /// `share` of the active requests, at least `floor`.
    pub fn new(share: Share, floor: u32) -> Self {
        Self { share, floor, under_way: AtomicU32::new(0) }
    }

    /// Begins a retry beside so many active requests, if there is room. Whoever is let in gives it back.
    pub fn begin(&self, active: u32) -> bool {
        let allowed = f64::from(self.floor).max(self.share.get() * f64::from(active));
        let one_more = |under_way: u32| {
            let next = under_way.saturating_add(1);
            (f64::from(next) <= allowed).then_some(next)
        };
        self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// A retry is being served, or has failed.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    /// Retries on trial.
    pub fn under_way(&self) -> u32 {
        self.under_way.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(active: u32) -> u32 {
        let budget = RetryBudget::new(Share::constant(0.2), 3);
        while budget.begin(active) {}
        budget.under_way()
    }

    #[test]
    fn a_fifth_of_the_requests_and_at_least_three() {
        let counts = [(0, 3), (1, 3), (15, 3), (19, 3), (20, 4), (100, 20), (104, 20), (105, 21)];
        assert_eq!(counts.map(|(active, _)| allowed(active)), counts.map(|(_, retries)| retries));
    }

    #[test]
    fn what_is_given_back_can_be_had_again() {
        let budget = RetryBudget::new(Share::constant(0.0), 1);
        assert_eq!((budget.begin(9), budget.begin(9)), (true, false));
        budget.end();
        assert!(budget.begin(9));
    }
}
