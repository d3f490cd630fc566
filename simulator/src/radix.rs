//! SGLang's radix cache: what is cached as a tree, of which requests keep the paths that they use, and whose least
//! recently used leaves make room.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use foldhash::fast::FixedState;
use warmpath_core::count::real_len;
use warmpath_core::ids::EngineHash;
use warmpath_core::units::{BlockSize, Tier};

use super::blocks::{BlockEvent, CacheInUse, OutOfBlocks};
use super::naming::{Naming, Scheme};
use super::sequence::{PromptText, Sequence};

/// A node's place in the tree's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeId(usize);

/// An edge and the node at its end: pages that all who reach it share.
#[derive(Clone, Debug)]
struct Node {
    /// Names of the pages, each of which stands for all that comes before it as well.
    pages: Vec<EngineHash>,
    parent: Option<NodeId>,
    children: usize,
    /// Requests whose path leads through here.
    locks: usize,
    /// When it was last used; the order of eviction.
    used: u64,
}

/// How far a prompt's names are in the tree.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    /// The last node of which all pages match.
    whole: Option<NodeId>,
    /// The node of which only these first pages match.
    partial: Option<(NodeId, usize)>,
    /// Pages that match.
    pages: usize,
    /// Those of them that could be evicted.
    idle: usize,
}

/// SGLang's `RadixCache` over its paged allocator.
///
/// - A request holds pages of its own until they are inserted: its prompt's after each chunk, its output's when it ends.
///   What another one inserted meanwhile is shared then, and the request's own copies are given back.
/// - A request keeps its path from being evicted. Room is made by evicting whole leaves, least recently used first.
/// - Edges are split on the borders of pages. A page is announced by an event of its own, once it is in the tree.
/// - A prompt's last token is always computed, so at most ⌊(n−1)/page⌋ pages hit.
#[derive(Clone, Debug)]
pub struct RadixCache {
    naming: Naming,
    prefix_caching: bool,
    /// Pages in the cache.
    capacity: usize,
    nodes: Vec<Node>,
    /// Places of nodes that are gone.
    vacant: Vec<NodeId>,
    /// The node that begins with a page: names are chained, so it has one place only.
    heads: HashMap<EngineHash, NodeId, FixedState>,
    /// Leaves that nobody uses, least recently used first.
    idle_leaves: BTreeSet<(u64, NodeId)>,
    /// Pages in the tree.
    cached: usize,
    /// Those of them that somebody uses.
    locked: usize,
    /// Pages that requests hold beside the tree.
    private: usize,
    uses: u64,
    events: Vec<BlockEvent>,
}

impl RadixCache {
    /// An empty tree over `capacity` pages, which have names of this scheme.
    pub fn new(page_size: BlockSize, capacity: usize, prefix_caching: bool, names: Scheme) -> Self {
        Self {
            naming: Naming { scheme: names, block_size: page_size },
            prefix_caching,
            capacity,
            nodes: Vec::new(),
            vacant: Vec::new(),
            heads: HashMap::default(),
            idle_leaves: BTreeSet::new(),
            cached: 0,
            locked: 0,
            private: 0,
            uses: 0,
            events: Vec::new(),
        }
    }

    /// A request's tokens, without pages yet. O(prompt): names its full pages.
    pub fn sequence(
        &self,
        prompt: impl Into<PromptText>,
        salt: Option<Arc<str>>,
        adapter: Option<Arc<str>>,
    ) -> Sequence {
        let naming = (self.prefix_caching.then_some(self.naming), self.naming.block_size, usize::MAX);
        Sequence::new(prompt.into(), naming, salt, adapter)
    }

    /// How many leading pages of the sequence could be reused; never all of its tokens.
    pub fn lookup(&self, sequence: &Sequence) -> usize {
        self.walk(reusable(sequence, self.page()), 0).pages
    }

    /// Gives a sequence without pages room for its first `tokens` tokens: the path that it shares, and pages of its own.
    ///
    /// # Errors
    /// [`OutOfBlocks`] if too few pages are free or could be evicted. Nothing is changed then.
    pub fn admit(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), OutOfBlocks> {
        let walk = self.walk(reusable(sequence, self.page()), 0);
        let fresh = tokens.div_ceil(self.page()).saturating_sub(walk.pages);
        self.check(fresh + walk.idle)?;
        sequence.node = self.settle(walk);
        sequence.registered = walk.pages;
        self.lock(sequence.node);
        self.take(sequence, fresh);
        Ok(())
    }

