//! Requests that nobody wants any more: they are no traffic to plan for.

use std::time::Duration;

use warmpath_core::observe::{Event, Side, Usage};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::Tokens;

use super::{World, prompt};

fn pass(world: &mut World, ms: u64) {
    world.start += Duration::from_millis(ms);
}

/// Ten requests a second that are answered, and then 300 in 2.4 s whose clients leave before anything was computed.
#[test]
fn clients_who_leave_at_once_change_nothing_for_those_who_stay() {
    for side in [Side::Client, Side::Router] {
        let mut world = World::new(PolicyName::Predicted);
        for number in 0..100 {
            let slot = world.place(&prompt(number, 250), None).target.slot;
            pass(&mut world, 50);
            world.tell(slot, Event::FirstToken);
            world.tell(slot, Event::Progress { tokens: Tokens(1) });
            world.tell(slot, Event::Finished { usage: Usage::default() });
            pass(&mut world, 50);
        }
        let costs = |world: &mut World| {
            let explained = world.explain(&prompt(1_000, 1_000), None);
            explained.considered.iter().map(|it| it.cost.unwrap().0).collect::<Vec<_>>()
        };
        let before = costs(&mut world);
        for number in 2_000..2_300 {
            let slot = world.place(&prompt(number, 25), None).target.slot;
            pass(&mut world, 6);
            world.tell(slot, Event::Failed { side });
            pass(&mut world, 2);
        }
        let after = costs(&mut world);
        assert!(
            before.iter().zip(&after).all(|(before, after)| (after - before).abs() < 0.1 * before),
            "{before:?} {after:?}"
        );
    }
}
