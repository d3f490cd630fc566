//! What is known of one connection by all who serve it: the wire that carries its bytes, the service that answers its
//! requests, and the task that watches the clock.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::time::Instant;

use super::DoorLimits;
use super::moment::Moment;
use super::stream::Pace;

/// What of an answer is given to HTTP/1 before what went before has left.
const AHEAD_MAX: usize = 16 * 1024;

/// One connection. Of HTTP/1 all of it is seen by one task; of HTTP/2 requests have tasks of their own, which wake the
/// connection's.
pub(super) struct Course {
    opened: Instant,
    /// Requests whose answers have not ended.
    open: AtomicU32,
    /// When the first byte of a request's head came that is not complete yet.
    head_since: Moment,
    /// Whether any byte of it came.
    head_begun: AtomicBool,
    /// Whether a line of it ended in LF alone.
    bare_line: AtomicBool,
    /// Bytes of the last request's body that HTTP has not been given; [`CHUNKS`] where nobody knows.
    body_left: AtomicU64,
    /// Bytes of the next request's body that HTTP was given with its head.
    with_head: AtomicU64,
    /// Bytes that came and that HTTP has not been given.
    kept: AtomicU64,
    /// Whether HTTP was given something behind what may have been the end of a body in chunks.
    overran: AtomicBool,
    /// Until when the open request must be answered in full.
    deadline: Moment,
    /// When the last request ended, or its answer left.
    idle_since: Moment,
    /// When the socket took no more.
    blocked_since: Moment,
    /// Whether what was answered may not have left yet.
    unsent: AtomicBool,
    /// Bytes of answers that were given to HTTP/1 since all that it was given had left.
    ahead: AtomicUsize,
    /// Whether an answer waits until all has left.
    held_back: AtomicBool,
    /// Whether it carries many requests at once.
    multiplexed: AtomicBool,
    stopping: AtomicBool,
    cut: AtomicBool,
    waker: AtomicWaker,
    streams: Mutex<Vec<Weak<Pace>>>,
}

/// The length of a body in chunks.
const CHUNKS: u64 = u64::MAX;

/// How long an answer that is late has to say so by itself.
pub(super) const OVERTIME: Duration = Duration::from_millis(100);

