//! The prefix index that a gateway runs on: exact, for many readers while events apply.

mod chain;
mod core;
mod holders;
mod slab;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::slot_set::SlotSet;
use warmpath_core::units::Tier;

use self::core::Core;
use crate::index::Index;
use crate::store::{Above, BlockStore, Origin, Place, Placed};

/// The index over all engines that many requests ask at once.
pub type ConcurrentIndex = Index<Chains>;

impl ConcurrentIndex {
    /// An empty index of at most `entries_max` (worker, block) entries.
    pub fn new(entries_max: usize) -> Self {
        Self::over(Chains::new(entries_max), entries_max)
    }
}

/// Changes under one hold of the lock, a microsecond or so.
const HOLD: usize = 64;
/// Chains under one hold, where a worker is taken out of many.
const CHAINS_HELD: usize = 32;

/// Blocks kept as chains of at most 512 with their holders as runs.
///
/// A look-up compares one hash for each run on its way, whatever the number of workers. What look-ups read lies behind
/// one lock that writers hold for about a microsecond at a time; the larger part of their work, the table of an engine's
/// names, lies outside and is their own.
pub struct Chains {
    core: RwLock<Core>,
    /// What room the core had after its last change, so that nobody has to wait for it to know.
    room: AtomicUsize,
}

// A poisoned lock is used on: a half-made change costs a hit, giving up would cost all of them.
impl Chains {
    fn new(blocks_max: usize) -> Self {
        Self { core: RwLock::new(Core::new(blocks_max)), room: AtomicUsize::new(blocks_max) }
    }

    fn read(&self) -> RwLockReadGuard<'_, Core> {
        self.core.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Core) -> T) -> T {
        let mut core = self.core.write().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut core);
        self.room.store(core.room(), Ordering::Relaxed);
        result
    }
}

impl PrefixIndex for Chains {
    fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
        self.read().match_prefix(prompt, overlaps);
    }
}

impl BlockStore for Chains {
    fn hash_at(&self, place: Place) -> Option<SequenceHash> {
        self.read().hash_at(place)
    }

    fn blocks_of(&self, chain: u32, blocks: &mut Vec<SequenceHash>) -> Option<(Origin, usize)> {
        let core = self.read();
        let chain = core.slab().get(chain).filter(|chain| chain.head().is_some())?;
        blocks.extend_from_slice(chain.blocks_from(chain.start()));
        Some((chain.above(), chain.start()))
    }

    fn store(&self, slot: Slot, tier: Tier, above: Above, blocks: &[SequenceHash], placed: &mut Placed) {
        let mut above = above;
        for piece in blocks.chunks(HOLD) {
            let before = placed.places.len();
            self.change(|core| core.store((slot, tier), above, piece, placed));
            match placed.places.last() {
                Some(&last) if placed.places.len() == before + piece.len() => above = Above::Block(last),
                _ => return,
            }
        }
    }

    fn add_tier(&self, slot: Slot, tier: Tier, place: Place) -> bool {
        self.change(|core| core.add_tier(place, (slot, tier)))
    }

    fn remove(&self, slot: Slot, places: &[(Place, Tier)]) -> usize {
        let mut gone = 0;
        for piece in places.chunks(HOLD) {
            let unmark =
                |core: &mut Core| piece.iter().filter(|&&(place, tier)| core.unmark(place, slot, tier)).count();
            gone += self.change(unmark);
        }
        gone
    }

    fn remove_all(&self, slot: Slot, tier: Option<Tier>, chains: &[u32]) -> usize {
        let mut gone = 0;
        for piece in chains.chunks(CHAINS_HELD) {
            let unmark = |core: &mut Core| piece.iter().map(|&chain| core.unmark_all(chain, slot, tier)).sum::<usize>();
            gone += self.change(unmark);
        }
        gone
    }

    fn set_pools(&self, pools: &[SlotSet]) {
        self.change(|core| core.set_pools(pools));
    }

    fn last_used(&self, chains: &[u32], ages: &mut Vec<u32>) {
        for piece in chains.chunks(HOLD) {
            let core = self.read();
            ages.extend(piece.iter().map(|&chain| core.slab().get(chain).map_or(0, chain::Chain::used)));
        }
    }

    fn now(&self) -> u32 {
        self.read().now()
    }

    fn end_present(&self) {
        self.change(Core::end_present);
    }

