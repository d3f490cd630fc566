//! Who makes room in a tier that is full.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::plan::PolicyError;
use crate::free_queue::{BlockId, FreeQueue};

/// Which page goes where there is no place left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used.
    #[default]
    Lru,
    /// The least often used since it came; of those the least recently used.
    Lfu,
    /// The least recently used of 16 that are drawn at random, with replacement.
    RandomLru,
}

/// All of them with their names, which are those of `optimize`.
const EVICTIONS: [(Eviction, &str); 3] =
    [(Eviction::Lru, "lru"), (Eviction::Lfu, "lfu"), (Eviction::RandomLru, "random_lru")];

/// Places drawn by [`Eviction::RandomLru`].
const SAMPLE: usize = 16;

/// What decides who goes: it is told of every page that comes to a place, and of every use, and names the place that is to be
/// given up. A page that is touched without being used keeps those behind it company: what it is worth stays the same.
pub(super) trait Order: fmt::Debug + Send + Sync {
    /// A page has come to this place.
    fn enter(&mut self, place: BlockId);

    /// The page at this place was used just now, or stands before one that came.
    fn touch(&mut self, place: BlockId, is_use: bool);

    /// The place that is to be given up now; none where there is none.
    fn next(&mut self) -> Option<BlockId>;

    /// A page has left this place.
    fn leave(&mut self, place: BlockId);
}

impl Eviction {
    /// Its order of `places` places, of which none is taken, with this seed of chance.
    pub(super) fn order(self, places: u32, seed: u64) -> Box<dyn Order> {
        let count = BlockId(places).index();
        match self {
            Self::Lru => Box::new(FreeQueue::new(places)),
            Self::Lfu => Box::new(LeastOften { uses: vec![Uses::default(); count], queue: BTreeSet::new(), clock: 0 }),
            Self::RandomLru => Box::new(Drawn {
                last: vec![0; count],
                taken: Vec::new(),
                at: vec![0; count],
                clock: 0,
                rng: StdRng::seed_from_u64(seed),
            }),
        }
    }
}

/// Least recently used, in O(1).
impl Order for FreeQueue {
    fn enter(&mut self, place: BlockId) {
        self.push_back(place);
    }

    fn touch(&mut self, place: BlockId, _is_use: bool) {
        self.remove(place);
        self.push_back(place);
    }

    fn next(&mut self) -> Option<BlockId> {
        self.iter().next()
    }

    fn leave(&mut self, place: BlockId) {
        self.remove(place);
    }
}

/// How often a place's page was used, and when last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Uses {
    count: u64,
    moment: u64,
}

/// Least often used, in O(log places).
#[derive(Debug)]
struct LeastOften {
    uses: Vec<Uses>,
    queue: BTreeSet<(Uses, BlockId)>,
    clock: u64,
}

impl Order for LeastOften {
    fn enter(&mut self, place: BlockId) {
        self.clock += 1;
        let uses = Uses { count: 1, moment: self.clock };
        self.uses[place.index()] = uses;
        self.queue.insert((uses, place));
    }

    fn touch(&mut self, place: BlockId, is_use: bool) {
        self.clock += 1;
        let uses = &mut self.uses[place.index()];
        self.queue.remove(&(*uses, place));
        *uses = Uses { count: uses.count + u64::from(is_use), moment: self.clock };
        self.queue.insert((*uses, place));
    }

    fn next(&mut self) -> Option<BlockId> {
        Some(self.queue.first()?.1)
    }

    fn leave(&mut self, place: BlockId) {
        self.queue.remove(&(self.uses[place.index()], place));
    }
}

/// Least recently used of some that are drawn, in O(1).
#[derive(Debug)]
struct Drawn {
    last: Vec<u64>,
    taken: Vec<BlockId>,
    /// Where each place stands in `taken`.
    at: Vec<usize>,
    clock: u64,
    rng: StdRng,
}

