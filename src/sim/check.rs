//! What must hold of a block pool after every step, whatever the workload was. A breach is a fault of the simulation
//! itself: it panics.

use std::collections::{BTreeMap, HashMap};

use warmpath_core::ids::EngineHash;

use super::blocks::{BlockEvent, BlockPool};
use super::free_queue::BlockId;
use super::sequence::Sequence;

/// What a listener to the events believes to be cached, with the number of copies.
#[derive(Debug, Default)]
pub(super) struct Replica {
    cached: BTreeMap<EngineHash, usize>,
}

impl Replica {
    /// Takes over `events`, then checks `pool` and the tables in it: refs = number of owning tables; free + used = all;
    /// no owned block is free; the events told of exactly the cached names and copies.
    pub(super) fn check(&mut self, pool: &BlockPool, events: &[BlockEvent], owners: &[&Sequence]) {
        events.iter().for_each(|event| self.apply(event));
        let truth: BTreeMap<_, _> = pool.cached().collect();
        assert_eq!(self.cached, truth, "events tell of exactly what is cached");

        let mut owned: HashMap<BlockId, u32> = HashMap::new();
        for id in owners.iter().flat_map(|sequence| sequence.table()) {
            *owned.entry(*id).or_default() += 1;
        }
        for (id, tables) in &owned {
            assert_eq!(pool.refs(*id), *tables, "references of {id:?}");
        }
        let free: Vec<_> = pool.free_blocks().collect();
        for id in &free {
            assert_eq!((pool.refs(*id), owned.get(id)), (0, None), "free block {id:?}");
        }
        assert_eq!(free.len() + owned.len(), pool.usable(), "every block is free or owned");
        assert_eq!(pool.used(), owned.len());
    }

    fn apply(&mut self, event: &BlockEvent) {
        match event {
            BlockEvent::Stored { hashes, parent, .. } => {
                if let Some(parent) = parent {
                    assert!(self.cached.contains_key(parent), "the parent of a stored block is cached");
                }
                for hash in hashes {
                    *self.cached.entry(*hash).or_default() += 1;
                }
            }
            BlockEvent::Removed { hash } => {
                let copies = self.cached.get_mut(hash).expect("only what was stored is removed");
                *copies -= 1;
                if *copies == 0 {
                    self.cached.remove(hash);
                }
            }
            BlockEvent::Cleared => self.cached.clear(),
        }
    }
}
