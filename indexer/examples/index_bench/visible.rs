//! How long it takes until a look-up on another thread sees what an event told: an open loop, in which events come when
//! they are due, whether or not the index keeps up.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_core::ids::{BlockHash, Slot};
use warmpath_core::units::Tier;

use crate::apply::Fed;
use crate::clock::{Times, now};
use crate::draws::{real, splitmix64, wide};
use crate::feed::{Kind, Move};
use crate::subject::Subject;
use crate::workload::{Block, chain, root};

/// Events a second, over all writers.
const OFFERED: u32 = 100_000;
/// Blocks of a prompt; an event adds one.
const PROMPT: usize = 256;
/// One event in so many is watched.
const WATCHED: usize = 10;
/// How many workers have events.
const WORKERS: u16 = 8;
/// Where the numbers of these prompts' blocks begin.
const NAMES: u64 = 3 << 62;
/// How long a writer that has offered all that is due sleeps, as tasks do that wait for a socket. One that spun would
/// need a core of its own beside the watching thread's.
const BURST: Duration = Duration::from_micros(100);
/// A longer time between two look-ups of the watching thread may be the system's doing.
const GAP_NS: u64 = 10_000;

/// One thread's events.
struct Lane {
    /// What is stored, block by block; workers take turns.
    prompts: Vec<(Slot, Vec<Block>)>,
    workers: usize,
    /// For each watched event when `apply` was called, in nanoseconds since the start, plus one; 0 before.
    called: Vec<AtomicU64>,
    /// For each watched event whether the system took the processor away while it was applied.
    stopped: Vec<AtomicBool>,
}

impl Lane {
    fn new(number: u64, workers: &[Slot], events: usize) -> Self {
        let count = events.div_ceil(PROMPT).next_multiple_of(workers.len());
        let prompt = |at: usize| {
            let first = NAMES + (number << 40) + wide(at * PROMPT);
            let locals = (0..wide(PROMPT)).map(|block| BlockHash(splitmix64(first + block)));
            let blocks: Vec<Block> = chain(root().sequence, locals).collect();
            (workers[at % workers.len()], blocks)
        };
        let watched = events.div_ceil(WATCHED);
        let called = (0..watched).map(|_| AtomicU64::new(0)).collect();
        let stopped = (0..watched).map(|_| AtomicBool::new(false)).collect();
        Self { prompts: (0..count).map(prompt).collect(), workers: workers.len(), called, stopped }
    }

    /// The number of the prompt that an event extends, and how long the event makes it.
    fn place(&self, event: usize) -> (usize, usize) {
        let turn = event / self.workers;
        (turn / PROMPT * self.workers + event % self.workers, turn % PROMPT + 1)
    }

    fn event<S: Subject>(&self, event: usize) -> S::Event {
        let (prompt, len) = self.place(event);
        let (slot, prompt) = &self.prompts[prompt];
        let parent = len.checked_sub(2).map(|above| prompt[above].sequence);
        let blocks = vec![prompt[len - 1]];
        S::event(Move { slot: *slot, kind: Kind::Store { parent }, tier: Tier::Device, blocks })
    }
}

/// Offers events from `threads` threads for `duration`; percentiles of the time until each watched one is seen.
pub(crate) fn measure<S: Subject>(fed: &mut Fed<S>, threads: u16, duration: Duration) -> Value {
    let workers = usize::from(if threads == 1 { 1 } else { WORKERS });
    let Fed { index, writers } = fed;
    let index = &*index;
    let each = workers / usize::from(threads);
    let rate = OFFERED / u32::from(threads);
    let events = usize::try_from(u128::from(rate) * duration.as_millis() / 1000).expect("some hundred thousand");
    let slots: Vec<Slot> = (0..).map(Slot).take(workers).collect();
    let lanes: Vec<Lane> =
        (0..).zip(slots.chunks(each)).map(|(number, slots)| Lane::new(number, slots, events)).collect();
    let ready: Vec<Vec<S::Event>> =
        lanes.iter().map(|lane| (0..events).map(|at| lane.event::<S>(at)).collect()).collect();
    let running = AtomicUsize::new(lanes.len());
    let start = now() + Duration::from_millis(20);
    let interval = Duration::from_secs(1) / rate;
    let seen = std::thread::scope(|scope| {
        for ((lane, ready), writers) in lanes.iter().zip(ready).zip(writers[..workers].chunks_mut(each)) {
            let running = &running;
            let pace = Pace { start, interval };
            scope.spawn(move || {
                offer(index, lane, ready, writers, pace);
                running.fetch_sub(1, Ordering::Release);
            });
        }
        watch(index, &lanes, &running, start, events)
    });
    json!({
        "writers": threads, "workers": workers, "offered_per_s": OFFERED, "achieved_per_s": seen.achieved_per_s,
        "never_seen": seen.never, "all": seen.all.told(), "undisturbed": seen.undisturbed.told(),
    })
}

