//! `predicted` copies what keeps being asked for where the holder would let it wait.

use std::time::Duration;

use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Observation, Usage};
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::Placement;
use warmpath_core::units::Tier;

use super::{World, prompt};

/// 200 blocks that all share, and a question of its own.
fn asks(question: u32) -> Vec<u32> {
    [prompt(1, 200), prompt(question, 2)].concat()
}

/// Two such prompts at once, on a fleet of which the first worker holds what they share. Where each went.
fn two_at_once(world: &mut World, question: u32) -> [u16; 2] {
    let placements: [Placement; 2] = [0, 1].map(|more| world.place(&asks(question + more), None));
    let slots = placements.each_ref().map(|placement| placement.target.slot);
    world.start += Duration::from_millis(200);
    for event in [Event::FirstToken, Event::Finished { usage: Usage::default() }] {
        for slot in slots {
            world.scheduler.observe(&Observation { at: world.start, request: RequestKey(1), slot, event });
        }
    }
    slots.map(|slot| slot.0)
}

#[test]
fn what_keeps_coming_back_is_copied_where_it_would_wait() {
    let mut world = World::new(PolicyName::Predicted);
    world.index.0[0] = (200, Tier::Device);
    // The second would wait 20 ms and compute 0.8 thousand tokens more elsewhere, for 24 ms by the prior.
    assert_eq!(two_at_once(&mut world, 10), [0, 0]);
    world.start += Duration::from_secs(10);
    let [first, second] = two_at_once(&mut world, 20);
    assert!(first == 0 && second != 0, "{first}, {second}");
}

#[test]
fn a_turn_that_comes_once_stays_where_its_conversation_is() {
    let mut world = World::new(PolicyName::Predicted);
    world.index.0[0] = (200, Tier::Device);
    for at in 0..4 {
        world.start += Duration::from_secs(10);
        // Each parts from what is held at a block of its own.
        let own = |turn: u32| [prompt(turn, 200), prompt(turn, 2)].concat();
        let placed = [own(30 + 2 * at), own(31 + 2 * at)].map(|prompt| world.place(&prompt, None));
        assert_eq!(placed.each_ref().map(|placement| placement.target.slot), [Slot(0); 2], "{at}");
        for event in [Event::FirstToken, Event::Finished { usage: Usage::default() }] {
            let at = world.start + Duration::from_millis(200);
            world.scheduler.observe(&Observation { at, request: RequestKey(1), slot: Slot(0), event });
        }
    }
}
