//! From a plan to what engines say, one event after the other.

use warmpath_core::ids::{SequenceHash, Slot};
use warmpath_core::units::Tier;

use crate::plan::{Load, Turn};
use crate::workload::{Block, blocks_of, chain};

/// Blocks of a large event at most.
pub(crate) const LARGE: usize = 512;

/// One event of one worker, in the terms of no index in particular.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Move {
    pub(crate) slot: Slot,
    pub(crate) kind: Kind,
    pub(crate) tier: Tier,
    pub(crate) blocks: Vec<Block>,
}

/// What happens to the blocks of a [`Move`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// They are stored below `parent`; none at the start of a prompt.
    Store {
        parent: Option<SequenceHash>,
    },
    Remove,
}

/// The stores of a load, at most `event` blocks each.
pub(crate) fn stores(load: &Load, event: usize) -> impl Iterator<Item = Move> + use<> {
    let slot = load.slot;
    let mut above = None;
    let mut blocks = Vec::with_capacity(load.to - load.from);
    for (at, block) in blocks_of(&load.pieces).take(load.to).enumerate() {
        if at < load.from {
            above = Some(block.sequence);
        } else {
            blocks.push(block);
        }
    }
    let mut at = 0;
    std::iter::from_fn(move || {
        let chunk = &blocks[at..blocks.len().min(at + event)];
        let last = chunk.last()?.sequence;
        let moved = Move { slot, kind: Kind::Store { parent: above }, tier: Tier::Device, blocks: chunk.to_vec() };
        at += chunk.len();
        above = Some(last);
        Some(moved)
    })
}

/// One removal for each block of a load, the last block first.
pub(crate) fn removals(load: &Load) -> impl Iterator<Item = Move> + use<> {
    let blocks: Vec<Block> = blocks_of(&load.pieces).take(load.to).skip(load.from).collect();
    remove_each(load.slot, blocks)
}

fn remove_each(slot: Slot, blocks: Vec<Block>) -> impl Iterator<Item = Move> {
    let one = move |block| Move { slot, kind: Kind::Remove, tier: Tier::Device, blocks: vec![block] };
    blocks.into_iter().rev().map(one)
}

/// What a step of the turnover says: large stores, single removals.
pub(crate) fn turned(turn: &Turn) -> Box<dyn Iterator<Item = Move>> {
    match turn {
        Turn::Store(load) => Box::new(stores(load, LARGE)),
        Turn::Evict { slot, piece, above } => Box::new(remove_each(*slot, chain(*above, piece.locals()).collect())),
    }
}

/// Each move twice: once for the device, once for the host's memory.
pub(crate) fn in_both_tiers(moves: impl Iterator<Item = Move>) -> impl Iterator<Item = Move> {
    moves.flat_map(|moved| [moved.clone(), Move { tier: Tier::Host, ..moved }])
}
