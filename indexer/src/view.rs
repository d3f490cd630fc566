//! What one engine's cache holds, as its events tell it. The only place that knows the engine's names of blocks, and the
//! only one that counts copies.

mod chain;
mod copies;
mod names;
mod picture;
mod removing;
mod restoring;
mod roots;
mod storing;

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::AddAssign;

use foldhash::fast::RandomState;
use warmpath_core::ids::{EngineHash, SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::Tier;

use crate::event::{Attention, CacheEvent, Content};
use crate::room::Room;
use crate::store::{BlockStore, Place, Placed};
use copies::Copies;
use names::Names;
pub(crate) use picture::Picture;
pub(crate) use restoring::Restoring;
use roots::Roots;

/// KV-cache groups whose attention is remembered; engines have a handful.
const GROUPS: usize = 64;
/// Events whose names are got ready at a time.
const AHEAD: usize = 16;

/// What an engine serves, and how much it can hold.
#[derive(Clone, Debug)]
pub struct ViewSettings {
    /// The model and the block size; adapter and salt come with the events.
    pub pool: Namespace,
    /// The seed of the index's roots.
    pub seed: u64,
    /// Blocks that the engine can hold, where that is known: memory for so many is set aside, so that nothing has to
    /// grow later, at most the worker's share of all that there may be. Else 0.
    pub blocks: usize,
}

/// Blocks of one or more events, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Stored where the engine had no copy yet.
    pub stored: usize,
    /// Stored as a further copy.
    pub copies: usize,
    /// Named again by an engine that reports what it reuses: no copy.
    pub reported: usize,
    /// Copies taken away.
    pub removed: usize,
    /// Refused: below a parent that the view does not hold. Never attached to the root.
    pub orphans: usize,
    /// Refused: cut into blocks of another size than the pool's.
    pub wrong_size: usize,
    /// Passed over: of a group whose blocks do not stand for their prefix, or cut into blocks of another size than the
    /// pool's, where that is a further group's or a slower tier's own.
    pub filtered: usize,
    /// Refused: under a name that stands for another block.
    pub conflicts: usize,
    /// Removed, or placed in one more tier, without being known there.
    pub unknown: usize,
    /// Refused: the index is full.
    pub over_limit: usize,
    /// Left out by the decoder, because the event's tokens did not reach them.
    pub cut: usize,
}

impl Applied {
    /// Of events that say what the cache holds, orphans included.
    pub fn telling(&self) -> usize {
        self.stored + self.copies + self.reported + self.removed + self.orphans
    }
}

impl AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.copies += other.copies;
        self.reported += other.reported;
        self.removed += other.removed;
        self.orphans += other.orphans;
        self.wrong_size += other.wrong_size;
        self.filtered += other.filtered;
        self.conflicts += other.conflicts;
        self.unknown += other.unknown;
        self.over_limit += other.over_limit;
        self.cut += other.cut;
    }
}

/// The cache of one (worker, rank).
///
/// 1. A block is held in a tier while the engine has at least one copy there, in any group that may feed the index.
/// 2. In doubt a copy is not counted: that costs a hit, whereas a copy too many is a false prefix until a restart.
/// 3. Removing a block leaves its descendants known; the run ends at the hole, and a new store closes it.
/// 4. The store says that the worker holds a block in a tier exactly while a name has copies there.
pub(crate) struct EngineView {
    roots: Roots,
    names: Names,
    /// Copies of the names that have more than one in a tier, or one in a group other than `group`.
    copies: HashMap<EngineHash, Copies, RandomState>,
    /// By block and tier: how many names have copies there beside the first. Nearly always empty.
    aliases: HashMap<(Place, Tier), u32, RandomState>,
    /// Blocks that the worker holds.
    held: usize,
    /// The group of the copies that are not written down in `copies`: the first that stored anything.
    group: Option<u32>,
    /// Groups whose attention the engine has told.
    groups: Vec<(u32, bool)>,
    /// Whether a block named 0 was ever stored; until then, parent 0 means none (old simulators, LMCache).
    zero_is_a_name: bool,
    /// Whether blocks were let go, refused or left out that the engine may still hold.
    partial: bool,
    buffers: Buffers,
}

