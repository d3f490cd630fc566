//! The prompts in flight as a tree: what they share is kept once.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::ids::{SequenceHash, Slot};
use crate::slot_set::SlotSet;

/// Stands for the parent of what follows a namespace's root.
const ROOT: usize = usize::MAX;

/// How many blocks emptied lists may have room for that are kept for the next prompts: 8 MiB.
const SPARE_BLOCKS: usize = 1 << 20;

/// A radix tree of prompts. Every prompt ends at the end of a node, and a node without a fork below it has a prompt that
/// ends there: so there are fewer than twice as many nodes as prompts. The number of a prompt's last node never changes
/// while the prompt is in the tree.
#[derive(Default)]
pub(super) struct Tree {
    nodes: Vec<Node>,
    free: Vec<usize>,
    /// By parent and first block.
    children: HashMap<(usize, SequenceHash), usize, foldhash::fast::RandomState>,
    /// By slot: blocks, each once, that are credited to the worker.
    credited: Vec<u32>,
    /// Emptied lists with room for 1, 2, 4, … blocks.
    spare: Vec<Vec<Vec<SequenceHash>>>,
    spare_blocks: usize,
    alive: SlotSet,
    dropped: SlotSet,
}

/// Blocks that follow each other, and who holds all of them.
#[derive(Default)]
struct Node {
    blocks: Vec<SequenceHash>,
    parent: usize,
    children: usize,
    /// The children's numbers, all xored: where there is only one, its number.
    children_xor: usize,
    /// Prompts that reach this node, over all workers.
    prompts: u32,
    /// By slot, ascending.
    holders: SmallVec<[Holder; 2]>,
    /// Holders with a credit. Those of a child are among them.
    credited: SlotSet,
}

/// One worker's prompts through a node.
#[derive(Clone, Copy)]
struct Holder {
    slot: Slot,
    prompts: u32,
    /// Of these, prompts that count as cached.
    credited: u32,
}

impl Node {
    fn len(&self) -> u32 {
        count(self.blocks.len())
    }

    fn holder(&mut self, slot: Slot) -> Option<(usize, &mut Holder)> {
        let place = self.holders.binary_search_by_key(&slot, |holder| holder.slot).ok()?;
        Some((place, &mut self.holders[place]))
    }
}

impl Tree {
    /// Adds a prompt of `slot`. Returns its last node, and how many of its blocks the worker had none of. `prompt` is
    /// not empty. O(blocks) to copy what is new, else O(nodes on its way).
    pub(super) fn enter(&mut self, prompt: &[SequenceHash], slot: Slot, credited: bool) -> (usize, u32) {
        let last = self.last_node(prompt);
        let mut new = 0;
        let mut at = last;
        while at != ROOT {
            let node = &mut self.nodes[at];
            node.prompts += 1;
            let place = match node.holders.binary_search_by_key(&slot, |holder| holder.slot) {
                Ok(place) => place,
                Err(place) => {
                    node.holders.insert(place, Holder { slot, prompts: 0, credited: 0 });
                    new += node.len();
                    place
                }
            };
            let holder = &mut node.holders[place];
            holder.prompts += 1;
            if credited {
                holder.credited += 1;
                if holder.credited == 1 {
                    node.credited.insert(slot);
                    let blocks = node.len();
                    *self.credited_mut(slot) += blocks;
                }
            }
            at = self.nodes[at].parent;
        }
        (last, new)
    }

    /// Takes a prompt of `slot` out, whose last node is `last`. Returns of how many blocks the worker has none any more.
    pub(super) fn leave(&mut self, last: usize, slot: Slot, credited: bool) -> u32 {
        if credited {
            self.uncredit(last, slot);
        }
        let mut freed = 0;
        let mut deepest = ROOT;
        let mut at = last;
        while at != ROOT {
            let node = &mut self.nodes[at];
            let parent = node.parent;
            node.prompts -= 1;
            if let Some((place, holder)) = node.holder(slot) {
                holder.prompts -= 1;
                if holder.prompts == 0 {
                    node.holders.remove(place);
                    freed += node.len();
                }
            }
            if node.prompts == 0 {
                self.remove(at);
            } else if deepest == ROOT {
                deepest = at;
            }
            at = parent;
        }
        if deepest != ROOT {
            self.merge(deepest);
        }
        freed
    }