/// What the next bytes are that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// A request's head.
    Head,
    /// A body that has so many bytes left.
    Body(u64),
    /// A body in chunks, or what is behind it: HTTP knows, and tells only when it has read them.
    Chunks,
    /// A head whose turn comes when the open request has been answered.
    Later,
    /// Whatever HTTP/2 makes of them.
    Frames,
}

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
            head_begun: AtomicBool::new(false),
            bare_line: AtomicBool::new(false),
            body_left: AtomicU64::new(0),
            with_head: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            overran: AtomicBool::new(false),
            deadline: Moment::default(),
            idle_since: Moment::default(),
            blocked_since: Moment::default(),
            unsent: AtomicBool::new(false),
            ahead: AtomicUsize::new(0),
            held_back: AtomicBool::new(false),
            multiplexed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            cut: AtomicBool::new(false),
            waker: AtomicWaker::new(),
            streams: Mutex::default(),
        };
        // The clock of the first head begins with the connection, or silence would be given as long again.
        course.head_since.set(now, now);
        Arc::new(course)
    }

    /// The connection speaks HTTP/2. What comes between requests is no head, so once the first has begun only the time
    /// without any counts.
    pub(super) fn multiplex(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    /// Whether the connection speaks HTTP/2.
    pub(super) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// The clock of the first head begins anew: what came before was a handshake.
    pub(super) fn expect_head(&self, now: Instant) {
        self.head_since.set(self.opened, now);
    }

    /// Whether a head has begun and not ended.
    pub(super) fn is_in_head(&self) -> bool {
        self.head_begun.load(Ordering::Relaxed)
    }

    /// When it began; what [`Pace`] reckons from.
    pub(super) fn opened(&self) -> Instant {
        self.opened
    }

    /// A line of the present head ended in LF alone.
    pub(super) fn note_bare_line(&self) {
        self.bare_line.store(true, Ordering::Relaxed);
    }

    /// Whether one did in the head that is complete now.
    pub(super) fn had_bare_line(&self) -> bool {
        self.bare_line.swap(false, Ordering::Relaxed)
    }

    /// HTTP was given so many bytes behind a head, which announces at least as many.
    pub(super) fn gave_with_head(&self, bytes: u64) {
        self.with_head.store(bytes, Ordering::Relaxed);
    }

    /// The request that began last has a body of so many bytes, or one in chunks.
    pub(super) fn expect_body(&self, len: Option<u64>) {
        let given = self.with_head.swap(0, Ordering::Relaxed);
        self.body_left.store(len.map_or(CHUNKS, |len| len.saturating_sub(given)), Ordering::Relaxed);
        // HTTP reads the same length out of a head, or what it was given would be no part of the body.
        self.overran.store(len.map_or(given > 0, |len| given > len), Ordering::Relaxed);
    }

    /// Its end was read.
    pub(super) fn end_body(&self) {
        self.body_left.store(0, Ordering::Relaxed);
    }

    /// HTTP was given so many bytes of a body whose length is known.
    pub(super) fn gave_body(&self, bytes: u64) {
        let left = self.body_left.load(Ordering::Relaxed);
        self.body_left.store(left.saturating_sub(bytes), Ordering::Relaxed);
    }

    /// HTTP was given something behind what may have been the end of a body in chunks: it may take that for a head that
    /// nobody has looked at.
    pub(super) fn overrun(&self) {
        self.overran.store(true, Ordering::Relaxed);
    }

    /// So many bytes came that HTTP has not been given.
    pub(super) fn keep(&self, bytes: usize) {
        self.kept.store(u64::try_from(bytes).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Whether an answer that begins now must be the connection's last: not all of the request's body has come, and HTTP
    /// waits for the rest of none; or it was given what is no part of it.
    pub(super) fn must_end(&self) -> bool {
        let missing = self.body_left.load(Ordering::Relaxed) > self.kept.load(Ordering::Relaxed);
        (missing || self.overran.load(Ordering::Relaxed)) && !self.multiplexed.load(Ordering::Relaxed)
    }

    /// Whether a request is being answered.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// What the next bytes are.
    pub(super) fn next(&self) -> Next {
        if self.multiplexed.load(Ordering::Relaxed) {
            return Next::Frames;
        }
        match self.body_left.load(Ordering::Relaxed) {
            0 if self.is_open() => Next::Later,
            0 => Next::Head,
            CHUNKS => Next::Chunks,
            left => Next::Body(left),
        }
    }

    /// A request's head is complete.
    pub(super) fn begin(self: &Arc<Self>) -> Open {
        self.open.fetch_add(1, Ordering::Relaxed);
        self.deadline.clear();
        self.unsent.store(true, Ordering::Relaxed);
        self.head_since.clear();
        self.head_begun.store(false, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// The open request must be answered in full until then.
    pub(super) fn answer_until(&self, deadline: Instant) {
        self.deadline.set(self.opened, deadline);
    }

    /// Bytes of a head came.
    pub(super) fn received(&self) {
        self.head_begun.store(true, Ordering::Relaxed);
        if !self.head_since.is_set() {
            self.head_since.set(self.opened, Instant::now());
        }
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

    /// So many bytes of an answer were given to HTTP/1.
    pub(super) fn gave(&self, bytes: usize) {
        self.ahead.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether an answer must wait until what was given of it has left: HTTP/1 would take four times as much ahead, and keep
    /// it for every client that is slow. Whoever waits is the connection's task, which is woken.
    pub(super) fn holds_back(&self) -> bool {
        let holds_back = self.ahead.load(Ordering::Relaxed) >= AHEAD_MAX;
        self.held_back.store(holds_back, Ordering::Relaxed);
        holds_back
    }

    /// Everything that was written has left.
    pub(super) fn flushed(&self) {
        self.ahead.store(0, Ordering::Relaxed);
        if self.held_back.load(Ordering::Relaxed) {
            self.held_back.store(false, Ordering::Relaxed);
            self.waker.wake();
        }
        if !self.is_open() {
            self.unsent.store(false, Ordering::Relaxed);
        }
    }

    /// The time without a request begins now, if none is open.
    fn rest(&self) {
        if !self.is_open() {
            self.idle_since.set(self.opened, Instant::now());
        }
    }

    /// Whether no request is being answered and no answer is on its way: what HTTP/1 writes now is no answer of ours.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_open() && !self.unsent.load(Ordering::Relaxed) && !self.multiplexed.load(Ordering::Relaxed)
    }

    /// What it will have taken too long for, and when.
    pub(super) fn expiry(&self, limits: &DoorLimits) -> Option<(Instant, Expiry)> {
        let stalled = self.blocked_since.get(self.opened).map(|since| (since + limits.stall_timeout, Expiry::Stalled));
        if self.is_open() {
            // While the client takes what it is sent, the answer itself looks at the clock.
            let late = stalled.and_then(|_| self.deadline.get(self.opened)).map(|at| (at + OVERTIME, Expiry::Late));
            return stalled.into_iter().chain(late).min_by_key(|(at, _)| *at);
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

    /// Wakes the connection's task.
    pub(super) fn wake(&self) {
        self.waker.wake();
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
        if course.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            course.rest();
            if course.multiplexed.load(Ordering::Relaxed) {
                course.waker.wake();
            }
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
    async fn a_head_an_answer_and_silence_have_clocks_of_their_own() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        assert_eq!(seconds(&course, &limits), Some((10, Expiry::Head)));
        tokio::time::advance(Duration::from_secs(4)).await;
        course.received();
        assert_eq!(seconds(&course, &limits), Some((10, Expiry::Head)), "silence before a head counts to the head");
        let open = course.begin();
        assert_eq!(seconds(&course, &limits), None);
        tokio::time::advance(Duration::from_secs(100)).await;
        drop(open);
        assert_eq!(seconds(&course, &limits), Some((104 + 75, Expiry::Idle)));
        tokio::time::advance(Duration::from_secs(70)).await;
        course.received();
        tokio::time::advance(Duration::from_secs(2)).await;
        course.received();
        assert_eq!(seconds(&course, &limits), Some((174 + 10, Expiry::Head)), "further bytes give no further time");
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
    async fn the_time_of_a_request_ends_for_a_client_that_takes_nothing_too() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        let open = course.begin();
        course.answer_until(Instant::now() + Duration::from_secs(30));
        assert_eq!(seconds(&course, &limits), None, "the answer sees to it");
        course.sent(true);
        assert_eq!(seconds(&course, &limits), Some((30, Expiry::Late)));
        drop(open);
        assert_eq!(seconds(&course, &limits), Some((60, Expiry::Stalled)), "it has ended");
        let _open = course.begin();
        assert_eq!(seconds(&course, &limits), Some((60, Expiry::Stalled)), "and was another request's");
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_next_is_known_from_what_came() {
        let course = Course::new(Instant::now());
        assert_eq!(course.next(), Next::Head);
        let open = course.begin();
        course.expect_body(Some(10));
        assert_eq!((course.next(), course.must_end()), (Next::Body(10), true));
        course.gave_body(4);
        course.keep(6);
        assert_eq!((course.next(), course.must_end()), (Next::Body(6), false), "all of it has come");
        course.gave_body(6);
        course.keep(0);
        assert_eq!((course.next(), course.must_end()), (Next::Later, false));
        drop(open);
        assert_eq!(course.next(), Next::Head);
        let open = course.begin();
        course.expect_body(None);
        assert_eq!((course.next(), course.must_end()), (Next::Chunks, true));
        course.end_body();
        assert_eq!((course.next(), course.must_end()), (Next::Later, false));
        for (given, len, next, must_end) in
            [(3, Some(8), Next::Body(5), true), (8, Some(8), Next::Later, false), (8, Some(7), Next::Later, true)]
        {
            course.gave_with_head(given);
            course.expect_body(len);
            assert_eq!((course.next(), course.must_end()), (next, must_end), "{given} of {len:?} came with the head");
        }
        course.expect_body(Some(0));
        course.overrun();
        assert!(course.must_end());
        drop(open);
        course.multiplex();
        assert_eq!((course.next(), course.must_end()), (Next::Frames, false));
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_requests_at_once_only_the_time_without_any_counts() {
        let (course, limits) = (Course::new(Instant::now()), LIMITS());
        course.multiplex();
        assert_eq!(seconds(&course, &limits), Some((10, Expiry::Head)), "the first must come as soon as any");
        let (first, second) = (course.begin(), course.begin());
        drop(first);
        assert_eq!(seconds(&course, &limits), None);
        tokio::time::advance(Duration::from_secs(9)).await;
        drop(second);
        assert_eq!(seconds(&course, &limits), Some((84, Expiry::Idle)));
        assert!(!course.is_quiet());
    }

    #[tokio::test(start_paused = true)]
    async fn between_the_end_of_an_answer_and_its_leaving_it_is_not_quiet() {
        let course = Course::new(Instant::now());
        assert!(course.is_quiet());
        let open = course.begin();
        course.flushed();
        drop(open);
        assert!(!course.is_quiet());
        course.flushed();
        assert!(course.is_quiet());
    }
}
