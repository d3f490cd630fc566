//! The memories for engines without events, against naive ones: the radix tree of `approx_tree` against a map of every node
//! by its whole prefix with the time of its last use, the caches of `approx_lru` against lists.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test may panic, and needs some origin of time")]

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Instant;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root};
use warmpath_core::history::{Asked, History, Known};
use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::shape::Prompt;
use warmpath_core::units::BlockSize;
use warmpath_indexer::approx::radix::RadixTree;
use warmpath_indexer::approx::{ApproxLru, LruLimits};

/// A namespace and the units from there to a node.
type Prefix = (u64, Vec<u32>);

/// Ends of sequences and places where sequences part, each with its last use.
#[derive(Default)]
struct Naive {
    nodes: BTreeMap<Prefix, u64>,
    time: u64,
}

impl Naive {
    fn insert(&mut self, root: u64, sequence: &[u32]) {
        if sequence.is_empty() {
            return;
        }
        self.time += 1;
        let parting = self.nodes.keys().filter(|(other, _)| *other == root).map(|(_, node)| common(node, sequence));
        let mut ends: Vec<usize> = parting.filter(|&len| len > 0).collect();
        ends.push(sequence.len());
        for end in ends {
            self.nodes.insert((root, sequence[..end].to_vec()), 0);
        }
        for ((other, node), used) in &mut self.nodes {
            if *other == root && sequence.starts_with(node) {
                *used = self.time;
            }
        }
    }

    fn matched(&self, root: u64, sequence: &[u32]) -> usize {
        let nodes = self.nodes.keys().filter(|(other, _)| *other == root);
        nodes.map(|(_, node)| common(node, sequence)).max().unwrap_or(0)
    }

    /// Units of all nodes: each has those that no node above it has.
    fn units(&self) -> usize {
        let above = |(root, node): &Prefix| {
            let upper = |(other, upper): &Prefix| {
                (root == other && upper.len() < node.len() && node.starts_with(upper)).then_some(upper.len())
            };
            self.nodes.keys().filter_map(upper).max().unwrap_or(0)
        };
        self.nodes.keys().map(|prefix| prefix.1.len() - above(prefix)).sum()
    }

    fn evict(&mut self, units_max: usize) {
        while self.units() > units_max {
            let is_leaf = |(root, node): &Prefix| {
                !self
                    .nodes
                    .keys()
                    .any(|(other, lower)| root == other && lower.len() > node.len() && lower.starts_with(node))
            };
            let leaves = self.nodes.iter().filter(|(prefix, _)| is_leaf(prefix));
            let oldest = leaves.min_by_key(|(_, used)| **used).map(|(prefix, _)| prefix.clone()).unwrap();
            self.nodes.remove(&oldest);
        }
    }
}

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Vec<u32>),
    Evict(usize),
    Forget,
}

/// Few units and few namespaces, so that sequences share prefixes and part in many ways.
fn step() -> impl Strategy<Value = Step> {
    let sequence = prop_oneof![vec(0..3_u32, 0..10), vec(0..2_u32, 60..140)];
    prop_oneof![
        20 => (0..3_u64, sequence).prop_map(|(root, sequence)| Step::Insert(root, sequence)),
        4 => (0..60_usize).prop_map(Step::Evict),
        1 => Just(Step::Forget),
    ]
}