    /// The prompt of `slot` whose last node is `last` counts as cached no more.
    pub(super) fn uncredit(&mut self, last: usize, slot: Slot) {
        let mut at = last;
        while at != ROOT {
            let node = &mut self.nodes[at];
            let (parent, blocks) = (node.parent, node.len());
            if let Some((_, holder)) = node.holder(slot) {
                holder.credited -= 1;
                if holder.credited == 0 {
                    node.credited.remove(slot);
                    *self.credited_mut(slot) -= blocks;
                }
            }
            at = parent;
        }
    }

    /// Tells for every worker with a credit how many leading blocks of `prompt` are credited to it, each worker once.
    /// O(nodes on the way × (log blocks + slots / 64) + workers).
    pub(super) fn credits(&mut self, prompt: &[SequenceHash], mut each: impl FnMut(Slot, u32)) {
        let (mut depth, mut parent) = (0, ROOT);
        self.alive.clear();
        while let Some(first) = prompt.get(depth)
            && let Some(&at) = self.children.get(&(parent, *first))
        {
            let node = &self.nodes[at];
            if depth == 0 {
                self.alive.copy_from(&node.credited);
            } else if self.alive != node.credited {
                self.dropped.copy_from(&self.alive);
                self.dropped.subtract(&node.credited);
                self.dropped.iter().for_each(|slot| each(slot, count(depth)));
                self.alive.copy_from(&node.credited);
            }
            if self.alive.is_empty() {
                return;
            }
            let common = common(&node.blocks, &prompt[depth..]);
            depth += common;
            if common < node.blocks.len() {
                break;
            }
            parent = at;
        }
        self.alive.iter().for_each(|slot| each(slot, count(depth)));
    }

    /// Tells for every worker how many leading blocks of `prompt` are in flight there, the most last. O(holders on the way).
    pub(super) fn shared(&self, prompt: &[SequenceHash], mut each: impl FnMut(Slot, u32)) {
        let (mut depth, mut parent) = (0, ROOT);
        while let Some(first) = prompt.get(depth)
            && let Some(&at) = self.children.get(&(parent, *first))
        {
            let node = &self.nodes[at];
            let common = common(&node.blocks, &prompt[depth..]);
            node.holders.iter().for_each(|holder| each(holder.slot, count(depth + common)));
            if common < node.blocks.len() {
                return;
            }
            (depth, parent) = (depth + common, at);
        }
    }

    /// Blocks, each once, that are credited to `slot`.
    pub(super) fn credited(&self, slot: Slot) -> u32 {
        self.credited.get(slot.index()).copied().unwrap_or(0)
    }

    fn credited_mut(&mut self, slot: Slot) -> &mut u32 {
        if self.credited.len() <= slot.index() {
            self.credited.resize(slot.index() + 1, 0);
        }
        &mut self.credited[slot.index()]
    }

    /// The node at whose end `prompt` ends; made where there is none.
    fn last_node(&mut self, prompt: &[SequenceHash]) -> usize {
        let (mut depth, mut parent) = (0, ROOT);
        while depth < prompt.len() {
            let Some(&at) = self.children.get(&(parent, prompt[depth])) else {
                return self.add(&prompt[depth..], parent);
            };
            let common = common(&self.nodes[at].blocks, &prompt[depth..]);
            parent = if common < self.nodes[at].blocks.len() { self.split(at, common) } else { at };
            depth += common;
        }
        parent
    }

