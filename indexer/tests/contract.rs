//! What every index must do, against a naive map: worker -> the whole prefixes that it holds, as they are, with copies by
//! tier. An index joins by one line at the foot of this file.

#[path = "contract/model.rs"]
mod model;
#[path = "contract/paths.rs"]
mod paths;

use std::sync::Arc;

use model::{Claim, Step, World, draw_step, seeded};
use paths::{hashes, removed, settings, stored};
use proptest::prelude::*;
use warmpath_core::ids::Slot;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{Blocks, Tier};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::index::{Index, Writer};
use warmpath_indexer::store::BlockStore;
use warmpath_indexer::tree::PlainIndex;
use warmpath_indexer::view::ViewSettings;

/// The answer of an index for a path.
fn matched(index: &impl PrefixIndex, path: &[u64]) -> Overlaps {
    let mut overlaps = Overlaps::default();
    index.match_prefix(&hashes(path), &mut overlaps);
    overlaps
}

/// 100 000 steps of one seeded run.
fn long_run<S: BlockStore>(index: Index<S>) {
    let mut random = seeded(20_261_121);
    let mut world = World::new(index, Claim::Exact);
    for number in 0..100_000 {
        let step = draw_step(&mut random);
        world.take(&step).unwrap_or_else(|fault| panic!("step {number}, {step:?}: {fault}"));
    }
    assert!(world.queries > 10_000 && world.matched_blocks > 10_000, "the run saw too little to mean anything");
}

/// 100 000 steps of one seeded run in an index that has room for a part of what the engines hold.
fn long_run_without_room<S: BlockStore>(index: Index<S>) {
    let mut random = seeded(20_261_122);
    let mut world = World::new(index, Claim::NeverTooMuch);
    for number in 0..100_000 {
        let step = draw_step(&mut random);
        world.take(&step).unwrap_or_else(|fault| panic!("step {number}, {step:?}: {fault}"));
    }
    assert!(world.queries > 10_000 && world.matched_blocks > 10_000, "the run saw too little to mean anything");
    assert!(world.index().shed() > 1000, "{} were let go", world.index().shed());
}

/// A short run of steps that proptest can shrink.
fn short_run<S: BlockStore>(index: Index<S>, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(index, Claim::Exact);
    for step in steps {
        world.take(step).map_err(TestCaseError::fail)?;
    }
    world.check_everything().map_err(TestCaseError::fail)
}

/// Comparing holders by their number instead of who they are credits D with X.
fn holders_are_compared_by_who_they_are<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let [a, b, c, d] = [0, 1, 2, 3].map(|slot| index.writer(Slot(slot), &settings()));
    let path = |contents: [u64; 2]| -> Vec<u64> { contents.iter().flat_map(|first| *first..first + 8).collect() };
    let (px, py) = (path([100, 200]), path([100, 300]));
    for writer in [&a, &b] {
        writer.apply(&[stored(&px, 0, Tier::Device)]);
    }
    c.apply(&[stored(&py, 0, Tier::Device)]);
    d.apply(&[stored(&px[..8], 0, Tier::Device)]);
    c.apply(&removed(&py, 0, Tier::Device));
    a.apply(&removed(&px[..8], 7, Tier::Device));
    let overlaps = matched(&*index, &px);
    assert_eq!([0, 1, 2, 3].map(|slot| overlaps.of(Slot(slot)).total().0), [7, 16, 0, 8]);
    assert_eq!((overlaps.best(), a.entries()), (Some((Slot(1), Blocks(16))), 15));
}

/// Tiers D,D,H,D,– give device 3, host 1, total 4; a block in two tiers counts under the faster.
fn a_block_counts_under_its_fastest_tier<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let path = [1, 2, 3, 4, 5];
    let [nine, four] = [9, 4].map(|slot| index.writer(Slot(slot), &settings()));
    for (place, tier) in
        [(0, Tier::Device), (1, Tier::Device), (2, Tier::Host), (3, Tier::Device), (3, Tier::External), (2, Tier::Disk)]
    {
        nine.apply(&[stored(&path[..=place], place, tier)]);
    }
    four.apply(&[stored(&path[..1], 0, Tier::External)]);
    let overlaps = matched(&*index, &path);
    let held = overlaps.of(Slot(9));
    assert_eq!(Tier::ALL.map(|tier| held.get(tier).0), [3, 1, 0, 0]);
    assert_eq!((held.total(), overlaps.of(Slot(4)).get(Tier::External)), (Blocks(4), Blocks(1)));
    assert_eq!((index.entries(Slot(9)), index.len()), (4, 5));
}

