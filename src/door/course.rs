//! What is known of one connection beyond its own task: when it began, whether it must end, and of HTTP/2, whose requests are
//! tasks of their own, how long nothing was asked and nothing was taken.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::DoorLimits;
use super::moment::Moment;
use super::stream::Pace;

/// One connection. Of HTTP/1 all of it is seen by one task; of HTTP/2 requests have tasks of their own, which wake the
/// connection's.
pub(super) struct Course {
    opened: Instant,
    /// Requests whose answers have not ended.
    open: AtomicU32,
    /// Since when the first head is waited for.
    head_since: Moment,
    /// When the last request ended, or its answer left.
    idle_since: Moment,
    /// When the socket took no more.
    blocked_since: Moment,
    stopping: AtomicBool,
    cut: AtomicBool,
    waker: AtomicWaker,
    streams: Mutex<Vec<Weak<Pace>>>,
}

/// How long an answer that is late has to say so by itself.
pub(super) const OVERTIME: Duration = Duration::from_millis(100);

/// What a connection has taken too long for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// A request's head.
    Head,
    /// The next request.
    Idle,
    /// Taking what it was sent.
    Stalled,
    /// Taking what it was sent, until the time for its request was over.
    Late,
}

/// A request until its answer has ended, however that happens.
pub(super) struct Open(Arc<Course>);

impl Course {
    /// A connection that begins now: a head is waited for.
    pub(super) fn new(now: Instant) -> Arc<Self> {
        let course = Self {
            opened: now,
            open: AtomicU32::new(0),
            head_since: Moment::default(),
            idle_since: Moment::default(),
            blocked_since: Moment::default(),
            stopping: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            streams: Mutex::default(),
        };
        // The clock of the first head begins with the connection, or silence would be given as long again.
        course.head_since.set(now, now);
        Arc::new(course)
    }

    /// The clock of the first head begins anew: what came before was a handshake.
    pub(super) fn expect_head(&self, now: Instant) {
        self.head_since.set(self.opened, now);
    }

    /// Since when the first head is waited for, until it has come.
    pub(super) fn head_since(&self) -> Instant {
        self.head_since.get(self.opened).unwrap_or(self.opened)
    }

    /// When it began; what [`Pace`] reckons from.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// Whether a request is being answered.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// A request's head is complete.
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.head_since.clear();
        Open(Arc::clone(self))
    }

    /// The socket took no more, or took something again.
    pub(super) fn sent(&self, blocked: bool) {
        match (blocked, self.blocked_since.is_set()) {
            (true, false) => self.blocked_since.set(self.opened, Instant::now()),
            (false, true) => {
                self.blocked_since.clear();
                self.rest();
            }
            _ => {}
        }
    }

    /// The time without a request begins now, if none is open.
    fn rest(&self) {
        if !self.is_open() {
            self.idle_since.set(self.opened, Instant::now());
        }
    }

    /// What it will have taken too long for, and when.
    pub(super) fn expiry(&self, limits: &DoorLimits) -> Option<(Instant, Expiry)> {
        let stalled = self.blocked_since.get(self.opened).map(|since| (since + limits.stall_timeout, Expiry::Stalled));
        if self.is_open() {
            return stalled;
        }
        let waiting = match self.head_since.get(self.opened) {
            Some(since) => Some((since + limits.header_timeout, Expiry::Head)),
            // It has not taken what it was sent: it waits for nothing else.
            None if stalled.is_some() => None,
            None => self.idle_since.get(self.opened).map(|since| (since + limits.idle_timeout, Expiry::Idle)),
        };
        stalled.into_iter().chain(waiting).min_by_key(|(at, _)| *at)
    }

    /// Makes `waker` know of whatever is asked of the connection from now on.
    pub(super) fn watch(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }

    /// No further requests.
    pub(super) fn ask_to_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Ready once it is asked to stop.
    pub(super) async fn stopped(&self) {
        std::future::poll_fn(|cx| {
            self.watch(cx.waker());
            if self.is_stopping() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    }

    /// Whether it was asked to stop.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// No further answers.
    pub(super) fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        self.waker.wake();
        for stream in self.streams().iter().filter_map(Weak::upgrade) {
            stream.wake();
        }
    }

    /// Whether answers must end.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// Lets the task of one of many requests know when answers must end.
    pub(super) fn accompany(&self, pace: &Arc<Pace>) {
        let mut streams = self.streams();
        streams.retain(|stream| stream.strong_count() > 0);
        streams.push(Arc::downgrade(pace));
    }

    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Pace>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Whose request it is.
    pub(super) fn course(&self) -> &Arc<Course> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let course = &self.0;
        // Before it is seen that none is open, or the time before this request would count as well.
        course.idle_since.set(course.opened, Instant::now());
        if course.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            course.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: fn() -> DoorLimits = DoorLimits::default;

    fn seconds(course: &Course, limits: &DoorLimits) -> Option<(u64, Expiry)> {
        let (at, why) = course.expiry(limits)?;
        Some((at.duration_since(course.opened()).as_secs(), why))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_noticed_while_it_is_answered_and_after() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        let open = course.begin();
        tokio::time::advance(Duration::from_secs(5)).await;
        course.sent(true);
        tokio::time::advance(Duration::from_secs(5)).await;
        course.sent(true);
        assert_eq!(seconds(&course, &limits), Some((65, Expiry::Stalled)));
        drop(open);
        assert_eq!(seconds(&course, &limits), Some((65, Expiry::Stalled)));
        tokio::time::advance(Duration::from_secs(3)).await;
        course.sent(false);
        assert_eq!(seconds(&course, &limits), Some((88, Expiry::Idle)), "from when it takes what is left");
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_requests_at_once_only_the_time_without_any_counts() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        assert_eq!(seconds(&course, &limits), Some((10, Expiry::Head)), "the first must come as soon as any");
        let (first, second) = (course.begin(), course.begin());
        drop(first);
        assert_eq!(seconds(&course, &limits), None);
        tokio::time::advance(Duration::from_secs(9)).await;
        drop(second);
        assert_eq!(seconds(&course, &limits), Some((84, Expiry::Idle)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_head_has_its_time_after_a_handshake() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        tokio::time::advance(Duration::from_secs(4)).await;
        course.expect_head(Instant::now());
        assert_eq!(seconds(&course, &limits), Some((14, Expiry::Head)));
        assert_eq!(course.head_since().duration_since(course.opened()).as_secs(), 4);
    }
}
