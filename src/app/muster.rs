//! Waiting for every worker at the start, where that is asked for.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior};

/// Looks every `interval`, and at the end of `timeout`, whether all have come. What is not there at a look counts as not there
/// until the next one, as with the start of other routers.
///
/// # Errors
/// They have not within `timeout`.
pub(super) async fn muster(all_here: impl Fn() -> bool, interval: Duration, timeout: Duration) -> Result<(), Absent> {
    let deadline = Instant::now() + timeout;
    let mut looks = tokio::time::interval(interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {}
            () = tokio::time::sleep_until(deadline) => {}
        }
        if all_here() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Absent { timeout });
        }
    }
}

/// Not all workers came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not every worker was healthy within {timeout:?}, and `ready_when` is `all`")]
pub struct Absent {
    timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(10);
    const TIMEOUT: Duration = Duration::from_secs(300);

    ///
    #[tokio::test(start_paused = true)]
    async fn r045_a_worker_that_is_well_after_15_seconds_is_admitted_after_20() {
        let start = Instant::now();
        let all_here = || start.elapsed() >= Duration::from_secs(15);
        assert_eq!(muster(all_here, INTERVAL, TIMEOUT).await, Ok(()));
        assert_eq!(start.elapsed(), Duration::from_secs(20));
    }

    ///
    #[tokio::test(start_paused = true)]
    async fn r045_after_300_seconds_the_start_fails() {
        let start = Instant::now();
        assert_eq!(muster(|| false, INTERVAL, TIMEOUT).await, Err(Absent { timeout: TIMEOUT }));
        assert_eq!(start.elapsed(), TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_is_kept_whatever_lies_between_two_looks() {
        let start = Instant::now();
        let timeout = Duration::from_secs(2);
        assert_eq!(muster(|| false, INTERVAL, timeout).await, Err(Absent { timeout }));
        assert_eq!(start.elapsed(), timeout);
        let begun = Instant::now();
        assert!(muster(|| begun.elapsed() >= Duration::from_secs(4), INTERVAL, timeout).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_with_the_last_look_is_in_time() {
        let start = Instant::now();
        assert_eq!(muster(|| start.elapsed() >= TIMEOUT, INTERVAL, TIMEOUT).await, Ok(()));
    }
}
