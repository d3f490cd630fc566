//! The exact answers, by another way than any index goes.

use std::collections::{HashMap, HashSet};

use warmpath_core::ids::Slot;

use crate::draws::index;
use crate::plan::Load;
use crate::workload::Piece;

/// The exact reference: who holds how much of each piece, by the pieces' names. It knows no hash of any block.
pub(crate) struct Holders(pub(crate) HashMap<u64, Vec<(Slot, u32)>>);

impl Holders {
    pub(crate) fn of_loads(loads: &[Load]) -> Self {
        let mut seen: HashMap<(u64, Slot), u32> = HashMap::new();
        for load in loads {
            let mut left = load.to;
            for piece in load.pieces.iter() {
                let blocks = u32::try_from(left).unwrap_or(u32::MAX).min(piece.blocks);
                if blocks == 0 {
                    break;
                }
                left -= index(blocks);
                let held = seen.entry((piece.first, load.slot)).or_default();
                *held = (*held).max(blocks);
            }
        }
        let mut holders: HashMap<u64, Vec<(Slot, u32)>> = HashMap::new();
        for ((first, slot), blocks) in seen {
            holders.entry(first).or_default().push((slot, blocks));
        }
        Self(holders)
    }

    /// The sum over all workers of the leading blocks that they hold of `pieces` cut to `len` blocks.
    pub(crate) fn sum(&self, pieces: &[Piece], len: usize) -> u64 {
        let mut alive: Option<HashSet<Slot>> = None;
        let mut left = u32::try_from(len).unwrap_or(u32::MAX);
        let mut sum = 0;
        for piece in pieces {
            let asked = piece.blocks.min(left);
            let Some(holders) = self.0.get(&piece.first) else { break };
            let mut whole = HashSet::new();
            for &(slot, held) in holders {
                if alive.as_ref().is_none_or(|alive| alive.contains(&slot)) {
                    sum += u64::from(held.min(asked));
                    if held == piece.blocks {
                        whole.insert(slot);
                    }
                }
            }
            left -= asked;
            if left == 0 || whole.is_empty() {
                break;
            }
            alive = Some(whole);
        }
        sum
    }
}
