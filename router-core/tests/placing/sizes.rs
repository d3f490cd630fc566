//! Caches of which nobody tells the size.

use warmpath_core::ids::Slot;
use warmpath_core::policy::PolicyName;
use warmpath_core::slot_set::SlotSet;
use warmpath_core::workers::Limits;

use super::World;

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
