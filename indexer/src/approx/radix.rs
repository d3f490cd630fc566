//! A compressed radix tree over units (token ids or characters), with its nodes in the order of their last use.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use warmpath_core::ids::SequenceHash;

use super::recency::{Recency, place};

/// All prefixes of the sequences that one worker was sent. An edge carries as many units as follow each other without a
/// branch, so a sequence costs one node and at most one split. Iterative throughout: chains may be as deep as they like.
///
/// The order of use is kept so that a node is always newer than everything below it: a use touches a whole path from its
/// end to its root. So the oldest node is a leaf, and evicting the least recently used leaf is O(1).
#[derive(Default)]
pub struct RadixTree {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// By a node and the first unit of the edge below it. One map, so that a node without children costs nothing in it.
    edges: HashMap<(u32, u32), u32, RandomState>,
    roots: HashMap<SequenceHash, u32, RandomState>,
    recency: Recency,
    units: usize,
    path: Vec<u32>,
}

struct Node {
    /// The units between the node above and this one; none for a root, at least one for all others.
    label: Box<[u32]>,
    above: Above,
    children: u32,
}

/// What a node hangs from.
#[derive(Clone, Copy)]
enum Above {
    Root(SequenceHash),
    Node(u32),
}

impl RadixTree {
    /// An empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// Units that it holds.
    pub fn units(&self) -> usize {
        self.units
    }

    /// How many leading units of `sequence`, below `root`, it holds. Changes nothing. O(units matched).
    pub fn matched(&self, root: SequenceHash, sequence: &[u32]) -> usize {
        let Some(&root) = self.roots.get(&root) else { return 0 };
        let (mut node, mut matched) = (root, 0);
        while let Some(child) = self.below(node, &sequence[matched..]) {
            let label = &self.nodes[place(child)].label;
            let common = common_prefix(label, &sequence[matched..]);
            matched += common;
            if common < label.len() {
                break;
            }
            node = child;
        }
        matched
    }

    /// Adds `sequence` below `root`, and makes it the most recently used. O(units).
    pub fn insert(&mut self, root: SequenceHash, sequence: &[u32]) {
        if sequence.is_empty() {
            return;
        }
        let mut path = std::mem::take(&mut self.path);
        let mut node = self.root(root);
        path.push(node);
        let mut rest = sequence;
        while !rest.is_empty() {
            node = match self.below(node, rest) {
                None => {
                    let leaf = self.hang(rest.into(), node);
                    rest = &[];
                    leaf
                }
                Some(child) => {
                    let len = self.nodes[place(child)].label.len();
                    let common = common_prefix(&self.nodes[place(child)].label, rest);
                    rest = &rest[common..];
                    if common < len { self.split(child, common) } else { child }
                }
            };
            path.push(node);
        }
        for node in path.drain(..).rev() {
            self.recency.touch(node);
        }
        self.path = path;
    }

    /// Removes the least recently used leaves until at most `units_max` units are left. Returns how many units went.
    pub fn evict(&mut self, units_max: usize) -> usize {
        let before = self.units;
        while self.units > units_max
            && let Some(leaf) = self.recency.oldest()
        {
            self.remove(leaf);
        }
        before - self.units
    }

    fn below(&self, node: u32, rest: &[u32]) -> Option<u32> {
        self.edges.get(&(node, *rest.first()?)).copied()
    }

    fn root(&mut self, name: SequenceHash) -> u32 {
        if let Some(&root) = self.roots.get(&name) {
            return root;
        }
        let root = self.add(Node { label: Box::default(), above: Above::Root(name), children: 0 });
        self.roots.insert(name, root);
        root
    }

    /// A new leaf below `above`.
    fn hang(&mut self, label: Box<[u32]>, above: u32) -> u32 {
        let first = label[0];
        self.units += label.len();
        let leaf = self.add(Node { label, above: Above::Node(above), children: 0 });
        self.nodes[place(above)].children += 1;
        self.edges.insert((above, first), leaf);
        leaf
    }

    /// Cuts the edge above `lower` after `at` units; returns the node at the cut.
    fn split(&mut self, lower: u32, at: usize) -> u32 {
        let node = &mut self.nodes[place(lower)];
        let (head, tail) = node.label.split_at(at);
        let (head, tail): (Box<[u32]>, Box<[u32]>) = (head.into(), tail.into());
        let (first, next, above) = (head[0], tail[0], node.above);
        node.label = tail;
        let upper = self.add(Node { label: head, above, children: 1 });
        self.nodes[place(lower)].above = Above::Node(upper);
        if let Above::Node(above) = above {
            self.edges.insert((above, first), upper);
        }
        self.edges.insert((upper, next), lower);
        upper
    }

    fn add(&mut self, node: Node) -> u32 {
        match self.free.pop() {
            Some(id) => {
                self.nodes[place(id)] = node;
                id
            }
            None => {
                let id = u32::try_from(self.nodes.len())
                    .expect("a node but a root has a unit, and fewer than 2^31 are kept");
                self.nodes.push(node);
                id
            }
        }
    }

