//! The queue of free blocks: a doubly linked list in two flat arrays of links.

/// A physical block of an engine's cache: its index in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index into arrays by block.
    pub fn index(self) -> usize {
        usize::try_from(self.0).expect("the pool that gave out the id is held in memory")
    }
}

/// The neighbours of a queued block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    before: u32,
    after: u32,
}

/// Marks a block that is not queued. No block has this number: a pool holds fewer.
const ABSENT: Link = Link { before: u32::MAX, after: u32::MAX };

/// Which blocks are free, in the order in which they will be taken: the head is the least recently used.
///
/// Each block is queued at most once. Every change is O(1), also in the middle, and none allocates (as vLLM's
/// `FreeKVCacheBlockQueue`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FreeQueue {
    /// One link a block, then one more that closes the ring: its `after` is the head, its `before` the tail.
    links: Vec<Link>,
    len: usize,
}

impl FreeQueue {
    /// An empty queue for blocks `0..blocks`. O(blocks).
    pub fn new(blocks: u32) -> Self {
        let mut links = vec![ABSENT; BlockId(blocks).index()];
        links.push(Link { before: blocks, after: blocks });
        Self { links, len: 0 }
    }

    /// How many blocks are queued.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `id` is queued.
    pub fn contains(&self, id: BlockId) -> bool {
        id.index() < self.end() && self.links[id.index()] != ABSENT
    }

    /// Queues `id` behind all others. Returns false, and changes nothing, if it is queued already or unknown.
    pub fn push_back(&mut self, id: BlockId) -> bool {
        if id.index() >= self.end() || self.contains(id) {
            return false;
        }
        let end = self.end();
        let ring = u32::try_from(end).expect("the queue was made from a u32");
        let tail = self.links[end].before;
        self.links[id.index()] = Link { before: tail, after: ring };
        self.links[BlockId(tail).index()].after = id.0;
        self.links[end].before = id.0;
        self.len += 1;
        true
    }

    /// Takes the head.
    pub fn pop_front(&mut self) -> Option<BlockId> {
        let head = BlockId(self.links[self.end()].after);
        self.remove(head).then_some(head)
    }

    /// Takes `id` out, wherever it stands. Returns false if it was not queued.
    pub fn remove(&mut self, id: BlockId) -> bool {
        if !self.contains(id) {
            return false;
        }
        let link = std::mem::replace(&mut self.links[id.index()], ABSENT);
        self.links[BlockId(link.before).index()].after = link.after;
        self.links[BlockId(link.after).index()].before = link.before;
        self.len -= 1;
        true
    }

    /// The queued blocks, head first.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        let mut next = BlockId(self.links[self.end()].after);
        std::iter::from_fn(move || {
            let id = next;
            self.contains(id).then(|| {
                next = BlockId(self.links[id.index()].after);
                id
            })
        })
    }

    /// Index of the link that closes the ring.
    fn end(&self) -> usize {
        self.links.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn ids(queue: &FreeQueue) -> Vec<u32> {
        queue.iter().map(|id| id.0).collect()
    }

    #[test]
    fn blocks_leave_in_the_order_in_which_they_came_and_from_the_middle() {
        let mut queue = FreeQueue::new(4);
        for id in [2, 0, 3, 1] {
            assert!(queue.push_back(BlockId(id)));
        }
        assert!(queue.remove(BlockId(3)));
        assert_eq!(ids(&queue), [2, 0, 1]);
        assert!(queue.remove(BlockId(1)), "the tail");
        assert_eq!(queue.pop_front(), Some(BlockId(2)));
        assert!(queue.push_back(BlockId(2)));
        assert_eq!((ids(&queue), queue.len()), (vec![0, 2], 2));
    }

    #[test]
    fn a_block_is_never_queued_twice_and_an_unknown_one_never() {
        let mut queue = FreeQueue::new(2);
        assert!(queue.push_back(BlockId(1)));
        assert!(!queue.push_back(BlockId(1)));
        assert!(!queue.push_back(BlockId(2)), "the ring's own link");
        assert!(!queue.push_back(BlockId(9)));
        assert!(!queue.remove(BlockId(0)));
        assert!(!queue.remove(BlockId(2)));
        assert_eq!(ids(&queue), [1]);
    }

    #[test]
    fn an_empty_queue_gives_nothing() {
        let mut queue = FreeQueue::new(0);
        assert!(queue.is_empty());
        assert_eq!(queue.pop_front(), None);
        assert!(ids(&queue).is_empty());
    }

    #[test]
    fn random_changes_leave_it_equal_to_a_plain_list() {
        let mut rng = StdRng::seed_from_u64(86);
        let (mut queue, mut model) = (FreeQueue::new(200), VecDeque::new());
        for step in 0..50_000 {
            let id = BlockId(rng.random_range(0..200));
            match rng.random_range(0..5) {
                0 | 1 => {
                    let fresh = !model.contains(&id);
                    assert_eq!(queue.push_back(id), fresh, "step {step}");
                    if fresh {
                        model.push_back(id);
                    }
                }
                2 => assert_eq!(queue.pop_front(), model.pop_front(), "step {step}"),
                _ => {
                    let at = model.iter().position(|queued| *queued == id);
                    assert_eq!(queue.remove(id), at.is_some(), "step {step}");
                    at.and_then(|at| model.remove(at));
                }
            }
            assert_eq!(queue.len(), model.len(), "step {step}");
        }
        assert!(queue.iter().eq(model.iter().copied()));
    }
}
