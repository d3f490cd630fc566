//! Blocks that an engine has stored.

use warmpath_core::blocks::Root;
use warmpath_core::ids::{EngineHash, SequenceHash};
use warmpath_core::units::Tier;

use super::chain::Chain;
use super::copies::Copies;
use super::names::Name;
use super::{Applied, Buffers, EngineView, Keeper};
use crate::event::{Content, Stored};
use crate::store::{Above, BlockStore, Tiers};

/// Blocks that are stored at a time, so that buffers stay small whatever events come.
const PIECE: usize = 1024;

/// Names that are got ready at a time.
const WARMED: usize = 32;

/// What became of one more copy of a block that is known by name.
enum Added {
    First,
    Copy,
    Reported,
}

/// How far a stretch of blocks was stored.
enum Ended {
    Whole,
    /// Up to a name that stands for another block.
    Conflict {
        at: usize,
    },
    /// Up to what the index has no room for.
    Full {
        at: usize,
    },
}

impl EngineView {
    pub(super) fn store<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, stored: &Stored) -> Applied {
        let blocks = stored.hashes.len();
        let group = stored.group.unwrap_or(0);
        let mut applied = Applied { cut: stored.cut, ..Applied::default() };
        self.zero_is_a_name |= stored.hashes.contains(&EngineHash(0));
        if !self.may_feed(group, stored.attention) {
            applied.filtered = blocks;
            return applied;
        }
        if stored.content == Content::Nothing {
            self.store_known(keeper, stored, group, &mut applied);
            return applied;
        }
        if stored.block_size.is_some_and(|size| size != self.roots.block_size()) {
            // Further groups and slower tiers may be cut otherwise, which says nothing of the blocks that feed the index.
            let feeds = stored.tier == Tier::Device && self.group.is_none_or(|fed| fed == group);
            *(if feeds { &mut applied.wrong_size } else { &mut applied.filtered }) = blocks;
            return applied;
        }
        let root = self.roots.get(stored.adapter.as_ref(), stored.salt.as_ref());
        match self.above(keeper, stored, &root) {
            Some((above, hash)) => {
                let chain = Chain::new(&root, stored, hash);
                self.store_chain(keeper, (stored, group), (above, chain), &mut applied);
            }
            None => applied.orphans = blocks,
        }
        applied
    }

    /// What the blocks of an event follow, and its hash; none where that is a block which the view does not hold.
    fn above<S: BlockStore>(
        &self,
        keeper: &Keeper<'_, S>,
        stored: &Stored,
        root: &Root,
    ) -> Option<(Above, SequenceHash)> {
        let Some(parent) = stored.parent.filter(|&parent| !self.means_none(parent)) else {
            return Some((Above::Root(root.sequence), root.sequence));
        };
        let place = self.names.get(parent)?.place;
        Some((Above::Block(place), keeper.store.hash_at(place)?))
    }

    /// Stores the blocks of an event below `above`.
    ///
    /// An event that starts at the root, names two or more blocks and begins with blocks that are held already is, as
    /// far as those go, a report (vLLM's `kv_cache_report_mode: full`). A real second copy starts below a held parent,
    /// or is a single first block. Once blocks were let go, a held block behind an unknown one may well be reported too:
    /// in doubt it is no copy.
    fn store_chain<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        (stored, group): (&Stored, u32),
        (mut above, mut chain): (Above, Chain<'_>),
        applied: &mut Applied,
    ) {
        let mut reporting = matches!(above, Above::Root(_)) && stored.hashes.len() >= 2;
        let mut left = &stored.hashes[..];
        while !left.is_empty() {
            let (piece, rest) = left.split_at(left.len().min(PIECE));
            let hashes = &mut self.buffers.hashes;
            hashes.clear();
            hashes.extend(std::iter::from_fn(|| chain.next()).take(piece.len()));
            let piece = &piece[..hashes.len()];
            let ended = self.store_piece(keeper, (piece, group, stored.tier), (&mut above, &mut reporting), applied);
            match ended {
                Ended::Whole if piece.len() == PIECE => left = rest,
                Ended::Whole => return,
                // What follows would hang below a block that is not there: it would only fill the memory.
                Ended::Conflict { at } => {
                    applied.conflicts += left.len() - at;
                    return;
                }
                Ended::Full { at } => {
                    // The engine holds what was refused, as what was let go.
                    self.partial = true;
                    applied.over_limit += left.len() - at;
                    return;
                }
            }
        }
    }

    /// Stores some blocks, whose hashes are in `buffers`, below `above`, and moves that to the last of them.
    fn store_piece<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        (names, group, tier): (&[EngineHash], u32, Tier),
        (above, reporting): (&mut Above, &mut bool),
        applied: &mut Applied,
    ) -> Ended {
        let mut at = 0;
        while let Some(&hash) = names.get(at) {
            let Some(name) = self.names.get(hash) else {
                let unknown = &names[at..at + self.unknown(&names[at..])];
                let len = self.store_unknown(keeper, (unknown, group, tier), *above, at);
                applied.stored += len;
                at += len;
                if len < unknown.len() {
                    return Ended::Full { at };
                }
                *above = self.buffers.placed.places.last().map_or(*above, |&last| Above::Block(last));
                *reporting &= self.partial;
                continue;
            };
            if keeper.store.hash_at(name.place) != Some(self.buffers.hashes[at]) {
                return Ended::Conflict { at };
            }
            match self.add_copy(keeper, (hash, name), (group, tier), *reporting) {
                Added::First => {
                    applied.stored += 1;
                    *reporting &= self.partial;
                }
                Added::Copy => applied.copies += 1,
                Added::Reported => applied.reported += 1,
            }
            *above = Above::Block(name.place);
            at += 1;
        }
        Ended::Whole
    }

    /// How many of the first names are unknown.
    fn unknown(&self, names: &[EngineHash]) -> usize {
        let mut unknown = 0;
        for names in names.chunks(WARMED) {
            self.names.warm(names.iter());
            let here = names.iter().take_while(|&&hash| self.names.get(hash).is_none()).count();
            unknown += here;
            if here < names.len() {
                break;
            }
        }
        unknown
    }

    /// Stores blocks whose names are all unknown and whose hashes begin at `from` in `buffers`; returns how many were,
    /// from the first.
    fn store_unknown<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        (names, group, tier): (&[EngineHash], u32, Tier),
        above: Above,
        from: usize,
    ) -> usize {
        let granted = keeper.room.take(names.len());
        let Buffers { hashes, placed, gone } = &mut self.buffers;
        placed.clear();
        keeper.store.store(keeper.slot, tier, above, &hashes[from..from + granted], placed);
        let len = placed.places.len();
        keeper.room.give(granted - len);
        self.held += placed.new;
        for &at in &placed.held {
            *self.aliases.entry((placed.places[at], tier)).or_insert(0) += 1;
        }
        let counted = *self.group.get_or_insert(group) != group;
        for (&hash, &place) in names.iter().zip(&placed.places) {
            let name = Name { place, tiers: Tiers::one(tier), counted };
            // Decoders refuse events that name a block twice; here the first place of the name is given up.
            if let Some(twice) = self.names.insert(hash, name) {
                keeper.room.give(1);
                gone.push((twice.place, tier));
            }
            if counted {
                self.copies.insert(hash, Copies::one(group, tier));
            }
        }
        len
    }

    /// An offload placeholder: blocks that are known by name lie in one more tier. Repeating it adds nothing.
    fn store_known<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        stored: &Stored,
        group: u32,
        applied: &mut Applied,
    ) {
        for &hash in &stored.hashes {
            let Some(name) = self.names.get(hash) else {
                applied.unknown += 1;
                continue;
            };
            match self.add_copy(keeper, (hash, name), (group, stored.tier), true) {
                Added::First => applied.stored += 1,
                Added::Copy | Added::Reported => applied.reported += 1,
            }
        }
    }

    /// One more copy under a known name; a copy that is there already is none when the engine only `reports`.
    fn add_copy<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        (hash, name): (EngineHash, Name),
        (group, tier): (u32, Tier),
        reports: bool,
    ) -> Added {
        let plain = self.group == Some(group);
        let held = match self.copies.get(&hash) {
            Some(copies) => copies.holds(group, tier),
            None => plain && name.tiers.contains(tier),
        };
        if held && reports {
            return Added::Reported;
        }
        let counted = name.counted || held || !plain;
        if counted {
            let copies = self.copies.entry(hash).or_insert_with(|| Copies::of(self.group, name.tiers.iter()));
            // In doubt it is none.
            if !copies.add(group, tier) {
                return Added::Reported;
            }
        }
        self.names.insert(hash, Name { tiers: name.tiers.with(tier), counted, ..name });
        if !name.tiers.contains(tier) && !keeper.store.add_tier(keeper.slot, tier, name.place) {
            *self.aliases.entry((name.place, tier)).or_insert(0) += 1;
        }
        if held { Added::Copy } else { Added::First }
    }
}