/// Takes the steps with both, and compares all that can be seen after each.
fn agree(steps: &[Step]) -> Result<(), TestCaseError> {
    let (mut tree, mut naive) = (RadixTree::new(), Naive::default());
    let mut asked: Vec<(u64, Vec<u32>)> = vec![(0, vec![0, 1, 2])];
    for step in steps {
        match step {
            Step::Insert(root, sequence) => {
                tree.insert(SequenceHash(*root), sequence);
                naive.insert(*root, sequence);
                let mut changed = sequence.clone();
                if let Some(unit) = changed.last_mut() {
                    *unit += 1;
                }
                asked.extend([(*root, sequence.clone()), (*root, changed)]);
                asked.drain(..asked.len().saturating_sub(12));
            }
            Step::Evict(units_max) => {
                tree.evict(*units_max);
                naive.evict(*units_max);
            }
            Step::Forget => (tree, naive) = (RadixTree::new(), Naive::default()),
        }
        prop_assert_eq!(tree.units(), naive.units());
        for (root, sequence) in &asked {
            prop_assert_eq!(
                tree.matched(SequenceHash(*root), sequence),
                naive.matched(*root, sequence),
                "{:?}",
                sequence
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_tree_agrees_with_a_naive_map(steps in vec(step(), 0..60)) {
        agree(&steps)?;
    }
}

#[test]
fn the_tree_agrees_with_a_naive_map_over_a_long_run() {
    let mut runner = TestRunner::deterministic();
    let steps = vec(step(), 3_000).new_tree(&mut runner).unwrap().current();
    agree(&steps).unwrap();
}

const MATCH_MAX: u32 = 5;
const CAPACITY: usize = 8;

/// A request to one of three workers with up to two prompts, or that worker's end. Blocks are named by the way to them.
#[derive(Clone, Debug)]
enum Told {
    Request(u16, Vec<Vec<u64>>),
    Forget(u16),
}

fn chain() -> impl Strategy<Value = Vec<u64>> {
    let name = |ways: Vec<u64>| {
        ways.iter()
            .scan(1, |name, way| {
                *name = *name * 2 + way;
                Some(*name)
            })
            .collect()
    };
    vec(0..2_u64, 0..8).prop_map(name)
}

fn told() -> impl Strategy<Value = Told> {
    prop_oneof![
        15 => (0..3_u16, vec(chain(), 1..3)).prop_map(|(slot, prompts)| Told::Request(slot, prompts)),
        1 => (0..3_u16).prop_map(Told::Forget),
    ]
}

/// Runs `ask` with prompts of one token a block.
fn with_asked<T>(prompts: &[Vec<u64>], ask: impl FnOnce(Asked<'_>) -> T) -> T {
    let root = Root::new(&Namespace::plain("m", BlockSize::new(1).unwrap()), DEFAULT_ROOT_SEED);
    let hashes: Vec<SequenceHash> = prompts.iter().flatten().copied().map(SequenceHash).collect();
    let tokens = [0; 8];
    let of = |prompt: &Vec<u64>| Prompt::of(root, &tokens[..prompt.len()]);
    ask(Asked::new(&prompts.iter().map(of).collect::<Vec<_>>(), &hashes))
}

fn leading(blocks: &[u64]) -> &[u64] {
    &blocks[..blocks.len().min(usize::try_from(MATCH_MAX).unwrap())]
}

proptest! {
    #[test]
    fn the_caches_agree_with_naive_lists(steps in vec(told(), 0..80), asked in vec(chain(), 8)) {
        let history = ApproxLru::new(LruLimits {
            match_blocks_max: NonZeroU32::new(MATCH_MAX).unwrap(),
            capacity_blocks: NonZeroU32::new(u32::try_from(CAPACITY).unwrap()).unwrap(),
        });
        // The most recently used block comes first.
        let mut lists = [const { Vec::<u64>::new() }; 3];
        for step in &steps {
            match step {
                Told::Request(slot, prompts) => {
                    with_asked(prompts, |asked| history.learn(Instant::now(), Slot(*slot), asked));
                    let list = &mut lists[usize::from(*slot)];
                    for block in prompts.iter().flat_map(|blocks| leading(blocks).iter().rev()) {
                        list.retain(|held| held != block);
                        list.insert(0, *block);
                        list.truncate(CAPACITY);
                    }
                }
                Told::Forget(slot) => {
                    history.forget(Slot(*slot));
                    lists[usize::from(*slot)].clear();
                }
            }
            for prompt in &asked {
                let mut known = [Known::default(); 3];
                with_asked(std::slice::from_ref(prompt), |asked| history.recall(asked, &mut known));
                let held = |list: &Vec<u64>| leading(prompt).iter().take_while(|block| list.contains(block)).count();
                let expected = lists.each_ref().map(|list| u32::try_from(held(list)).unwrap());
                prop_assert_eq!(known.map(|known| known.matched.0), expected, "{:?}", prompt);
            }
        }
        let sizes = [0, 1, 2].map(|slot| usize::try_from(history.measure(Slot(slot)).units).unwrap());
        prop_assert_eq!(sizes, lists.each_ref().map(Vec::len));
    }
}