    fn add(&mut self, blocks: &[SequenceHash], parent: usize) -> usize {
        let at = self.allot();
        let list = self.list(&[blocks]);
        self.nodes[at].blocks = list;
        self.nodes[at].parent = parent;
        self.children.insert((parent, blocks[0]), at);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children += 1;
            parent.children_xor ^= at;
        }
        at
    }

    /// Cuts a node after its first `len` blocks, and returns the new one that has these.
    fn split(&mut self, lower: usize, len: usize) -> usize {
        let upper = self.allot();
        let mut node = std::mem::take(&mut self.nodes[upper]);
        let blocks = std::mem::take(&mut self.nodes[lower].blocks);
        node.blocks = self.list(&[&blocks[..len]]);
        self.nodes[lower].blocks = self.list(&[&blocks[len..]]);
        self.keep(blocks);
        let below = &mut self.nodes[lower];
        node.parent = std::mem::replace(&mut below.parent, upper);
        (node.children, node.children_xor, node.prompts) = (1, lower, below.prompts);
        node.holders.extend_from_slice(&below.holders);
        node.credited.copy_from(&below.credited);
        self.children.insert((upper, below.blocks[0]), lower);
        self.children.insert((node.parent, node.blocks[0]), upper);
        if let Some(parent) = self.nodes.get_mut(node.parent) {
            parent.children_xor ^= lower ^ upper;
        }
        self.nodes[upper] = node;
        upper
    }

    /// Joins a node with its only child where no prompt ends between them.
    fn merge(&mut self, upper: usize) {
        let node = &self.nodes[upper];
        let lower = node.children_xor;
        if node.children != 1 || node.prompts != self.nodes[lower].prompts {
            return;
        }
        let parent = node.parent;
        let front = std::mem::take(&mut self.nodes[upper].blocks);
        let back = std::mem::take(&mut self.nodes[lower].blocks);
        self.children.remove(&(upper, back[0]));
        self.children.insert((parent, front[0]), lower);
        self.nodes[lower].blocks = self.list(&[&front, &back]);
        self.nodes[lower].parent = parent;
        self.keep(front);
        self.keep(back);
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children_xor ^= upper ^ lower;
        }
        self.release(upper);
    }

    /// Takes out a node that no prompt reaches.
    fn remove(&mut self, at: usize) {
        let parent = self.nodes[at].parent;
        self.children.remove(&(parent, self.nodes[at].blocks[0]));
        if let Some(parent) = self.nodes.get_mut(parent) {
            parent.children -= 1;
            parent.children_xor ^= at;
        }
        self.release(at);
    }

    /// An empty node, with the memory that a former one has left.
    fn allot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.nodes.push(Node::default());
            self.nodes.len() - 1
        })
    }

    fn release(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.holders.clear();
        node.credited.clear();
        (node.children, node.children_xor, node.prompts) = (0, 0, 0);
        let blocks = std::mem::take(&mut node.blocks);
        self.keep(blocks);
        self.free.push(at);
    }

    /// A list of these blocks, in memory that was kept where there is some. Lists never grow.
    fn list(&mut self, parts: &[&[SequenceHash]]) -> Vec<SequenceHash> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let room = len.next_power_of_two();
        let mut list = match self.spare.get_mut(class(room)).and_then(Vec::pop) {
            Some(spare) => {
                self.spare_blocks -= spare.capacity();
                spare
            }
            None => Vec::with_capacity(room),
        };
        parts.iter().for_each(|part| list.extend_from_slice(part));
        list
    }

    /// Keeps a list's memory for others.
    fn keep(&mut self, mut list: Vec<SequenceHash>) {
        let room = list.capacity();
        if room == 0 || self.spare_blocks + room > SPARE_BLOCKS {
            return;
        }
        list.clear();
        if self.spare.len() <= class(room) {
            self.spare.resize_with(class(room) + 1, Vec::new);
        }
        self.spare_blocks += room;
        self.spare[class(room)].push(list);
    }
}

/// The place among spare lists of one with room for so many blocks, at least one.
fn class(room: usize) -> usize {
    usize::try_from(room.ilog2()).unwrap_or(0)
}

/// How many leading blocks are equal. The first ones are; and since a sequence hash names all before it, a block that is
/// equal says the same of those before it.
fn common(held: &[SequenceHash], prompt: &[SequenceHash]) -> usize {
    let len = held.len().min(prompt.len());
    if held[len - 1] == prompt[len - 1] {
        return len;
    }
    let (mut equal, mut different) = (0, len - 1);
    while different - equal > 1 {
        let middle = equal.midpoint(different);
        if held[middle] == prompt[middle] {
            equal = middle;
        } else {
            different = middle;
        }
    }
    different
}

