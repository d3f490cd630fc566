//! Timers for deadlines that move with every request, and are hardly ever reached.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use tokio::runtime::{Handle, Id};
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep};

/// Alarms that each thread keeps for the next who needs one.
const SPARE_MAX: usize = 64;

thread_local! {
    static SPARE: RefCell<Vec<(Id, Alarm)>> = const { RefCell::new(Vec::new()) };
}

/// What `future` gives; none if it has not by `deadline`. Who does not wait pays nothing, and who does is lent an alarm that is
/// set already, for a time that is sooner: to set a timer and to take it back are two locks and two walks, for each
/// request.
pub(crate) async fn in_time<T>(deadline: Instant, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut alarm: Option<Lent> = None;
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => alarm.get_or_insert_with(Lent::take).alarm.poll(deadline, cx).map(|()| None),
    })
    .await
}

/// An alarm of this runtime, which goes back to be used again.
struct Lent {
    runtime: Id,
    alarm: Alarm,
}

impl Lent {
    fn take() -> Self {
        let runtime = Handle::current().id();
        let spare = SPARE.with_borrow_mut(Vec::pop);
        let alarm = spare.and_then(|(of, alarm)| (of == runtime).then_some(alarm)).unwrap_or_default();
        Self { runtime, alarm }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let alarm = std::mem::take(&mut self.alarm);
        // A thread that ends keeps nothing.
        let _ = SPARE.try_with(|spare| {
            let mut spare = spare.borrow_mut();
            if spare.len() < SPARE_MAX {
                spare.push((self.runtime, alarm));
            }
        });
    }
}

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
            // Whoever has used up its turn would not even be heard.
            if pin!(unconstrained(sleep.as_mut())).poll(cx).is_pending() {
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

    #[tokio::test(start_paused = true)]
    async fn whoever_is_late_is_told_and_whoever_is_not_gives_its_alarm_back() {
        let spare = || SPARE.with_borrow(Vec::len);
        SPARE.with_borrow_mut(Vec::clear);
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let nap = |seconds: u32| async move {
            tokio::time::sleep(second * seconds).await;
            seconds
        };
        assert_eq!(in_time(start + second, async { 7 }).await, Some(7));
        assert_eq!(spare(), 0, "it did not wait");
        assert_eq!(in_time(start + second * 3, nap(1)).await, Some(1));
        assert_eq!(spare(), 1);
        assert_eq!(in_time(start + second * 5, nap(9)).await, None);
        assert_eq!((start.elapsed(), spare()), (second * 5, 1), "the alarm was set for sooner");
        assert_eq!(in_time(start + second * 6, nap(9)).await, None);
        assert_eq!(start.elapsed(), second * 6);
        let many = (0..2 * SPARE_MAX).map(|_| in_time(start + second * 20, nap(1)));
        assert_eq!(futures_util::future::join_all(many).await.len(), 2 * SPARE_MAX);
        assert_eq!(spare(), SPARE_MAX);
    }

    #[test]
    fn an_alarm_is_of_one_runtime() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for _ in 0..3 {
            let late = runtime().block_on(async {
                let soon = Instant::now() + Duration::from_millis(2);
                in_time(soon, std::future::pending::<()>()).await
            });
            assert_eq!(late, None);
        }
    }

    #[tokio::test]
    async fn whoever_never_lets_go_is_late_too() {
        let busy = poll_fn(|cx| {
            while tokio::task::coop::poll_proceed(cx).map(|turn| turn.made_progress()).is_ready() {}
            Poll::<()>::Pending
        });
        let late = in_time(Instant::now() + Duration::from_millis(5), busy);
        assert_eq!(tokio::time::timeout(Duration::from_secs(5), late).await, Ok(None));
    }
}
