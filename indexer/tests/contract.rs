//! What every prefix index must do, against a naive map: worker -> the whole prefixes that it holds, as they are, with
//! copies by tier. An index joins by one line at the foot of this file.

#[path = "contract/model.rs"]
mod model;

use model::{Step, World, draw_step, seeded};
use proptest::prelude::*;
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{Blocks, Tier};
use warmpath_indexer::change::{Change, IndexWriter};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::tree::{PrefixTree, SharedTree};

/// An index under test.
trait Subject {
    fn apply(&mut self, slot: Slot, changes: &[Change]);
    fn forget(&mut self, slot: Slot);
    fn entries(&self, slot: Slot) -> usize;
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps);
}

/// The plain tree, owned.
#[derive(Default)]
struct Owned(PrefixTree);

impl Subject for Owned {
    fn apply(&mut self, slot: Slot, changes: &[Change]) {
        self.0.apply(slot, changes);
    }
    fn forget(&mut self, slot: Slot) {
        self.0.forget(slot);
    }
    fn entries(&self, slot: Slot) -> usize {
        self.0.entries(slot)
    }
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.0.match_prefix(prompt, overlaps);
    }
}

/// An index that many tasks share.
#[derive(Default)]
struct Shared<I>(I);

impl<I: PrefixIndex + IndexWriter> Subject for Shared<I> {
    fn apply(&mut self, slot: Slot, changes: &[Change]) {
        self.0.apply(slot, changes);
    }
    fn forget(&mut self, slot: Slot) {
        self.0.forget(slot);
    }
    fn entries(&self, slot: Slot) -> usize {
        self.0.entries(slot)
    }
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.0.match_prefix(prompt, overlaps);
    }
}

/// 100 000 steps of one seeded run.
fn long_run<S: Subject>(subject: S) {
    let mut random = seeded(20_261_121);
    let mut world = World::new(subject);
    for number in 0..100_000 {
        let step = draw_step(&mut random);
        world.take(&step).unwrap_or_else(|fault| panic!("step {number}, {step:?}: {fault}"));
    }
    assert!(world.queries > 10_000 && world.matched_blocks > 10_000, "the run saw too little to mean anything");
}

/// A short run of steps that proptest can shrink.
fn short_run<S: Subject>(subject: S, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new(subject);
    for step in steps {
        world.take(step).map_err(TestCaseError::fail)?;
    }
    world.check_everything().map_err(TestCaseError::fail)
}

/// Comparing holders by their number instead of who they are credits D with X.
fn holders_are_compared_by_who_they_are<S: Subject>(mut subject: S) {
    let [a, b, c, d] = [0, 1, 2, 3].map(Slot);
    let hashes = |from: u64| -> Vec<SequenceHash> { (from..from + 8).map(SequenceHash).collect() };
    let (p, x, y) = (hashes(100), hashes(200), hashes(300));
    let store = |blocks: &[SequenceHash]| -> Vec<Change> { Change::stores(None, blocks, Tier::Device).collect() };
    let remove = |blocks: &[SequenceHash]| -> Vec<Change> {
        blocks.iter().map(|&hash| Change::Remove { hash, tier: Tier::Device }).collect()
    };
    for worker in [a, b] {
        subject.apply(worker, &store(&[&p[..], &x].concat()));
    }
    subject.apply(c, &store(&[&p[..], &y].concat()));
    subject.apply(d, &store(&p));
    subject.apply(c, &remove(&[&p[..], &y].concat()));
    subject.apply(a, &remove(&p[7..]));
    let mut overlaps = Overlaps::default();
    subject.match_prefix(&[&p[..], &x].concat(), &mut overlaps);
    assert_eq!([a, b, c, d].map(|worker| overlaps.of(worker).total().0), [7, 16, 0, 8]);
    assert_eq!((overlaps.best(), subject.entries(a)), (Some((b, Blocks(16))), 15));
}

