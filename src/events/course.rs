//! How it goes with one (worker, rank)'s source: told by its bus and by the task that reads it, read by operators.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use warmpath_core::count::real;

use crate::printable;

/// Buckets of the rate, and how long each is.
const BUCKETS: usize = 12;
const BUCKET: Duration = Duration::from_secs(5);

/// How many buckets before this one the oldest is: all but one.
const OLDEST: u64 = 11;

/// Characters of a reason that are kept.
const REASON_MAX: usize = 240;

/// Messages in a row that cannot be used before that is more than a stray one's fault.
const REFUSED_MIN: u64 = 8;

/// What becomes of workers of whom nothing is heard.
pub const MEANWHILE: &str = "routed to by load and by what was known before";

/// No lag was told yet.
const NO_LAG: u64 = u64::MAX;

/// How events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// From an engine inside this process.
    #[default]
    Local,
    /// Straight from the engine.
    Zmq,
    /// Over NATS, which keeps nothing.
    Nats,
    /// Over NATS with a stream that keeps what was sent.
    JetStream,
}

/// Whether a source is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is.
    Connected,
    /// It is not, and nobody expects it to be.
    Waiting,
    /// It should be, and is not.
    Down,
}

/// How a source is. A few words and counters; writing costs a lock that nobody else wants but who looks at the page.
#[derive(Debug)]
pub struct Course {
    begun: Instant,
    line: Mutex<LineState>,
    rate: Mutex<[Bucket; BUCKETS]>,
    events: AtomicU64,
    gaps: AtomicU64,
    missing: AtomicU64,
    held: AtomicU64,
    behind: AtomicU64,
    lag_ms: AtomicU64,
    /// Messages that could not be used, since the last one that could.
    refused: AtomicU64,
}

#[derive(Debug)]
struct LineState {
    way: Way,
    at: String,
    state: State,
    since: Instant,
    last_event: Option<Instant>,
    trouble: Option<(Instant, String)>,
    /// Why the last message that could not be used could not.
    refusal: String,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    number: u64,
    events: u64,
}

/// A reading of a [`Course`]. Fields may be added, never renamed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// How events come.
    pub way: Way,
    /// The engine's socket, or the subject.
    pub at: String,
    /// Whether it is there.
    pub state: State,
    /// Since when, in seconds.
    pub for_s: f64,
    /// Events applied.
    pub events: u64,
    /// The same for each second of the last minute.
    pub events_per_s: f64,
    /// Since the last of them; none before the first.
    pub last_event_age_s: Option<f64>,
    /// From the engine's clock to ours with the last batch that told a time.
    pub lag_s: Option<f64>,
    /// Messages that the stream has kept and that are still to be read.
    pub behind: u64,
    /// Batches that wait for others before them.
    pub held: u64,
    /// Gaps in the numbers that nobody could fill.
    pub gaps: u64,
    /// Batches missing in them.
    pub missing: u64,
    /// What went wrong last, however it is now.
    pub last_error: Option<String>,
    /// When that was, in seconds.
    pub last_error_age_s: Option<f64>,
}

impl Course {
    /// A source that is not connected and of which nobody knows more.
    pub fn new(now: Instant) -> Self {
        let line = LineState {
            way: Way::default(),
            at: String::new(),
            state: State::Waiting,
            since: now,
            last_event: None,
            trouble: None,
            refusal: String::new(),
        };
        Self {
            begun: now,
            line: Mutex::new(line),
            rate: Mutex::default(),
            events: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
            missing: AtomicU64::new(0),
            held: AtomicU64::new(0),
            behind: AtomicU64::new(0),
            lag_ms: AtomicU64::new(NO_LAG),
            refused: AtomicU64::new(0),
        }
    }

    /// Where events come from.
    pub fn comes(&self, way: Way, at: &str) {
        let mut line = self.line();
        line.way = way;
        at.clone_into(&mut line.at);
    }

    /// Whether the bus turned out to keep what was sent.
    pub fn kept(&self, keeps: bool) {
        self.line().way = if keeps { Way::JetStream } else { Way::Nats };
    }

    /// Whether events come over NATS.
    pub fn is_over_nats(&self) -> bool {
        matches!(self.line().way, Way::Nats | Way::JetStream)
    }

    /// It is connected.
    pub fn up(&self, now: Instant) {
        self.line().turn(State::Connected, now);
    }

    /// Nobody misses it until it has been here.
    pub fn excused(&self, now: Instant) {
        self.line().turn(State::Waiting, now);
    }

    /// It is not connected, for this reason.
    pub fn down(&self, now: Instant, why: &str) {
        self.line().turn(State::Down, now);
        self.trouble(now, why);
    }

    /// Something else went wrong.
    pub fn trouble(&self, now: Instant, why: &str) {
        self.line().trouble = Some((now, shown(why)));
    }