thread_local! {
    /// One for each thread, not for each view: there may be many views.
    static BUFFERS: Cell<Buffers> = Cell::default();
}

/// Memory that is used again from event to event. A view has it while it takes events in.
#[derive(Default)]
struct Buffers {
    hashes: Vec<SequenceHash>,
    placed: Placed,
    /// Removals that the store has not been told.
    gone: Vec<(Place, Tier)>,
}

/// Where a view's blocks are kept.
pub(crate) struct Keeper<'a, S> {
    /// The worker's slot there.
    pub(crate) slot: Slot,
    pub(crate) store: &'a S,
    /// Names that may still be kept, by all workers together.
    pub(crate) room: &'a Room,
}

impl EngineView {
    /// An empty view.
    pub(crate) fn new(settings: &ViewSettings) -> Self {
        Self {
            roots: Roots::new(settings.pool.clone(), settings.seed),
            names: Names::with_capacity(settings.blocks),
            copies: HashMap::default(),
            aliases: HashMap::default(),
            held: 0,
            group: None,
            groups: Vec::new(),
            zero_is_a_name: false,
            partial: false,
            buffers: Buffers::default(),
        }
    }

    /// Sets memory aside for an engine of so many blocks.
    pub(crate) fn reserve(&mut self, blocks: usize) {
        self.names.reserve(blocks);
    }

    /// Blocks that the engine names, aliases counted twice.
    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    /// Blocks that the engine holds, one in several tiers counted once.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// The pool's root, without adapter and salt.
    pub(crate) fn pool(&self) -> SequenceHash {
        self.roots.plain()
    }

    /// Bytes of heap, by capacities. O(names that have several copies), nearly always none.
    pub(crate) fn bytes(&self) -> usize {
        let spilled: usize = self.copies.values().map(Copies::bytes).sum();
        let counted = self.copies.capacity() * size_of::<(EngineHash, Copies)>() + spilled;
        let aliases = self.aliases.capacity() * size_of::<((Place, Tier), u32)>();
        self.names.bytes() + self.roots.bytes() + counted + aliases
    }

