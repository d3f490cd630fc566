//! What is learned of workers from what happens to requests: how long they compute, what they have still to do, how often
//! requests come. Nothing of it is configured; before anything was seen a prior holds, and all workers are alike.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::ids::{RequestKey, Roll, SequenceHash, Slot};
use crate::observe::{Enrol, Enrolled, Event, Learn, Observation, Occupants};
use crate::real::larger;
use crate::shape::Shape;
use crate::units::Blocks;
use aging::Aging;
use answers::Answers;
use arrivals::Arrivals;
use coming::Coming;
use line::Line;
use mean::Mean;
use missed::missed;
pub use reading::{Flow, Outlook, Reading, Regulars, Returning};
use returns::Returns;
pub use seen::{ByNow, Seen};
use sessions::Sessions;
use stays::Stays;
pub use work::{Amount, Work};
use worker::{Interval, Pending, Stage, Worker, context_of};

mod ages;
mod aging;
mod answers;
mod arrivals;
mod bursts;
mod coming;
mod line;
mod mean;
mod missed;
mod progress;
mod reading;
mod returns;
mod row;
mod seen;
mod sessions;
mod stays;
mod survival;
mod view;
mod visits;
mod work;
mod worker;

/// Requests in flight that are followed.
const FLIGHTS_MAX: usize = 262_144;

/// Intervals of each worker that are remembered of it, about, where all have equally many.
const REMEMBERED: f64 = 100.0;

/// What is kept of the longest answer in one piece when another has ended.
const LONGEST_KEPT: f64 = 0.99;

/// What the time to the end is believed to be, in ms, and at least until a request has ended: so soon, streams would seem to
/// lose all that they have by a ms, and nobody would part from a worker that holds anything.
const END_TO_END_MS: f64 = 10_000.0;

/// Thousands of tokens, and millions of pairs, that a request is believed to bring.
const USUAL: f64 = 2.0;

/// Requests as which these beliefs weigh: who ends first is short, and may be somebody's probe.
const BELIEF: f64 = 2.0;

/// A wait, an answer or a prompt counts as so many usual ones at most: it is a dozen times as long now and then, and what takes
/// a thousand times as long is a hang.
const OFF_MAX: f64 = 16.0;

/// Tokens and requests closer together than this, in ms, come together: from one step of the engine, in one burst.
const ONE_STEP_MS: f64 = 1.0;

/// A request on its way.
#[derive(Clone, Copy, Debug)]
struct Flight {
    slot: Slot,
    sent: f64,
    /// What it brought: tokens and pairs, as in [`Work`].
    brought: (f64, f64),
    /// What it attends to so far, as in [`Decoding`](work::Decoding).
    context: f64,
    /// Its answer comes in one piece.
    whole: bool,
    decoding: bool,
    /// Whether its first token came.
    heard: bool,
    /// The interval that its first token ended, until another token shows that it was one: an answer that comes as a whole
    /// comes with its last.
    interval: Option<Interval>,
    told: bool,
}

/// Those on their way.
type Flights = HashMap<RequestKey, Flight, foldhash::fast::RandomState>;

/// Everything that was learned.
struct State {
    first: Option<Instant>,
    line: Line,
    workers: Vec<Worker>,
    /// One of whom nothing was seen.
    nobody: Worker,
    occupants: Occupants,
    aging: Aging,
    flights: Flights,
    /// Those of them whose answers come in one piece.
    wholes: usize,
    arrivals: Arrivals,
    returns: Returns,
    sessions: Sessions,
    ttft: Mean,
    end_to_end: Stays,
    /// The longest that an answer in one piece took, old ones counting less.
    longest: f64,
    answers: Answers,
    /// What a request brings.
    tokens: Mean,
    pairs: Mean,
    coming: Coming,
    /// The share of the time for its prompt for which a request has to compute, by what was cached where it was sent.
    computed: Mean,
    /// Who has joined since the last placement.
    joined: bool,
}

/// What is learned, and from whom: every observation of a pool. A line for the fleet ([`Line`]) and for each worker by how
/// much it is slower: a line for each would take many samples, and who is badly guessed gets no more of them.
///
/// One lock, held for a few dozen operations an observation, or a few for each worker while it is read.
#[derive(Default)]
pub struct Rates(Mutex<State>);

