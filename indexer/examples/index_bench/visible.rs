//! How long it takes until a look-up on another thread sees what an event told: an open loop, in which events come when
//! they are due, whether or not the index keeps up.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_core::ids::{BlockHash, Slot};
use warmpath_core::units::Tier;

use crate::apply::Fed;
use crate::clock::{Times, now};
use crate::draws::{real, splitmix64, wide};
use crate::feed::{Kind, Move};
use crate::plan::Query;
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
/// How long several writers sleep between bursts: they have fewer cores than threads.
const BURST: Duration = Duration::from_micros(500);

/// One thread's events.
struct Lane {
    /// What is stored, block by block; workers take turns.
    prompts: Vec<(Slot, Query)>,
    workers: usize,
    /// For each watched event when `apply` was called, in nanoseconds since the start, plus one; 0 before.
    called: Vec<AtomicU64>,
}

impl Lane {
    fn new(number: u64, workers: &[Slot], events: usize) -> Self {
        let count = events.div_ceil(PROMPT).next_multiple_of(workers.len());
        let prompt = |at: usize| {
            let first = NAMES + (number << 40) + wide(at * PROMPT);
            let locals = (0..wide(PROMPT)).map(|block| BlockHash(splitmix64(first + block)));
            let blocks: Vec<Block> = chain(root().sequence, locals).collect();
            (workers[at % workers.len()], Query::of_blocks(&blocks))
        };
        let called = (0..events.div_ceil(WATCHED)).map(|_| AtomicU64::new(0)).collect();
        Self { prompts: (0..count).map(prompt).collect(), workers: workers.len(), called }
    }

    /// The prompt that an event extends, and how long the event makes it.
    fn place(&self, event: usize) -> (&(Slot, Query), usize) {
        let turn = event / self.workers;
        (&self.prompts[turn / PROMPT * self.workers + event % self.workers], turn % PROMPT + 1)
    }

    fn event<S: Subject>(&self, event: usize) -> S::Event {
        let ((slot, query), len) = self.place(event);
        let prompt = query.first(len);
        let parent = len.checked_sub(2).map(|above| prompt.sequences[above]);
        let block = Block { local: prompt.locals[len - 1], sequence: prompt.sequences[len - 1] };
        S::event(Move { slot: *slot, kind: Kind::Store { parent }, tier: Tier::Device, blocks: vec![block] })
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
    let (times, unseen, achieved) = std::thread::scope(|scope| {
        for ((lane, ready), writers) in lanes.iter().zip(ready).zip(writers[..workers].chunks_mut(each)) {
            let running = &running;
            let pace = Pace { start, interval, sleeps: threads > 1 };
            scope.spawn(move || {
                offer(index, lane, ready, writers, pace);
                running.fetch_sub(1, Ordering::Release);
            });
        }
        watch(index, &lanes, &running, start, events)
    });
    let mut told = times.told();
    told["writers"] = json!(threads);
    told["workers"] = json!(workers);
    told["offered_per_s"] = json!(OFFERED);
    told["achieved_per_s"] = json!(achieved);
    told["never_seen"] = json!(unseen);
    told
}

/// When events are due.
#[derive(Clone, Copy)]
struct Pace {
    start: Instant,
    interval: Duration,
    /// Sleeps between bursts instead of waiting for each event's moment.
    sleeps: bool,
}

impl Pace {
    fn wait(self, event: usize) {
        let due = self.start + self.interval * u32::try_from(event).expect("some hundred thousand");
        while now() < due {
            if self.sleeps {
                std::thread::sleep(BURST);
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

fn offer<S: Subject>(index: &S, lane: &Lane, ready: Vec<S::Event>, writers: &mut [S::Writer], pace: Pace) {
    let mut ready = ready;
    for (at, event) in ready.iter_mut().enumerate() {
        pace.wait(at);
        if at % WATCHED == 0 {
            lane.called[at / WATCHED].store(since(pace.start) + 1, Ordering::Release);
        }
        index.apply(&mut writers[at % lane.workers], std::slice::from_mut(event));
    }
}

fn since(start: Instant) -> u64 {
    u64::try_from(now().saturating_duration_since(start).as_nanos()).unwrap_or(u64::MAX)
}

/// Looks every watched event's prompt up until it is there, each lane in order, so that the time of one that is seen late
/// counts against those behind it too. Gives up a second after the last event.
fn watch<S: Subject>(
    index: &S,
    lanes: &[Lane],
    running: &AtomicUsize,
    start: Instant,
    events: usize,
) -> (Times, usize, f64) {
    let mut answer = S::Answer::default();
    let mut times = Times::default();
    let mut next = vec![0; lanes.len()];
    let mut ended = None;
    loop {
        for (lane, next) in lanes.iter().zip(&mut next) {
            let Some(called) = lane.called.get(*next).map(|called| called.load(Ordering::Acquire)) else { continue };
            if called == 0 {
                continue;
            }
            let ((slot, query), len) = lane.place(*next * WATCHED);
            index.look_up(query.first(len), &mut answer);
            if usize::try_from(S::overlap(&answer, *slot)).is_ok_and(|held| held >= len) {
                times.push(real(since(start).saturating_sub(called - 1)));
                *next += 1;
            }
        }
        let left: usize = lanes.iter().zip(&next).map(|(lane, next)| lane.called.len() - next).sum();
        if running.load(Ordering::Acquire) == 0 && ended.is_none() {
            ended = Some(now());
        }
        if let Some(ended) = ended
            && (left == 0 || ended.elapsed() > Duration::from_secs(1))
        {
            let offered = real(wide(events * lanes.len()));
            return (times, left, offered / ended.saturating_duration_since(start).as_secs_f64());
        }
    }
}