impl Order for Drawn {
    fn enter(&mut self, place: BlockId) {
        self.at[place.index()] = self.taken.len();
        self.taken.push(place);
        self.touch(place, true);
    }

    fn touch(&mut self, place: BlockId, _is_use: bool) {
        self.clock += 1;
        self.last[place.index()] = self.clock;
    }

    fn next(&mut self) -> Option<BlockId> {
        if self.taken.is_empty() {
            return None;
        }
        let drawn = (0..SAMPLE).map(|_| self.taken[self.rng.random_range(0..self.taken.len())]);
        drawn.min_by_key(|place| self.last[place.index()])
    }

    fn leave(&mut self, place: BlockId) {
        let at = self.at[place.index()];
        self.taken.swap_remove(at);
        if let Some(moved) = self.taken.get(at) {
            self.at[moved.index()] = at;
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EVICTIONS.iter().find(|(eviction, _)| eviction == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for Eviction {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let found = EVICTIONS.iter().find(|(_, name)| *name == text).map(|(eviction, _)| *eviction);
        found.ok_or_else(|| PolicyError::of(text, "lru, lfu, random_lru"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn give_up(order: &mut Box<dyn Order>) -> Option<BlockId> {
        let place = order.next()?;
        order.leave(place);
        Some(place)
    }

    /// Four places that are taken in order, then used as often as it says, the last uses last.
    fn given_up(eviction: Eviction, uses: &[u32], seed: u64) -> Vec<u32> {
        let mut order = eviction.order(8, seed);
        (0..4).for_each(|place| order.enter(BlockId(place)));
        uses.iter().for_each(|place| order.touch(BlockId(*place), true));
        std::iter::from_fn(|| give_up(&mut order)).map(|place| place.0).collect()
    }

    #[test]
    fn who_goes_first_is_who_was_used_longest_ago_or_least() {
        let uses = [0, 0, 0, 2, 2, 1, 3];
        assert_eq!(given_up(Eviction::Lru, &uses, 1), [0, 2, 1, 3]);
        assert_eq!(given_up(Eviction::Lfu, &uses, 1), [1, 3, 2, 0]);
    }

    #[test]
    fn what_is_drawn_is_the_same_for_the_same_seed_and_mostly_old() {
        let of = |seed| {
            let mut order = Eviction::RandomLru.order(1000, seed);
            (0..1000).for_each(|place| order.enter(BlockId(place)));
            (0..100).map(|_| give_up(&mut order).unwrap().0).collect::<Vec<_>>()
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let mean = of(1).into_iter().sum::<u32>() / 100;
        assert!((20..110).contains(&mean), "of 16 drawn from 1000 the oldest is about the 59th: {mean}");
        let mut all = given_up(Eviction::RandomLru, &[], 3);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3], "each goes once");
    }

    #[test]
    fn a_page_that_comes_anew_has_to_earn_its_place_again() {
        let mut order = Eviction::Lfu.order(4, 1);
        [0, 1].into_iter().for_each(|place| order.enter(BlockId(place)));
        (0..9).for_each(|_| order.touch(BlockId(0), true));
        order.touch(BlockId(1), false);
        assert_eq!(give_up(&mut order), Some(BlockId(1)), "company is no use");
        order.enter(BlockId(1));
        order.touch(BlockId(1), true);
        let rest = [(); 3].map(|()| give_up(&mut order));
        assert_eq!(rest, [Some(BlockId(1)), Some(BlockId(0)), None]);
    }

    #[test]
    fn every_name_is_parsed_and_printed_alike() {
        for (eviction, name) in EVICTIONS {
            assert_eq!((name.parse(), eviction.to_string()), (Ok(eviction), name.to_owned()));
        }
        let error = "fifo".parse::<Eviction>().unwrap_err().to_string();
        assert_eq!(error, "unknown policy `fifo` (known: lru, lfu, random_lru)");
    }
}
