//! Whose turn it is to try again.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use warmpath_core::retry::RetryBudget;

/// How long a retry that has a worker waits for its turn. The death of a worker takes many requests at once, and a turn is
/// given back as soon as the retry is being served, so that they all get one; in a brown-out too many fail one after the
/// other, and the rest of the clients are told.
const PATIENCE: Duration = Duration::from_secs(1);

/// The retries of one pool: no more at once than their budget allows.
#[derive(Debug)]
pub struct RetryTurns {
    budget: RetryBudget,
    given_back: Notify,
}

/// A retry of which is not known yet whether it is served; dropping it lets the next one begin.
#[derive(Debug)]
pub struct Turn<'a>(&'a RetryTurns);

impl RetryTurns {
    /// Turns within `budget`.
    pub fn new(budget: RetryBudget) -> Self {
        Self { budget, given_back: Notify::new() }
    }

    /// Waits for a turn beside so many active requests; none within a second where too many retries are under way.
    pub async fn begin(&self, active: impl Fn() -> u32) -> Option<Turn<'_>> {
        let waiting = async {
            loop {
                let mut given_back = pin!(self.given_back.notified());
                // Whoever waits before it looks misses nothing: of two turns given back at once each finds somebody.
                given_back.as_mut().enable();
                if self.budget.begin(active()) {
                    // There may be room for more since the last one was given back: requests that are served make some.
                    self.given_back.notify_one();
                    return Turn(self);
                }
                given_back.await;
            }
        };
        timeout(PATIENCE, waiting).await.ok()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.budget.end();
        self.0.given_back.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;
    use warmpath_core::cost::Share;

    use super::*;

    fn turns(min: u32) -> RetryTurns {
        RetryTurns::new(RetryBudget::new(Share::try_from(0.0).unwrap(), min))
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_too_many_waits_until_another_has_ended() {
        let turns = turns(1);
        let first = turns.begin(|| 9).await.unwrap();
        let start = Instant::now();
        let (second, ()) = tokio::join!(turns.begin(|| 9), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(first);
        });
        assert!(second.is_some());
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn two_that_are_given_back_at_once_wake_two() {
        let turns = turns(2);
        let (first, second) = (turns.begin(|| 9).await.unwrap(), turns.begin(|| 9).await.unwrap());
        let start = Instant::now();
        let (third, fourth, ()) = tokio::join!(turns.begin(|| 9), turns.begin(|| 9), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop((first, second));
        });
        assert!(third.is_some() && fourth.is_some());
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }

    /// More active requests allow more retries, of which nobody else tells those that wait.
    #[tokio::test(start_paused = true)]
    async fn one_that_is_given_back_wakes_as_many_as_there_is_room_for() {
        let turns = RetryTurns::new(RetryBudget::new(Share::try_from(0.5).unwrap(), 1));
        let held = turns.begin(|| 2).await.unwrap();
        let start = Instant::now();
        let active = std::cell::Cell::new(2);
        let (second, third, ()) = tokio::join!(turns.begin(|| active.get()), turns.begin(|| active.get()), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            active.set(4);
            drop(held);
        });
        assert!(second.is_some() && third.is_some());
        assert_eq!(start.elapsed(), Duration::from_millis(300));
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_second_it_is_told_that_there_is_no_turn() {
        let turns = Arc::new(turns(1));
        let _held = turns.begin(|| 9).await.unwrap();
        let start = Instant::now();
        assert!(turns.begin(|| 9).await.is_none());
        assert_eq!(start.elapsed(), PATIENCE);
    }

    /// One that gives up while it waits takes nobody's turn.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_while_it_waits_leaves_no_trace() {
        let turns = turns(1);
        let held = turns.begin(|| 9).await.unwrap();
        assert!(timeout(Duration::from_millis(10), turns.begin(|| 9)).await.is_err());
        drop(held);
        assert!(timeout(Duration::from_millis(10), turns.begin(|| 9)).await.unwrap().is_some());
    }
}
