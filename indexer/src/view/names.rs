//! An engine's names of blocks, each with the place where the block is kept.

use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;

use crate::store::Place;
use crate::table::{HashTable, Kept};

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

/// A set of tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tiers(u8);

/// The mark of names whose copies are counted; those below are the tiers.
const COUNTED: u8 = 1 << 4;

impl Tiers {
    fn bit(tier: Tier) -> u8 {
        1 << tier.index()
    }

    pub(super) fn one(tier: Tier) -> Self {
        Self(Self::bit(tier))
    }

    pub(super) fn contains(self, tier: Tier) -> bool {
        self.0 & Self::bit(tier) != 0
    }

    pub(super) fn with(self, tier: Tier) -> Self {
        Self(self.0 | Self::bit(tier))
    }

    pub(super) fn without(self, tier: Tier) -> Self {
        Self(self.0 & !Self::bit(tier))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::ALL.into_iter().filter(move |&tier| self.contains(tier))
    }
}

impl Name {
    fn kept(self) -> Kept {
        Kept { value: self.place.packed(), marks: self.tiers.0 | if self.counted { COUNTED } else { 0 } }
    }

    fn of(kept: Kept) -> Self {
        Self {
            place: Place::unpacked(kept.value),
            tiers: Tiers(kept.marks & (COUNTED - 1)),
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

    pub(super) fn insert(&mut self, hash: EngineHash, name: Name) {
        self.0.insert(hash.0, name.kept());
    }

    pub(super) fn remove(&mut self, hash: EngineHash) {
        self.0.remove(hash.0);
    }

    #[cfg(test)]
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