    /// Removes a leaf, and a root that has nothing left below it.
    fn remove(&mut self, leaf: u32) {
        let node = &mut self.nodes[place(leaf)];
        // Never so: a root goes with the last node below it, and until then is newer.
        let Above::Node(above) = node.above else { return self.remove_root(leaf) };
        let label = std::mem::take(&mut node.label);
        self.units -= label.len();
        self.edges.remove(&(above, label[0]));
        self.recency.remove(leaf);
        self.free.push(leaf);
        let parent = &mut self.nodes[place(above)];
        parent.children -= 1;
        if parent.children == 0 && matches!(parent.above, Above::Root(_)) {
            self.remove_root(above);
        }
    }

    fn remove_root(&mut self, root: u32) {
        if let Above::Root(name) = self.nodes[place(root)].above {
            self.roots.remove(&name);
            self.recency.remove(root);
            self.free.push(root);
        }
    }
}

/// Units that are compared at once.
const STRIDE: usize = 64;

/// The length of the longest common prefix. Whole strides are compared as memory.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    let strides = a.chunks_exact(STRIDE).zip(b.chunks_exact(STRIDE));
    let start = strides.take_while(|(a, b)| a == b).count() * STRIDE;
    start + a[start..].iter().zip(&b[start..]).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: SequenceHash = SequenceHash(1);

    fn tree(sequences: &[&[u32]]) -> RadixTree {
        let mut tree = RadixTree::new();
        sequences.iter().for_each(|sequence| tree.insert(ROOT, sequence));
        tree
    }

    #[test]
    fn shared_units_are_held_once() {
        let tree = tree(&[&[1, 2, 3, 4], &[1, 2, 5], &[1, 2], &[1, 2, 3, 4, 6]]);
        assert_eq!(tree.units(), 6);
        let matched = |sequence: &[u32]| tree.matched(ROOT, sequence);
        assert_eq!(matched(&[1, 2, 3, 4, 6, 7]), 5);
        assert_eq!(
            [matched(&[1, 2, 5]), matched(&[1, 2, 9]), matched(&[1]), matched(&[2]), matched(&[])],
            [3, 2, 1, 0, 0]
        );
        assert_eq!(tree.matched(SequenceHash(2), &[1]), 0);
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first_and_its_branch_stays() {
        let mut tree = tree(&[&[1, 2, 3], &[1, 2, 4], &[1, 2, 3]]);
        assert_eq!(tree.evict(3), 1);
        assert_eq!((tree.matched(ROOT, &[1, 2, 4]), tree.matched(ROOT, &[1, 2, 3])), (2, 3));
        assert_eq!(tree.evict(2), 1);
        assert_eq!(tree.matched(ROOT, &[1, 2, 3]), 2);
        assert_eq!(tree.evict(1), 2);
        assert_eq!((tree.units(), tree.roots.len(), tree.edges.len()), (0, 0, 0));
    }

    #[test]
    fn looking_is_not_using() {
        let mut tree = tree(&[&[1], &[2]]);
        assert_eq!(tree.matched(ROOT, &[1]), 1);
        tree.evict(1);
        assert_eq!((tree.matched(ROOT, &[1]), tree.matched(ROOT, &[2])), (0, 1));
    }

    #[test]
    fn namespaces_are_apart_and_leave_nothing_behind() {
        let mut tree = tree(&[&[1, 2]]);
        for name in 2..100 {
            tree.insert(SequenceHash(name), &[1, 2]);
            assert_eq!((tree.evict(2), tree.units(), tree.roots.len()), (2, 2, 1));
        }
        assert_eq!(tree.nodes.len(), 4);
        tree.insert(SequenceHash(200), &[]);
        assert_eq!(tree.roots.len(), 1);
    }

    /// Twenty thousand calls do not fit on the stack.
    #[test]
    fn a_chain_of_twenty_thousand_nodes_is_made_walked_evicted_and_dropped_on_a_small_stack() {
        let deep = || {
            let sequence: Vec<u32> = (0..20_000).collect();
            let mut tree = RadixTree::new();
            // The longest first, so that each further one cuts the first edge.
            (1..=20_000).rev().for_each(|len| tree.insert(ROOT, &sequence[..len]));
            assert_eq!((tree.nodes.len(), tree.units()), (20_001, 20_000));
            tree.insert(ROOT, &sequence);
            assert_eq!(tree.evict(10_000), 10_000);
            assert_eq!(tree.matched(ROOT, &sequence), 10_000);
        };
        std::thread::Builder::new().stack_size(128 << 10).spawn(deep).unwrap().join().unwrap();
    }

    #[test]
    fn common_prefixes_are_exact_around_the_stride() {
        let a: Vec<u32> = (0..200).collect();
        for at in [0, 1, 63, 64, 65, 127, 128, 199] {
            let mut b = a.clone();
            b[at] = 999;
            assert_eq!(common_prefix(&a, &b), at);
            assert_eq!(common_prefix(&a, &a[..at]), at);
        }
        assert_eq!(common_prefix(&a, &a), 200);
    }
}
