//! Who may be chosen though its slots are all taken.

use std::time::{Duration, Instant};

use warmpath_core::admission::OnAllBusy;
use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Learn, Observation, Side, Usage};
use warmpath_core::overlap::TierBlocks;
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::rates::Rates;
use warmpath_core::scheduler::{DecidedBy, PlaceError, Placement, Scheduler};
use warmpath_core::shape::Shape;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::{BlockSize, Tokens};
use warmpath_core::workers::{Ramp, Target, WorkerTable};

use super::{Holds, World, roomy};

/// A fleet of two, of which the first holds a long prompt and is full.
fn full_holder(policy: PolicyName, prompt: &[u32]) -> (World, Vec<Placement>) {
    let mut world = World::new(policy, 2, roomy());
    world.avoid.insert(Slot(1));
    let taken = (0..16).map(|_| world.place(&[&[1]]).unwrap()).collect();
    world.avoid = SlotSet::new();
    world.index = Holds(vec![u32::try_from(prompt.len() / 4).unwrap(), 0]);
    (world, taken)
}

/// Lets a target be given ever more from some time on.
fn hold_back(world: &mut World, slot: Slot, ramp: Ramp) {
    let targets = world.workers.iter().cloned().map(|target| match target.slot == slot {
        true => Target { ramp: Some(ramp), ..target },
        false => target,
    });
    world.workers = WorkerTable::new(targets.collect(), world.workers.pools().to_vec());
}

#[test]
fn who_knows_what_waiting_takes_waits_at_a_full_holder_where_that_is_sooner() {
    let long: Vec<u32> = (0..200_000).collect();
    let chosen = |policy, prompt: &[u32]| {
        let (mut world, _taken) = full_holder(policy, &long);
        world.place(&[prompt]).unwrap().target.slot
    };
    // A slot comes free before 200 000 tokens are computed, and not before 400 are.
    assert_eq!(chosen(PolicyName::Predicted, &long), Slot(0));
    assert_eq!(chosen(PolicyName::Predicted, &long[..400]), Slot(1));
    // all others skip it.
    for policy in PolicyName::ALL.into_iter().filter(|name| *name != PolicyName::Predicted) {
        assert_eq!(chosen(policy, &long), Slot(1), "{policy}");
    }
}

#[test]
fn nobody_waits_at_a_worker_that_is_given_no_more_for_now() {
    let long: Vec<u32> = (0..200_000).collect();
    let (mut world, _taken) = full_holder(PolicyName::Predicted, &long);
    let ramp = Ramp { since: Instant::now() + Duration::from_secs(60), over: Duration::from_secs(30), from: 4 };
    hold_back(&mut world, Slot(0), ramp);
    assert_eq!(world.place(&[&long]).unwrap().target.slot, Slot(1));
}

#[test]
fn what_is_too_much_for_all_keeps_to_ramps_and_pauses() {
    let now = Instant::now();
    let given = |policy, ramp| {
        let (mut world, mut taken) = full_holder(policy, &[1]);
        let [asked, fallback] = [policy, PolicyName::LeastRequests].map(|name| Policy::new(name, &Weights::default()));
        world.scheduler = Scheduler::new(asked, fallback, OnAllBusy::LeastLoaded);
        hold_back(&mut world, Slot(1), ramp);
        taken.extend((0..20).map(|_| world.place(&[&[1]]).unwrap()));
        taken.iter().filter(|placement| placement.target.slot == Slot(1)).count()
    };
    let hour = Duration::from_secs(3_600);
    for policy in PolicyName::ALL {
        let rests = Ramp { since: now + Duration::from_secs(60), over: hour, from: 4 };
        assert_eq!(given(policy, rests), 0, "{policy}");
        // 36 in flight where 16 and 4 may be.
        let comes_back = Ramp { since: now, over: hour, from: 4 };
        assert!((4..=8).contains(&given(policy, comes_back)), "{policy}");
    }
}

#[test]
fn where_all_are_full_who_knows_what_waiting_takes_says_where() {
    let long: Vec<u32> = (0..200_000).collect();
    let (mut world, mut taken) = full_holder(PolicyName::Predicted, &long);
    world.avoid.insert(Slot(0));
    taken.extend((0..16).map(|_| world.place(&[&[1]]).unwrap()));
    world.avoid = SlotSet::new();
    assert_eq!(world.place(&[&long]).unwrap_err(), PlaceError::AllBusy);
    let weights = Weights::default();
    let fallback = || Policy::new(PolicyName::LeastRequests, &weights);
    world.scheduler = Scheduler::new(Policy::new(PolicyName::Predicted, &weights), fallback(), OnAllBusy::LeastLoaded);
    let placed = world.place(&[&long]).unwrap();
    assert_eq!((placed.target.slot, placed.decided_by), (Slot(0), DecidedBy::Policy));
    // Without token ids nobody knows.
    assert_eq!(world.place(&[]).unwrap().decided_by, DecidedBy::LeastLoaded);
}

/// Once it is known how long requests stay, as far as that is always the same.
#[test]
fn room_comes_when_those_have_gone_who_came_together() {
    let (rates, origin) = (Rates::default(), Instant::now());
    let at = |ms| origin + Duration::from_millis(ms);
    let tell = |ms, key, slot, event| {
        rates.observe(&Observation { at: at(ms), request: RequestKey(key), slot: Slot(slot), event });
    };
    let place = |ms, key, slot| {
        let shape = Shape::of(Tokens(100), BlockSize::new(4).unwrap());
        tell(ms, key, slot, Event::Placed { shape, overlap: TierBlocks::default(), new_tokens: Tokens(100) });
    };
    let first_of_sixteen = |ms, slot| rates.read(at(ms)).until_gone(Slot(slot), 1.0 / 16.0);
    let near = |found: f64, expected: f64| assert!((found - expected).abs() < 40.0, "{found} {expected}");
    (0..16).for_each(|key| place(0, key, 0));
    // Nobody knows yet: evenly, one in a sixteenth of what is believed.
    near(first_of_sixteen(0, 0), 10_000.0 / 16.0);
    (0..16).for_each(|key| tell(0, key, 0, Event::Failed { side: Side::Worker }));
    for key in 0..2_000 {
        place(2_000 * key, key, 1);
        tell(2_000 * key + 100, key, 1, Event::FirstToken);
        tell(2_000 * key + 2_000, key, 1, Event::Finished { usage: Usage::default() });
    }
    let now = 2_000 * 2_000;
    (0..16).for_each(|key| place(now, key, 0));
    near(first_of_sixteen(now, 0), 2_000.0 + 2_000.0 / 16.0);
    near(first_of_sixteen(now + 1_500, 0), 500.0 + 2_000.0 / 16.0);
    near(first_of_sixteen(now + 3_000, 0), 2_000.0 / 16.0);
    near(first_of_sixteen(now, 2), 2_000.0 / 16.0);
}