    /// Takes events in, in order. Of several that empty the device only the last does: all that was there before is gone by then
    /// in any case. O(blocks of the events), and once O(names) where it was emptied.
    pub(crate) fn apply<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, events: &[CacheEvent]) -> Applied {
        self.buffers = BUFFERS.take();
        let mut applied = Applied::default();
        let mut clears = events.iter().filter(|event| matches!(event, CacheEvent::Cleared)).count();
        for events in events.chunks(AHEAD) {
            self.names.warm(events.iter().flat_map(first_names));
            for event in events {
                if matches!(event, CacheEvent::Cleared) {
                    clears -= 1;
                    if clears > 0 {
                        continue;
                    }
                }
                applied += self.take(keeper, event);
            }
        }
        self.flush(keeper);
        BUFFERS.set(std::mem::take(&mut self.buffers));
        applied
    }

    fn take<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, event: &CacheEvent) -> Applied {
        match event {
            CacheEvent::Stored(stored) => {
                self.flush(keeper);
                self.store(keeper, stored)
            }
            CacheEvent::Removed(removed) => self.remove(keeper, removed),
            CacheEvent::Cleared => {
                self.flush(keeper);
                Applied { removed: self.clear_device(keeper), ..Applied::default() }
            }
        }
    }

    /// Whether an event hangs below a block that the view does not hold, so that it could not be applied.
    pub(crate) fn is_orphan(&self, event: &CacheEvent) -> bool {
        match event {
            CacheEvent::Stored(stored) if stored.content != Content::Nothing => {
                stored.parent.is_some_and(|parent| self.names.get(parent).is_none() && !self.means_none(parent))
            }
            _ => false,
        }
    }

    /// Whether blocks were let go, refused or left out of a snapshot that the engine may still hold.
    pub(crate) fn is_partial(&self) -> bool {
        self.partial
    }

    /// Takes note that such blocks were left out.
    pub(crate) fn note_partial(&mut self) {
        self.partial = true;
    }

    /// The places of all names, and where each has copies.
    #[cfg(test)]
    pub(crate) fn places(&self) -> Vec<(Place, Vec<Tier>)> {
        self.names.iter().map(|(_, name)| (name.place, name.tiers.iter().collect())).collect()
    }

    fn means_none(&self, parent: EngineHash) -> bool {
        parent.0 == 0 && !self.zero_is_a_name
    }

    /// Whether a group's blocks may feed the index; remembers what the engine tells of it.
    fn may_feed(&mut self, group: u32, attention: Attention) -> bool {
        let told = match attention {
            Attention::Unstated => return self.told(group).unwrap_or(group == 0),
            Attention::Prefix => true,
            Attention::Other => false,
        };
        if let Some(entry) = self.groups.iter_mut().find(|(known, _)| *known == group) {
            entry.1 = told;
        } else if self.groups.len() < GROUPS {
            self.groups.push((group, told));
        } else {
            return false;
        }
        told
    }

    fn told(&self, group: u32) -> Option<bool> {
        self.groups.iter().find(|(known, _)| *known == group).map(|&(_, told)| told)
    }
}

