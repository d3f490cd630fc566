//! Policies that are asked and not followed.

use std::time::Duration;

use warmpath_core::ids::Slot;
use warmpath_core::observe::{Event, Usage};
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::units::Tier;

use super::{World, prompt};

/// The product sends everything to worker 0, which holds the prompt; the fewest requests are elsewhere after the first.
#[test]
fn shadows_are_asked_and_not_followed() {
    let policy = |name| Policy::new(name, &Weights::default());
    let shadows = [PolicyName::LeastRequests, PolicyName::Product, PolicyName::Logit, PolicyName::RoundRobin];
    let scheduler = World::scheduler(PolicyName::Product).with_shadows(shadows.map(policy).into());
    let (mut world, mut alone) = (World::of(scheduler), World::new(PolicyName::Product));
    for world in [&mut world, &mut alone] {
        world.index.0[0] = (3, Tier::Device);
    }
    let (first, _) = (world.place(&prompt(1, 4), None), alone.place(&prompt(1, 4), None));
    assert_eq!(first.target.slot, Slot(0));
    let second = world.place(&prompt(1, 4), None);
    assert_eq!(second.target.slot, Slot(0));
    let choices: Vec<_> = world.scratch.shadows().iter().map(|at| (at.policy, at.slot, at.agrees, at.regret)).collect();
    // (4 queued + 4 new) × 2 = 16 there; 16 × 1 elsewhere: no regret. Round robin knows that 0 was the last.
    assert_eq!(choices[0], (PolicyName::LeastRequests, Some(Slot(1)), false, Some(0.0)));
    assert!(choices[1].2 || choices[1].3 == Some(0.0));
    assert_eq!((choices[2].0, choices[2].1, choices[2].2), (PolicyName::Logit, Some(Slot(0)), true));
    assert_eq!((choices[3].0, choices[3].1), (PolicyName::RoundRobin, Some(Slot(1))));
}

/// Costs of `kv` at once after each other: a whole prompt missing costs 0.7, the holder nothing but a quarter of it.
#[test]
fn regret_is_in_the_unit_of_the_policy_that_acts() {
    let shadow = Policy::new(PolicyName::RoundRobin, &Weights::default());
    let mut world = World::of(World::scheduler(PolicyName::Kv).with_shadows(vec![shadow]));
    world.index.0[3] = (3, Tier::Device);
    assert_eq!(world.place(&prompt(1, 4), None).target.slot, Slot(3));
    let choice = world.scratch.shadows()[0];
    assert_eq!((choice.slot, choice.agrees), (Some(Slot(0)), false));
    assert!((choice.regret.unwrap() - 0.7 * 0.75).abs() < 1e-12);
}

/// `preble` names the holder of three quarters: who is elsewhere is against its rule, however much dearer that is.
#[test]
fn what_a_rule_forbids_has_no_regret() {
    let shadow = Policy::new(PolicyName::RoundRobin, &Weights::default());
    let mut world = World::of(World::scheduler(PolicyName::Preble).with_shadows(vec![shadow]));
    world.index.0[3] = (3, Tier::Device);
    assert_eq!(world.place(&prompt(1, 4), None).target.slot, Slot(3));
    let choice = world.scratch.shadows()[0];
    assert_eq!((choice.slot, choice.agrees, choice.regret), (Some(Slot(0)), false, None));
}

/// `predicted` waits at the holder, which is full: among those `kv` does not choose, so its cost there says nothing.
#[test]
fn whom_the_policy_could_not_choose_costs_no_regret() {
    let shadow = Policy::new(PolicyName::Predicted, &Weights::default());
    let mut world = World::of(World::scheduler(PolicyName::Kv).with_shadows(vec![shadow]));
    world.limit(Slot(0), 4_000);
    world.index.0[0] = (4_000, Tier::Device);
    let mut held = Vec::new();
    for number in 0..40 {
        let placed = world.place(&prompt(number + 1, 4_000), None);
        assert_eq!(placed.target.slot, Slot(0));
        world.start += Duration::from_millis(40);
        world.tell(Slot(0), Event::FirstToken);
        if number < 20 {
            world.start += Duration::from_secs(1);
            world.tell(Slot(0), Event::Finished { usage: Usage::default() });
        } else {
            held.push(placed);
        }
    }
    world.limit(Slot(0), 20);
    let placed = world.place(&prompt(99, 4_000), None);
    let choice = world.scratch.shadows()[0];
    assert_eq!((choice.slot, choice.regret), (Some(Slot(0)), None));
    assert_ne!(placed.target.slot, Slot(0));
}

#[test]
fn chance_is_the_same_with_and_without_shadows() {
    let chosen = |shadows: &[PolicyName]| {
        let shadows = shadows.iter().map(|name| Policy::new(*name, &Weights::default())).collect();
        let mut world = World::of(World::scheduler(PolicyName::Random).with_shadows(shadows));
        (0..50).map(|number| world.place(&prompt(number, 2), None).target.slot.0).collect::<Vec<_>>()
    };
    assert_eq!(chosen(&[]), chosen(&[PolicyName::Random, PolicyName::PowerOfTwo, PolicyName::Chwbl]));
}

/// Who draws beside a policy that does not draws anew each time.
#[test]
fn who_draws_where_the_policy_does_not_draws_anew() {
    let shadows = [PolicyName::Random, PolicyName::PowerOfTwo].map(|name| Policy::new(name, &Weights::default()));
    let mut world = World::of(World::scheduler(PolicyName::RoundRobin).with_shadows(shadows.into()));
    let mut seen = [[0; 4]; 2];
    for number in 0..200 {
        world.place(&prompt(number, 2), None);
        for (seen, choice) in seen.iter_mut().zip(world.scratch.shadows()) {
            seen[choice.slot.unwrap().index()] += 1;
        }
    }
    assert!(seen.iter().flatten().all(|count| (25..=75).contains(count)), "{seen:?}");
}

/// It sees what the policy sees, ties and dice included.
#[test]
fn who_is_the_policy_itself_agrees_with_it() {
    for name in
        [PolicyName::Random, PolicyName::PowerOfTwo, PolicyName::Blocks, PolicyName::Aibrix, PolicyName::Product]
    {
        let shadow = Policy::new(name, &Weights::default());
        let mut world = World::of(World::scheduler(name).with_shadows(vec![shadow]));
        let mut asked = 0;
        for number in 0..40 {
            world.place(&prompt(number, 2), None);
            let choices = world.scratch.shadows();
            asked += choices.len();
            assert!(choices.iter().all(|choice| choice.agrees && choice.regret == Some(0.0)), "{name}: {choices:?}");
        }
        assert!(asked > 20, "{name}: {asked}");
    }
}

/// A regret beyond half of a rule is the rule's: of costs that grow without one, such as a product, every difference counts.
#[test]
fn whose_costs_have_a_rule_is_known() {
    let rule = |name| Policy::new(name, &Weights::default()).cost.rule();
    let ruled =
        [PolicyName::Affinity, PolicyName::Chwbl, PolicyName::Aibrix, PolicyName::ApproxTree, PolicyName::Preble];
    for name in PolicyName::ALL {
        assert_eq!(rule(name).is_some(), ruled.contains(&name), "{name}");
    }
    assert!(rule(PolicyName::Preble) > rule(PolicyName::Affinity));
}