/// What lies outside of all workers extends the run of every worker of the pool, and of no other, wherever it has holes.
fn external_storage_extends_every_members_run<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let path: Vec<u64> = (1..=8).collect();
    index.set_pools(&[[1, 2, 200].map(Slot).into_iter().collect(), [3, 4].map(Slot).into_iter().collect()]);
    let [one, two, three, outside] = [1, 2, 3, 200].map(|slot| index.writer(Slot(slot), &settings()));
    one.apply(&[stored(&path[..2], 0, Tier::Device)]);
    three.apply(&[stored(&path[..3], 0, Tier::Device)]);
    outside.apply(&[stored(&path[..6], 0, Tier::External)]);
    two.apply(&[stored(&path[..5], 0, Tier::Host)]);
    two.apply(&removed(&path[..2], 1, Tier::Host));
    let tiers = |overlaps: &Overlaps, slot| Tier::ALL.map(|tier| overlaps.of(Slot(slot)).get(tier).0);
    let overlaps = matched(&*index, &path);
    let all = [1, 2, 3, 200].map(|slot| tiers(&overlaps, slot));
    assert_eq!(all, [[2, 0, 0, 4], [0, 4, 0, 2], [3, 0, 0, 0], [0, 0, 0, 6]]);
    assert_eq!(overlaps.best(), Some((Slot(1), Blocks(6))));
    outside.apply(&removed(&path[..3], 2, Tier::External));
    let overlaps = matched(&*index, &path);
    let all = [1, 2, 3, 200].map(|slot| tiers(&overlaps, slot));
    assert_eq!(all, [[2, 0, 0, 0], [0, 4, 0, 2], [3, 0, 0, 0], [0, 0, 0, 2]]);
    outside.forget();
    let overlaps = matched(&*index, &path);
    assert_eq!([1, 2, 3].map(|slot| tiers(&overlaps, slot)), [[2, 0, 0, 0], [0, 1, 0, 0], [3, 0, 0, 0]]);
    // One of the pool may tell of it, too: what it has by itself stays its own, and all ends with the pool.
    one.apply(&[stored(&path[..7], 0, Tier::External)]);
    three.apply(&[stored(&path[..8], 7, Tier::External)]);
    let overlaps = matched(&*index, &path);
    let all = [1, 2, 3, 4, 200].map(|slot| tiers(&overlaps, slot));
    assert_eq!(all, [[2, 0, 0, 5], [0, 4, 0, 3], [3, 0, 0, 0], [0; 4], [0, 0, 0, 7]]);
    index.set_pools(&[]);
    let overlaps = matched(&*index, &path);
    assert_eq!([1, 2, 3].map(|slot| tiers(&overlaps, slot)), [[2, 0, 0, 5], [0, 1, 0, 0], [3, 0, 0, 0]]);
}

/// A slot that is given to another worker shows nothing of the one before, and nobody else loses anything.
fn a_forgotten_slot_begins_empty<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let path: Vec<u64> = (1..=600).collect();
    let of = |slot| matched(&*index, &path).of(Slot(slot)).total().0;
    let [one, other] = [1, 70].map(|slot| index.writer(Slot(slot), &settings()));
    for writer in [&one, &other] {
        writer.apply(&[stored(&path, 0, Tier::Device)]);
    }
    one.forget();
    assert_eq!((of(1), of(70), one.entries()), (0, 600, 0));
    one.apply(&[stored(&path[..2], 0, Tier::Device)]);
    assert_eq!((of(1), one.entries()), (2, 2));
    // Another worker joins in the slot of one that never said goodbye.
    let next = index.writer(Slot(1), &settings());
    assert_eq!((of(1), next.entries(), index.len()), (0, 0, 600));
    next.apply(&[stored(&path[..3], 0, Tier::Device)]);
    assert_eq!((of(1), index.entries(Slot(1)), index.len()), (3, 3, 603));
}

/// An engine that loses its connection and is told about from its beginning again ends with the same view; one that
/// restarts ends with what it stores from then on.
fn reconnection_and_restart<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let path: Vec<u64> = (1..=40).collect();
    let of = || matched(&*index, &path).of(Slot(0)).total().0;
    let writer = index.writer(Slot(0), &settings());
    let history: Vec<_> =
        [stored(&path, 0, Tier::Device)].into_iter().chain(removed(&path, 30, Tier::Device)).collect();
    writer.apply(&history);
    assert_eq!((of(), writer.entries()), (30, 30));
    writer.forget();
    writer.apply(&history);
    assert_eq!((of(), writer.entries()), (30, 30));
    writer.forget();
    writer.apply(&[stored(&path[..4], 0, Tier::Device)]);
    assert_eq!((of(), writer.entries(), index.len()), (4, 4, 4));
}

