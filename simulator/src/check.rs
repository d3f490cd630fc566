//! What must hold of a block pool after every step, whatever the workload was. A breach is a fault of the simulation
//! itself: it panics.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;

use super::blocks::{BlockEvent, BlockPool};
use super::free_queue::BlockId;
use super::sequence::Sequence;

/// What a listener to the events believes to be cached, with the number of copies.
#[derive(Debug, Default)]
pub(super) struct Replica {
    cached: BTreeMap<EngineHash, usize>,
    host: BTreeSet<EngineHash>,
}

impl Replica {
    /// Takes over those `events` that tell of the device, then checks that they told of exactly the names and copies that
    /// are cached there.
    pub(super) fn follow(&mut self, events: &[BlockEvent], truth: BTreeMap<EngineHash, usize>) {
        events.iter().for_each(|event| self.apply(event));
        assert_eq!(self.cached, truth, "events tell of exactly what is cached");
    }

    /// The same for the host's memory, where every name lies once.
    pub(super) fn follow_host(&mut self, events: &[BlockEvent], truth: &BTreeSet<EngineHash>) {
        for event in events {
            match event {
                BlockEvent::Stored { hashes, tier: Tier::Host, .. } => {
                    for hash in hashes {
                        assert!(self.host.insert(*hash), "{hash:?} is stored once in the host");
                    }
                }
                BlockEvent::Removed { hash, tier: Tier::Host } => {
                    assert!(self.host.remove(hash), "only what was stored in the host is removed");
                }
                _ => {}
            }
        }
        assert_eq!(self.host, *truth, "events tell of exactly what the host has");
    }

    fn apply(&mut self, event: &BlockEvent) {
        match event {
            BlockEvent::Stored { hashes, tier: Tier::Device, .. } => {
                for hash in hashes {
                    *self.cached.entry(*hash).or_default() += 1;
                }
            }
            BlockEvent::Removed { hash, tier: Tier::Device } => {
                let copies = self.cached.get_mut(hash).expect("only what was stored is removed");
                *copies -= 1;
                if *copies == 0 {
                    self.cached.remove(hash);
                }
            }
            BlockEvent::Cleared => self.cached.clear(),
            BlockEvent::Stored { .. } | BlockEvent::Removed { .. } => {}
        }
    }
}

/// Checks `pool` and the tables in it: refs = number of owning tables; free + used = all; no owned block is free.
pub(super) fn check_tables(pool: &BlockPool, owners: &[&Sequence]) {
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
