//! A bounded set of pages below the GPU, of which some make room for others as its [`Eviction`] says.

use std::collections::HashMap;

use foldhash::fast::FixedState;
use warmpath_core::ids::EngineHash;

use super::eviction::{Eviction, Order};
use crate::clock::Ms;
use crate::free_queue::BlockId;

/// A page on a shelf.
#[derive(Clone, Copy, Debug)]
struct Lying {
    place: BlockId,
    /// When its last byte is there.
    from: Ms,
}

/// Pages by name. Every change is O(1) but for what its order costs.
#[derive(Debug)]
pub(super) struct Shelf {
    pages: HashMap<EngineHash, Lying, FixedState>,
    /// The name of the page at each place.
    names: Vec<Option<EngineHash>>,
    /// Who goes next.
    order: Box<dyn Order>,
    vacant: Vec<BlockId>,
}

impl Shelf {
    /// A shelf for `places` pages. `seed` is that of chance.
    pub(super) fn new(places: u32, eviction: Eviction, seed: u64) -> Self {
        Self {
            pages: HashMap::default(),
            names: vec![None; BlockId(places).index()],
            order: eviction.order(places, seed),
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
        names.iter().rev().for_each(|name| self.stir(name, true));
    }

    /// Notes that something came behind this page, which is no use of it: it must not go before what came.
    pub(super) fn accompany(&mut self, name: EngineHash) {
        self.stir(&name, false);
    }

    fn stir(&mut self, name: &EngineHash, is_use: bool) {
        if let Some(page) = self.pages.get(name) {
            self.order.touch(page.place, is_use);
        }
    }

    /// Lays a page down that will be whole at `from`. Returns the page that had to go for it, which is itself where there
    /// is no place at all, or none but its parent's, without which nobody would find it; of one that is there already,
    /// nothing changes.
    pub(super) fn lay(&mut self, name: EngineHash, parent: Option<EngineHash>, from: Ms) -> Option<EngineHash> {
        if self.holds(name) {
            return None;
        }
        let evicted = if self.vacant.is_empty() { self.evict(parent) } else { None };
        let Some(place) = self.vacant.pop() else { return Some(name) };
        self.names[place.index()] = Some(name);
        self.order.enter(place);
        self.pages.insert(name, Lying { place, from });
        evicted
    }

    /// All names, in no particular order.
    pub(super) fn names(&self) -> impl Iterator<Item = EngineHash> + '_ {
        self.pages.keys().copied()
    }

    fn evict(&mut self, but: Option<EngineHash>) -> Option<EngineHash> {
        let place = self.order.next()?;
        if but.is_some() && self.names[place.index()] == but {
            return None;
        }
        self.order.leave(place);
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
        let mut shelf = Shelf::new(4, Eviction::Lru, 0);
        let (first, second) = (names([1, 2]), names([3, 4]));
        for run in [first, second] {
            run.into_iter().for_each(|name| assert_eq!(shelf.lay(name, None, Ms::ZERO), None));
            shelf.touch(&run);
        }
        shelf.touch(&first);
        let gone: Vec<_> = (5..=8).filter_map(|name| shelf.lay(EngineHash(name), None, Ms::ZERO)).collect();
        assert_eq!(gone, names([4, 3, 2, 1]));
    }

    #[test]
    fn a_page_is_read_once_it_is_whole_and_a_hole_ends_the_run() {
        let mut shelf = Shelf::new(4, Eviction::Lru, 0);
        for (name, from) in [(1, 0.0), (2, 5.0), (4, 0.0)] {
            shelf.lay(EngineHash(name), None, Ms(from));
        }
        let prompt = names([1, 2, 3, 4]);
        assert_eq!((shelf.run(Ms(4.9), &prompt), shelf.run(Ms(5.0), &prompt)), (1, 2));
        assert_eq!(shelf.lay(EngineHash(2), None, Ms(9.0)), None, "it is there already");
        assert_eq!(shelf.run(Ms(5.0), &prompt), 2);
    }

    #[test]
    fn what_is_used_often_stays_where_that_counts() {
        let (often, once, new) = (names([1, 2]), names([3, 4]), EngineHash(5));
        let gone = |eviction| {
            let mut shelf = Shelf::new(4, eviction, 0);
            often.into_iter().chain(once).for_each(|name| assert_eq!(shelf.lay(name, None, Ms::ZERO), None));
            [often, often, often, once].iter().for_each(|run| shelf.touch(run));
            often.into_iter().for_each(|name| (0..9).for_each(|_| shelf.accompany(name)));
            shelf.touch(&once);
            shelf.lay(new, None, Ms::ZERO)
        };
        assert_eq!((gone(Eviction::Lru), gone(Eviction::Lfu)), (Some(EngineHash(1)), Some(EngineHash(4))));
    }

    #[test]
    fn a_page_never_takes_the_place_of_the_one_before_it() {
        let mut shelf = Shelf::new(1, Eviction::Lfu, 0);
        let [first, second, other] = names([1, 2, 3]);
        assert_eq!(shelf.lay(first, None, Ms::ZERO), None);
        assert_eq!(shelf.lay(second, Some(first), Ms::ZERO), Some(second));
        assert_eq!((shelf.holds(first), shelf.holds(second)), (true, false));
        assert_eq!(shelf.lay(other, None, Ms::ZERO), Some(first));
    }

    #[test]
    fn without_places_nothing_stays() {
        assert_eq!(Shelf::new(0, Eviction::Lru, 0).lay(EngineHash(1), None, Ms::ZERO), Some(EngineHash(1)));
    }
}