/// Nobody keeps more than the bound, and what is removed can be stored again.
fn a_full_index_refuses_and_counts<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let bound = index.capacity();
    let path: Vec<u64> = (0..u64::try_from(bound).expect("64 bits") + 200).collect();
    let writer = index.writer(Slot(3), &settings());
    let applied = writer.apply(&[stored(&path, 0, Tier::Device)]);
    assert_eq!((applied.stored, applied.over_limit, index.len(), index.refused()), (bound, 200, bound, 200));
    assert_eq!(matched(&*index, &path).of(Slot(3)).total().0, u32::try_from(bound).expect("small"));
    let applied = writer.apply(&removed(&path, bound - 100, Tier::Device));
    assert_eq!((applied.removed, applied.unknown, index.len()), (100, 200, bound - 100));
    let applied = writer.apply(&[stored(&path[..bound - 50], bound - 100, Tier::Device)]);
    assert_eq!((applied.stored, index.len(), index.refused()), (50, bound - 50, 200));
}

/// While others come and go, a worker that holds still is answered for exactly.
fn readers_see_a_steady_worker_exactly<S: BlockStore>(index: Index<S>) {
    let index = Arc::new(index);
    let path: Vec<u64> = (1..=400).collect();
    index.writer(Slot(5), &settings()).apply(&[stored(&path[..300], 0, Tier::Device)]);
    let store = [stored(&path, 0, Tier::Device)];
    std::thread::scope(|scope| {
        let writers: Vec<_> = [Slot(2), Slot(90)]
            .map(|slot| {
                let (writer, store) = (index.writer(slot, &settings()), &store);
                scope.spawn(move || {
                    for _ in 0..200 {
                        writer.apply(store);
                        writer.forget();
                    }
                })
            })
            .into();
        let mut reads = 0_u32;
        while reads == 0 || writers.iter().any(|writer| !writer.is_finished()) {
            assert_eq!(matched(&*index, &path).of(Slot(5)).total(), Blocks(300));
            reads += 1;
        }
    });
    let overlaps = matched(&*index, &path);
    assert_eq!(overlaps.best(), Some((Slot(5), Blocks(300))));
    assert_eq!((overlaps.of(Slot(2)).total(), overlaps.of(Slot(90)).total()), (Blocks(0), Blocks(0)));
}

/// Near its bound the index lets go of what was not used for longest, of the worker with the most.
#[test]
fn the_largest_share_lets_go_of_what_was_least_recently_used() {
    let index = Arc::new(ConcurrentIndex::new(20_000));
    let [large, small] = [1, 2].map(|slot| index.writer(Slot(slot), &settings()));
    let conversation = |number: u64| -> Vec<u64> { (0..100).map(|block| number * 1000 + block).collect() };
    let held = |number, slot| matched(&*index, &conversation(number)).of(Slot(slot)).total().0;
    for number in 0..150 {
        large.apply(&[stored(&conversation(number), 0, Tier::Device)]);
    }
    for number in 500..545 {
        small.apply(&[stored(&conversation(number), 0, Tier::Device)]);
    }
    // The oldest is asked for; the next ones are not.
    assert_eq!((held(0, 1), index.len(), index.shed()), (100, 19_500, 0));
    let mut lacked = 0;
    for number in 600..610 {
        let events = [stored(&conversation(number), 0, Tier::Device)];
        lacked += usize::from(small.lacks_room(&events));
        small.apply(&events);
    }
    // More than is needed goes each time, so that most find room.
    assert!((1..10).contains(&lacked), "{lacked}");
    let shed = usize::try_from(index.shed()).expect("small");
    assert!((500..1500).contains(&shed), "{shed} were let go");
    assert_eq!((index.len(), index.refused()), (20_500 - shed, 0));
    assert_eq!((large.entries(), small.entries()), (15_000 - shed, 5_500));
    let gone = u64::try_from(shed / 100).expect("small");
    let left: Vec<u64> = (0..150).filter(|&number| held(number, 1) == 100).collect();
    assert_eq!(left, std::iter::once(0).chain(gone + 1..150).collect::<Vec<u64>>());
    assert!((500..545).chain(600..610).all(|number| held(number, 2) == 100));
    // All of it was asked for just now: nothing can be let go, and what has no room is refused.
    assert_eq!(index.len(), 20_000);
    let applied = small.apply(&[stored(&conversation(700), 0, Tier::Device)]);
    assert_eq!((applied.over_limit, index.refused(), held(700, 2)), (100, 100, 0));
    // But that was then: what comes now takes the room of what was asked for before.
    assert_eq!(small.apply(&[stored(&conversation(701), 0, Tier::Device)]).stored, 100);
    // What was let go can be stored again where there is room, and what the engine removes of it changes nothing.
    assert_eq!(large.apply(&removed(&conversation(1), 0, Tier::Device)).unknown, 100);
    small.apply(&removed(&conversation(500), 0, Tier::Device));
    large.apply(&[stored(&conversation(2), 0, Tier::Device)]);
    assert_eq!((held(1, 1), held(2, 1)), (0, 100));
}

