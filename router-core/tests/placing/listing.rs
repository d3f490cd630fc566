//! Who is considered, and with which figures.

use warmpath_core::trust::ViewState;

use super::*;

/// The list is written over the last one: of a larger fleet, of which every figure was another.
#[test]
fn nothing_of_a_request_is_left_among_the_candidates_of_the_next() {
    let placed = |scratch: Scratch| {
        let mut world = World { scratch, ..World::new(PolicyName::Kv, 3, roomy()) };
        world.index = Holds(vec![0, 0, 1]);
        // One has left since its pool was made.
        let pools = world.workers.pools().to_vec();
        let stayed = world.workers.iter().filter(|target| target.slot != Slot(1)).cloned();
        world.workers = WorkerTable::new(stayed.collect(), pools);
        let _held = world.place(&[&[1, 2, 3, 4, 5]]).unwrap();
        world.scratch.candidates().to_vec()
    };
    let mut before = World::new(PolicyName::Blocks, 5, Limits { blocks: None, sequences: 2 });
    before.index = Holds(vec![2; 5]);
    before.workers.get(Slot(0)).unwrap().trust.set_view(ViewState::Suspect);
    let _held = before.places(8);
    let candidates = placed(before.scratch);
    assert_eq!(candidates.iter().map(|candidate| candidate.slot).collect::<Vec<_>>(), [Slot(0), Slot(2)]);
    assert_eq!(candidates, placed(Scratch::new(7)));
}
