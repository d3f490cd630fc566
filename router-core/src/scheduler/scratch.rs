//! What one caller of the scheduler keeps from request to request.

use std::ops::Range;

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use super::decide::Question;
use super::shadow::ShadowChoice;
use crate::cost::{Candidate, Cost, Term};
use crate::history::Known;
use crate::ids::SequenceHash;
use crate::overlap::{Overlaps, TierBlocks};
use crate::units::Blocks;

/// What costs are made of, with the places of their candidates.
#[derive(Debug)]
pub(super) struct Terms {
    pub(super) whose: Whose,
    pub(super) heard: Vec<(usize, Term)>,
}

/// Whose terms are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Those of the chosen one and the next say why; of all, where there are few.
    Few,
    All,
}

impl Terms {
    pub(super) fn of(whose: Whose) -> Self {
        Self { whose, heard: Vec::new() }
    }
}

/// Buffers and chance of one caller, reused from request to request.
#[derive(Debug)]
pub struct Scratch {
    pub(super) hashes: Vec<SequenceHash>,
    /// Where in `hashes` each prompt ends.
    pub(super) ends: Vec<usize>,
    pub(super) overlaps: Overlaps,
    pub(super) held: Vec<TierBlocks>,
    pub(super) prompt_held: Vec<TierBlocks>,
    pub(super) added: Vec<Blocks>,
    /// The prompts' stretches of `hashes`, those that begin alike one after the other, with the blocks behind each.
    pub(super) alike: Vec<(Range<usize>, Blocks)>,
    pub(super) shared: Vec<u32>,
    pub(super) text_hashes: Vec<SequenceHash>,
    pub(super) known: Vec<Known>,
    pub(super) sent: Vec<Known>,
    pub(super) candidates: Vec<Candidate>,
    pub(super) costs: Vec<Cost>,
    /// Where the policy learns; none where nobody wants them.
    pub(super) terms: Option<Terms>,
    /// Can be copied, so that a decision can be explained without being made.
    pub(super) rng: Xoshiro256PlusPlus,
    /// Of whoever is asked beside the policy, or later, about what that has decided without drawing.
    pub(super) other_rng: Xoshiro256PlusPlus,
    /// What was asked last, and the chance before it was answered.
    pub(super) asked: Option<(Question, Xoshiro256PlusPlus)>,
    pub(super) shadows: Vec<ShadowChoice>,
    pub(super) shadow_costs: Vec<Cost>,
}

impl Scratch {
    /// Empty buffers; equal seeds draw equally.
    pub fn new(seed: u64) -> Self {
        Self {
            hashes: Vec::new(),
            ends: Vec::new(),
            overlaps: Overlaps::default(),
            held: Vec::new(),
            prompt_held: Vec::new(),
            added: Vec::new(),
            alike: Vec::new(),
            shared: Vec::new(),
            text_hashes: Vec::new(),
            known: Vec::new(),
            sent: Vec::new(),
            candidates: Vec::new(),
            costs: Vec::new(),
            terms: None,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            other_rng: Xoshiro256PlusPlus::seed_from_u64(!seed),
            asked: None,
            shadows: Vec::new(),
            shadow_costs: Vec::new(),
        }
    }

    /// The same, keeping what costs are made of, where it could not be found out later.
    #[must_use]
    pub fn aloud(self) -> Self {
        Self { terms: Some(Terms::of(Whose::Few)), ..self }
    }

    /// Where nothing was drawn, any chance is that of the decision, and the same one each time would have others draw the same.
    pub(super) fn vary_chance(&mut self) {
        if let Some((_, chance)) = self.asked.as_mut().filter(|(_, chance)| *chance == self.rng) {
            *chance = Xoshiro256PlusPlus::seed_from_u64(self.other_rng.next_u64());
        }
    }

    /// What the shadow policies would have done with the last placement; none where the pool's policy did not decide.
    pub fn shadows(&self) -> &[ShadowChoice] {
        &self.shadows
    }

    /// What the last placement was asked, and the chance that it had: with [`candidates`](Self::candidates) all that
    /// [`Scheduler::review`](super::Scheduler::review) needs. None before the first.
    pub fn asked(&self) -> Option<&(Question, Xoshiro256PlusPlus)> {
        self.asked.as_ref()
    }

    /// The full blocks of the last placement's prompt; none where it had none, or several.
    pub fn only_prompt(&self) -> Option<&[SequenceHash]> {
        (self.ends.len() == 1).then_some(&*self.hashes)
    }

    /// The candidates of the last placement, in the order of their slots.
    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// Their costs, by the policy that decided; none where it was not asked.
    pub fn costs(&self) -> &[Cost] {
        &self.costs
    }

    /// What the costs of the chosen one and of the cheapest of the others are made of, or of all where there are few, with
    /// their places, if that was to be [kept](Self::aloud): of a policy that learns, since any other tells it later, too.
    pub fn terms(&self) -> &[(usize, Term)] {
        self.terms.as_ref().map_or(&[], |terms| &terms.heard)
    }
}
