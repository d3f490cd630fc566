//! What one engine's cache holds, as its events tell it. The only place that knows the engine's names of blocks, and the
//! only one that counts copies.

mod chain;
mod copies;
mod roots;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::AddAssign;

use foldhash::fast::RandomState;
use warmpath_core::blocks::Root;
use warmpath_core::ids::{EngineHash, SequenceHash};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::Tier;

use crate::change::Change;
use crate::event::{Attention, CacheEvent, Content, Removed, Stored};
use chain::Chain;
use copies::Copies;
use roots::Roots;

/// KV-cache groups whose attention is remembered; engines have a handful.
const GROUPS: usize = 64;

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
    /// Passed over: of a group whose blocks do not stand for their prefix.
    pub filtered: usize,
    /// Refused: under a name that stands for another block.
    pub conflicts: usize,
    /// Removed, or placed in one more tier, without being known there.
    pub unknown: usize,
    /// Refused: the view is full.
    pub over_limit: usize,
    /// Left out by the decoder, because the event's tokens did not reach them.
    pub cut: usize,
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
pub struct EngineView {
    roots: Roots,
    limit: usize,
    places: HashMap<EngineHash, Place, RandomState>,
    /// By block and tier: how many (engine hash, group) pairs have copies. Two engine hashes of one block are rare, but
    /// then the block stays until both are gone.
    held: HashMap<SequenceHash, [u32; 4], RandomState>,
    /// Groups whose attention the engine has told.
    groups: Vec<(u32, bool)>,
    /// Whether a block named 0 was ever stored; until then, parent 0 means none (old simulators, LMCache).
    zero_is_a_name: bool,
}

/// Where an engine's block stands in the index.
struct Place {
    sequence: SequenceHash,
    copies: Copies,
}

/// A block, and the one before it where that is known.
#[derive(Clone, Copy)]
struct Link {
    above: Option<SequenceHash>,
    sequence: SequenceHash,
}

/// What became of one stored block.
enum Placed {
    First,
    Copy,
    Reported,
    Conflict,
    Full,
}

impl EngineView {
    /// An empty view of an engine that serves `pool`, for an index with this root seed, of at most `limit` blocks.
    pub fn new(pool: Namespace, seed: u64, limit: usize) -> Self {
        Self {
            roots: Roots::new(pool, seed),
            limit,
            places: HashMap::default(),
            held: HashMap::default(),
            groups: Vec::new(),
            zero_is_a_name: false,
        }
    }

    /// Blocks that the engine names, aliases counted twice.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the engine holds nothing.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Takes an event in and appends what it changes for the index. O(blocks of the event).
    pub fn apply(&mut self, event: &CacheEvent, changes: &mut Vec<Change>) -> Applied {
        match event {
            CacheEvent::Stored(stored) => self.store(stored, changes),
            CacheEvent::Removed(removed) => self.remove(removed, changes),
            CacheEvent::Cleared => Applied { removed: self.clear_device(changes), ..Applied::default() },
        }
    }

    /// Whether an event hangs below a block that the view does not hold, so that it could not be applied.
    pub fn is_orphan(&self, event: &CacheEvent) -> bool {
        match event {
            CacheEvent::Stored(stored) if stored.content != Content::Nothing => {
                stored.parent.is_some_and(|parent| !self.places.contains_key(&parent) && !self.means_none(parent))
            }
            _ => false,
        }
    }

    /// Empties the device tier, as the engine did; returns how many blocks lay there. O(blocks).
    pub fn clear_device(&mut self, changes: &mut Vec<Change>) -> usize {
        let Self { places, held, .. } = self;
        let mut cleared = 0;
        places.retain(|_, place| {
            let groups = place.copies.clear_tier(Tier::Device);
            cleared += usize::from(groups > 0);
            for _ in 0..groups {
                release(held, place.sequence, Tier::Device, changes);
            }
            !place.copies.is_empty()
        });
        cleared
    }

