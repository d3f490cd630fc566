//! Policies that are asked and not followed.

use std::time::Instant;

use rand::rngs::Xoshiro256PlusPlus;

use super::decide::{Kept, score};
use super::survey::recall;
use super::{Question, Scheduler, Scratch};
use crate::cost::Cost;
use crate::ids::Slot;
use crate::policy::{Policy, PolicyName};
use crate::shape::Request;

/// What a shadow policy would have done with a request that the pool's policy has placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShadowChoice {
    /// Which.
    pub policy: PolicyName,
    /// Whom it would have chosen; nobody where it has no opinion.
    pub slot: Option<Slot>,
    /// Whether that is who was chosen.
    pub agrees: bool,
    /// What its choice costs more than the cheapest, by the pool's policy and in its unit. None without a choice, where the
    /// policy's rule names others, and where it does not choose among such: that has no size.
    pub regret: Option<f64>,
}

impl Scheduler {
    /// Asks every shadow what the policy was asked about the candidates among which `chosen` was chosen, with the same chance:
    /// who draws as the policy does agrees with it. O(shadows × candidates).
    pub(super) fn ask_shadows(
        &self,
        now: Instant,
        (request, question, chance): (&Request<'_>, &Question, &Xoshiro256PlusPlus),
        (chosen, slots): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let rule = self.policy.cost.rule();
        let among = self.policy.name.among();
        let others = scratch.candidates.iter().zip(&scratch.costs).filter(|(at, _)| among.takes(at.standing));
        let least = others.map(|(_, cost)| cost.0).fold(f64::INFINITY, f64::min);
        for shadow in &self.shadows {
            let at = choice(shadow, now, (request, question, chance.clone()), slots, scratch);
            scratch.shadows.push(ShadowChoice {
                policy: shadow.name,
                slot: at.map(|at| scratch.candidates[at].slot),
                agrees: at == Some(chosen),
                regret: at
                    .filter(|at| among.takes(scratch.candidates[*at].standing))
                    .map(|at| scratch.costs[at].0 - least)
                    .filter(|regret| rule.is_none_or(|rule| *regret < rule / 2.0)),
            });
        }
    }
}

/// The place of whom `shadow` would choose.
fn choice(
    shadow: &Policy,
    now: Instant,
    (request, question, chance): (&Request<'_>, &Question, Xoshiro256PlusPlus),
    slots: usize,
    scratch: &mut Scratch,
) -> Option<usize> {
    let shape = &question.shape;
    if request.prompts.is_empty() && !shadow.goes_without_tokens(!request.texts.is_empty(), shape) {
        return None;
    }
    let remembers = shadow.history.is_some();
    if remembers {
        recall(shadow.history.as_deref(), request, slots, scratch);
        swap_known(scratch);
    }
    let chosen = scored_choice(shadow, now, question, chance, scratch);
    if remembers {
        // What the pool's policy went by stays as it was.
        swap_known(scratch);
    }
    chosen
}

fn swap_known(Scratch { candidates, known, .. }: &mut Scratch) {
    for candidate in candidates {
        std::mem::swap(&mut candidate.known, &mut known[candidate.slot.index()]);
    }
}

fn scored_choice(
    shadow: &Policy,
    now: Instant,
    Question { shape, kept, .. }: &Question,
    mut chance: Xoshiro256PlusPlus,
    scratch: &mut Scratch,
) -> Option<usize> {
    let kept: Option<Kept> = *kept;
    let Scratch { candidates, shadow_costs, .. } = scratch;
    let costs: &mut Vec<Cost> = shadow_costs;
    costs.clear();
    score(shadow, now, shape, (candidates, kept), costs).ok()?;
    shadow.choose(kept.map(|kept| kept.at), candidates, costs, &mut chance)
}
