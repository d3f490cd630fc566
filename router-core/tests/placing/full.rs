//! Who may be chosen though its slots are all taken.

use std::time::{Duration, Instant};

use warmpath_core::admission::OnAllBusy;
use warmpath_core::ids::Slot;
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{DecidedBy, PlaceError, Placement, Scheduler};
use warmpath_core::slot_set::SlotSet;
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
    let targets = world.workers.iter().cloned().map(|target| match target.slot {
        Slot(0) => Target { ramp: Some(ramp), ..target },
        _ => target,
    });
    world.workers = WorkerTable::new(targets.collect(), world.workers.pools().to_vec());
    assert_eq!(world.place(&[&long]).unwrap().target.slot, Slot(1));
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
