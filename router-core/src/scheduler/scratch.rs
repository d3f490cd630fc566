//! What one caller of the scheduler keeps from request to request.

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::cost::{Candidate, Cost};
use crate::history::Known;
use crate::ids::SequenceHash;
use crate::overlap::{Overlaps, TierBlocks};
use crate::units::Tokens;

/// Buffers and chance of one caller, reused from request to request.
#[derive(Debug)]
pub struct Scratch {
    pub(super) hashes: Vec<SequenceHash>,
    /// Where in `hashes` each prompt ends.
    pub(super) ends: Vec<usize>,
    pub(super) overlaps: Overlaps,
    pub(super) held: Vec<TierBlocks>,
    pub(super) uncached: Vec<Tokens>,
    pub(super) prompt_held: Vec<TierBlocks>,
    pub(super) taken: Vec<u32>,
    pub(super) text_hashes: Vec<SequenceHash>,
    pub(super) known: Vec<Known>,
    pub(super) sent: Vec<Known>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) costs: Vec<Cost>,
    pub(super) rng: StdRng,
}

impl Scratch {
    /// Empty buffers; equal seeds draw equally.
    pub fn new(seed: u64) -> Self {
        Self {
            hashes: Vec::new(),
            ends: Vec::new(),
            overlaps: Overlaps::default(),
            held: Vec::new(),
            uncached: Vec::new(),
            prompt_held: Vec::new(),
            taken: Vec::new(),
            text_hashes: Vec::new(),
            known: Vec::new(),
            sent: Vec::new(),
            candidates: Vec::new(),
            costs: Vec::new(),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// The candidates of the last placement, in the order of their slots.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Their costs, by the policy that decided; none where it was not asked.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }
}