    fn room(&self) -> usize {
        self.room.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        let mut bytes = self.read().bytes();
        let mut from = 0;
        loop {
            // A statement of its own, so that the lock is free between two segments.
            let Some((segment, next)) = self.read().slab().bytes(from) else { return bytes };
            bytes += segment;
            from = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Arc;

    use super::*;
    use crate::event::{Attention, CacheEvent, Content, Removed, Stored};
    use crate::feed::{Began, Position};
    use crate::snapshot::Mark;
    use crate::store::BlockStore;
    use crate::tree::PlainIndex;
    use crate::view::ViewSettings;
    use warmpath_core::blocks::{Root, step};
    use warmpath_core::ids::{BlockHash, EngineHash};
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::{BlockSize, Blocks};

    const WORKERS: [u16; 5] = [0, 1, 63, 130, 700];

    fn random(state: &mut u64, below: usize) -> usize {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) >> 1).expect("63 bits") % below
    }

    fn settings() -> ViewSettings {
        ViewSettings { pool: Namespace::plain("m", BlockSize::new(16).expect("not 0")), seed: 1, blocks: 0 }
    }

    /// What the router calls the blocks of a path of contents. Engines call them the same here.
    fn hashes(path: &[u64]) -> Vec<SequenceHash> {
        let follow = |above: &mut SequenceHash, &content: &u64| {
            *above = step(*above, BlockHash(content));
            Some(*above)
        };
        path.iter().scan(Root::new(&settings().pool, 1).sequence, follow).collect()
    }

    /// The blocks of a path from `from` on are stored.
    fn stored(path: &[u64], from: usize, tier: Tier) -> CacheEvent {
        let names: Vec<EngineHash> = hashes(path).into_iter().map(|hash| EngineHash(hash.0)).collect();
        CacheEvent::from(Stored {
            hashes: names[from..].to_vec(),
            parent: from.checked_sub(1).map(|parent| names[parent]),
            content: Content::Hashes(path[from..].iter().copied().map(BlockHash).collect()),
            block_size: None,
            tier,
            group: None,
            attention: Attention::Unstated,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        })
    }

    fn removed(blocks: &[SequenceHash], tier: Tier) -> CacheEvent {
        let hashes = blocks.iter().map(|hash| EngineHash(hash.0)).collect();
        CacheEvent::Removed(Removed { hashes, tier, group: None, remaining_copy_counts: None })
    }

    fn totals(index: &impl PrefixIndex, prompt: &[SequenceHash]) -> Vec<[u32; 4]> {
        let mut overlaps = Overlaps::default();
        index.match_prefix(prompt, &mut overlaps);
        WORKERS.map(|slot| Tier::ALL.map(|tier| overlaps.of(Slot(slot)).get(tier).0)).to_vec()
    }

    /// The store's invariants, and that it says of every worker just what the worker's view says.
    fn check(index: &ConcurrentIndex) {
        let held = index.store().read().check();
        let named: HashSet<(Slot, Tier, Place)> = WORKERS
            .iter()
            .flat_map(|&slot| index.blocks_of(Slot(slot)).into_iter().map(move |of| (Slot(slot), of)))
            .flat_map(|(slot, (place, tiers))| tiers.into_iter().map(move |tier| (slot, tier, place)))
            .collect();
        assert!(held == named, "{} held, {} named", held.len(), named.len());
        for slot in WORKERS.map(Slot) {
            let places: HashSet<Place> = held.iter().filter(|held| held.0 == slot).map(|held| held.2).collect();
            assert_eq!(index.entries(slot), places.len());
        }
    }

    /// A path of `len` blocks in a tree that has three branches at every 97th block.
    fn path(state: &mut u64, len: usize) -> Vec<u64> {
        let mut branches = 0;
        let mut follow = |place: usize| {
            if place.is_multiple_of(97) {
                branches = branches * 3 + u64::try_from(random(state, 3)).expect("small");
            }
            u64::try_from(place).expect("64 bits") << 32 | branches
        };
        (0..len).map(&mut follow).collect()
    }

    /// One stretch of a prompt stored or removed, or a worker forgotten.
    fn draw(state: &mut u64) -> Option<Vec<CacheEvent>> {
        let tier = Tier::ALL[random(state, 4) * random(state, 2)];
        let len = 1 + random(state, 1500);
        let path = path(state, len);
        let from = [0, random(state, len)][random(state, 2)];
        let to = [len, (from + 1 + random(state, 5)).min(len)][random(state, 2)];
        let blocks = hashes(&path[..to]);
        let one_by_one = || blocks[from..].iter().map(|hash| removed(std::slice::from_ref(hash), tier));
        match random(state, 100) {
            0..55 => Some(vec![stored(&path[..to], from, tier)]),
            55..60 => Some(vec![stored(&path[..to], from, tier), removed(&blocks[from..], tier), CacheEvent::Cleared]),
            60..75 => Some(vec![removed(&blocks[from..], tier)]),
            75..98 => Some(one_by_one().rev().collect()),
            _ => None,
        }
    }