impl Default for State {
    fn default() -> Self {
        Self {
            first: None,
            line: Line::default(),
            workers: Vec::new(),
            nobody: Worker::default(),
            occupants: Occupants::default(),
            aging: Aging::default(),
            flights: HashMap::default(),
            wholes: 0,
            arrivals: Arrivals::new(0.01),
            returns: Returns::default(),
            sessions: Sessions::default(),
            ttft: Mean::new(0.005),
            end_to_end: Stays::believed(END_TO_END_MS, BELIEF, 0.005),
            longest: 0.0,
            answers: Answers::default(),
            tokens: Mean::believed(USUAL, BELIEF, 0.005),
            pairs: Mean::believed(USUAL, BELIEF, 0.005),
            coming: Coming::default(),
            computed: Mean::believed(1.0, BELIEF, 0.005),
            joined: false,
        }
    }
}

impl Rates {
    /// All that is known now.
    pub fn read(&self, now: Instant) -> Reading<'_> {
        let state = self.state();
        let now = state.ms(now);
        Reading::of(state, now)
    }

    /// ms to compute so much on a worker like most.
    pub fn usual_ms(&self, work: &Work) -> f64 {
        self.state().line.ms(work)
    }

    /// The place in `path` of the last block before its end at which prompts parted that came before.
    pub fn trunk(&self, path: &[SequenceHash]) -> Option<usize> {
        self.state().returns.trunk(path)
    }

    /// The place in `path` of the end of the last prompt that came before.
    pub fn before(&self, path: &[SequenceHash]) -> Option<usize> {
        self.state().sessions.before(path)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held, so a poisoned lock still guards whole data.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Since the first observation.
    fn ms(&self, now: Instant) -> f64 {
        self.first.map_or(0.0, |first| now.saturating_duration_since(first).as_secs_f64() * 1e3)
    }

    fn usual(&self) -> Work {
        let (tokens, pairs) = self.coming.join(&self.tokens, &self.pairs);
        Work { tokens, pairs, ..Work::default() }
    }

    /// Whoever has joined is there from now on.
    fn welcome(&mut self, now: f64) {
        if !std::mem::take(&mut self.joined) {
            return;
        }
        self.workers.resize_with(self.workers.len().max(self.occupants.slots()), Worker::default);
        self.workers.iter_mut().for_each(|worker| worker.begin(now));
    }

    fn placed(&mut self, now: f64, (key, slot): (RequestKey, Slot), shape: &Shape, (work, held): (Work, Blocks)) {
        self.ended(now, key, false);
        self.welcome(now);
        self.arrivals.add(now);
        let cold_ms = self.line.ms(&Work::cold(shape));
        let saved = larger(cold_ms - self.line.ms(&work), 0.0);
        if cold_ms > 0.0 {
            self.computed.add(1.0 - saved / cold_ms);
        }
        if let Some(fork) = shape.fork {
            let Self { returns, workers, occupants, line, end_to_end, .. } = self;
            let fleet = (workers.as_slice(), occupants.present());
            let missed = || missed(now, fleet, line, (slot, end_to_end.learned().unwrap_or(0.0)));
            returns.add(now, (fork, shape.trunk), cold_ms, (held, missed));
        }
        if self.flights.len() >= FLIGHTS_MAX {
            return;
        }
        let (whole, context) = (shape.whole, context_of(f64::from(shape.prompt.0)));
        let flight = Flight {
            slot,
            sent: now,
            brought: (work.tokens, work.pairs),
            context,
            whole,
            decoding: false,
            heard: false,
            interval: None,
            told: false,
        };
        self.flights.insert(key, flight);
        self.coming.add(flight.brought);
        self.wholes += usize::from(whole);
        self.end_to_end.pass(now, self.flights.len());
        if self.workers.len() <= slot.index() {
            self.workers.resize_with(slot.index() + 1, Worker::default);
        }
        self.settle(now, slot);
        let Self { sessions, workers, .. } = self;
        sessions.come(now, (slot, saved), shape.turn, |slot, saved| workers[slot.index()].visited(now, saved));
        workers[slot.index()].placed(now, Pending { key, work, sent: now, context, whole });
    }

    /// What must have been computed by now on a worker, though nothing is heard of it, waits no more.
    fn settle(&mut self, now: f64, slot: Slot) {
        let Self { flights, workers, line, .. } = self;
        let Some(worker) = workers.get_mut(slot.index()) else { return };
        worker.settle(now, line, |key| begin_decoding(flights, key));
    }

    fn first_token(&mut self, now: f64, key: RequestKey) {
        let Some(Flight { slot, sent, brought, whole, heard, .. }) = self.flights.get(&key).copied() else { return };
        self.settle(now, slot);
        if !heard {
            self.coming.remove(brought);
        }
        // Only now: a prompt that no engine takes brings nothing.
        self.tokens.add_at_most(brought.0, OFF_MAX);
        self.pairs.add_at_most(brought.1, OFF_MAX);
        if !whole {
            self.ttft.add_at_most(now - sent, OFF_MAX);
        }
        let Self { flights, workers, .. } = self;
        let Some(worker) = workers.get_mut(slot.index()) else { return };
        let interval = worker.first_token(now, key, |other| begin_decoding(flights, other));
        if let Some(flight) = flights.get_mut(&key) {
            (flight.decoding, flight.heard, flight.interval) = (true, true, interval.filter(|_| !whole));
        }
    }

    fn tokens(&mut self, now: f64, key: RequestKey, tokens: f64) {
        let Some(slot) = self.flights.get(&key).map(|flight| flight.slot) else { return };
        self.settle(now, slot);
        let Self { flights, workers, line, .. } = self;
        let Some(flight) = flights.get_mut(&key) else { return };
        let Some(worker) = workers.get_mut(flight.slot.index()) else { return };
        flight.told = true;
        flight.context += context_of(tokens);
        worker.tokens(now, tokens);
        if let Some(interval) = flight.interval.take()
            && worker.learn(interval, line)
        {
            self.age(slot);
        }
    }

    /// An answer in one piece came: by how much longer than others its worker took.
    fn answered(&mut self, now: f64, key: RequestKey, tokens: f64) {
        let Some(Flight { slot, sent, brought: (computed, pairs), whole: true, .. }) = self.flights.get(&key).copied()
        else {
            return;
        };
        let prompt_ms = self.line.ms(&Work { tokens: computed, pairs, ..Work::default() });
        let Some(expected) = self.answers.add(now - sent, prompt_ms, tokens) else { return };
        if let Some(worker) = self.workers.get_mut(slot.index()) {
            worker.answered((now - sent) / expected, prompt_ms);
            self.age(slot);
        }
    }

    /// What was learned of each worker counts less: one interval more was seen of the fleet, and this one has learned.
    fn age(&mut self, slot: Slot) {
        let Self { workers, occupants, aging, .. } = self;
        let members = occupants.count().max(1);
        aging.pass(workers, slot, 1.0 - 1.0 / (REMEMBERED * f64::from(members)));
    }

    /// `fully`: it ended as it should.
    fn ended(&mut self, now: f64, key: RequestKey, fully: bool) {
        let Some(&Flight { slot, .. }) = self.flights.get(&key) else { return };
        self.settle(now, slot);
        let Some(Flight { sent, brought, context, whole, decoding, heard, told, .. }) = self.flights.remove(&key)
        else {
            return;
        };
        if !heard {
            self.coming.remove(brought);
        }
        self.end_to_end.pass(now, self.flights.len());
        if fully {
            self.end_to_end.add(now - sent);
        } else {
            self.end_to_end.leave();
        }
        self.wholes -= usize::from(whole);
        if fully && whole {
            self.longest = (self.longest * LONGEST_KEPT).max(now - sent);
        }
        let stage = match (decoding, heard) {
            (false, _) => Stage::Pending,
            (true, false) => Stage::Unheard,
            (true, true) => Stage::Decoding,
        };
        if let Some(worker) = self.workers.get_mut(slot.index()) {
            worker.ended(now, (key, sent), (stage, context), (fully && !whole).then_some(told));
        }
    }
}

