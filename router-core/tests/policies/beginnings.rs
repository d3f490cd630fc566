//! What is known of a fleet that has just begun, and of who joins it.

use std::ops::Range;
use std::time::{Duration, Instant};

use warmpath_core::ids::{Rank, RequestKey, Roll, Slot, WorkerId};
use warmpath_core::observe::{Enrol, Enrolled, Event, Learn, Observation, Side};
use warmpath_core::overlap::TierBlocks;
use warmpath_core::rates::Rates;
use warmpath_core::shape::Shape;
use warmpath_core::units::Tokens;

use super::size;

fn enrol(rates: &Rates, roll: u64, worker: &str, slots: Range<u16>) {
    let worker = WorkerId::from(worker);
    let target = |slot| Enrolled { slot: Slot(slot), worker: &worker, rank: Rank(u32::from(slot)) };
    rates.enrol(Roll(roll), &mut slots.map(target));
}

fn tell(rates: &Rates, at: Instant, request: u64, event: Event) {
    rates.observe(&Observation { at, request: RequestKey(request), slot: Slot(0), event });
}

fn place(rates: &Rates, at: Instant, request: u64, tokens: u32) {
    let shape = Shape::of(Tokens(tokens), size());
    tell(rates, at, request, Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(tokens) });
}

/// Those who come to a slot, in a second.
fn per_second(rates: &Rates, at: Instant, slot: u16) -> f64 {
    (rates.read(at).of_workers::<f64>(Slot(slot)).seen().regulars().per_ms() * 1e6).round() / 1e3
}

#[test]
fn to_whom_nobody_has_come_may_many_come_the_shorter_it_is_there() {
    let (rates, start) = (Rates::default(), Instant::now());
    let at = |ms| start + Duration::from_millis(ms);
    enrol(&rates, 1, "a", 0..2);
    place(&rates, start, 1, 100);
    assert_eq!([100, 1_000, 10_000].map(|ms| per_second(&rates, at(ms), 1)), [10.0, 1.0, 0.1]);
    // A third joins, and the second's slot goes to another worker: both are as new as the first two were.
    enrol(&rates, 2, "a", 0..3);
    place(&rates, at(60_000), 2, 100);
    assert_eq!([1, 2].map(|slot| per_second(&rates, at(60_100), slot)), [0.017, 10.0]);
    enrol(&rates, 3, "b", 0..3);
    place(&rates, at(90_000), 3, 100);
    assert_eq!([1, 2].map(|slot| per_second(&rates, at(90_200), slot)), [5.0; 2]);
}

#[test]
fn what_is_on_its_way_tells_what_requests_bring_before_a_first_token() {
    let (rates, start) = (Rates::default(), Instant::now());
    let brings = || rates.read(start).mean_request_ms();
    let believed = brings();
    (1..=4).for_each(|request| place(&rates, start, request, 10_000));
    // By the prior, 20 ms and 30 a thousand tokens, of four prompts beside a belief of 2 000 that weighs as much as two.
    let tokens = (2.0 * 2.0 + 10.0 * 3.96) / 5.96;
    assert!((brings() - 20.0 - 30.0 * tokens).abs() < 1e-9, "{}", brings());
    // Prompts that no engine takes bring nothing.
    (1..=4).for_each(|request| tell(&rates, start, request, Event::Failed { side: Side::Client }));
    assert!((brings() / believed - 1.0).abs() < 1e-9, "{} of {believed}", brings());
}