/// A number of blocks of one prompt.
fn count(blocks: usize) -> u32 {
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

#[cfg(test)]
impl Tree {
    /// That the tree is whole, and no larger than so many prompts allow.
    pub(super) fn check(&self, prompts: usize) {
        let free: std::collections::HashSet<_> = self.free.iter().copied().collect();
        let used: Vec<usize> = (0..self.nodes.len()).filter(|at| !free.contains(at)).collect();
        assert!(used.len() <= (2 * prompts).saturating_sub(1), "{} nodes for {prompts} prompts", used.len());
        assert_eq!((self.children.len(), free.len()), (used.len(), self.free.len()));
        for &at in &used {
            let node = &self.nodes[at];
            let below: Vec<usize> = used.iter().copied().filter(|&below| self.nodes[below].parent == at).collect();
            assert_eq!(self.children.get(&(node.parent, node.blocks[0])), Some(&at));
            assert_eq!(
                (below.len(), below.iter().fold(0, |xor, below| xor ^ below)),
                (node.children, node.children_xor)
            );
            let further: u32 = below.iter().map(|&below| self.nodes[below].prompts).sum();
            assert!(further < node.prompts || node.children > 1, "a prompt ends here, or there is a fork");
            assert_eq!(node.prompts, node.holders.iter().map(|holder| holder.prompts).sum::<u32>());
            assert!(node.holders.is_sorted_by(|a, b| a.slot < b.slot) && node.holders.iter().all(|at| at.prompts > 0));
            let credited: SlotSet = node.holders.iter().filter(|at| at.credited > 0).map(|at| at.slot).collect();
            assert_eq!(node.credited, credited);
            assert!(node.blocks.capacity() < 2 * node.blocks.len().max(1) + 4);
        }
        let spare: usize = self.spare.iter().flatten().map(Vec::capacity).sum();
        assert!(spare == self.spare_blocks && spare <= SPARE_BLOCKS);
        if prompts == 0 {
            assert!(self.credited.iter().all(|blocks| *blocks == 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<SequenceHash> {
        range.map(SequenceHash).collect()
    }

    #[test]
    fn a_fork_is_found_wherever_it_is() {
        let held = hashes(0..700);
        for fork in 1..700 {
            let mut prompt = held.clone();
            prompt[fork..].iter_mut().for_each(|hash| hash.0 += 10_000);
            assert_eq!((common(&held, &prompt), common(&held[..fork], &prompt)), (fork, fork));
        }
    }

    #[test]
    fn forks_are_kept_only_as_long_as_somebody_needs_them() {
        let mut tree = Tree::default();
        let long = hashes(0..6_000);
        let (last, new) = tree.enter(&long, Slot(3), true);
        assert_eq!(new, 6_000);
        for fork in (1..6_000).rev() {
            let (end, new) = tree.enter(&long[..fork], Slot(4), true);
            assert_eq!((new, tree.credited(Slot(4))), (u32::try_from(fork).unwrap(), u32::try_from(fork).unwrap()));
            tree.check(2);
            assert_eq!(tree.leave(end, Slot(4), true), u32::try_from(fork).unwrap());
            tree.check(1);
        }
        assert_eq!(tree.leave(last, Slot(3), true), 6_000);
        tree.check(0);
        assert!(tree.nodes.len() <= 2);
    }

    /// Hashes of clients may collide on purpose: that may cost accuracy, nothing else.
    #[test]
    fn sequences_that_no_hash_function_makes_do_no_harm() {
        let mut tree = Tree::default();
        let prompts =
            [&[7, 7, 7][..], &[7, 7], &[7, 8, 7], &[8, 7, 7, 7], &[1, 2, 3, 4, 5], &[1, 9, 3, 9, 5, 6], &[1, 2]];
        let prompts = prompts.map(|names| names.iter().copied().map(SequenceHash).collect::<Vec<_>>());
        let lasts: Vec<usize> = prompts.iter().map(|prompt| tree.enter(prompt, Slot(0), true).0).collect();
        for last in lasts {
            tree.leave(last, Slot(0), true);
        }
        tree.check(0);
    }
}
