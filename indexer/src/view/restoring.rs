//! A view that is filled from a snapshot.

use warmpath_core::ids::SequenceHash;
use warmpath_core::units::Tier;

use super::copies::Copies;
use super::names::Name;
use super::{EngineView, Keeper};
use crate::snapshot::{Groups, Parent, Record, SnapshotFault};
use crate::store::{Above, BlockStore, Place, Placed};

/// How far a view has been filled, and buffers for it.
#[derive(Default)]
pub(crate) struct Restoring {
    /// Names that were put in.
    pub(crate) restored: usize,
    /// Names for which there was no room, or none for what they follow.
    pub(crate) over_limit: usize,
    placed: Placed,
    blocks: Vec<SequenceHash>,
}

impl EngineView {
    /// Takes over what an empty view is to know beside its blocks.
    pub(crate) fn begin_restoring(&mut self, groups: &Groups) {
        self.group = groups.plain;
        self.groups.clone_from(&groups.told);
        self.zero_is_a_name = groups.zero_is_a_name;
    }

    /// Takes in one name.
    ///
    /// # Errors
    /// It is known already, or what it follows is not, though nothing was let go or refused.
    pub(crate) fn restore<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        record: &Record<'_>,
        restoring: &mut Restoring,
    ) -> Result<(), SnapshotFault> {
        if self.names.get(record.name).is_some() {
            return Err(SnapshotFault::NamedTwice);
        }
        let above = match record.parent {
            Parent::Root(root) => Above::Root(root),
            Parent::Block(parent) => match self.names.get(parent) {
                Some(parent) => Above::Block(parent.place),
                // What others' events made room for took it away again, or it did not fit itself.
                None if restoring.over_limit > 0 || self.names.len() < restoring.restored => {
                    self.pass_over(restoring);
                    return Ok(());
                }
                None => return Err(SnapshotFault::UnknownParent),
            },
        };
        let Some(first) = record.tiers.iter().next() else { return Err(SnapshotFault::Malformed("the tiers")) };
        let place = self.put_block(keeper, (above, first), record, restoring);
        let Some(place) = place else {
            self.pass_over(restoring);
            return Ok(());
        };
        for tier in record.tiers.without(first).iter() {
            if !keeper.store.add_tier(keeper.slot, tier, place) {
                *self.aliases.entry((place, tier)).or_insert(0) += 1;
            }
        }
        let counted = !record.copies.is_empty();
        if counted {
            self.copies.insert(record.name, Copies::counted(record.copies));
        }
        self.names.insert(record.name, Name { place, tiers: record.tiers, counted });
        self.zero_is_a_name |= record.name.0 == 0;
        restoring.restored += 1;
        Ok(())
    }

    /// There is no room for a name.
    fn pass_over(&mut self, restoring: &mut Restoring) {
        restoring.over_limit += 1;
        self.note_partial();
    }

    /// Stores a block in its first tier, behind bridges, which are taken away again at once; none where there is no room.
    fn put_block<S: BlockStore>(
        &mut self,
        keeper: &Keeper<'_, S>,
        (above, tier): (Above, Tier),
        record: &Record<'_>,
        restoring: &mut Restoring,
    ) -> Option<Place> {
        if keeper.room.take(1) == 0 {
            return None;
        }
        let Restoring { placed, blocks, .. } = restoring;
        blocks.clear();
        blocks.extend_from_slice(record.bridges);
        blocks.push(record.hash);
        placed.clear();
        keeper.store.store(keeper.slot, tier, above, blocks, placed);
        self.held += placed.new;
        let bridges = record.bridges.len();
        let passing = placed.places.iter().enumerate().take(bridges);
        let passing = passing.filter(|(at, _)| placed.held.binary_search(at).is_err());
        let passing: Vec<(Place, Tier)> = passing.map(|(_, &place)| (place, tier)).collect();
        if !passing.is_empty() {
            self.held -= keeper.store.remove(keeper.slot, &passing);
        }
        let Some(&place) = placed.places.get(bridges) else {
            keeper.room.give(1);
            return None;
        };
        if placed.held.contains(&bridges) {
            *self.aliases.entry((place, tier)).or_insert(0) += 1;
        }
        Some(place)
    }
}