/// A request is past its prompt, though nothing was heard of it.
fn begin_decoding(flights: &mut Flights, key: RequestKey) {
    if let Some(flight) = flights.get_mut(&key) {
        flight.decoding = true;
    }
}

impl Learn for Rates {
    fn observe(&self, observation: &Observation) {
        let Observation { at, request, slot, event } = *observation;
        let mut state = self.state();
        state.first.get_or_insert(at);
        let now = state.ms(at);
        match event {
            Event::Placed { shape, overlap, new_tokens } => {
                let work = Work::sent(&shape, new_tokens, overlap);
                state.placed(now, (request, slot), &shape, (work, overlap.total()));
            }
            Event::FirstToken => state.first_token(now, request),
            Event::Progress { tokens } => state.tokens(now, request, f64::from(tokens.0)),
            Event::Finished { usage } => {
                usage.completion.iter().for_each(|tokens| state.answered(now, request, f64::from(tokens.0)));
                state.ended(now, request, true);
            }
            Event::Failed { .. } => state.ended(now, request, false),
        }
    }
}

impl Enrol for Rates {
    /// A slot that was given to another worker knows nothing of the one before.
    fn enrol(&self, roll: Roll, targets: &mut dyn Iterator<Item = Enrolled<'_>>) {
        let State { workers, sessions, occupants, joined, .. } = &mut *self.state();
        let slots = occupants.slots();
        occupants.renew(roll, targets, |slot| {
            *joined = true;
            sessions.forget(slot);
            workers.get_mut(slot.index()).into_iter().for_each(|it| *it = Worker::default());
        });
        *joined |= occupants.slots() > slots;
    }
}