    /// Gives a sequence that has pages room for its first `tokens` tokens.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub fn grow(&mut self, sequence: &mut Sequence, tokens: usize) -> Result<(), OutOfBlocks> {
        let fresh = tokens.div_ceil(self.page()).saturating_sub(sequence.registered + sequence.private);
        if fresh > 0 {
            self.check(fresh)?;
            self.take(sequence, fresh);
        }
        Ok(())
    }

    /// Inserts the full pages of a sequence's first `tokens` tokens, which are computed: others can reuse them from now on.
    pub fn insert(&mut self, sequence: &mut Sequence, tokens: usize) {
        let (from, to) = (sequence.registered, (tokens / self.page()).min(sequence.hashes().len()));
        if from >= to {
            return;
        }
        let walk = self.walk(&sequence.hashes()[..to], from);
        let mut node = self.settle(walk).or(sequence.node);
        let known = from + walk.pages;
        if known < to {
            node = Some(self.append(node, sequence.hashes()[known..to].to_vec()));
            self.announce(sequence, known..to);
        }
        self.private -= to - from;
        sequence.private -= to - from;
        self.lock(node);
        self.unlock(sequence.node);
        (sequence.node, sequence.registered) = (node, to);
    }

    /// Takes all pages from a sequence. What it inserted stays cached, what it did not is gone.
    pub fn release(&mut self, sequence: &mut Sequence) {
        self.private -= std::mem::take(&mut sequence.private);
        self.unlock(sequence.node.take());
        sequence.registered = 0;
    }

    /// Forgets all that is cached.
    ///
    /// # Errors
    /// [`CacheInUse`] while a request holds pages.
    pub fn clear(&mut self) -> Result<(), CacheInUse> {
        if self.used() > 0 {
            return Err(CacheInUse { used: self.used() });
        }
        self.nodes.clear();
        self.vacant.clear();
        self.heads.clear();
        self.idle_leaves.clear();
        self.cached = 0;
        if self.prefix_caching {
            self.events.push(BlockEvent::Cleared);
        }
        Ok(())
    }

    /// The events since the last call, in the order in which they happened.
    pub fn take_events(&mut self) -> Vec<BlockEvent> {
        std::mem::take(&mut self.events)
    }

    /// Pages that requests hold, shared ones once.
    pub fn used(&self) -> usize {
        self.locked + self.private
    }

    /// Share of the pages that requests hold, 0 to 1; cached but idle ones are free.
    pub fn usage(&self) -> f64 {
        if self.capacity == 0 { 0.0 } else { real_len(self.used()) / real_len(self.capacity) }
    }

    /// All names that are cached, in no particular order.
    pub fn cached(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.heads.values().flat_map(|id| self.node(*id).pages.iter().copied())
    }

    fn page(&self) -> usize {
        self.naming.block_size.len()
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    fn free(&self) -> usize {
        self.capacity - self.cached - self.private
    }

    /// Whether `pages` could be had, from those that are free and those that could be evicted.
    fn check(&self, pages: usize) -> Result<(), OutOfBlocks> {
        let free = self.free() + self.cached - self.locked;
        if pages > free { Err(OutOfBlocks { needed: pages, free }) } else { Ok(()) }
    }

    /// Follows `names` from the `from`th on, at which a node must begin. O(pages that match).
    fn walk(&self, names: &[EngineHash], from: usize) -> Walk {
        let mut walk = Walk::default();
        while let Some(name) = names.get(from + walk.pages)
            && let Some(id) = self.heads.get(name)
        {
            let node = self.node(*id);
            let rest = &names[from + walk.pages..];
            let equal = node.pages.iter().zip(rest).take_while(|(mine, theirs)| mine == theirs).count();
            walk.pages += equal;
            walk.idle += if node.locks == 0 { equal } else { 0 };
            if equal < node.pages.len() {
                walk.partial = Some((*id, equal));
                break;
            }
            walk.whole = Some(*id);
        }
        walk
    }

    /// The node at whose end a walk stopped; splits the edge in which it did.
    fn settle(&mut self, walk: Walk) -> Option<NodeId> {
        let Some((lower, at)) = walk.partial else { return walk.whole };
        let rest = self.node_mut(lower).pages.split_off(at);
        let first = std::mem::replace(&mut self.node_mut(lower).pages, rest);
        let below = self.node(lower).clone();
        // The lower half keeps its place: requests that hold it hold the upper half as well.
        let upper = Node { pages: first, children: 1, ..below };
        let (upper_head, lower_head) = (upper.pages[0], self.node(lower).pages[0]);
        let upper = self.place(upper);
        self.node_mut(lower).parent = Some(upper);
        self.heads.insert(upper_head, upper);
        self.heads.insert(lower_head, lower);
        Some(upper)
    }

    /// A new leaf below `parent`, in use by nobody yet.
    fn append(&mut self, parent: Option<NodeId>, pages: Vec<EngineHash>) -> NodeId {
        if let Some(parent) = parent {
            let node = self.node_mut(parent);
            node.children += 1;
            let entry = (node.used, parent);
            self.idle_leaves.remove(&entry);
        }
        self.cached += pages.len();
        let head = pages[0];
        let id = self.place(Node { pages, parent, children: 0, locks: 0, used: self.uses });
        self.idle_leaves.insert((self.uses, id));
        self.heads.insert(head, id);
        id
    }

    fn place(&mut self, node: Node) -> NodeId {
        if let Some(id) = self.vacant.pop() {
            *self.node_mut(id) = node;
            return id;
        }
        self.nodes.push(node);
        NodeId(self.nodes.len() - 1)
    }

    /// Keeps a node and all above it, and notes that they are used now.
    fn lock(&mut self, mut next: Option<NodeId>) {
        self.uses += 1;
        let now = self.uses;
        while let Some(id) = next {
            let node = self.node_mut(id);
            let before = std::mem::replace(&mut node.used, now);
            node.locks += 1;
            next = node.parent;
            if node.locks == 1 {
                let pages = node.pages.len();
                self.idle_leaves.remove(&(before, id));
                self.locked += pages;
            }
        }
    }

    fn unlock(&mut self, mut next: Option<NodeId>) {
        while let Some(id) = next {
            let node = self.node_mut(id);
            node.locks -= 1;
            next = node.parent;
            if node.locks == 0 {
                let (pages, used, is_leaf) = (node.pages.len(), node.used, node.children == 0);
                self.locked -= pages;
                if is_leaf {
                    self.idle_leaves.insert((used, id));
                }
            }
        }
    }

    /// Gives a sequence pages of its own; evicts leaves until so many are free. The caller has checked that there are.
    fn take(&mut self, sequence: &mut Sequence, pages: usize) {
        while self.free() < pages
            && let Some((_, leaf)) = self.idle_leaves.pop_first()
        {
            self.evict(leaf);
        }
        self.private += pages;
        sequence.private += pages;
    }

    fn evict(&mut self, leaf: NodeId) {
        let node = self.node_mut(leaf);
        let (pages, parent) = (std::mem::take(&mut node.pages), node.parent);
        self.heads.remove(&pages[0]);
        self.cached -= pages.len();
        self.vacant.push(leaf);
        // The last page first, so that no listener knows a page without what comes before it.
        self.events.extend(pages.into_iter().rev().map(|hash| BlockEvent::Removed { hash, tier: Tier::Device }));
        if let Some(parent) = parent {
            let node = self.node_mut(parent);
            node.children -= 1;
            if node.children == 0 && node.locks == 0 {
                let entry = (node.used, parent);
                self.idle_leaves.insert(entry);
            }
        }
    }

    fn announce(&mut self, sequence: &Sequence, pages: std::ops::Range<usize>) {
        self.events.extend(pages.map(|page| BlockEvent::Stored {
            hashes: vec![sequence.hashes()[page]],
            parent: page.checked_sub(1).map(|before| sequence.hashes()[before]),
            content: sequence.content(page..page + 1),
            salt: sequence.salt.clone(),
            adapter: sequence.adapter.clone(),
            tier: Tier::Device,
        }));
    }
}

/// The names of a sequence's pages that it could find in a cache: its last token is always computed.
pub(super) fn reusable(sequence: &Sequence, page: usize) -> &[EngineHash] {
    let most = sequence.len().saturating_sub(1) / page;
    &sequence.hashes()[..most.min(sequence.hashes().len())]
}

#[cfg(test)]
pub(crate) mod tests;
