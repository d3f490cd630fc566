//! Caches of which nobody tells the size.

use warmpath_core::ids::Slot;
use warmpath_core::policy::PolicyName;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Blocks;
use warmpath_core::workers::Limits;

use super::World;

/// what was sent counts before any metric arrives; the γ term decides.
#[test]
fn r024_equal_workers_take_turns() {
    let mut world = World::new(PolicyName::Kv, 2, Limits { blocks: None, sequences: 16 });
    let (slots, held) = world.places(4);
    assert_eq!(slots, [0, 1, 0, 1]);
    drop(held);
    let account = &world.workers.get(Slot(0)).unwrap().account;
    assert_eq!((account.read().requests, account.read().active_blocks), (0, Blocks(0)));
}

/// Sizes that nobody tells are learned together: a worker that has just come is not full with its first request.
#[test]
fn a_cache_of_unknown_size_is_as_large_as_any_was_seen_to_be() {
    let mut world = World::new(PolicyName::Kv, 3, Limits { blocks: None, sequences: 64 });
    world.avoid = [Slot(2)].into_iter().collect();
    let (slots, mut held) = world.places(8);
    assert_eq!(slots, [0, 1, 0, 1, 0, 1, 0, 1]);
    // Two are left on each of the two, half of what was in use there.
    held.truncate(4);
    world.avoid = SlotSet::new();
    assert_eq!(world.places(2).0, [2, 2]);
}
