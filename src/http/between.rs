//! Clients that leave while neither a worker nor the queue has their request.

use std::time::Instant;

/// What is dropped before it is [`over`](Between::over) was left by its client: that is counted. Whoever enforces the
/// deadline drops it, too, and counts the request itself; so does whoever answers for a panic.
pub(super) struct Between<F: Fn()> {
    count: Option<F>,
    deadline: Instant,
}

impl<F: Fn()> Between<F> {
    /// Begins. `count` is called if the client leaves.
    pub(super) fn new(deadline: Instant, count: F) -> Self {
        Self { count: Some(count), deadline }
    }

    /// The client has not left.
    pub(super) fn over(mut self) {
        self.count = None;
    }
}

impl<F: Fn()> Drop for Between<F> {
    fn drop(&mut self) {
        if let Some(count) = &self.count
            && Instant::now() < self.deadline
            && !std::thread::panicking()
        {
            count();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_who_leaves_in_time_is_counted() {
        let (counted, later) = (Cell::new(0), Instant::now() + Duration::from_secs(60));
        let begin = |deadline| Between::new(deadline, || counted.set(counted.get() + 1));
        begin(later).over();
        drop(begin(Instant::now()));
        assert_eq!(counted.get(), 0);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _between = begin(later);
            std::panic::resume_unwind(Box::new("a test"));
        }));
        assert!(panicked.is_err() && counted.get() == 0);
        drop(begin(later));
        assert_eq!(counted.get(), 1);
    }
}