impl fmt::Debug for Rates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rates")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::ids::{Rank, WorkerId};
    use crate::observe::{Side, Usage};
    use crate::overlap::TierBlocks;
    use crate::shape::Shape;
    use crate::units::{BlockSize, Tokens};

    #[expect(clippy::disallowed_methods, reason = "an origin for a pure function")]
    fn origin() -> Instant {
        Instant::now()
    }

    fn work(thousands: f64) -> Work {
        Work { tokens: thousands, pairs: thousands * thousands / 2.0, ..Work::default() }
    }

    /// A pool, its beginning, from which times are in ms, and its first slot.
    struct World(Rates, Instant, u16);

    impl World {
        fn new() -> Self {
            Self::from_slot(0)
        }

        fn from_slot(first: u16) -> Self {
            let world = Self(Rates::default(), origin(), first);
            world.enrol(0, "a", 0..4);
            world
        }

        fn enrol(&self, roll: u64, name: &str, slots: std::ops::Range<u16>) {
            let worker = WorkerId::from(name);
            let target = |slot| Enrolled { slot: Slot(self.2 + slot), worker: &worker, rank: Rank(u32::from(slot)) };
            self.0.enrol(Roll(roll), &mut slots.map(target));
        }

        fn tell(&self, ms: f64, key: u64, slot: u16, event: Event) {
            let at = self.1 + Duration::from_secs_f64(ms / 1e3);
            self.0.observe(&Observation { at, request: RequestKey(key), slot: Slot(self.2 + slot), event });
        }

        fn place(&self, ms: f64, key: u64, slot: u16, tokens: u32) {
            let shape = Shape::of(Tokens(tokens), BlockSize::new(16).unwrap());
            let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(tokens) };
            self.tell(ms, key, slot, event);
        }

        /// First token, another, and the end.
        fn answer(&self, ms: f64, key: u64, slot: u16) {
            self.tell(ms, key, slot, Event::FirstToken);
            self.tell(ms, key, slot, Event::Progress { tokens: Tokens(1) });
            self.tell(ms, key, slot, Event::Finished { usage: Usage::default() });
        }

        fn outlook(&self, ms: f64, slot: u16, thousands: f64, waiting: u32) -> Outlook {
            let reading = self.0.read(self.1 + Duration::from_secs_f64(ms / 1e3));
            reading
                .of_workers(Slot(self.2 + slot))
                .seen()
                .outlook(&reading.amount(&work(thousands)), f64::from(waiting))
        }

        /// `rounds` requests of 1 to 8 thousand tokens on each of four workers, the first `slow` times slower than
        /// `20 + 40·tokens`. Returns when the last one ended.
        fn run(&self, rounds: u32, slow: f64, from: f64) -> f64 {
            let mut now = [from; 4];
            for round in 0..rounds {
                for slot in 0..4_u16 {
                    let (tokens, place) = (1_000 * (1 + round * 5 % 8), usize::from(slot));
                    let key = u64::from(round) * 4 + u64::from(slot);
                    self.place(now[place], key, slot, tokens);
                    let factor = if slot == 0 { slow } else { 1.0 };
                    now[place] += factor * (20.0 + 0.04 * f64::from(tokens));
                    self.answer(now[place], key, slot);
                }
            }
            now[0].max(now[1])
        }
    }

    fn near(value: f64, expected: f64, share: f64) -> bool {
        (value / expected - 1.0).abs() < share
    }

    #[test]
    fn a_fleet_of_equals_is_learned() {
        let world = World::new();
        let end = world.run(100, 1.0, 0.0);
        for (slot, thousands) in [(0, 1.0), (1, 4.0), (3, 8.0)] {
            let Outlook { wait, own, .. } = world.outlook(end, slot, thousands, 0);
            assert!(near(own, 20.0 + 40.0 * thousands, 0.02) && wait.abs() < 1e-9, "{slot}: {own} {wait}");
        }
        // 400 requests in so many ms.
        let reading = world.0.read(world.1 + Duration::from_secs_f64(end / 1e3));
        assert!(near(1.0 / reading.arrivals(), 50.0, 0.1), "{}", 1.0 / reading.arrivals());
        // All of them were one token.
        assert!(near(reading.first_share(), 1.0, 0.2), "{}", reading.first_share());
    }

    #[test]
    fn newcomers_are_those_who_arrive_by_what_they_have_to_compute() {
        let world = World::new();
        let newcomers = |ms: f64| {
            let reading = world.0.read(world.1 + Duration::from_secs_f64(ms / 1e3));
            (reading.arrivals(), reading.newcomers())
        };
        // The first three hold nothing anywhere; until then that is believed of all.
        [100.0, 200.0, 300.0].iter().zip(0..).for_each(|(ms, key)| world.place(*ms, key, 0, 4_000));
        assert_eq!(newcomers(300.0), (0.01, 0.01));
        // A thousand then find half of it.
        let half = TierBlocks::device(Blocks(125));
        (3..1_003_u32).for_each(|at| {
            let shape = Shape::of(Tokens(4_000), BlockSize::new(16).unwrap());
            let event = Event::Placed { shape, overlap: half, new_tokens: Tokens(2_000) };
            world.tell(100.0 + 100.0 * f64::from(at), u64::from(at), 0, event);
        });
        let ms = |new: u32| world.0.usual_ms(&Work::on_device(Tokens(4_000), Tokens(new)));
        let (arrivals, newcomers) = newcomers(100_300.0);
        assert!(near(arrivals, 0.01, 1e-9) && near(newcomers / arrivals, ms(2_000) / ms(4_000), 0.01), "{newcomers}");
    }

    #[test]
    fn before_a_request_has_ended_it_takes_as_long_as_it_has_so_far() {
        let world = World::new();
        let share = |ms: f64| world.0.read(world.1 + Duration::from_secs_f64(ms / 1e3)).first_share();
        world.place(0.0, 1, 0, 1_000);
        assert_eq!(share(100.0), 0.0, "no first token");
        world.tell(200.0, 1, 0, Event::FirstToken);
        assert_eq!([200.0, 5_000.0, 10_000.0, 40_000.0].map(share), [0.02, 0.02, 0.02, 0.005]);
        // One of 50 s, which weighs half as much as the belief.
        world.tell(50_000.0, 1, 0, Event::Finished { usage: Usage::default() });
        assert_eq!([50_000.0, 90_000.0].map(share), [200.0 * 3.0 / 70_000.0; 2]);
    }

    #[test]
    fn a_worker_that_is_twice_as_slow_is_found_and_forgiven() {
        let world = World::new();
        let end = world.run(150, 2.0, 0.0);
        let ratio = |at| world.outlook(at, 0, 4.0, 0).own / world.outlook(at, 1, 4.0, 0).own;
        assert!((1.5..2.1).contains(&ratio(end)), "{}", ratio(end));
        let end = world.run(250, 1.0, end);
        assert!((0.95..1.08).contains(&ratio(end)), "{}", ratio(end));
    }

    #[test]
    fn first_tokens_of_one_step_are_one_interval() {
        let world = World::new();
        for round in 0..100 {
            let at = f64::from(u32::try_from(round).unwrap()) * 200.0;
            let key = round * 2;
            [0, 1].into_iter().for_each(|more| world.place(at, key + more, 0, 2_000));
            // Both in one step.
            [0, 1].into_iter().for_each(|more| world.answer(at + 180.0, key + more, 0));
        }
        let Outlook { own, .. } = world.outlook(20_000.0, 0, 4.0, 0);
        // Taken for two intervals, of 180 and of 0, it would be half of that.
        assert!(near(own, 180.0, 0.1), "{own}");
    }

    #[test]
    fn who_is_computed_beside_others_is_not_late_before_their_step_is_over() {
        let world = World::new();
        // So it is known that first tokens come when they come.
        world.place(0.0, 0, 0, 1_000);
        world.answer(50.0, 0, 0);
        // Three of 3 000 tokens at once, of which the third is begun in the step of 8 000; another comes during it.
        (1..4).for_each(|key| world.place(1_000.0, key, 0, 3_000));
        world.place(1_010.0, 4, 0, 3_000);
        let at = |ms| world.outlook(1_000.0 + ms, 0, 1.0, 4);
        let [step, all] = [20.0 + 8.0 * 30.0, 20.0 + 12.0 * 30.0];
        // The first alone would be there after 110 ms.
        for ms in [105.0, 115.0, 255.0] {
            assert!((at(ms).wait - (all - ms)).abs() < 1e-9 && at(ms).own == 50.0, "{:?}", at(ms));
        }
        let slow = 300.0 / step;
        assert!((at(300.0).wait - (all * slow - 300.0)).abs() < 1e-9 && (at(300.0).own - 50.0 * slow).abs() < 1e-9);
    }

    #[test]
    fn an_answer_that_comes_as_a_whole_says_nothing_of_prefill() {
        let world = World::new();
        for key in 0..100 {
            let at = f64::from(u32::try_from(key).unwrap()) * 10_000.0;
            world.place(at, key, 0, 1_000);
            world.tell(at + 9_000.0, key, 0, Event::FirstToken);
            world.tell(at + 9_000.0, key, 0, Event::Finished { usage: Usage::default() });
        }
        assert_eq!(world.outlook(1e6, 0, 1.0, 0), Outlook { own: 50.0, more: 30.0, ..Outlook::default() });
        // Nor does its silence.
        world.place(1e6, 100, 0, 1_000);
        assert_eq!(world.outlook(1e6 + 5_000.0, 0, 1.0, 1), Outlook { own: 50.0, more: 30.0, ..Outlook::default() });
    }

    #[test]
    fn answers_in_one_piece_are_past_their_prompts_when_these_should_have_been_computed() {
        let world = World::new();
        let shape = |tokens| Shape { whole: true, ..Shape::of(Tokens(tokens), BlockSize::new(16).unwrap()) };
        let whole = |ms, key, tokens| {
            let new_tokens = Tokens(tokens);
            world.tell(ms, key, 0, Event::Placed { shape: shape(tokens), overlap: TierBlocks::default(), new_tokens });
        };
        // Two of one step, 20 + 2·60 ms, and one that comes meanwhile, 50 ms more; the account has them all as waiting.
        [0, 1].into_iter().for_each(|key| whole(0.0, key, 2_000));
        whole(40.0, 2, 1_000);
        let wait = |ms| world.outlook(ms, 0, 0.0, 3).wait;
        assert_eq!([40.0, 100.0, 140.0, 160.0, 190.0, 5_000.0].map(wait), [130.0, 70.0, 50.0, 30.0, 0.0, 0.0]);
        // A stream beside them is no queue of theirs, and what it tells is learned of it alone.
        for key in 10..210 {
            let ms = 10_000.0 + 500.0 * f64::from(u32::try_from(key).unwrap());
            world.place(ms, key, 0, 1_000);
            world.answer(ms + 80.0, key, 0);
        }
        let own = world.outlook(200_000.0, 0, 1.0, 3).own;
        assert!(near(own, 80.0, 0.1), "{own}");
        // What ends has been heard of.
        (0..3).for_each(|key| world.tell(200_000.0, key, 0, Event::Finished { usage: Usage::default() }));
        assert!(world.outlook(200_000.0, 0, 1.0, 1).wait > 0.0, "one that waits now is nobody known here");
    }

    #[test]
    fn who_looks_changes_nothing() {
        let waits = [false, true].map(|looks| {
            let world = World::new();
            let shape = Shape { whole: true, ..Shape::of(Tokens(4_000), BlockSize::new(16).unwrap()) };
            let placed = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(4_000) };
            (0..20).for_each(|key| world.tell(0.0, key, 0, placed));
            if looks {
                (1..20).for_each(|tenths| _ = world.outlook(100.0 * f64::from(tenths), 0, 1.0, 20));
            }
            // By now all are known to be slower, so that fewer can be past their prompts.
            for key in 100..200 {
                world.place(2_000.0, key, 1, 1_000);
                world.answer(2_500.0, key, 1);
                world.place(2_500.0, key, 1, 1_000);
                world.answer(3_000.0, key, 1);
            }
            world.outlook(3_000.0, 0, 1.0, 20)
        });
        assert_eq!(waits[0], waits[1]);
    }

    #[test]
    fn a_worker_that_says_nothing_for_longer_than_answers_take_may_hang() {
        let world = World::new();
        let shape = Shape { whole: true, ..Shape::of(Tokens(1_000), BlockSize::new(16).unwrap()) };
        let placed = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(1_000) };
        for (key, took) in [(0, 2_000.0), (1, 100.0), (2, 100.0)] {
            let ms = 10_000.0 * f64::from(u32::try_from(key).unwrap());
            world.tell(ms, key, 0, placed);
            world.tell(ms + took, key, 0, Event::FirstToken);
            world.tell(ms + took, key, 0, Event::Finished { usage: Usage::default() });
        }
        world.tell(50_000.0, 9, 0, placed);
        let wait = |ms| world.outlook(50_000.0 + ms, 0, 0.0, 1).wait;
        // 2 s is the longest that one took, less two hundredths by now.
        assert_eq!([10.0, 100.0, 3_000.0].map(wait), [40.0, 0.0, 0.0]);
        assert!(near(wait(10_000.0), 10_000.0 - 2.0 * 2_000.0 * 0.99 * 0.99, 1e-9), "{}", wait(10_000.0));
        world.tell(61_000.0, 9, 0, Event::FirstToken);
        assert_eq!(world.outlook(61_000.0, 0, 0.0, 0).wait, 0.0);
    }

    #[test]
    fn whoever_was_overtaken_waits_no_more() {
        let world = World::new();
        [0, 1, 2].into_iter().for_each(|key| world.place(0.0, key, 0, 1_000));
        world.tell(80.0, 1, 0, Event::FirstToken);
        // One of three is left: 50 ms, from now on.
        assert_eq!(world.outlook(80.0, 0, 0.0, 1), Outlook { wait: 50.0, ..Outlook::default() });
        world.tell(81.0, 0, 0, Event::FirstToken);
        assert_eq!(world.outlook(90.0, 0, 0.0, 1), Outlook { wait: 40.0, ..Outlook::default() });
        world.tell(95.0, 2, 0, Event::Failed { side: Side::Client });
        assert_eq!(world.outlook(100.0, 0, 0.0, 0), Outlook { wait: 0.0, ..Outlook::default() });
    }

    #[test]
    fn whoever_is_computed_in_the_same_step_is_delayed() {
        let world = World::new();
        let step = |ms, thousands| world.outlook(ms, 0, thousands, 0).step;
        let first = |key, ms| world.tell(ms, key, 0, Event::FirstToken);
        // Three that come at one moment are computed together, with whoever joins them: 30 ms a thousand tokens.
        [0, 1, 2].into_iter().for_each(|key| world.place(0.0, key, 0, 1_000));
        assert!(near(step(0.0, 2.0), 3.0 * 60.0, 1e-9), "{}", step(0.0, 2.0));
        // Nobody can join a step under way; those that come meanwhile share the next.
        assert_eq!(step(10.0, 2.0), 0.0);
        world.place(20.0, 3, 0, 1_000);
        assert!(near(step(30.0, 2.0), 60.0, 1e-9), "{}", step(30.0, 2.0));
        // 8 000 fill a step: of 12 000, what is there before takes the first 7 000.
        assert!(near(step(30.0, 12.0), 360.0 * 7.0 / 12.0, 1e-9), "{}", step(30.0, 12.0));
        // 9 000 more: the step after the next has room for 6 000 beside 2 000 of these.
        world.place(30.0, 4, 0, 9_000);
        assert!(near(step(40.0, 12.0), 360.0 * 6.0 / 12.0, 1e-9), "{}", step(40.0, 12.0));
        // The fourth is computed once the first three are done, and 7 000 of the fifth beside it; its last 2 000 come later.
        (0..3).for_each(|key| first(key, 110.0));
        assert_eq!(world.outlook(112.0, 0, 0.0, 0).step, 0.0, "nothing to compute");
        assert!(near(step(112.0, 1.0), 30.0, 1e-9), "{}", step(112.0, 1.0));
        (3..5).for_each(|key| first(key, 500.0));
        assert_eq!(step(600.0, 1.0), 0.0, "nobody is left");
    }

    #[test]
    fn what_others_have_waiting_counts_as_usual_requests() {
        let world = World::new();
        [(0, 1_000), (1, 3_000)].into_iter().for_each(|(key, tokens)| world.place(0.0, key, 1, tokens));
        // Two of 2 000 tokens: 20 + 4·30.
        assert_eq!(
            world.outlook(0.0, 5, 0.0, 2),
            Outlook { wait: 140.0, ..Outlook::default() },
            "a worker that nobody heard of"
        );
        world.place(0.0, 2, 0, 2_000);
        assert_eq!(world.outlook(0.0, 0, 0.0, 1).wait, 80.0);
        assert_eq!(world.outlook(0.0, 0, 0.0, 3).wait, 200.0);
    }

    #[test]
    fn a_request_that_is_sent_again_leaves_where_it_was() {
        let world = World::new();
        world.place(0.0, 7, 0, 1_000);
        world.place(10.0, 7, 1, 1_000);
        assert_eq!(world.outlook(10.0, 0, 0.0, 0).wait, 0.0);
        assert_eq!(world.outlook(10.0, 1, 0.0, 1).wait, 50.0);
    }

    #[test]
    fn a_request_that_joins_decoding_streams_waits_for_the_step_at_hand() {
        let world = World::new();
        world.place(0.0, 1, 0, 1_000);
        world.tell(50.0, 1, 0, Event::FirstToken);
        for token in 0..40 {
            world.tell(50.0 + 20.0 * f64::from(token), 1, 0, Event::Progress { tokens: Tokens(1) });
        }
        let end = 50.0 + 20.0 * 39.0;
        let reading = world.0.read(world.1 + Duration::from_secs_f64(end / 1e3));
        assert!(
            near(reading.of_workers::<f64>(Slot(0)).seen().gap(), 20.0, 1e-9)
                && reading.of_workers::<f64>(Slot(1)).seen().gap() == 0.0
        );
        drop(reading);
        let wait = |ms| world.outlook(end + ms, 0, 0.0, 0).wait;
        assert!(near(wait(0.0), 20.0, 1e-9) && near(wait(15.0), 5.0, 1e-9) && near(wait(70.0), 10.0, 1e-9));
    }

    #[test]
    fn a_slot_that_another_worker_has_forgets() {
        let world = World::new();
        let end = world.run(100, 3.0, 0.0);
        let own = |slot| world.outlook(end, slot, 4.0, 0).own;
        assert!(own(0) > 2.0 * own(1));
        world.enrol(2, "a", 0..4);
        assert!(own(0) > 2.0 * own(1), "the same name is the same worker");
        world.enrol(3, "b", 0..4);
        assert!(near(own(0), own(1), 1e-12));
    }

    /// Other pools have slots, too.
    #[test]
    fn what_is_learned_does_not_depend_on_the_slots_that_a_pool_has() {
        let learned = [0, 1_000].map(|first| {
            let world = World::from_slot(first);
            let own = |at, slot| world.outlook(at, slot, 4.0, 0).own;
            let end = world.run(50, 3.0, 0.0);
            let slow = [own(end, 0), own(end, 1)];
            let end = world.run(400, 1.0, end);
            [slow, [own(end, 0), own(end, 1)]].concat()
        });
        assert!(learned[0][0] > 2.0 * learned[0][1] && near(learned[0][2], learned[0][3], 0.1), "{learned:?}");
        let of_others = learned[0].iter().zip(&learned[1]).all(|(low, high)| near(*low, *high, 0.01));
        assert!(of_others, "{learned:?}");
    }

    #[test]
    fn a_probe_that_ends_first_is_no_answer() {
        let world = World::new();
        world.place(0.0, 1, 0, 10);
        world.tell(20.0, 1, 0, Event::FirstToken);
        world.tell(20.0, 1, 0, Event::Finished { usage: Usage::default() });
        let reading = world.0.read(world.1 + Duration::from_secs(20));
        assert!(reading.first_share() < 0.01 && reading.decode_ms() > 5_000.0);
    }

    #[test]
    fn a_prompt_that_no_engine_takes_is_no_usual_one() {
        let world = World::new();
        let end = world.run(100, 1.0, 0.0);
        let usual = |ms: f64| world.0.read(world.1 + Duration::from_secs_f64(ms / 1e3)).mean_request_ms();
        let before = usual(end);
        world.place(end, 1_000, 0, 1_000_000);
        world.tell(end + 10.0, 1_000, 0, Event::Failed { side: Side::Client });
        assert_eq!(usual(end + 10.0), before);
        // One that is computed counts as sixteen at most.
        world.place(end + 20.0, 1_001, 0, 1_000_000);
        world.answer(end + 20_000.0, 1_001, 0);
        assert!(usual(end + 20_000.0) < 1.1 * before);
    }
    #[test]
    fn a_worker_that_is_twice_as_slow_is_found_by_answers_in_one_piece_too() {
        let world = World::new();
        let shape = Shape { whole: true, ..Shape::of(Tokens(2_000), BlockSize::new(16).unwrap()) };
        let placed = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(2_000) };
        let mut ends = [0.0; 4];
        let mut run = |slow: f64, rounds: u64| {
            for key in 0..rounds * 4 {
                let slot = u16::try_from(key % 4).unwrap();
                let (tokens, end) = (50 + u32::try_from(key * 7 % 100).unwrap(), &mut ends[usize::from(slot)]);
                world.tell(*end, key, slot, placed);
                *end += (80.0 + 20.0 * f64::from(tokens)) * if slot == 0 { slow } else { 1.0 };
                world.tell(*end, key, slot, Event::FirstToken);
                let usage = Usage { completion: Some(Tokens(tokens)), ..Usage::default() };
                world.tell(*end, key, slot, Event::Finished { usage });
            }
            let end = ends.iter().copied().fold(0.0, f64::max);
            [0, 1].map(|slot| world.outlook(end, slot, 4.0, 0).own)
        };
        let [slow, usual] = run(2.0, 200);
        // Compared with the mean of the fleet, of which it is one.
        assert!((1.4..2.1).contains(&(slow / usual)), "{}", slow / usual);
        let [slow, usual] = run(1.0, 400);
        assert!((0.95..1.1).contains(&(slow / usual)), "{}", slow / usual);
    }
}
