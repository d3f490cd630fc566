//! Requests of HTTP/2, each a task of its own. A client may stop taking one answer and go on with the others, so each is
//! watched by itself: one that is not taken is reset, and its neighbours are left alone.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use tokio::time::Instant;

use super::course::{Course, OVERTIME};
use super::moment::Moment;
use crate::alarm::Alarm;
use crate::shutdown::Tasks;
use crate::telemetry::metrics::DoorMetrics;

tokio::task_local! {
    static PACE: Arc<Pace>;
}

/// Whether one answer is being taken.
pub(super) struct Pace {
    origin: Instant,
    /// When the client was given a piece of the answer after which it was not ready for another one.
    waiting_since: Moment,
    /// Until when it must have all of it.
    deadline: Moment,
    waker: AtomicWaker,
}

impl Pace {
    pub(super) fn new(course: &Course) -> Self {
        let (waiting_since, deadline) = (Moment::default(), Moment::default());
        Self { origin: course.opened(), waiting_since, deadline, waker: AtomicWaker::new() }
    }

    /// That of the stream's task that this is called in.
    pub(super) fn of_task() -> Arc<Self> {
        PACE.with(Arc::clone)
    }

    /// The answer is asked for its next piece.
    pub(super) fn asked(&self) {
        self.waiting_since.clear();
    }

    /// The answer gave a piece.
    pub(super) fn gave(&self) {
        self.waiting_since.set(self.origin, Instant::now());
    }

    /// The answer must be given in full until then.
    pub(super) fn answer_until(&self, deadline: Instant) {
        self.deadline.set(self.origin, deadline);
    }

    /// When the client will have taken too long for what it was given, if it is not ready for more.
    pub(super) fn expiry(&self, stall_timeout: Duration) -> Option<Instant> {
        let stalled = self.waiting_since.get(self.origin)? + stall_timeout;
        // While it is ready, the answer itself looks at the clock.
        Some(self.deadline.get(self.origin).map_or(stalled, |deadline| stalled.min(deadline + OVERTIME)))
    }

    /// Has its task look at the course anew.
    pub(super) fn wake(&self) {
        self.waker.wake();
    }
}

/// Starts the streams of one connection.
#[derive(Clone)]
pub(super) struct Streams {
    pub(super) tasks: Tasks,
    pub(super) course: Arc<Course>,
    pub(super) stall_timeout: Duration,
    pub(super) metrics: DoorMetrics,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let pace = Arc::new(Pace::new(&self.course));
        self.course.accompany(&pace);
        let (stall_timeout, metrics) = (self.stall_timeout, self.metrics.clone());
        self.tasks.spawn(PACE.scope(Arc::clone(&pace), async move {
            if watched(stream, &pace, stall_timeout).await == Watched::Stalled {
                metrics.stream_reset();
            }
        }));
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Watched {
    Ended,
    Stalled,
}

/// Runs `stream` to its end, or until its client has taken nothing for `stall_timeout` or until its deadline: then it is
/// dropped, which resets it.
async fn watched(stream: impl Future<Output = ()>, pace: &Pace, stall_timeout: Duration) -> Watched {
    tokio::pin!(stream);
    let mut alarm = Alarm::default();
    poll_fn(|cx| {
        pace.waker.register(cx.waker());
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Watched::Ended);
        }
        match pace.expiry(stall_timeout) {
            Some(at) => alarm.poll(at, cx).map(|()| Watched::Stalled),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_reset_and_one_that_has_nothing_to_give_is_not() {
        let course = Course::new(Instant::now());
        let start = Instant::now();
        let pace = Pace::new(&course);
        let slow_worker = async {
            pace.asked();
            tokio::time::sleep(10 * MINUTE).await;
        };
        assert_eq!(watched(slow_worker, &pace, MINUTE).await, Watched::Ended);
        let slow_client = async {
            pace.gave();
            tokio::time::sleep(MINUTE / 2).await;
            pace.asked();
            tokio::time::sleep(2 * MINUTE).await;
            pace.gave();
            std::future::pending::<()>().await;
        };
        assert_eq!(watched(slow_client, &pace, MINUTE).await, Watched::Stalled);
        assert_eq!(start.elapsed(), 13 * MINUTE + MINUTE / 2);
        pace.answer_until(Instant::now() + MINUTE / 3);
        let start = Instant::now();
        let late = async {
            pace.gave();
            std::future::pending::<()>().await;
        };
        assert_eq!(watched(late, &pace, MINUTE).await, Watched::Stalled);
        assert_eq!(start.elapsed(), MINUTE / 3 + OVERTIME);
    }
}
