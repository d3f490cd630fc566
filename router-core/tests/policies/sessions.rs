//! Sessions stay with their worker, under any policy, as long as it is not too dear.

use std::sync::Arc;
use std::time::Duration;

use warmpath_core::admission::OnAllBusy;
use warmpath_core::cost::terms::combined;
use warmpath_core::cost::{Cost, Weight};
use warmpath_core::ids::Slot;
use warmpath_core::policy::{Policy, PolicyName, Weights};
use warmpath_core::scheduler::{SESSION, Scheduler};
use warmpath_core::session::{SessionRule, Sessions};

use super::{World, prompt};
use crate::last_sent::LastSent;

fn sessions(weight: f64) -> Sessions {
    let weight = Weight::try_from(weight).unwrap();
    Sessions::new(SessionRule { weight, ttl: Duration::from_secs(1800), sessions_max: 1000 })
}

fn approx_tree(weight: f64) -> World {
    let policy = |name| Policy::new(name, &Weights::default());
    let tree = policy(PolicyName::ApproxTree).with_history(Some(Arc::new(LastSent::<4>::new())));
    let scheduler = Scheduler::new(tree, policy(PolicyName::LeastRequests), OnAllBusy::Error);
    World::of(scheduler.with_sessions(sessions(weight)))
}

/// with every cache unknown, ten turns of a session stay where the first was, while others come and go.
#[test]
fn r129_a_session_stays_with_its_worker_under_every_policy() {
    for name in PolicyName::ALL {
        // What `preble` reckons with are sums over three minutes: a session is worth as many requests as it keeps together.
        let weight = if name == PolicyName::Preble { 12.0 } else { 1.0 };
        let mut world = World::of(World::scheduler(name).with_sessions(sessions(weight)));
        let home = world.place(&prompt(1, 4), Some(5)).target.slot;
        for turn in 2..12 {
            drop(world.place(&prompt(100 + turn, 4), None));
            assert_eq!(world.place(&prompt(turn, 4), Some(5)).target.slot, home, "{name}, turn {turn}");
        }
    }
}

/// Where nobody has enough of a prompt, `approx_tree` names whoever was sent least: a session stays all the same, as the others
/// have nothing of it either.
#[test]
fn a_session_stays_where_the_rule_names_somebody_for_lack_of_a_reason() {
    let mut world = approx_tree(0.1);
    let home = world.place(&prompt(1, 40), Some(5)).target.slot;
    // Others are far smaller by now. A tenth of 32 requests are three: with the fourth it goes.
    let mut held = Vec::new();
    for turn in 2..6 {
        let placed = world.place(&prompt(turn, 40), Some(5));
        assert_eq!(placed.target.slot, home, "turn {turn}");
        held.push(placed);
    }
    assert_ne!(world.place(&prompt(6, 40), Some(5)).target.slot, home);
    // Whoever follows its prefix does, whatever its session says.
    drop(held);
    let mut world = approx_tree(1_000.0);
    let home = world.place(&prompt(5, 4), Some(5)).target.slot;
    let other = world.place(&prompt(6, 4), Some(6)).target.slot;
    assert_ne!(home, other);
    assert_eq!(world.place(&prompt(6, 4), Some(5)).target.slot, other);
}

/// Under `least_requests` a prompt is worth a request.
#[test]
fn a_session_leaves_a_worker_that_is_dearer_by_more_than_it_is_worth() {
    let mut world = World::of(World::scheduler(PolicyName::LeastRequests).with_sessions(sessions(2.0)));
    let first = world.place(&prompt(1, 4), Some(5));
    let second = world.place(&prompt(2, 4), Some(5));
    let third = world.place(&prompt(3, 4), Some(5));
    // Three requests there against none elsewhere are one too many for a worth of two.
    let fourth = world.place(&prompt(4, 4), Some(5));
    let slots = [&first, &second, &third, &fourth].map(|placed| placed.target.slot.0);
    assert_eq!(slots, [0, 0, 0, 1]);
    // Its home is where its last request went.
    assert_eq!(world.place(&prompt(5, 4), Some(5)).target.slot, Slot(1));
}

#[test]
fn a_session_is_a_term_of_the_explanation_and_ends_with_its_workers_cache() {
    let mut world = World::of(World::scheduler(PolicyName::Product).with_sessions(sessions(0.5)));
    let home = world.place(&prompt(1, 4), Some(5)).target.slot;
    let explained = world.explain(&prompt(2, 4), Some(5));
    let own = &explained.considered[home.index()];
    let last = own.terms.last().unwrap();
    assert_eq!((last.name, last.value), (SESSION, -8.0));
    assert_eq!(combined(&own.terms), 8.0);
    // 16 new tokens times one request, less half of that.
    assert_eq!((own.cost, combined(&own.terms[..3])), (Some(Cost(8.0)), 16.0));
    world.scheduler.forget(home);
    assert!(world.explain(&prompt(2, 4), Some(5)).considered.iter().all(|at| at.terms.len() == 3));
}

/// Also under load, where the rest of the cost may be a product.
#[test]
fn with_a_session_the_terms_make_the_cost_under_every_policy() {
    for name in PolicyName::ALL {
        let mut world = World::of(World::scheduler(name).with_sessions(sessions(0.5)));
        let home = world.place(&prompt(1, 4), Some(5)).target.slot;
        let held: Vec<_> = (0..12).map(|number| world.place(&prompt(200 + number, 4), None)).collect();
        let explained = world.explain(&prompt(2, 4), Some(5));
        let own = &explained.considered[home.index()];
        let (cost, made) = (own.cost.unwrap().0, combined(&own.terms));
        assert!((cost - made).abs() <= 1e-9 * cost.abs().max(1.0), "{name}: {cost} is not {made} of {:?}", own.terms);
        drop(held);
    }
}

/// While a fleet is imbalanced a prompt is worth 0.3 to `kv`, and so is a session: not the 0.7 of balanced days.
#[test]
fn a_session_is_worth_what_a_prompt_is_worth_at_that_moment() {
    let mut world = World::of(World::scheduler(PolicyName::Kv).with_sessions(sessions(1.0)));
    let home = world.place(&prompt(1, 4), Some(5)).target.slot;
    let worth = |world: &mut World| {
        let explained = world.explain(&prompt(2, 4), Some(5));
        explained.considered[home.index()].terms.last().map(|term| (term.name, term.value)).unwrap()
    };
    assert_eq!(worth(&mut world), (SESSION, -0.7));
    let held = world.place(&prompt(3, 4), None);
    let (name, value) = worth(&mut world);
    assert!(name == SESSION && (value + 0.3).abs() < 1e-12, "{value}");
    drop(held);
}
