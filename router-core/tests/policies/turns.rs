//! A session that goes on where it is has its next turns counted there, until it is known to have ended.

use std::time::Duration;

use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Observation, Usage};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::Tier;

use super::{World, prompt};

/// What they who go on at the first worker lose by a prompt that nobody holds.
fn regulars(world: &mut World) -> f64 {
    world.index.0[0] = (0, Tier::Device);
    let considered = world.explain(&prompt(2, 50), None).considered;
    let first = considered.iter().find(|considered| considered.candidate.slot == Slot(0)).unwrap();
    first.terms.iter().find(|term| term.name == "regulars").unwrap().value
}

/// A prompt comes and is answered at once. Where it went.
fn come(world: &mut World, key: u64, tokens: &[u32]) -> Slot {
    world.key = RequestKey(key);
    let slot = world.place(tokens, None).target.slot;
    for event in [Event::FirstToken, Event::Finished { usage: Usage::default() }] {
        world.scheduler.observe(&Observation { at: world.start, request: world.key, slot, event });
    }
    world.key = RequestKey(key + 1);
    slot
}

#[test]
fn turns_are_told_by_the_prompts_that_they_go_on_with() {
    let mut world = World::with_workers(World::scheduler(PolicyName::Predicted), 2);
    for turn in 0..60 {
        world.start += Duration::from_millis(100);
        // The prompt before and a block of its answer.
        world.index.0[0] = (if turn == 0 { 0 } else { 99 + 2 * turn }, Tier::Device);
        assert_eq!(come(&mut world, u64::from(turn), &prompt(1, 100 + 2 * turn)), Slot(0), "turn {turn}");
    }
    // Prompts grow older when others are placed.
    world.start += Duration::from_millis(92);
    world.index.0[0] = (0, Tier::Device);
    come(&mut world, 1_000, &prompt(4, 1));
    let soon = regulars(&mut world);
    // By how often it came it would be one in a minute; but after more than a tenth of a second nobody has ever gone on.
    world.start += Duration::from_secs(60);
    come(&mut world, 1_001, &prompt(3, 1));
    let late = regulars(&mut world);
    assert!(soon > 1.0 && late == 0.0, "{soon} ms, then {late}");
}
