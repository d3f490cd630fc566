//! A bounded set of pages below the GPU, of which the least recently used make room.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warmpath_core::ids::EngineHash;

use crate::sim::clock::Ms;
use crate::sim::free_queue::{BlockId, FreeQueue};

/// A page on a shelf.
#[derive(Clone, Copy, Debug)]
struct Lying {
    place: BlockId,
    /// When its last byte is there.
    from: Ms,
}

/// Pages by name, in the order of their use. Every change is O(1).
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    pages: HashMap<EngineHash, Lying, FixedState>,
    /// The name of the page at each place.
    names: Vec<Option<EngineHash>>,
    /// Places that are taken, the least recently used first.
    order: FreeQueue,
    vacant: Vec<BlockId>,
}

impl Shelf {
    /// A shelf for `places` pages.
    pub(super) fn new(places: u32) -> Self {
        Self {
            pages: HashMap::default(),
            names: vec![None; BlockId(places).index()],
            order: FreeQueue::new(places),
            vacant: (0..places).rev().map(BlockId).collect(),
        }
    }

    /// Whether a page lies here, or is on its way.
    pub(super) fn holds(&self, name: EngineHash) -> bool {
        self.pages.contains_key(&name)
    }

    /// How many of the first pages can be read at `now`.
    pub(super) fn run(&self, now: Ms, names: &[EngineHash]) -> usize {
        names.iter().take_while(|name| self.pages.get(name).is_some_and(|page| page.from <= now)).count()
    }

    /// Notes that pages that follow each other are used now; the first of them will go last.
    pub(super) fn touch(&mut self, names: &[EngineHash]) {
        for name in names.iter().rev() {
            if let Some(page) = self.pages.get(name) {
                self.order.remove(page.place);
                self.order.push_back(page.place);
            }
        }
    }

    /// Lays a page down that will be whole at `from`. Returns the page that had to go for it, which is itself where there
    /// is no place at all; of one that is there already, nothing changes.
    pub(super) fn lay(&mut self, name: EngineHash, from: Ms) -> Option<EngineHash> {
        if self.holds(name) {
            return None;
        }
        let evicted = if self.vacant.is_empty() { self.evict() } else { None };
        let Some(place) = self.vacant.pop() else { return Some(name) };
        self.names[place.index()] = Some(name);
        self.order.push_back(place);
        self.pages.insert(name, Lying { place, from });
        evicted
    }

    /// All names, in no particular order.
    pub(super) fn names(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.pages.keys().copied()
    }

    fn evict(&mut self) -> Option<EngineHash> {
        let place = self.order.pop_front()?;
        self.vacant.push(place);
        let name = self.names[place.index()].take()?;
        self.pages.remove(&name);
        Some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names<const N: usize>(names: [u64; N]) -> [EngineHash; N] {
        names.map(EngineHash)
    }

    #[test]
    fn the_end_of_the_prompt_used_longest_ago_goes_first() {
        let mut shelf = Shelf::new(4);
        let (first, second) = (names([1, 2]), names([3, 4]));
        for run in [first, second] {
            run.into_iter().for_each(|name| assert_eq!(shelf.lay(name, Ms::ZERO), None));
            shelf.touch(&run);
        }
        shelf.touch(&first);
        let gone: Vec<_> = (5..=8).filter_map(|name| shelf.lay(EngineHash(name), Ms::ZERO)).collect();
        assert_eq!(gone, names([4, 3, 2, 1]));
    }

    #[test]
    fn a_page_is_read_once_it_is_whole_and_a_hole_ends_the_run() {
        let mut shelf = Shelf::new(4);
        for (name, from) in [(1, 0.0), (2, 5.0), (4, 0.0)] {
            shelf.lay(EngineHash(name), Ms(from));
        }
        let prompt = names([1, 2, 3, 4]);
        assert_eq!((shelf.run(Ms(4.9), &prompt), shelf.run(Ms(5.0), &prompt)), (1, 2));
        assert_eq!(shelf.lay(EngineHash(2), Ms(9.0)), None, "it is there already");
        assert_eq!(shelf.run(Ms(5.0), &prompt), 2);
    }

    #[test]
    fn without_places_nothing_stays() {
        assert_eq!(Shelf::new(0).lay(EngineHash(1), Ms::ZERO), Some(EngineHash(1)));
    }
}
