//! What is learned of workers from requests that are not like most: of several prompts, and of one long answer.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a small world may panic, and needs some origin of time"
)]

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use warmpath_core::ids::{Rank, RequestKey, Roll, Slot, WorkerId};
use warmpath_core::observe::{Enrol, Enrolled, Event, Learn, Observation, Usage};
use warmpath_core::overlap::TierBlocks;
use warmpath_core::rates::{Outlook, Rates, Work};
use warmpath_core::shape::Shape;
use warmpath_core::units::{BlockSize, Tokens};

/// Two equal workers, whose times are in ms since the beginning.
struct World {
    rates: Rates,
    start: Instant,
    now: f64,
    key: u64,
}

impl World {
    fn new() -> Self {
        let rates = Rates::default();
        let worker = WorkerId::from("w");
        let target = |slot: u16| Enrolled { slot: Slot(slot), worker: &worker, rank: Rank(slot.into()) };
        rates.enrol(Roll(1), &mut (0..2).map(target));
        Self { rates, start: Instant::now(), now: 0.0, key: 0 }
    }

    fn tell(&self, ms: f64, key: u64, slot: u16, event: Event) {
        let at = self.start + Duration::from_secs_f64(ms / 1e3);
        self.rates.observe(&Observation { at, request: RequestKey(key), slot: Slot(slot), event });
    }

    /// Sends a request of `prompts` with so many tokens together, now.
    fn send(&mut self, slot: u16, tokens: u32, prompts: u32) -> u64 {
        self.key += 1;
        let prompts = NonZeroU32::new(prompts).unwrap();
        let shape =
            Shape { prompts, sequences: prompts.get(), ..Shape::of(Tokens(tokens), BlockSize::new(16).unwrap()) };
        let event = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(tokens) };
        self.tell(self.now, self.key, slot, event);
        self.key
    }

    fn first(&self, ms: f64, key: u64, slot: u16) {
        self.tell(ms, key, slot, Event::FirstToken);
        self.tell(ms, key, slot, Event::Progress { tokens: Tokens(1) });
    }

    fn finish(&self, ms: f64, key: u64, slot: u16) {
        self.tell(ms, key, slot, Event::Finished { usage: Usage::default() });
    }

    /// So many prompts of 1 000 to 4 000 tokens at both workers, one after the other, which take 10 ms, and 20 for each
    /// thousand.
    fn honest(&mut self, rounds: u32) {
        for round in 0..rounds {
            let tokens = 1_000 * (1 + round % 4);
            for slot in [0, 1] {
                let key = self.send(slot, tokens, 1);
                self.first(self.now + 10.0 + f64::from(tokens) * 0.02, key, slot);
                self.finish(self.now + 10.0 + f64::from(tokens) * 0.02, key, slot);
            }
            self.now += 200.0;
        }
    }

    fn outlook(&self, ms: f64, slot: u16, tokens: u32) -> Outlook {
        let reading = self.rates.read(self.start + Duration::from_secs_f64(ms / 1e3));
        let amount = reading.amount(&Work::on_device(Tokens(tokens), Tokens(tokens)));
        reading.of_workers(Slot(slot)).seen().outlook(&amount, 0.0)
    }

    fn own(&self) -> [f64; 3] {
        [1_000, 8_000, 60_000].map(|tokens| self.outlook(self.now, 1, tokens).own)
    }
}

#[track_caller]
fn near(value: f64, expected: f64) {
    assert!((value - expected).abs() < 0.1 * expected, "{value}, not {expected}");
}

/// 120 prompts of 1 000 tokens: the first token comes when eight of them were computed, after 170 ms.
#[test]
fn one_request_of_many_prompts_changes_nothing_that_was_learned_of_one() {
    let mut world = World::new();
    world.honest(150);
    let before = world.own();
    near(before[1], 170.0);
    let key = world.send(0, 120_000, 120);
    world.first(world.now + 170.0, key, 0);
    world.now += 3_000.0;
    world.finish(world.now, key, 0);
    world.honest(2);
    world.own().into_iter().zip(before).for_each(|(own, before)| near(own, before));
    world.honest(100);
    world.own().into_iter().zip(before).for_each(|(own, before)| near(own, before));
}

#[test]
fn behind_the_first_token_of_many_prompts_the_others_are_waited_for() {
    let mut world = World::new();
    world.honest(150);
    let key = world.send(0, 120_000, 120);
    let wait = |world: &World, ms: f64| world.outlook(world.now + ms, 0, 1_000).wait;
    near(wait(&world, 0.0), 2_410.0);
    world.first(world.now + 30.0, key, 0);
    // 119 of them are left, and go by as time does, though nothing is heard of it.
    near(wait(&world, 30.0), 2_390.0);
    near(wait(&world, 1_230.0), 1_190.0);
    // Somebody behind them tells nothing of how long one takes.
    let own = world.own();
    world.now += 1_000.0;
    let behind = world.send(0, 1_000, 1);
    world.first(world.now + 1_500.0, behind, 0);
    world.finish(world.now + 1_500.0, behind, 0);
    assert_eq!(world.outlook(world.now + 1_500.0, 0, 1_000).wait, 0.0);
    world.own().into_iter().zip(own).for_each(|(own, before)| near(own, before));
    // What decodes is no prompt any more, and leaves nothing behind.
    world.now += 4_000.0;
    assert_eq!(world.outlook(world.now, 0, 1_000).wait, 0.0);
    world.finish(world.now, key, 0);
    assert_eq!(world.outlook(world.now, 0, 1_000).wait, 0.0);
    world.honest(50);
    world.own().into_iter().zip(own).for_each(|(own, before)| near(own, before));
    // One that ends before its others are through takes them with it.
    let key = world.send(0, 120_000, 120);
    world.first(world.now + 30.0, key, 0);
    world.finish(world.now + 40.0, key, 0);
    assert_eq!(world.outlook(world.now + 40.0, 0, 1_000).wait, 0.0);
}

/// Of answers in one piece that take 100 ms, one took 8 s; of the next nothing is heard for 6 s.
#[test]
fn one_long_answer_in_one_piece_hides_no_worker_that_hangs() {
    let mut world = World::new();
    let shape = Shape { whole: true, ..Shape::of(Tokens(200), BlockSize::new(16).unwrap()) };
    let placed = Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(200) };
    let takes = |key| if key == 40 { 8_000.0 } else { 100.0 };
    for key in 0..61 {
        world.tell(world.now, key, 0, placed);
        world.now += takes(key);
        world.tell(world.now, key, 0, Event::FirstToken);
        world.finish(world.now, key, 0);
    }
    world.tell(world.now, 100, 0, placed);
    let wait = |after: f64| world.outlook(world.now + after, 0, 200).wait;
    assert_eq!(wait(3_000.0), 0.0);
    // Sixteen usual ones: 60 of 100 ms and one that counts as 1 600.
    near(wait(6_000.0), 6_000.0 - 2.0 * 16.0 * 7_600.0 / 61.0);
}
