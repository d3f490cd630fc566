//! An engine's names of blocks, each with the place where the block is kept.

use crate::store::{Place, Tiers};
use crate::table::{HashTable, Kept};
use warmpath_core::ids::EngineHash;

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    /// Where the block is kept.
    pub(super) place: Place,
    /// Where the engine has copies under this name.
    pub(super) tiers: Tiers,
    /// Whether the copies are written down elsewhere, since there is more than one in a tier or one in another group.
    pub(super) counted: bool,
}

/// The mark of names whose copies are counted; those below are the tiers.
const COUNTED: u8 = 1 << 4;

impl Name {
    fn kept(self) -> Kept {
        Kept { value: self.place.packed(), marks: self.tiers.bits() | if self.counted { COUNTED } else { 0 } }
    }

    fn of(kept: Kept) -> Self {
        Self {
            place: Place::unpacked(kept.value),
            tiers: Tiers::of_bits(kept.marks & (COUNTED - 1)).expect("the mask leaves the tiers"),
            counted: kept.marks & COUNTED != 0,
        }
    }
}

/// A map from names to what is known of them, at 12 bytes a slot.
pub(super) struct Names(HashTable);

impl Names {
    /// An empty map that has room for about `blocks` names before it grows.
    pub(super) fn with_capacity(blocks: usize) -> Self {
        Self(HashTable::with_capacity(blocks))
    }

    pub(super) fn reserve(&mut self, blocks: usize) {
        self.0.reserve(blocks);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(super) fn get(&self, hash: EngineHash) -> Option<Name> {
        self.0.get(hash.0).map(Name::of)
    }

    /// Gets some names ready to be looked up.
    pub(super) fn warm<'a>(&self, hashes: impl Iterator<Item = &'a EngineHash>) {
        self.0.warm(hashes.map(|hash| hash.0));
    }

    /// Keeps what is known of a name; returns what was known before.
    pub(super) fn insert(&mut self, hash: EngineHash, name: Name) -> Option<Name> {
        self.0.insert(hash.0, name.kept()).map(Name::of)
    }

    pub(super) fn remove(&mut self, hash: EngineHash) {
        self.0.remove(hash.0);
    }

    /// Every name, in no order that means anything.
    pub(super) fn iter(&self) -> impl Iterator<Item = (EngineHash, Name)> + '_ {
        self.0.iter().map(|(hash, kept)| (EngineHash(hash), Name::of(kept)))
    }

    /// Changes every name; those of which nothing is left go.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(EngineHash, Name) -> Option<Name>) {
        self.0.retain(|hash, kept| keep(EngineHash(hash), Name::of(kept)).map(Name::kept));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The chains in which blocks lie, ascending, each with the offset of the last of its blocks.
    pub(super) fn ends(&self) -> Vec<(u32, usize)> {
        let places = || self.iter().map(|(_, name)| name.place);
        let Some(last) = places().map(|place| place.chain).max() else { return Vec::new() };
        let mut ends = vec![None; usize::try_from(last).expect("23 bits") + 1];
        for place in places() {
            let end = &mut ends[usize::try_from(place.chain).expect("23 bits")];
            *end = (*end).max(u16::try_from(place.offset).ok());
        }
        (0..).zip(ends).filter_map(|(chain, end)| Some((chain, usize::from(end?)))).collect()
    }

    /// The chains in which the blocks of those names lie that `pass`, each once, with how many of them.
    pub(super) fn chains(&self, pass: impl Fn(Name) -> bool) -> Vec<(u32, u32)> {
        let places = || self.0.iter().map(|(_, kept)| Name::of(kept)).filter(|&name| pass(name)).map(|name| name.place);
        let Some(last) = places().map(|place| place.chain).max() else { return Vec::new() };
        let mut counts = vec![0_u32; usize::try_from(last).expect("23 bits") + 1];
        for place in places() {
            counts[usize::try_from(place.chain).expect("23 bits")] += 1;
        }
        (0..).zip(counts).filter(|&(_, count)| count > 0).collect()
    }
}