/// What nobody asks for goes, whoever has it, before what everybody asks for.
#[test]
fn where_the_largest_has_nothing_to_let_go_the_next_one_does() {
    let index = Arc::new(ConcurrentIndex::new(10_000));
    let [large, small, third] = [1, 2, 3].map(|slot| index.writer(Slot(slot), &settings()));
    let conversation = |number: u64| -> Vec<u64> { (0..100).map(|block| number * 1000 + block).collect() };
    let held = |number, slot| matched(&*index, &conversation(number)).of(Slot(slot)).total().0;
    let store = |writer: &Writer<_>, numbers: std::ops::Range<u64>| {
        for number in numbers {
            writer.apply(&[stored(&conversation(number), 0, Tier::Device)]);
        }
    };
    store(&small, 500..539);
    store(&large, 0..60);
    for number in 700..710 {
        assert!((0..60).all(|number| held(number, 1) == 100), "all of the largest is asked for again and again");
        store(&third, number..number + 1);
    }
    assert_eq!((large.entries(), third.entries(), index.refused()), (6_000, 1_000, 0));
    assert!(small.entries() < 3_900, "{} are left", small.entries());
}

/// However much is asked for at once, an index that is full goes on taking in what is new.
#[test]
fn a_full_index_does_not_freeze() {
    let index = Arc::new(ConcurrentIndex::new(10_000));
    let [large, small, third] = [1, 2, 3].map(|slot| index.writer(Slot(slot), &settings()));
    let path = |number: u64, len: u64| -> Vec<u64> { (0..len).map(|block| number << 32 | block).collect() };
    large.apply(&[stored(&path(1, 6_000), 0, Tier::Device)]);
    small.apply(&[stored(&path(2, 3_990), 0, Tier::Device)]);
    assert_eq!(matched(&*index, &path(1, 6_000)).of(Slot(1)).total().0, 6_000);
    assert_eq!(matched(&*index, &path(2, 3_990)).of(Slot(2)).total().0, 3_990);
    for number in 0..600 {
        third.apply(&[stored(&path(1000 + number, 20), 0, Tier::Device)]);
    }
    assert_eq!(matched(&*index, &path(1599, 20)).of(Slot(3)).total().0, 20);
    assert!(index.refused() < 1_000 && index.len() <= 10_000, "{} were refused", index.refused());
}

/// Whatever is said of an engine's size.
#[test]
fn a_view_sets_no_more_memory_aside_than_for_its_share() {
    let index = Arc::new(ConcurrentIndex::new(10_000));
    let bytes = |blocks| {
        drop(index.writer(Slot(0), &ViewSettings { blocks, ..settings() }));
        index.bytes_of(Slot(0))
    };
    let share = bytes(index.capacity());
    assert!(share > bytes(0));
    assert_eq!(bytes(1 << 24), share);
}

macro_rules! contract {
    ($name:ident, $index:ident) => {
        mod $name {
            use super::*;

            #[test]
            fn a_long_run_equals_the_naive_map() {
                long_run($index::new(1 << 20));
            }

            #[test]
            fn without_room_nobody_is_credited_with_too_much() {
                long_run_without_room($index::new(300));
            }

            #[test]
            fn holders_are_compared_by_who_they_are() {
                super::holders_are_compared_by_who_they_are($index::new(1000));
            }

            #[test]
            fn a_block_counts_under_its_fastest_tier() {
                super::a_block_counts_under_its_fastest_tier($index::new(1000));
            }

            #[test]
            fn a_forgotten_slot_begins_empty() {
                super::a_forgotten_slot_begins_empty($index::new(10_000));
            }

            #[test]
            fn external_storage_extends_every_members_run() {
                super::external_storage_extends_every_members_run($index::new(1000));
            }

            #[test]
            fn reconnection_and_restart() {
                super::reconnection_and_restart($index::new(1000));
            }

            #[test]
            fn a_full_index_refuses_and_counts() {
                super::a_full_index_refuses_and_counts($index::new(1500));
            }

            #[test]
            fn readers_see_a_steady_worker_exactly() {
                super::readers_see_a_steady_worker_exactly($index::new(10_000));
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn short_runs_equal_the_naive_map(steps in prop::collection::vec(model::any_step(), 0..60)) {
                    short_run($index::new(1 << 20), &steps)?;
                }
            }
        }
    };
}

contract!(plain_index, PlainIndex);
contract!(concurrent_index, ConcurrentIndex);
