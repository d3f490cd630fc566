//! Where chains live.

use super::chain::Chain;
use crate::store::CHAINS_MAX;

/// Chains that are reserved at a time, so that growth moves none of them.
const SEGMENT: usize = 1024;

/// Chains by number. A number is used again after its chain was freed; a segment without chains gives its memory back.
#[derive(Default)]
pub(super) struct Slab {
    segments: Vec<Segment>,
    /// Segments with room.
    open: Vec<usize>,
}

#[derive(Default)]
struct Segment {
    chains: Vec<Chain>,
    /// Places of freed chains.
    free: Vec<u16>,
}

impl Segment {
    fn live(&self) -> usize {
        self.chains.len() - self.free.len()
    }
}

fn split(chain: u32) -> (usize, usize) {
    let chain = usize::try_from(chain).expect("a usize has 32 bits");
    (chain / SEGMENT, chain % SEGMENT)
}

impl Slab {
    /// The chain of a number; none where it was freed and nothing took its place.
    pub(super) fn get(&self, chain: u32) -> Option<&Chain> {
        let (segment, at) = split(chain);
        self.segments.get(segment)?.chains.get(at)
    }

    pub(super) fn get_mut(&mut self, chain: u32) -> Option<&mut Chain> {
        let (segment, at) = split(chain);
        self.segments.get_mut(segment)?.chains.get_mut(at)
    }

    /// Numbers are below this.
    #[cfg(test)]
    pub(super) fn numbers(&self) -> u32 {
        u32::try_from(self.segments.len() * SEGMENT).expect("fewer chains than CHAINS_MAX")
    }

    /// Chains that are in use.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.segments.iter().map(Segment::live).sum()
    }

    /// Keeps a chain; `None` when there are too many.
    pub(super) fn insert(&mut self, chain: Chain) -> Option<u32> {
        let segment = match self.open.last() {
            Some(&segment) => segment,
            None => self.open_segment()?,
        };
        let within = &mut self.segments[segment];
        let at = match within.free.pop() {
            Some(at) => {
                let at = usize::from(at);
                within.chains[at] = chain;
                at
            }
            None => {
                if within.chains.capacity() == 0 {
                    within.chains.reserve_exact(SEGMENT);
                }
                within.chains.push(chain);
                within.chains.len() - 1
            }
        };
        if within.live() == SEGMENT {
            self.open.pop();
        }
        u32::try_from(segment * SEGMENT + at).ok()
    }

    fn open_segment(&mut self) -> Option<usize> {
        let segment = self.segments.len();
        // One number stays free, so that no place looks like none.
        if (segment + 1) * SEGMENT >= CHAINS_MAX {
            return None;
        }
        self.segments.push(Segment::default());
        self.open.push(segment);
        Some(segment)
    }

    /// Frees a chain and its number.
    pub(super) fn remove(&mut self, chain: u32) {
        let (segment, at) = split(chain);
        let within = &mut self.segments[segment];
        within.chains[at] = Chain::vacant();
        let was_full = within.live() == SEGMENT;
        within.free.push(u16::try_from(at).expect("less than a segment"));
        if within.live() == 0 {
            *within = Segment::default();
        }
        if was_full {
            self.open.push(segment);
        }
    }

    /// Bytes of heap of the chains from number `from` on, by capacities, and the number to go on with; none behind the
    /// last. One call looks at one segment, so that a lock around it is held shortly.
    pub(super) fn bytes(&self, from: u32) -> Option<(usize, u32)> {
        let segment = self.segments.get(split(from).0)?;
        let chains: usize = segment.chains.iter().map(Chain::bytes).sum();
        let lists = segment.chains.capacity() * size_of::<Chain>() + segment.free.capacity() * size_of::<u16>();
        let next = from.saturating_add(u32::try_from(SEGMENT).expect("a thousand"));
        Some((size_of::<Segment>() + chains + lists, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Origin;
    use warmpath_core::ids::{SequenceHash, Slot};
    use warmpath_core::units::Tier;

    fn chain(hash: u64) -> Chain {
        Chain::new(Origin::Root(SequenceHash(7)), &[SequenceHash(hash)], (Slot(0), Tier::Device), 0)
    }

    #[test]
    fn numbers_are_used_again_and_empty_segments_hold_nothing() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..3000).map(|hash| slab.insert(chain(hash)).unwrap()).collect();
        assert_eq!((numbers.last(), slab.len(), slab.numbers()), (Some(&2999), 3000, 3072));
        numbers[..2048].iter().for_each(|&number| slab.remove(number));
        assert_eq!((slab.len(), slab.get(3).is_none(), slab.get(2999).is_some()), (952, true, true));
        let again: Vec<u32> = (0..2048).map(|hash| slab.insert(chain(hash)).unwrap()).collect();
        assert_eq!((slab.len(), slab.numbers()), (3000, 3072));
        numbers[2048..].iter().chain(&again).for_each(|&number| slab.remove(number));
        assert!(slab.len() == 0 && slab.bytes(0).is_some_and(|(bytes, _)| bytes < 100));
    }
}
