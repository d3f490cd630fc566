//! `predicted` copies what keeps being asked for where the holder would let it wait.

use std::time::Duration;

use warmpath_core::ids::{RequestKey, Slot};
use warmpath_core::observe::{Event, Observation, Usage};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::Tier;

use super::{World, prompt};

/// 200 blocks of a problem, and thoughts of four blocks about it, one behind the other.
fn thinks(problem: u32, thoughts: &[u32]) -> Vec<u32> {
    let thoughts = thoughts.iter().flat_map(|thought| prompt(*thought, 4));
    prompt(problem, 200).into_iter().chain(thoughts).collect()
}

/// Such prompts at once, and where each went. All are answered after 200 ms.
fn at_once(world: &mut World, prompts: &[Vec<u32>]) -> Vec<u16> {
    let place = |(at, prompt): (u64, &Vec<u32>)| {
        world.key = RequestKey(at);
        (world.key, world.place(prompt, None).target.slot)
    };
    let placed: Vec<_> = (1..).zip(prompts).map(place).collect();
    world.start += Duration::from_millis(200);
    for event in [Event::FirstToken, Event::Finished { usage: Usage::default() }] {
        for (request, slot) in placed.iter().copied() {
            world.scheduler.observe(&Observation { at: world.start, request, slot, event });
        }
    }
    placed.into_iter().map(|(_, slot)| slot.0).collect()
}

/// 200 blocks that all share, and a question of its own.
fn asks(question: u32) -> Vec<u32> {
    [prompt(1, 200), prompt(question, 2)].concat()
}

/// Where those went who asked, one after the other, each at once with somebody who has another prompt computed there first.
fn asked(world: &mut World, questions: std::ops::Range<u32>) -> Vec<u16> {
    let each = questions.map(|question| {
        world.start += Duration::from_secs(10);
        let before = [prompt(100 + question, 200), prompt(question, 2)].concat();
        at_once(world, &[before, asks(question)])[1]
    });
    each.collect()
}

#[test]
fn what_keeps_coming_back_is_copied_where_it_would_wait() {
    let mut world = World::new(PolicyName::Predicted);
    world.index.0[0] = (200, Tier::Device);
    // Each waits 20 ms, and would compute 0.8 thousand tokens more elsewhere, for 24 ms by the prior. Of one nobody can tell
    // whether more will come.
    assert_eq!(asked(&mut world, 10..11), [0]);
    let slots = asked(&mut world, 11..24);
    let copied = slots.iter().filter(|slot| **slot != 0).count();
    // Nor is it computed again for everybody.
    assert!((1..=3).contains(&copied), "{slots:?}");
}

#[test]
fn what_keeps_coming_back_and_never_waits_is_not_copied() {
    let mut world = World::new(PolicyName::Predicted);
    world.index.0[0] = (200, Tier::Device);
    for question in 10..30 {
        world.start += Duration::from_secs(10);
        assert_eq!(at_once(&mut world, &[asks(question)]), [0], "{question}");
    }
    // Who waits for once is none for whom others would have anything of a copy.
    assert_eq!(asked(&mut world, 30..31), [0]);
}

#[test]
fn a_problem_is_copied_at_once_where_those_before_were_thought_on_by_many_together() {
    let first_thoughts = |world: &mut World, problem| {
        world.start += Duration::from_secs(10);
        world.index.0[0] = (200, Tier::Device);
        at_once(world, &[thinks(problem, &[1]), thinks(problem, &[2])])
    };
    // Behind the first thought of each problem come so many others, together or one by one.
    let next_problem = |together: &[usize]| {
        let mut world = World::new(PolicyName::Predicted);
        for problem in 100..116 {
            let first = first_thoughts(&mut world, problem);
            assert!(problem > 100 || first == [0, 0], "nothing is known yet: {first:?}");
            world.index.0[0] = (204, Tier::Device);
            for (at, count) in together.iter().enumerate() {
                world.start += Duration::from_secs(10);
                let each = (0..*count).map(|thought| u32::try_from(20 * (at + 1) + thought).unwrap());
                at_once(&mut world, &each.map(|thought| thinks(problem, &[1, thought])).collect::<Vec<_>>());
            }
        }
        first_thoughts(&mut world, 200)
    };
    let slots = next_problem(&[12]);
    assert!(slots[0] == 0 && slots[1] != 0, "{slots:?}");
    assert_eq!([next_problem(&[1; 12]), next_problem(&[])], [[0, 0], [0, 0]]);
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
