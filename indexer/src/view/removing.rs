//! Blocks that an engine has removed.

use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;

use super::copies::Copies;
use super::names::Name;
use super::{Applied, EngineView, Keeper};
use crate::event::Removed;
use crate::store::{BlockStore, Place};

/// Removals that the store is told at once: engines say them one by one.
const TOLD_AT_ONCE: usize = 64;

impl EngineView {
    pub(super) fn remove<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, removed: &Removed) -> Applied {
        let mut applied = Applied::default();
        let group = removed.group.unwrap_or(0);
        if self.told(group) == Some(false) {
            applied.filtered = removed.hashes.len();
            return applied;
        }
        let counts = removed.remaining_copy_counts.as_deref();
        for (block, &hash) in removed.hashes.iter().enumerate() {
            let remaining = counts.and_then(|counts| counts.get(block).copied());
            if self.take_copy(keeper, hash, (group, removed.tier), remaining) {
                applied.removed += 1;
            } else {
                applied.unknown += 1;
            }
            if self.buffers.gone.len() >= TOLD_AT_ONCE {
                self.flush(keeper);
            }
        }
        applied
    }

    /// Takes a copy away; false if none is known.
    fn take_copy<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        hash: EngineHash,
        (group, tier): (u32, Tier),
        remaining: Option<u32>,
    ) -> bool {
        let Some(name) = self.names.get(hash) else { return false };
        let plain = self.group == Some(group);
        if !name.counted {
            if !plain || !name.tiers.contains(tier) {
                return false;
            }
            if remaining.unwrap_or(0) == 0 {
                self.lose_tier(keeper, (hash, name), tier);
                return true;
            }
        }
        let copies = self.copies.entry(hash).or_insert_with(|| Copies::of(self.group, name.tiers.iter()));
        if copies.take(group, tier, remaining).is_none() {
            return false;
        }
        let lost = !copies.holds_in(tier);
        let counted = !self.group.is_some_and(|group| copies.are_single_in(group));
        if !counted {
            self.copies.remove(&hash);
        }
        let name = Name { counted, ..name };
        if lost {
            self.lose_tier(keeper, (hash, name), tier);
        } else {
            self.names.insert(hash, name);
        }
        true
    }

    /// The last copy of a name in a tier is gone.
    fn lose_tier<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, (hash, name): (EngineHash, Name), tier: Tier) {
        let tiers = name.tiers.without(tier);
        if tiers.is_empty() {
            self.names.remove(hash);
            keeper.room.give(1);
        } else {
            self.names.insert(hash, Name { tiers, ..name });
        }
        self.release(name.place, tier);
    }

    /// A name less has copies of a block in a tier. The store is told when no other name has.
    fn release(&mut self, place: Place, tier: Tier) {
        if !self.aliases.is_empty()
            && let Some(others) = self.aliases.get_mut(&(place, tier))
        {
            *others -= 1;
            if *others == 0 {
                self.aliases.remove(&(place, tier));
            }
            return;
        }
        self.buffers.gone.push((place, tier));
    }

    /// Tells the store what was removed.
    pub(super) fn flush<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>) {
        if !self.buffers.gone.is_empty() {
            self.held -= keeper.store.remove(keeper.slot, &self.buffers.gone);
            self.buffers.gone.clear();
        }
    }

    /// Empties the device tier, as the engine did; returns how many names had copies there. O(names and the room for them),
    /// O(1) where there are none.
    pub(super) fn clear_device<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>) -> usize {
        if self.names.len() == 0 {
            return 0;
        }
        let chains = self.names.chains(|name| name.tiers.contains(Tier::Device));
        let chains: Vec<u32> = chains.into_iter().map(|(chain, _)| chain).collect();
        self.held -= keeper.store.remove_all(keeper.slot, Some(Tier::Device), &chains);
        let before = self.names.len();
        let Self { names, copies, aliases, .. } = self;
        aliases.retain(|&(_, tier), _| tier != Tier::Device);
        let mut cleared = 0;
        names.retain(|hash, name| {
            cleared += usize::from(name.tiers.contains(Tier::Device));
            let tiers = name.tiers.without(Tier::Device);
            if name.counted
                && let Some(of_name) = copies.get_mut(&hash)
            {
                of_name.clear_tier(Tier::Device);
                if tiers.is_empty() {
                    copies.remove(&hash);
                }
            }
            (!tiers.is_empty()).then_some(Name { tiers, ..name })
        });
        keeper.room.give(before - self.names.len());
        cleared
    }

    /// Empties the view, as after a restart or a gap. That the engine has called a block 0 stays known: it may again. O(names
    /// and the room for them), O(1) where there are none.
    pub(crate) fn forget<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>) {
        if self.names.len() > 0 {
            let chains: Vec<u32> = self.names.chains(|_| true).into_iter().map(|(chain, _)| chain).collect();
            keeper.store.remove_all(keeper.slot, None, &chains);
            keeper.room.give(self.names.len());
            self.names.clear();
        }
        self.copies.clear();
        self.copies.shrink_to_fit();
        self.aliases.clear();
        self.aliases.shrink_to_fit();
        self.groups.clear();
        self.group = None;
        self.held = 0;
        self.partial = false;
    }

    /// Lets go of about `wanted` names, least recently used chains first, but none that was used at the store's present.
    /// Returns how many. O(names).
    pub(crate) fn shed<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, wanted: usize) -> usize {
        let chains = self.names.chains(|_| true);
        let numbers: Vec<u32> = chains.iter().map(|&(chain, _)| chain).collect();
        let mut ages = Vec::with_capacity(chains.len());
        keeper.store.last_used(&numbers, &mut ages);
        let now = keeper.store.now();
        let mut oldest: Vec<(u32, u32, u32)> =
            ages.into_iter().zip(chains).map(|(age, (chain, names))| (age, chain, names)).collect();
        oldest.retain(|&(age, ..)| age < now);
        oldest.sort_unstable();
        let mut shed = 0_usize;
        let enough = oldest.iter().take_while(|&&(.., names)| {
            let more = shed < wanted;
            shed += usize::try_from(names).unwrap_or(0);
            more
        });
        let mut going: Vec<u32> = enough.map(|&(_, chain, _)| chain).collect();
        going.sort_unstable();
        self.let_go(keeper, &going)
    }

    /// Takes the worker out of whole chains, which ascend.
    fn let_go<S: BlockStore>(&mut self, keeper: &Keeper<'_, S>, chains: &[u32]) -> usize {
        self.held -= keeper.store.remove_all(keeper.slot, None, chains);
        let goes = |place: Place| chains.binary_search(&place.chain).is_ok();
        let before = self.names.len();
        let Self { names, copies, aliases, .. } = self;
        aliases.retain(|&(place, _), _| !goes(place));
        names.retain(|hash, name| {
            if !goes(name.place) {
                return Some(name);
            }
            if name.counted {
                copies.remove(&hash);
            }
            None
        });
        let shed = before - self.names.len();
        self.partial |= shed > 0;
        keeper.room.give(shed);
        shed
    }
}
