//! Policies that are asked and not followed.

use std::time::Instant;

use super::decide::{Kept, score};
use super::survey::recall;
use super::{Scheduler, Scratch};
use crate::cost::{BEHIND, Cost};
use crate::ids::Slot;
use crate::policy::{Policy, PolicyName};
use crate::shape::{Request, Shape};

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
    /// Asks every shadow about the candidates among which `chosen` was chosen. Its own chance is drawn, the decision's is
    /// not. O(shadows × candidates).
    pub(super) fn ask_shadows(
        &self,
        now: Instant,
        (request, shape): (&Request<'_>, &Shape),
        (chosen, slots): (usize, usize),
        scratch: &mut Scratch,
    ) {
        let kept = self.kept(now, shape, &scratch.candidates);
        let among = self.policy.name.among();
        let others = scratch.candidates.iter().zip(&scratch.costs).filter(|(at, _)| among.takes(at.standing));
        let least = others.map(|(_, cost)| cost.0).fold(f64::INFINITY, f64::min);
        for shadow in &self.shadows {
            let at = choice(shadow, now, (request, shape), (kept, slots), scratch);
            scratch.shadows.push(ShadowChoice {
                policy: shadow.name,
                slot: at.map(|at| scratch.candidates[at].slot),
                agrees: at == Some(chosen),
                regret: at
                    .filter(|at| among.takes(scratch.candidates[*at].standing))
                    .map(|at| scratch.costs[at].0 - least)
                    .filter(|regret| *regret < BEHIND / 2.0),
            });
        }
    }
}

/// The place of whom `shadow` would choose.
fn choice(
    shadow: &Policy,
    now: Instant,
    (request, shape): (&Request<'_>, &Shape),
    (kept, slots): (Option<Kept>, usize),
    scratch: &mut Scratch,
) -> Option<usize> {
    if request.prompts.is_empty() && !shadow.goes_without_tokens(!request.texts.is_empty(), shape) {
        return None;
    }
    let remembers = shadow.history.is_some();
    if remembers {
        recall(shadow.history.as_deref(), request, slots, scratch);
        swap_known(scratch);
    }
    let chosen = scored_choice(shadow, now, shape, kept, scratch);
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
    shape: &Shape,
    kept: Option<Kept>,
    scratch: &mut Scratch,
) -> Option<usize> {
    let Scratch { candidates, shadow_costs, shadow_rng, .. } = scratch;
    let costs: &mut Vec<Cost> = shadow_costs;
    costs.clear();
    score(shadow, now, shape, (candidates, kept), costs).ok()?;
    shadow.choose(kept.map(|kept| kept.at), candidates, costs, shadow_rng)
}