    #[test]
    fn long_chains_equal_the_plain_tree_and_keep_the_invariants() {
        for seed in 0..6 {
            let state = &mut (seed * 1000);
            let (index, plain) = (Arc::new(ConcurrentIndex::new(1 << 20)), Arc::new(PlainIndex::new(1 << 20)));
            let writers =
                WORKERS.map(|slot| (index.writer(Slot(slot), &settings()), plain.writer(Slot(slot), &settings())));
            for number in 0..1200 {
                let (writer, beside) = &writers[random(state, WORKERS.len())];
                match draw(state) {
                    Some(events) => assert_eq!(writer.apply(&events), beside.apply(&events)),
                    None => {
                        writer.forget();
                        beside.forget();
                    }
                }
                assert_eq!((writer.entries(), writer.names()), (beside.entries(), beside.names()));
                let asked = hashes(&path(state, 1600));
                assert_eq!(totals(&*index, &asked), totals(&*plain, &asked), "seed {seed}, step {number}");
                if number % 50 == 0 {
                    check(&index);
                }
            }
            assert!(plain.len() > 2000, "the run saw too little to mean anything");
            writers.iter().for_each(|(writer, _)| writer.forget());
            check(&index);
            assert!(index.is_empty() && index.store().bytes() < 20_000, "{} bytes", index.store().bytes());
        }
    }

    /// Every view goes from one index into another in which the others live on.
    #[test]
    fn restored_views_keep_the_invariants() {
        let mark = Mark { owner: 1, position: Position::default(), began: Began::AtStart, taken_ms: 0 };
        for seed in 0..20 {
            let state = &mut (seed * 1000);
            let index = Arc::new(ConcurrentIndex::new(1 << 20));
            let writers = WORKERS.map(|slot| index.writer(Slot(slot), &settings()));
            for _ in 0..200 {
                let writer = &writers[random(state, WORKERS.len())];
                if let Some(events) = draw(state) {
                    writer.apply(&events);
                }
            }
            for (number, writer) in (0..).zip(&writers) {
                let names = writer.names();
                let mut snapshot = writer.snapshot(mark, 0);
                let chunks: Vec<Vec<u8>> = snapshot.by_ref().collect();
                writer.forget();
                check(&index);
                let mut restore = writer.restore(mark.owner);
                for chunk in &chunks {
                    restore.chunk(chunk).expect("it was written so");
                    check(&index);
                }
                let restored = restore.finish().expect("all chunks were read");
                assert_eq!(restored.names + snapshot.left_out().expect("known now"), names, "seed {seed}, {number}");
                assert_eq!((writer.names(), restored.over_limit), (restored.names, 0));
            }
        }
    }

    #[test]
    fn r29_a_million_blocks_come_and_go_on_a_small_stack() {
        let run = || {
            let path: Vec<u64> = (0..1_000_000).collect();
            let blocks = hashes(&path);
            let index = Arc::new(ConcurrentIndex::new(1 << 20));
            let writer = index.writer(Slot(2), &settings());
            let empty = index.bytes();
            let best = || {
                let mut overlaps = Overlaps::default();
                index.match_prefix(&blocks, &mut overlaps);
                overlaps.best()
            };
            let remove = |blocks: &[SequenceHash]| {
                blocks
                    .chunks(100)
                    .for_each(|blocks| assert_eq!(writer.apply(&[removed(blocks, Tier::Device)]).unknown, 0));
            };
            let all = [stored(&path, 0, Tier::Device)];
            writer.apply(&all);
            assert_eq!((best(), index.len()), (Some((Slot(2), Blocks(1_000_000))), 1_000_000));
            let full = index.bytes();
            remove(&blocks[..500_000]);
            assert_eq!((best(), writer.entries()), (None, 500_000));
            assert!(index.bytes() < full * 2 / 3, "half of the memory is back at once");
            remove(&blocks[500_000..]);
            assert!(index.is_empty() && index.bytes() < empty + 10_000, "{} bytes", index.bytes());
            writer.apply(&all);
            drop((writer, index));
        };
        std::thread::Builder::new().stack_size(512 << 10).spawn(run).expect("a thread").join().expect("no overflow");
    }
}
