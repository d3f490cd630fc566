//! Who takes the last worker that has time makes those wait who come next: `predicted` counts that.

use std::time::Duration;

use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Observation, Usage};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::Tier;

use super::{World, prompt};

/// Two workers, the first of which holds 200 blocks of a prompt. Somebody came every 100 ms, with what nobody holds.
fn world() -> World {
    let mut world = World::with_workers(World::scheduler(PolicyName::Predicted), 2);
    for key in 1..=100 {
        world.start += Duration::from_millis(100);
        world.key = RequestKey(key);
        let slot = world.place(&prompt(1_000 + u32::try_from(key).unwrap(), 4), None).target.slot;
        for event in [Event::FirstToken, Event::Finished { usage: Usage::default() }] {
            world.scheduler.observe(&Observation { at: world.start, request: world.key, slot, event });
        }
    }
    world.index.0[0] = (200, Tier::Device);
    world.key = RequestKey(1_000);
    world
}

/// What the holder and the other cost, by these terms.
fn terms<const N: usize>(world: &mut World, names: [&str; N]) -> [[f64; N]; 2] {
    let considered = world.explain(&prompt(1, 210), None).considered;
    [0, 1].map(|slot| {
        let of_slot = considered.iter().find(|considered| considered.candidate.slot == Slot(slot)).unwrap();
        names.map(|name| of_slot.terms.iter().find(|term| term.name == name).unwrap().value)
    })
}

#[test]
fn who_comes_next_waits_where_the_last_that_has_time_computes_what_another_holds() {
    let mut world = world();
    assert_eq!(terms(&mut world, ["wait", "last"]), [[0.0; 2]; 2], "another has time");
    // The holder computes what somebody else brought.
    assert_eq!(world.place(&prompt(1, 200), None).target.slot, Slot(0));
    world.key = RequestKey(1_001);
    let [[wait, own, none], [at_once, all, last]] = terms(&mut world, ["wait", "own", "last"]);
    assert!(wait > 0.0 && at_once == 0.0 && all > own && none == 0.0, "{wait} {own} {at_once} {all} {none}");
    // Of 0.01 that come in a ms, all until the holder has time or this one again.
    let until = wait.min(all);
    let lost = 0.01 * until * until / 2.0 * (1.0 - own / all);
    assert!((last / lost - 1.0).abs() < 0.05, "{last} for {lost}");
}