/// When events are due.
#[derive(Clone, Copy)]
struct Pace {
    start: Instant,
    interval: Duration,
}

impl Pace {
    fn wait(self, event: usize) {
        let due = self.start + self.interval * u32::try_from(event).expect("some hundred thousand");
        while now() < due {
            std::thread::sleep(BURST);
        }
    }
}

fn offer<S: Subject>(index: &S, lane: &Lane, ready: Vec<S::Event>, writers: &mut [S::Writer], pace: Pace) {
    let mut ready = ready;
    let mut disturbance = Disturbance::new(pace.start);
    for (at, event) in ready.iter_mut().enumerate() {
        pace.wait(at);
        let watched = (at % WATCHED == 0).then_some(at / WATCHED);
        if let Some(watched) = watched {
            let called = since(pace.start);
            disturbance.begin(called);
            lane.called[watched].store(called + 1, Ordering::Release);
        }
        index.apply(&mut writers[at % lane.workers], std::slice::from_mut(event));
        if let Some(watched) = watched
            && disturbance.look(since(pace.start))
        {
            lane.stopped[watched].store(true, Ordering::Release);
        }
    }
}

fn since(start: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

/// What the watching thread saw.
struct Seen {
    /// Every watched event; those that waited for the watching thread to run again included.
    all: Times,
    /// Those during which the system left both threads running.
    undisturbed: Times,
    never: usize,
    achieved_per_s: f64,
}

/// Tells when the system took the processor away from this thread. Waiting for a lock is none of that.
struct Disturbance {
    start: Instant,
    last: u64,
    switches: u64,
    /// Since when this thread runs undisturbed, in nanoseconds since the start.
    since: u64,
}

impl Disturbance {
    fn new(start: Instant) -> Self {
        Self { start, last: since(start), switches: involuntary_switches(), since: 0 }
    }

    /// Begins to watch. The count of switches may be old: then the first look takes the blame for what came before.
    fn begin(&mut self, now: u64) {
        self.last = now;
    }

    /// Whether this thread was stopped since the last look.
    fn look(&mut self, now: u64) -> bool {
        if now.saturating_sub(self.last) <= GAP_NS {
            self.last = now;
            return false;
        }
        let switches = involuntary_switches();
        let stopped = switches != self.switches;
        // Asking takes longer than the gap that is looked for.
        self.last = since(self.start);
        if stopped {
            (self.switches, self.since) = (switches, self.last);
        }
        stopped
    }
}

fn involuntary_switches() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Looks every watched event's prompt up until it is there, each lane in order. Gives up a second after the last event.
fn watch<S: Subject>(index: &S, lanes: &[Lane], running: &AtomicUsize, start: Instant, events: usize) -> Seen {
    let queries: Vec<Vec<S::Query>> =
        lanes.iter().map(|lane| lane.prompts.iter().map(|(_, blocks)| S::query(blocks)).collect()).collect();
    let mut answer = S::Answer::default();
    let mut seen = Seen { all: Times::default(), undisturbed: Times::default(), never: 0, achieved_per_s: 0.0 };
    let mut next = vec![0; lanes.len()];
    let mut undisturbed = Vec::new();
    let mut disturbance = Disturbance::new(start);
    let mut ended = None;
    loop {
        for ((lane, queries), next) in lanes.iter().zip(&queries).zip(&mut next) {
            disturbance.look(since(start));
            let Some(called) = lane.called.get(*next).map(|called| called.load(Ordering::Acquire)) else { continue };
            let Some(called) = called.checked_sub(1) else { continue };
            let (prompt, len) = lane.place(*next * WATCHED);
            index.look_up(&queries[prompt], len, &mut answer);
            if usize::try_from(S::overlap(&answer, lane.prompts[prompt].0)).is_ok_and(|held| held >= len) {
                let now = since(start);
                disturbance.look(now);
                seen.all.push(real(now.saturating_sub(called)));
                if called >= disturbance.since {
                    undisturbed.push((lane, *next, real(now.saturating_sub(called))));
                }
                *next += 1;
            }
        }
        seen.never = lanes.iter().zip(&next).map(|(lane, next)| lane.called.len() - next).sum();
        if running.load(Ordering::Acquire) == 0 && ended.is_none() {
            ended = Some(now());
        }
        if let Some(ended) = ended
            && (seen.never == 0 || ended.elapsed() > Duration::from_secs(1))
        {
            let offered = real(wide(events * lanes.len()));
            seen.achieved_per_s = offered / ended.saturating_duration_since(start).as_secs_f64();
            let kept = undisturbed.iter().filter(|(lane, at, _)| !lane.stopped[*at].load(Ordering::Acquire));
            kept.for_each(|&(_, _, time)| seen.undisturbed.push(time));
            return seen;
        }
    }
}