    /// Empties the view, as after a restart or a gap. The owner makes the index forget the worker.
    pub fn clear(&mut self) {
        self.places = HashMap::default();
        self.held = HashMap::default();
        self.groups.clear();
        self.zero_is_a_name = false;
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

    fn store(&mut self, stored: &Stored, changes: &mut Vec<Change>) -> Applied {
        let blocks = stored.hashes.len();
        let group = stored.group.unwrap_or(0);
        let mut applied = Applied { cut: stored.cut, ..Applied::default() };
        self.zero_is_a_name |= stored.hashes.contains(&EngineHash(0));
        if !self.may_feed(group, stored.attention) {
            applied.filtered = blocks;
            return applied;
        }
        if stored.content == Content::Nothing {
            self.place_known(stored, group, changes, &mut applied);
            return applied;
        }
        if stored.block_size.is_some_and(|size| size != self.roots.block_size()) {
            applied.wrong_size = blocks;
            return applied;
        }
        let root = self.roots.get(stored.adapter.as_ref(), stored.salt.as_ref());
        let parent = stored.parent.filter(|&parent| !self.means_none(parent));
        let above = match parent {
            None => Some(root.sequence),
            Some(parent) => self.places.get(&parent).map(|place| place.sequence),
        };
        let Some(above) = above else {
            applied.orphans = blocks;
            return applied;
        };
        self.place_chain(stored, &root, above, parent.is_none(), changes, &mut applied);
        applied
    }

    /// Places a chain of blocks below `above`.
    ///
    /// An event that starts at the root, names two or more blocks and begins with blocks that are held already is, as
    /// far as those go, a report (vLLM's `kv_cache_report_mode: full`). A real second copy starts below a held parent,
    /// or is a single first block.
    fn place_chain(
        &mut self,
        stored: &Stored,
        root: &Root,
        above: SequenceHash,
        at_root: bool,
        changes: &mut Vec<Change>,
        applied: &mut Applied,
    ) {
        let group = stored.group.unwrap_or(0);
        let mut reporting = at_root && stored.hashes.len() >= 2;
        let mut chain = Chain::new(root, stored, above);
        let mut above = Some(above);
        for (block, &hash) in stored.hashes.iter().enumerate() {
            let Some(sequence) = chain.next(block) else { return };
            let link = Link { above, sequence };
            above = Some(sequence);
            match self.place(hash, link, group, stored.tier, reporting, changes) {
                Placed::First => {
                    applied.stored += 1;
                    reporting = false;
                }
                Placed::Copy => applied.copies += 1,
                Placed::Reported => applied.reported += 1,
                // What follows hangs below a block that is not there: it would only fill the memory.
                Placed::Conflict => {
                    applied.conflicts += stored.hashes.len() - block;
                    return;
                }
                Placed::Full => {
                    applied.over_limit += stored.hashes.len() - block;
                    return;
                }
            }
        }
    }

    fn place(
        &mut self,
        hash: EngineHash,
        link: Link,
        group: u32,
        tier: Tier,
        reporting: bool,
        changes: &mut Vec<Change>,
    ) -> Placed {
        let full = self.places.len() >= self.limit;
        let place = match self.places.entry(hash) {
            Entry::Occupied(entry) if entry.get().sequence != link.sequence => return Placed::Conflict,
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if full => return Placed::Full,
            Entry::Vacant(entry) => entry.insert(Place { sequence: link.sequence, copies: Copies::default() }),
        };
        if reporting && place.copies.holds(group, tier) {
            return Placed::Reported;
        }
        if place.copies.add(group, tier) {
            hold(&mut self.held, link, tier, changes);
            Placed::First
        } else {
            Placed::Copy
        }
    }

    /// An offload placeholder: blocks that are known by name lie in one more tier. Repeating it adds nothing.
    fn place_known(&mut self, stored: &Stored, group: u32, changes: &mut Vec<Change>, applied: &mut Applied) {
        for hash in &stored.hashes {
            let Some(place) = self.places.get_mut(hash) else {
                applied.unknown += 1;
                continue;
            };
            if place.copies.holds(group, stored.tier) {
                applied.reported += 1;
            } else {
                place.copies.add(group, stored.tier);
                hold(&mut self.held, Link { above: None, sequence: place.sequence }, stored.tier, changes);
                applied.stored += 1;
            }
        }
    }

    fn remove(&mut self, removed: &Removed, changes: &mut Vec<Change>) -> Applied {
        let mut applied = Applied::default();
        let group = removed.group.unwrap_or(0);
        if self.told(group) == Some(false) {
            applied.filtered = removed.hashes.len();
            return applied;
        }
        let counts = removed.remaining_copy_counts.as_deref();
        for (block, &hash) in removed.hashes.iter().enumerate() {
            let remaining = counts.and_then(|counts| counts.get(block).copied());
            if self.take(hash, group, removed.tier, remaining, changes) {
                applied.removed += 1;
            } else {
                applied.unknown += 1;
            }
        }
        applied
    }

    /// Takes a copy away; false if none is known.
    fn take(
        &mut self,
        hash: EngineHash,
        group: u32,
        tier: Tier,
        remaining: Option<u32>,
        changes: &mut Vec<Change>,
    ) -> bool {
        let Entry::Occupied(mut entry) = self.places.entry(hash) else { return false };
        let sequence = entry.get().sequence;
        let Some(gone) = entry.get_mut().copies.take(group, tier, remaining) else { return false };
        if gone {
            release(&mut self.held, sequence, tier, changes);
            if entry.get().copies.is_empty() {
                entry.remove();
            }
        }
        true
    }
}

type Held = HashMap<SequenceHash, [u32; 4], RandomState>;

/// One more name of a block has copies in a tier.
fn hold(held: &mut Held, link: Link, tier: Tier, changes: &mut Vec<Change>) {
    let names = &mut held.entry(link.sequence).or_default()[tier.index()];
    *names = names.saturating_add(1);
    if *names == 1 {
        changes.push(Change::Store { hash: link.sequence, parent: link.above, tier });
    }
}

/// One name less of a block has copies in a tier.
fn release(held: &mut Held, hash: SequenceHash, tier: Tier, changes: &mut Vec<Change>) {
    let Entry::Occupied(mut entry) = held.entry(hash) else { return };
    let names = &mut entry.get_mut()[tier.index()];
    *names = names.saturating_sub(1);
    if *names == 0 {
        changes.push(Change::Remove { hash, tier });
        if entry.get().iter().all(|names| *names == 0) {
            entry.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Medium;
    use warmpath_core::blocks::{DEFAULT_ROOT_SEED, MediaSpan, hash_blocks, media_hash};
    use warmpath_core::units::{BlockSize, Tokens};

    /// A view of an engine with blocks of two tokens, and the changes that it made last.
    struct Bench {
        view: EngineView,
        changes: Vec<Change>,
    }

    impl Bench {
        fn new() -> Self {
            let size = BlockSize::new(2).expect("not 0");
            Self { view: EngineView::new(Namespace::plain("m", size), DEFAULT_ROOT_SEED, 100), changes: Vec::new() }
        }

        fn apply(&mut self, event: impl Into<CacheEvent>) -> Applied {
            self.changes.clear();
            self.view.apply(&event.into(), &mut self.changes)
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
    fn stores_below(root: &Root, chain: &[SequenceHash], from: usize) -> Vec<Change> {
        let parent = from.checked_sub(1).map_or(root.sequence, |above| chain[above]);
        Change::stores(Some(parent), &chain[from..], Tier::Device).collect()
    }

    fn stores(names: &[u32], from: usize) -> Vec<Change> {
        stores_below(&root(None, None), &prompt(names), from)
    }

    fn removes(hashes: &[SequenceHash], tier: Tier) -> Vec<Change> {
        hashes.iter().map(|&hash| Change::Remove { hash, tier }).collect()
    }

    #[test]
    fn chains_continue_below_their_parents() {
        let mut bench = Bench::new();
        assert_eq!(bench.apply(stored(&[1, 2], None)), Applied { stored: 2, ..Applied::default() });
        assert_eq!(bench.changes, stores(&[1, 2], 0));
        bench.apply(stored(&[3], Some(2)));
        assert_eq!(bench.changes, stores(&[1, 2, 3], 2));
    }

    #[test]
    fn an_unknown_parent_is_never_the_root() {
        let mut bench = Bench::new();
        let orphan = stored(&[3, 4], Some(9));
        assert!(bench.view.is_orphan(&orphan.clone().into()));
        assert_eq!(bench.apply(orphan), Applied { orphans: 2, ..Applied::default() });
        assert_eq!((bench.changes.len(), bench.view.len()), (0, 0));
        assert_eq!(bench.apply(stored(&[5], Some(3))).orphans, 1);
    }

    #[test]
    fn parent_0_means_none_until_a_block_is_called_0() {
        let mut bench = Bench::new();
        assert!(!bench.view.is_orphan(&stored(&[1], Some(0)).into()));
        bench.apply(stored(&[1], Some(0)));
        assert_eq!(bench.changes, stores(&[1], 0));
        let mut zero = stored(&[2], Some(1));
        zero.hashes = vec![EngineHash(0)];
        bench.apply(zero);
        bench.apply(stored(&[3], Some(0)));
        assert_eq!(bench.changes, stores(&[1, 2, 3], 2));
        bench.remove(&[0], Tier::Device);
        assert_eq!(bench.apply(stored(&[4], Some(0))).orphans, 1);
        bench.view.clear();
        assert_eq!(bench.apply(stored(&[4], Some(0))).stored, 1);
    }

    #[test]
    fn copies_are_removed_one_by_one() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        assert_eq!(bench.apply(stored(&[2], Some(1))), Applied { copies: 1, ..Applied::default() });
        assert_eq!(bench.changes, []);
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.changes, []);
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.changes, removes(&prompt(&[1, 2])[1..], Tier::Device));
        assert_eq!(bench.remove(&[2], Tier::Device), Applied { unknown: 1, ..Applied::default() });
        assert_eq!(bench.changes, []);
    }

    #[test]
    fn a_single_first_block_is_a_copy_and_a_longer_beginning_is_a_report() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 3], None));
        assert_eq!(bench.apply(stored(&[1], None)), Applied { copies: 1, ..Applied::default() });
        let report = bench.apply(stored(&[1, 2, 4, 5], None));
        assert_eq!(report, Applied { reported: 2, stored: 2, ..Applied::default() });
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.changes, removes(&prompt(&[1, 2])[1..], Tier::Device));
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
        assert_eq!(bench.changes, removes(&prompt(&[1]), Tier::Device));
        assert_eq!(bench.apply(counted(&[3, 1])), Applied { removed: 1, unknown: 1, ..Applied::default() });
        bench.remove(&[2], Tier::Device);
        assert_eq!(bench.changes, removes(&prompt(&[1, 2])[1..], Tier::Device));
        assert!(bench.view.is_empty());
    }

    #[test]
    fn descendants_of_a_removed_block_stay_known() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2, 3], None));
        bench.remove(&[2], Tier::Device);
        bench.apply(stored(&[4], Some(3)));
        assert_eq!(bench.changes, stores(&[1, 2, 3, 4], 3));
        bench.apply(stored(&[2], Some(1)));
        assert_eq!(bench.changes, stores(&[1, 2], 1));
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
        assert_eq!(bench.changes, [Change::Store { hash: prompt(&[1, 2])[1], parent: None, tier: Tier::Host }]);
        assert_eq!(bench.apply(placeholder), Applied { reported: 1, unknown: 1, ..Applied::default() });
        bench.apply(CacheEvent::Cleared);
        assert_eq!(bench.view.len(), 1);
        assert_eq!(bench.changes.len(), 2);
        assert!(removes(&prompt(&[1, 2]), Tier::Device).iter().all(|change| bench.changes.contains(change)));
        bench.remove(&[2], Tier::Host);
        assert_eq!(bench.changes, removes(&prompt(&[1, 2])[1..], Tier::Host));
        assert!(bench.view.is_empty() && bench.view.held.is_empty());
    }

    #[test]
    fn two_names_of_one_block_are_both_taken_away_first() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1], None));
        let alias = Stored { hashes: vec![EngineHash(11)], ..stored(&[1], None) };
        assert_eq!(bench.apply(alias), Applied { stored: 1, ..Applied::default() });
        assert_eq!(bench.changes, []);
        bench.remove(&[1], Tier::Device);
        assert_eq!(bench.changes, []);
        bench.apply(stored(&[2], Some(11)));
        assert_eq!(bench.changes, stores(&[1, 2], 1));
        bench.remove(&[11], Tier::Device);
        assert_eq!(bench.changes, removes(&prompt(&[1]), Tier::Device));
    }

    #[test]
    fn a_name_that_stands_for_another_block_is_refused_with_what_follows() {
        let mut bench = Bench::new();
        bench.apply(stored(&[1, 2], None));
        assert_eq!(bench.apply(stored(&[5, 2, 6], None)), Applied { stored: 1, conflicts: 2, ..Applied::default() });
        assert_eq!(bench.changes, stores(&[5], 0));
        assert_eq!(bench.view.len(), 3);
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
        assert_eq!(bench.changes, removes(&prompt(&[1]), Tier::Device));
    }

    #[test]
    fn other_block_sizes_are_refused_and_what_does_not_say_has_the_pools() {
        let mut bench = Bench::new();
        let wrong = Stored { block_size: Some(1), ..stored(&[1, 2], None) };
        assert_eq!(bench.apply(wrong), Applied { wrong_size: 2, ..Applied::default() });
        let block = root(None, None).block_hash(&[1, 1]);
        let bus = Stored { content: Content::Hashes(vec![block]), block_size: None, ..stored(&[1], None) };
        bench.apply(bus);
        assert_eq!(bench.changes, stores(&[1], 0));
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
        assert_eq!(bench.changes, stores_below(&salted_root, &expected[..1], 0));
        // The child says the adapter again, but not the salt: that comes from its parent.
        bench.apply(Stored { adapter: Some("a".into()), ..stored(&[2], Some(1)) });
        assert_eq!(bench.changes, stores_below(&salted_root, &expected, 1));

        let media = [0, 1].map(|block| Medium { block, identifier: "img-1".into() }).to_vec();
        let mut pictured = Stored { media, ..stored(&[1, 2], None) };
        pictured.hashes = [7, 8].map(EngineHash).to_vec();
        bench.apply(pictured);
        let span = MediaSpan { start: Tokens(1), len: Tokens(2), hash: media_hash("img-1") };
        assert_eq!(bench.changes, stores_below(&root(None, None), &expected_of(&root(None, None), &[span]), 0));
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
}