    /// A message could not be used, for this reason.
    pub fn refused(&self, now: Instant, why: &str) {
        self.trouble(now, why);
        self.line().refusal = shown(why);
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A message could be used.
    pub fn accepted(&self) {
        self.refused.store(0, Ordering::Relaxed);
    }

    /// Why nothing that comes can be used; none while something can.
    pub fn refuses(&self) -> Option<String> {
        (self.refused.load(Ordering::Relaxed) >= REFUSED_MIN).then(|| self.line().refusal.clone())
    }

    /// A batch came so long after the engine had made it, by the engine's clock and ours.
    pub fn lags(&self, lag: Duration) {
        self.lag_ms.store(u64::try_from(lag.as_millis()).unwrap_or(NO_LAG - 1), Ordering::Relaxed);
    }

    /// So many events were applied.
    pub fn applied(&self, now: Instant, events: u64) {
        let number = self.number(now);
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = &mut rate[usize::try_from(number).unwrap_or(0) % BUCKETS];
        if bucket.number != number {
            *bucket = Bucket { number, events: 0 };
        }
        bucket.events += events;
        drop(rate);
        self.events.fetch_add(events, Ordering::Relaxed);
        self.line().last_event = Some(now);
    }

    /// Batches are missing that nobody can bring.
    pub fn lost(&self, missing: u64) {
        self.gaps.fetch_add(1, Ordering::Relaxed);
        self.missing.fetch_add(missing, Ordering::Relaxed);
    }

    /// So many batches wait for others.
    pub fn holds(&self, batches: usize) {
        self.held.store(u64::try_from(batches).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// So many messages are still to be read.
    pub fn is_behind(&self, messages: u64) {
        self.behind.store(messages, Ordering::Relaxed);
    }

    /// How it is now.
    pub fn read(&self, now: Instant) -> Standing {
        let since = |then: Instant| now.saturating_duration_since(then).as_secs_f64();
        let lag_ms = Some(self.lag_ms.load(Ordering::Relaxed)).filter(|lag| *lag != NO_LAG);
        let events_per_s = self.per_second(now);
        let line = self.line();
        Standing {
            way: line.way,
            at: line.at.clone(),
            state: line.state,
            for_s: since(line.since),
            events: self.events.load(Ordering::Relaxed),
            events_per_s,
            last_event_age_s: line.last_event.map(since),
            lag_s: lag_ms.map(|ms| real(ms) / 1e3),
            behind: self.behind.load(Ordering::Relaxed),
            held: self.held.load(Ordering::Relaxed),
            gaps: self.gaps.load(Ordering::Relaxed),
            missing: self.missing.load(Ordering::Relaxed),
            last_error: line.trouble.as_ref().map(|(_, why)| why.clone()),
            last_error_age_s: line.trouble.as_ref().map(|(at, _)| since(*at)),
        }
    }

    /// Over the last minute, or since it began; at least a second.
    fn per_second(&self, now: Instant) -> f64 {
        let (number, age) = (self.number(now), now.saturating_duration_since(self.begun).as_secs_f64());
        let rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = number.saturating_sub(OLDEST);
        let recent = rate.iter().filter(|bucket| bucket.number >= oldest && bucket.number <= number);
        let events: u64 = recent.map(|bucket| bucket.events).sum();
        let covered = age - real(oldest) * BUCKET.as_secs_f64();
        real(events) / covered.max(1.0)
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begun).as_secs() / BUCKET.as_secs()
    }

    fn line(&self) -> MutexGuard<'_, LineState> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reason as it may be shown.
fn shown(why: &str) -> String {
    printable::line(&why.trim().chars().take(REASON_MAX).collect::<String>())
}

impl LineState {
    fn turn(&mut self, state: State, now: Instant) {
        if self.state != state {
            (self.state, self.since) = (state, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_tells_since_when_and_why() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let course = Course::new(start);
        course.comes(Way::Zmq, "tcp://h:1");
        let told = course.read(at(2));
        assert_eq!((told.state, told.for_s, told.way, told.at.as_str()), (State::Waiting, 2.0, Way::Zmq, "tcp://h:1"));
        assert_eq!((told.last_event_age_s, told.lag_s, told.last_error), (None, None, None));
        course.down(at(3), "refused\n");
        course.down(at(5), &"x".repeat(1000));
        let told = course.read(at(7));
        assert_eq!((told.state, told.for_s, told.last_error_age_s), (State::Down, 4.0, Some(2.0)));
        assert_eq!(told.last_error.map(|why| why.len()), Some(REASON_MAX));
        course.up(at(8));
        course.trouble(at(9), "replay failed\n");
        let told = course.read(at(10));
        assert_eq!(
            (told.state, told.for_s, told.last_error.as_deref()),
            (State::Connected, 2.0, Some("replay failed"))
        );
        course.kept(true);
        let told = serde_json::to_value(course.read(at(10))).unwrap();
        assert_eq!((&told["way"], &told["state"]), (&"jetstream".into(), &"connected".into()));
    }

    #[test]
    fn only_a_row_of_messages_that_cannot_be_used_is_held_against_a_source() {
        let now = Instant::now();
        let course = Course::new(now);
        for round in [7, 7, 8] {
            course.accepted();
            (0..round).for_each(|_| course.refused(now, "of rank 1"));
            course.trouble(now, "replay failed");
            assert_eq!(course.refuses(), (round == 8).then(|| "of rank 1".to_owned()));
        }
        course.accepted();
        assert_eq!(course.refuses(), None);
    }

    #[test]
    fn events_are_counted_for_a_minute_and_what_is_lost_for_ever() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let course = Course::new(start);
        course.applied(at(0), 30);
        course.applied(at(9), 30);
        course.lags(Duration::from_millis(250));
        let told = course.read(at(10));
        assert_eq!((told.events, told.events_per_s, told.last_event_age_s), (60, 6.0, Some(1.0)));
        assert_eq!(told.lag_s, Some(0.25));
        // At 60 s the first bucket is forgotten: 30 events in the 55 s since.
        assert!((course.read(at(60)).events_per_s - 30.0 / 55.0).abs() < 1e-12);
        assert!(course.read(at(200)).events_per_s.abs() < 1e-12);
        course.lost(3);
        course.lost(0);
        course.holds(2);
        course.is_behind(7);
        let told = course.read(at(200));
        assert_eq!((told.gaps, told.missing, told.held, told.behind, told.events), (2, 3, 2, 7, 60));
    }
}