/// Tiers D,D,H,D,– give device 3, host 1, total 4; a block in two tiers counts under the faster.
fn a_block_counts_under_its_fastest_tier<S: Subject>(mut subject: S) {
    let blocks: Vec<SequenceHash> = (1..=5).map(SequenceHash).collect();
    for (place, tier) in
        [(0, Tier::Device), (1, Tier::Device), (2, Tier::Host), (3, Tier::Device), (3, Tier::External), (2, Tier::Disk)]
    {
        subject.apply(
            Slot(9),
            &[Change::Store { hash: blocks[place], parent: place.checked_sub(1).map(|above| blocks[above]), tier }],
        );
    }
    subject.apply(Slot(4), &[Change::Store { hash: blocks[0], parent: None, tier: Tier::External }]);
    let mut overlaps = Overlaps::default();
    subject.match_prefix(&blocks, &mut overlaps);
    let held = overlaps.of(Slot(9));
    assert_eq!(Tier::ALL.map(|tier| held.get(tier).0), [3, 1, 0, 0]);
    assert_eq!((held.total(), overlaps.of(Slot(4)).get(Tier::External)), (Blocks(4), Blocks(1)));
    assert_eq!(subject.entries(Slot(9)), 4);
}

/// A slot that is given to another worker shows nothing of the one before.
fn a_forgotten_slot_begins_empty<S: Subject>(mut subject: S) {
    let blocks: Vec<SequenceHash> = (1..=600).map(SequenceHash).collect();
    let store: Vec<Change> = Change::stores(None, &blocks, Tier::Device).collect();
    for slot in [Slot(1), Slot(70)] {
        subject.apply(slot, &store);
    }
    subject.forget(Slot(1));
    let mut overlaps = Overlaps::default();
    subject.match_prefix(&blocks, &mut overlaps);
    assert_eq!((overlaps.of(Slot(1)).total(), overlaps.of(Slot(70)).total()), (Blocks(0), Blocks(600)));
    subject.apply(Slot(1), &store[..2]);
    subject.match_prefix(&blocks, &mut overlaps);
    assert_eq!((overlaps.of(Slot(1)).total(), subject.entries(Slot(1))), (Blocks(2), 2));
}

/// While others come and go, a worker that holds still is answered for exactly.
fn readers_see_a_steady_worker_exactly<I: PrefixIndex + IndexWriter>(index: &I) {
    let blocks: Vec<SequenceHash> = (1..=400).map(SequenceHash).collect();
    let store: Vec<Change> = Change::stores(None, &blocks, Tier::Device).collect();
    index.apply(Slot(5), &store[..300]);
    std::thread::scope(|scope| {
        let writers: Vec<_> = [Slot(2), Slot(90)]
            .map(|slot| {
                let store = &store;
                scope.spawn(move || {
                    for _ in 0..200 {
                        index.apply(slot, store);
                        index.forget(slot);
                    }
                })
            })
            .into();
        let mut overlaps = Overlaps::default();
        let mut reads = 0_u32;
        while reads == 0 || writers.iter().any(|writer| !writer.is_finished()) {
            index.match_prefix(&blocks, &mut overlaps);
            assert_eq!(overlaps.of(Slot(5)).total(), Blocks(300));
            reads += 1;
        }
    });
    let mut overlaps = Overlaps::default();
    index.match_prefix(&blocks, &mut overlaps);
    assert_eq!(overlaps.best(), Some((Slot(5), Blocks(300))));
    assert_eq!((overlaps.of(Slot(2)).total(), overlaps.of(Slot(90)).total()), (Blocks(0), Blocks(0)));
}

macro_rules! contract {
    ($name:ident, $subject:expr) => {
        mod $name {
            use super::*;

            #[test]
            fn a_long_run_equals_the_naive_map() {
                long_run($subject);
            }

            #[test]
            fn holders_are_compared_by_who_they_are() {
                super::holders_are_compared_by_who_they_are($subject);
            }

            #[test]
            fn a_block_counts_under_its_fastest_tier() {
                super::a_block_counts_under_its_fastest_tier($subject);
            }

            #[test]
            fn a_forgotten_slot_begins_empty() {
                super::a_forgotten_slot_begins_empty($subject);
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn short_runs_equal_the_naive_map(steps in prop::collection::vec(model::any_step(), 0..60)) {
                    short_run($subject, &steps)?;
                }
            }
        }
    };
}

macro_rules! concurrent_contract {
    ($name:ident, $index:expr) => {
        contract!($name, Shared($index));

        #[test]
        fn $name() {
            readers_see_a_steady_worker_exactly(&$index);
        }
    };
}

contract!(prefix_tree, Owned::default());
concurrent_contract!(shared_tree, SharedTree::default());
concurrent_contract!(concurrent_index, ConcurrentIndex::new(1 << 20));
