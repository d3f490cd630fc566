//! What one engine's cache holds, as its events tell it. The only place that knows the engine's names of blocks, and the
//! only one that counts copies.

mod copies;
mod roots;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::AddAssign;

use foldhash::fast::RandomState;
use warmpath_core::blocks::{Root, media_hash, step};
use warmpath_core::ids::{BlockHash, EngineHash, SequenceHash};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::Tier;

use crate::change::Change;
use crate::event::{Attention, CacheEvent, Content, Medium, Removed, Stored};
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
        match self.groups.iter_mut().find(|(known, _)| *known == group) {
            Some(entry) => entry.1 = told,
            None if self.groups.len() < GROUPS => self.groups.push((group, told)),
            None => return false,
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
        let mut chain = Chain { root, content: &stored.content, media: &stored.media, sequence: above };
        for (block, &hash) in stored.hashes.iter().enumerate() {
            let Some(sequence) = chain.next(block) else { return };
            match self.place(hash, sequence, group, stored.tier, reporting, changes) {
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
        sequence: SequenceHash,
        group: u32,
        tier: Tier,
        reporting: bool,
        changes: &mut Vec<Change>,
    ) -> Placed {
        let full = self.places.len() >= self.limit;
        let place = match self.places.entry(hash) {
            Entry::Occupied(entry) if entry.get().sequence != sequence => return Placed::Conflict,
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if full => return Placed::Full,
            Entry::Vacant(entry) => entry.insert(Place { sequence, copies: Copies::default() }),
        };
        if reporting && place.copies.holds(group, tier) {
            return Placed::Reported;
        }
        self.zero_is_a_name |= hash.0 == 0;
        if place.copies.add(group, tier) {
            hold(&mut self.held, sequence, tier, changes);
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
                hold(&mut self.held, place.sequence, stored.tier, changes);
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
fn hold(held: &mut Held, hash: SequenceHash, tier: Tier, changes: &mut Vec<Change>) {
    let names = &mut held.entry(hash).or_default()[tier.index()];
    *names = names.saturating_add(1);
    if *names == 1 {
        changes.push(Change::Store { hash, tier });
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

/// The sequence hashes of an event's blocks, one after the other.
struct Chain<'a> {
    root: &'a Root,
    content: &'a Content,
    media: &'a [Medium],
    sequence: SequenceHash,
}

impl Chain<'_> {
    fn next(&mut self, block: usize) -> Option<SequenceHash> {
        self.sequence = step(self.sequence, self.block_hash(block)?);
        while let Some((medium, rest)) = self.media.split_first()
            && medium.block == block
        {
            self.sequence = step(self.sequence, media_hash(&medium.identifier));
            self.media = rest;
        }
        Some(self.sequence)
    }

    fn block_hash(&self, block: usize) -> Option<BlockHash> {
        match self.content {
            Content::Tokens(tokens) => {
                let size = self.root.block_size().len();
                let from = block.checked_mul(size)?;
                let tokens = tokens.get(from..from.checked_add(size)?)?;
                Some(self.root.block_hash(tokens))
            }
            Content::Hashes(hashes) => hashes.get(block).copied(),
            Content::Nothing => None,
        }
    }
}

#[cfg(test)]
mod tests;