/// The names that an event looks up first. Engines store and remove blocks one by one while they decode.
fn first_names(event: &CacheEvent) -> impl Iterator<Item = &EngineHash> {
    let (first, parent) = match event {
        CacheEvent::Stored(stored) => (stored.hashes.first(), stored.parent.as_ref()),
        CacheEvent::Removed(removed) => (removed.hashes.first(), None),
        CacheEvent::Cleared => (None, None),
    };
    first.into_iter().chain(parent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Medium, Removed, Stored};
    use crate::store::{Above, Origin};
    use crate::tree::PrefixTree;
    use std::sync::Mutex;
    use warmpath_core::blocks::{DEFAULT_ROOT_SEED, MediaSpan, Root, hash_blocks, media_hash};
    use warmpath_core::overlap::{Overlaps, PrefixIndex};
    use warmpath_core::slot_set::SlotSet;
    use warmpath_core::units::{BlockSize, Tokens};

    /// What a view told its store, a block at a time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Said {
        Store(SequenceHash, Tier),
        Remove(SequenceHash, Tier),
    }

    /// The plain store, and what it was told.
    struct Recording {
        tree: PrefixTree,
        said: Mutex<Vec<Said>>,
    }

    impl Recording {
        fn note(&self, said: impl IntoIterator<Item = Said>) {
            self.said.lock().unwrap().extend(said);
        }

        fn hash(&self, place: Place) -> SequenceHash {
            self.tree.hash_at(place).expect("a view names only places that it holds")
        }
    }

    impl PrefixIndex for Recording {
        fn match_prefix(&self, prompt: &[SequenceHash], overlaps: &mut Overlaps) {
            self.tree.match_prefix(prompt, overlaps);
        }
    }

    impl BlockStore for Recording {
        fn hash_at(&self, place: Place) -> Option<SequenceHash> {
            self.tree.hash_at(place)
        }
        fn blocks_of(&self, chain: u32, blocks: &mut Vec<SequenceHash>) -> Option<(Origin, usize)> {
            self.tree.blocks_of(chain, blocks)
        }
        fn store(&self, slot: Slot, tier: Tier, above: Above, blocks: &[SequenceHash], placed: &mut Placed) {
            self.tree.store(slot, tier, above, blocks, placed);
            let new = (0..placed.places.len()).filter(|at| !placed.held.contains(at));
            self.note(new.map(|at| Said::Store(blocks[at], tier)));
        }
        fn add_tier(&self, slot: Slot, tier: Tier, place: Place) -> bool {
            self.note([Said::Store(self.hash(place), tier)]);
            self.tree.add_tier(slot, tier, place)
        }
        fn remove(&self, slot: Slot, places: &[(Place, Tier)]) -> usize {
            self.note(places.iter().map(|&(place, tier)| Said::Remove(self.hash(place), tier)));
            self.tree.remove(slot, places)
        }
        fn remove_all(&self, slot: Slot, tier: Option<Tier>, chains: &[u32]) -> usize {
            let tiers = || Tier::ALL.into_iter().filter(move |&other| tier.is_none_or(|tier| tier == other));
            let hash = |&chain: &u32| self.hash(Place { chain, offset: 0 });
            self.note(chains.iter().map(hash).flat_map(|hash| tiers().map(move |tier| Said::Remove(hash, tier))));
            self.tree.remove_all(slot, tier, chains)
        }
        fn set_pools(&self, pools: &[SlotSet]) {
            self.tree.set_pools(pools);
        }
        fn last_used(&self, chains: &[u32], ages: &mut Vec<u32>) {
            self.tree.last_used(chains, ages);
        }
        fn now(&self) -> u32 {
            self.tree.now()
        }
        fn end_present(&self) {
            self.tree.end_present();
        }
        fn room(&self) -> usize {
            self.tree.room()
        }
        fn bytes(&self) -> usize {
            self.tree.bytes()
        }
    }

    /// A view of an engine with blocks of two tokens, and what it told its store last.
    struct Bench {
        view: EngineView,
        store: Recording,
        room: Room,
        said: Vec<Said>,
    }

    impl Bench {
        fn new() -> Self {
            let pool = Namespace::plain("m", BlockSize::new(2).expect("not 0"));
            let view = EngineView::new(&ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 });
            let store = Recording { tree: PrefixTree::new(1000), said: Mutex::default() };
            Self { view, store, room: Room::new(100), said: Vec::new() }
        }

        fn apply(&mut self, event: impl Into<CacheEvent>) -> Applied {
            self.apply_all(&[event.into()])
        }

        fn apply_all(&mut self, events: &[CacheEvent]) -> Applied {
            let keeper = Keeper { slot: Slot(3), store: &self.store, room: &self.room };
            let applied = self.view.apply(&keeper, events);
            self.said = std::mem::take(&mut self.store.said.lock().unwrap());
            assert_eq!(self.room.taken(), self.view.names());
            applied
        }

        fn forget(&mut self) {
            self.view.forget(&Keeper { slot: Slot(3), store: &self.store, room: &self.room });
        }

        fn remove(&mut self, hashes: &[u64], tier: Tier) -> Applied {
            self.apply(removed(hashes, tier))
        }
    }

    fn removed(hashes: &[u64], tier: Tier) -> CacheEvent {
        let hashes = hashes.iter().copied().map(EngineHash).collect();
        CacheEvent::Removed(Removed { hashes, tier, group: None, remaining_copy_counts: None })
    }

    /// Blocks of two tokens: hash 1 has tokens 1 1, hash 2 has 2 2, and so on.
    fn stored(hashes: &[u64], parent: Option<u64>) -> Stored {
        let tokens = hashes.iter().flat_map(|&hash| [u32::try_from(hash).expect("small"); 2]).collect();
        Stored {
            hashes: hashes.iter().copied().map(EngineHash).collect(),
            parent: parent.map(EngineHash),
            content: Content::Tokens(tokens),
            block_size: Some(2),
            tier: Tier::Device,
            group: None,
            attention: Attention::Unstated,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        }
    }

    fn root(adapter: Option<&str>, salt: Option<&str>) -> Root {
        let size = BlockSize::new(2).expect("not 0");
        let plain = Namespace::plain("m", size);
        let namespace = Namespace { adapter: adapter.map(Into::into), salt: salt.map(Into::into), ..plain };
        Root::new(&namespace, DEFAULT_ROOT_SEED)
    }

    /// The hashes that a prompt of the blocks `names` has in the router.
    fn prompt(names: &[u32]) -> Vec<SequenceHash> {
        let tokens: Vec<u32> = names.iter().flat_map(|&name| [name; 2]).collect();
        let mut hashes = Vec::new();
        hash_blocks(&root(None, None), &tokens, &[], &mut hashes);
        hashes
    }

    /// Stores of the last blocks of a chain, from place `from` on.
    fn stores_of(chain: &[SequenceHash], from: usize) -> Vec<Said> {
        chain[from..].iter().map(|&hash| Said::Store(hash, Tier::Device)).collect()
    }

    fn stores(names: &[u32], from: usize) -> Vec<Said> {
        stores_of(&prompt(names), from)
    }

    fn removes(hashes: &[SequenceHash], tier: Tier) -> Vec<Said> {
        hashes.iter().map(|&hash| Said::Remove(hash, tier)).collect()
    }

    #[test]
    fn chains_continue_below_their_parents() {
        let mut bench = Bench::new();
        assert_eq!(bench.apply(stored(&[1, 2], None)), Applied { stored: 2, ..Applied::default() });
        assert_eq!(bench.said, stores(&[1, 2], 0));
        bench.apply(stored(&[3], Some(2)));
        assert_eq!(bench.said, stores(&[1, 2, 3], 2));
    }

    #[test]
    fn an_unknown_parent_is_never_the_root() {
        let mut bench = Bench::new();
        let orphan = stored(&[3, 4], Some(9));
        assert!(bench.view.is_orphan(&orphan.clone().into()));
        assert_eq!(bench.apply(orphan), Applied { orphans: 2, ..Applied::default() });
        assert_eq!((bench.said.len(), bench.view.names()), (0, 0));
        assert_eq!(bench.apply(stored(&[5], Some(3))).orphans, 1);
    }

    #[test]
    fn parent_0_means_none_until_a_block_is_called_0() {
        let mut bench = Bench::new();
        assert!(!bench.view.is_orphan(&stored(&[1], Some(0)).into()));
        bench.apply(stored(&[1], Some(0)));
        assert_eq!(bench.said, stores(&[1], 0));
        let mut zero = stored(&[2], Some(1));
        zero.hashes = vec![EngineHash(0)];
        bench.apply(zero);
        bench.apply(stored(&[3], Some(0)));
        assert_eq!(bench.said, stores(&[1, 2, 3], 2));
        bench.remove(&[0], Tier::Device);
        assert_eq!(bench.apply(stored(&[4], Some(0))).orphans, 1);
        bench.forget();
        assert_eq!(bench.apply(stored(&[4], Some(0))).orphans, 1, "what is emptied does not make it a sign again");
    }

    #[test]
    fn copies_are_removed_one_by_one() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        assert_eq!(bench.apply(stored(&[2], Some(1))), Applied { copies: 1, ..Applied::default() });
        assert_eq!(bench.said, []);
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.said, []);
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.said, removes(&prompt(&[1, 2])[1..], Tier::Device));
        assert_eq!(bench.remove(&[2], Tier::Device), Applied { unknown: 1, ..Applied::default() });
        assert_eq!(bench.said, []);
    }

    #[test]
    fn a_single_first_block_is_a_copy_and_a_longer_beginning_is_a_report() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 3], None));
        assert_eq!(bench.apply(stored(&[1], None)), Applied { copies: 1, ..Applied::default() });
        let report = bench.apply(stored(&[1, 2, 4, 5], None));
        assert_eq!(report, Applied { reported: 2, stored: 2, ..Applied::default() });
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.said, removes(&prompt(&[1, 2])[1..], Tier::Device));
        // In another tier it is news.
        let offloaded = Stored { tier: Tier::Host, ..stored(&[1, 2], None) };
        assert_eq!(bench.apply(offloaded), Applied { stored: 2, ..Applied::default() });
    }

    #[test]
    fn remaining_counts_decide_where_the_engine_tells_them() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1], None));
        bench.apply(stored(&[1], None));
        bench.apply(stored(&[2], Some(1)));
        let CacheEvent::Removed(removed) = removed(&[1, 2], Tier::Device) else { panic!() };
        let counted = |counts: &[u32]| {
            CacheEvent::Removed(Removed { remaining_copy_counts: Some(counts.to_vec()), ..removed.clone() })
        };
        bench.apply(counted(&[0, 4]));
        assert_eq!(bench.said, removes(&prompt(&[1]), Tier::Device));
        assert_eq!(bench.apply(counted(&[3, 1])), Applied { removed: 1, unknown: 1, ..Applied::default() });
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.said, removes(&prompt(&[1, 2])[1..], Tier::Device));
        assert!((bench.view.names() == 0));
    }

    #[test]
    fn descendants_of_a_removed_block_stay_known() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 3], None));
        bench.remove(&[2], Tier::Device);
        bench.apply(stored(&[4], Some(3)));
        assert_eq!(bench.said, stores(&[1, 2, 3, 4], 3));
        bench.apply(stored(&[2], Some(1)));
        assert_eq!(bench.said, stores(&[1, 2], 1));
    }

    #[test]
    fn a_block_may_lie_in_several_tiers() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        let placeholder = Stored {
            hashes: [2, 9].map(EngineHash).to_vec(),
            content: Content::Nothing,
            block_size: Some(0),
            tier: Tier::Host,
            ..stored(&[], None)
        };
        assert_eq!(bench.apply(placeholder.clone()), Applied { stored: 1, unknown: 1, ..Applied::default() });
        assert_eq!(bench.said, [Said::Store(prompt(&[1, 2])[1], Tier::Host)]);
        assert_eq!(bench.apply(placeholder), Applied { reported: 1, unknown: 1, ..Applied::default() });
        bench.apply(CacheEvent::Cleared);
        assert_eq!(bench.view.names(), 1);
        assert_eq!(bench.said.len(), 2);
        assert!(removes(&prompt(&[1, 2]), Tier::Device).iter().all(|change| bench.said.contains(change)));
        bench.remove(&[2], Tier::Host);
        assert_eq!(bench.said, removes(&prompt(&[1, 2])[1..], Tier::Host));
        assert!((bench.view.names() == 0) && bench.view.held() == 0);
    }

    /// A batch of nothing else would take as many walks through all names.
    #[test]
    fn of_several_that_empty_the_device_the_last_does() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        bench.apply(Stored { tier: Tier::Host, ..stored(&[1], None) });
        let (more, host) = (stored(&[3], Some(2)), Stored { tier: Tier::Host, ..stored(&[3], Some(2)) });
        let [cleared, again] = [(), ()].map(|()| CacheEvent::Cleared);
        let applied = bench.apply_all(&[cleared.clone(), more.into(), host.into(), again, cleared]);
        assert_eq!(applied.removed, 3);
        let mut held: Vec<_> = bench.view.places().into_iter().map(|(_, tiers)| tiers).collect();
        held.sort();
        assert_eq!(held, [vec![Tier::Host], vec![Tier::Host]]);
        let last = stored(&[7], Some(1));
        assert_eq!(bench.apply_all(&[CacheEvent::Cleared, last.into()]).stored, 1);
        assert_eq!(bench.view.places().iter().filter(|(_, tiers)| tiers.contains(&Tier::Device)).count(), 1);
    }

    #[test]
    fn two_names_of_one_block_are_both_taken_away_first() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1], None));
        let alias = Stored { hashes: vec![EngineHash(11)], ..stored(&[1], None) };
        assert_eq!(bench.apply(alias), Applied { stored: 1, ..Applied::default() });
        assert_eq!(bench.said, []);
        bench.remove(&[1], Tier::Device);
        assert_eq!(bench.said, []);
        bench.apply(stored(&[2], Some(11)));
        assert_eq!(bench.said, stores(&[1, 2], 1));
        bench.remove(&[11], Tier::Device);
        assert_eq!(bench.said, removes(&prompt(&[1]), Tier::Device));
    }

    #[test]
    fn a_name_that_stands_for_another_block_is_refused_with_what_follows() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        assert_eq!(bench.apply(stored(&[5, 2, 6], None)), Applied { stored: 1, conflicts: 2, ..Applied::default() });
        assert_eq!(bench.said, stores(&[5], 0));
        assert_eq!(bench.view.names(), 3);
    }

    #[test]
    fn a_name_that_an_event_gives_twice_leaves_no_block_behind() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 1, 3], None));
        assert_eq!((bench.view.names(), bench.view.held()), (3, 3));
        bench.remove(&[1, 2, 3], Tier::Device);
        assert_eq!((bench.view.names(), bench.view.held(), bench.store.room()), (0, 0, 1000));
    }

    #[test]
    fn groups_without_full_attention_are_passed_over() {
        let mut bench = Bench::new();
        let windowed = Stored { group: Some(1), attention: Attention::Other, ..stored(&[1], None) };
        assert_eq!(bench.apply(windowed), Applied { filtered: 1, ..Applied::default() });
        let unstated = |group| Stored { group, ..stored(&[1], None) };
        assert_eq!(bench.apply(unstated(Some(1))).filtered, 1);
        assert_eq!(bench.apply(unstated(Some(2))).filtered, 1);
        assert_eq!(bench.apply(unstated(Some(0))).stored, 1);
        // The same name in another group is another copy, and a removal takes from its own group.
        let full = Stored { group: Some(3), attention: Attention::Prefix, ..stored(&[1], None) };
        assert_eq!(bench.apply(full).stored, 1);
        assert_eq!(bench.apply(unstated(Some(3))).copies, 1);
        let CacheEvent::Removed(removed) = removed(&[1], Tier::Device) else { panic!() };
        let mut remove = |group| bench.apply(CacheEvent::Removed(Removed { group: Some(group), ..removed.clone() }));
        assert_eq!(remove(1), Applied { filtered: 1, ..Applied::default() });
        assert_eq!(remove(2), Applied { unknown: 1, ..Applied::default() });
        assert_eq!((remove(0).removed, remove(3).removed, remove(3).removed), (1, 1, 1));
        assert_eq!(bench.said, removes(&prompt(&[1]), Tier::Device));
    }

    #[test]
    fn of_one_block_so_many_copies_are_counted_and_all_of_them_in_bytes() {
        let mut bench = Bench::new();
        let store = |bench: &mut Bench, group| {
            let event = Stored { group: Some(group), attention: Attention::Prefix, ..stored(&[1], None) };
            bench.apply(event).stored
        };
        store(&mut bench, 0);
        let before = bench.view.bytes();
        let kept: usize = (1..60).map(|group| store(&mut bench, group)).sum();
        assert_eq!((kept, bench.view.copies.values().map(|copies| copies.all().len()).sum::<usize>()), (15, 16));
        assert!(bench.view.bytes() >= before + 16 * 12, "{} of {before}", bench.view.bytes());
        let CacheEvent::Removed(removed) = removed(&[1], Tier::Device) else { panic!() };
        let mut remove = |group| bench.apply(CacheEvent::Removed(Removed { group: Some(group), ..removed.clone() }));
        assert_eq!((remove(40).unknown, (0..16).map(|group| remove(group).removed).sum::<usize>()), (1, 16));
        assert_eq!((bench.said.clone(), bench.view.held()), (removes(&prompt(&[1]), Tier::Device), 0));
    }

    #[test]
    fn other_block_sizes_are_refused_and_what_does_not_say_has_the_pools() {
        let mut bench = Bench::new();
        let wrong = Stored { block_size: Some(1), ..stored(&[1, 2], None) };
        assert_eq!(bench.apply(wrong.clone()), Applied { wrong_size: 2, ..Applied::default() });
        let block = root(None, None).block_hash(&[1, 1]);
        let bus = Stored { content: Content::Hashes(vec![block]), block_size: None, ..stored(&[1], None) };
        bench.apply(bus);
        assert_eq!(bench.said, stores(&[1], 0));
        // Where the engine offloads to, and a group beside the one that feeds, may be cut otherwise.
        assert_eq!(bench.apply(wrong.clone()).wrong_size, 2);
        let offloaded = Stored { tier: Tier::Host, ..wrong.clone() };
        assert_eq!(bench.apply(offloaded), Applied { filtered: 2, ..Applied::default() });
        let further = Stored { group: Some(1), attention: Attention::Prefix, ..wrong };
        assert_eq!(bench.apply(further), Applied { filtered: 2, ..Applied::default() });
    }

    #[test]
    fn namespaces_and_media_lead_to_other_places() {
        let mut bench = Bench::new();
        let expected_of = |root: &Root, media: &[MediaSpan]| {
            let mut hashes = Vec::new();
            hash_blocks(root, &[1, 1, 2, 2], media, &mut hashes);
            hashes
        };
        let salted = Stored { salt: Some("t".into()), adapter: Some("a".into()), ..stored(&[1], None) };
        bench.apply(salted);
        let salted_root = root(Some("a"), Some("t"));
        let expected = expected_of(&salted_root, &[]);
        assert_eq!(bench.said, stores_of(&expected[..1], 0));
        // The child says the adapter again, but not the salt: that comes from its parent.
        bench.apply(Stored { adapter: Some("a".into()), ..stored(&[2], Some(1)) });
        assert_eq!(bench.said, stores_of(&expected, 1));

        let media = [0, 1].map(|block| Medium { block, identifier: "img-1".into() }).to_vec();
        let mut pictured = Stored { media, ..stored(&[1, 2], None) };
        pictured.hashes = [7, 8].map(EngineHash).to_vec();
        bench.apply(pictured);
        let span = MediaSpan { start: Tokens(1), len: Tokens(2), hash: media_hash("img-1") };
        assert_eq!(bench.said, stores_of(&expected_of(&root(None, None), &[span]), 0));
    }

    #[test]
    fn a_full_view_takes_no_further_blocks_but_serves_those_it_has() {
        let mut bench = Bench::new();
        let hashes: Vec<u64> = (1..=120).collect();
        assert_eq!(bench.apply(stored(&hashes, None)), Applied { stored: 100, over_limit: 20, ..Applied::default() });
        assert_eq!(bench.apply(stored(&[100], Some(99))).copies, 1);
        bench.remove(&[1], Tier::Device);
        assert_eq!(bench.apply(stored(&[101], Some(100))).stored, 1);
    }

    /// The engine has had 2 all the while; that it names 1 to 3 again makes no second copy of any.
    #[test]
    fn what_was_refused_may_be_reported_as_what_was_let_go() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 3], None));
        bench.remove(&[2], Tier::Device);
        let others: Vec<u64> = (21..=118).collect();
        bench.apply(stored(&others, None));
        assert_eq!(bench.apply(stored(&[2], Some(1))).over_limit, 1);
        bench.remove(&others, Tier::Device);
        assert_eq!(bench.apply(stored(&[1, 2, 3], None)), Applied { stored: 1, reported: 2, ..Applied::default() });
        bench.remove(&[3], Tier::Device);
        assert_eq!(bench.said, removes(&prompt(&[1, 2, 3])[2..], Tier::Device));
    }
}
