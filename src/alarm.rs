//! One timer for deadlines that move with every request.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::time::{Instant, Sleep};

/// A timer that is set again only when it rings too early or would ring too late: a deadline that moves away, as it does
/// with every request and every chunk of a stream, costs nothing.
#[derive(Default)]
pub(crate) struct Alarm {
    sleep: Option<Pin<Box<Sleep>>>,
    set_for: Option<Instant>,
    /// Who is woken by it.
    waker: Option<Waker>,
}

impl Alarm {
    /// Ready once `deadline` has passed. Else the task is woken then, or earlier for nothing.
    pub(crate) fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.set_for.is_none_or(|set_for| deadline < set_for) {
                self.set_for = Some(deadline);
                self.waker = None;
                match &mut self.sleep {
                    Some(sleep) => sleep.as_mut().reset(deadline),
                    None => self.sleep = Some(Box::pin(tokio::time::sleep_until(deadline))),
                }
            }
            let Some(sleep) = &mut self.sleep else { return Poll::Pending };
            let is_told = self.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if is_told && !sleep.is_elapsed() {
                return Poll::Pending;
            }
            if sleep.as_mut().poll(cx).is_pending() {
                self.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            self.waker = None;
            if self.set_for.take().is_some_and(|set_for| set_for >= deadline) {
                return Poll::Ready(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_rings_at_the_last_deadline_that_it_was_told() {
        let start = Instant::now();
        let mut alarm = Alarm::default();
        for seconds in [10, 5, 20] {
            let deadline = start + Duration::from_secs(seconds);
            assert_eq!(poll_fn(|cx| Poll::Ready(alarm.poll(deadline, cx))).await, Poll::Pending);
        }
        poll_fn(|cx| alarm.poll(start + Duration::from_secs(20), cx)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(20));
        poll_fn(|cx| alarm.poll(start + Duration::from_secs(21), cx)).await;
        assert_eq!(start.elapsed(), Duration::from_secs(21));
    }
}
