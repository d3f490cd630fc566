//! From candidates to one of them: by the policy, by the fallback, or by load alone.

use std::time::Instant;

use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use super::explain::{SESSION, unit_of};
use super::scratch::{Terms, Whose};
use super::{DecidedBy, PlaceError, Scheduler, Scratch};
use crate::admission::{self, OnAllBusy};
use crate::cost::{BEHIND, Candidate, Cost, NoChoice, Standing, Term, Told};
use crate::pick::Pick;
use crate::policy::Policy;
use crate::shape::{Prompt, Request, Shape};

/// A session's last worker among the candidates, and what it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Its place among them.
    pub at: usize,
    /// See [`SessionRule::weight`](crate::session::SessionRule::weight).
    pub weight: f64,
}

/// What is asked of a policy, beside the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Question {
    /// The request, with all that policies look at.
    pub shape: Shape,
    /// Whether its token ids are known.
    pub has_tokens: bool,
    /// Whether its characters are told instead.
    pub has_texts: bool,
    /// Whether its prompt was not read, since no policy here looks at it: what candidates hold of it is then unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unread: bool,
    /// Whether it was found out how many blocks each candidate would add ([`Candidate::added_blocks`]): without, it is 0.
    #[serde(default)]
    pub has_added_blocks: bool,
    /// The last worker of its session, where that counts.
    pub kept: Option<Kept>,
}

impl Question {
    /// What `request` asks once it was surveyed.
    pub(super) fn of(request: &Request<'_>, shape: Shape, has_added_blocks: bool, kept: Option<Kept>) -> Self {
        let Request { prompts, texts, .. } = request;
        let unread = prompts.iter().any(Prompt::is_unread);
        Self { shape, has_tokens: !prompts.is_empty(), has_texts: !texts.is_empty(), unread, has_added_blocks, kept }
    }
}

impl Kept {
    /// What it costs less by this policy; never so much that it would come before whom a rule names, unless the rule has no
    /// reason.
    pub(super) fn bonus(self, policy: &Policy, shape: &Shape, candidates: &[Candidate]) -> f64 {
        let worth = self.weight * policy.cost.prompt_worth_among(shape, candidates, self.at);
        let excused = if worth > 0.0 { policy.cost.excused(candidates, self.at) } else { 0.0 };
        worth.min(BEHIND / 2.0) + excused
    }
}

impl Scheduler {
    /// The session's last worker, if it is among the candidates that can be chosen.
    pub(super) fn kept(&self, now: Instant, shape: &Shape, candidates: &[Candidate]) -> Option<Kept> {
        let sessions = self.sessions.as_ref()?;
        let slot = sessions.last(now, shape.affinity?)?;
        let at = candidates.binary_search_by_key(&slot, |candidate| candidate.slot).ok()?;
        self.policy.name.among().takes(candidates[at].standing).then_some(Kept { at, weight: sessions.weight() })
    }

    /// The place of the chosen candidate.
    pub(super) fn decide(
        &self,
        now: Instant,
        question: &Question,
        scratch: &mut Scratch,
    ) -> Result<(usize, DecidedBy), PlaceError> {
        let Scratch { candidates, costs, terms, rng, .. } = scratch;
        let Question { shape, kept, .. } = question;
        let kept = *kept;
        costs.clear();
        terms.iter_mut().for_each(|terms| terms.heard.clear());
        let are_all_busy = !candidates.iter().any(|candidate| candidate.standing == Standing::Open);
        if are_all_busy {
            let least = admission::least_loaded(candidates).ok_or(PlaceError::NoWorker)?;
            if self.on_all_busy != OnAllBusy::LeastLoaded {
                return Err(PlaceError::AllBusy);
            }
            // Who knows what waiting takes says where it is shortest.
            let among = self.policy.name.among();
            let can_wait = question.has_tokens && candidates.iter().any(|candidate| among.takes(candidate.standing));
            if !can_wait {
                return Ok((least, DecidedBy::LeastLoaded));
            }
        }
        let asked = (candidates.as_slice(), kept);
        let mut ask = |policy| choice(policy, now, shape, asked, (&mut *costs, &mut *terms, &mut *rng));
        let by_policy = question.has_tokens || self.policy.goes_without_tokens(question.has_texts, shape);
        let (chosen, decided_by) = match by_policy.then(|| ask(&self.policy)) {
            Some(Ok(chosen)) => (chosen, DecidedBy::Policy),
            Some(Err(reason)) => (ask(&self.fallback).ok().flatten(), DecidedBy::Fallback(reason)),
            None => (ask(&self.fallback).ok().flatten(), DecidedBy::Load),
        };
        Ok((chosen.ok_or(PlaceError::NoWorker)?, decided_by))
    }
}

/// Of so many candidates all terms are kept: more would take longer to tell than to choose from.
const FEW: usize = 16;

/// Whom `policy` chooses, what the candidates cost, and where that is to be kept and the policy learns, what the costs of the
/// chosen one and the next are made of; of all of them where they are few.
fn choice(
    policy: &Policy,
    now: Instant,
    shape: &Shape,
    (candidates, kept): (&[Candidate], Option<Kept>),
    (costs, terms, rng): (&mut Vec<Cost>, &mut Option<Terms>, &mut Xoshiro256PlusPlus),
) -> Result<Option<usize>, NoChoice> {
    costs.clear();
    let kept = kept.map(|kept| (kept.at, kept.bonus(policy, shape, candidates)));
    let mut choose = |costs: &mut [Cost]| {
        kept.iter().for_each(|(at, bonus)| costs[*at].0 -= bonus);
        policy.choose(kept.map(|(at, _)| at), candidates, costs, rng)
    };
    let Some(Terms { whose, heard }) = terms.as_mut().filter(|_| policy.learn.is_some()) else {
        policy.cost.score(now, shape, candidates, costs)?;
        return Ok(choose(costs));
    };
    let (mut chosen, mut told) = (None, Told::All);
    let mut choose = |costs: &mut [Cost]| {
        chosen = choose(costs);
        told = whom(*whose, policy, chosen, (candidates, costs));
        told
    };
    policy.cost.score_aloud(now, shape, candidates, costs, &mut choose, &mut |at, term| heard.push((at, term)))?;
    if let Some((at, bonus)) = kept.filter(|(at, _)| told.takes(*at)) {
        let unit = unit_of(heard.first().map(|(_, term)| term));
        heard.push((at, Term::adds_last(SESSION, unit, -bonus)));
    }
    Ok(chosen)
}

/// Whose terms are told.
#[inline(never)] // Beside the scores it would take registers from them: a tenth of the time that `predicted` needs.
fn whom(
    whose: Whose,
    policy: &Policy,
    chosen: Option<usize>,
    (candidates, costs): (&[Candidate], &mut [Cost]),
) -> Told {
    match whose {
        Whose::Few if candidates.len() > FEW => Told::Two([chosen, next(policy, chosen, candidates, costs)]),
        Whose::Few | Whose::All => Told::All,
    }
}

/// The cheapest of those that were not chosen and could have been; none where nobody else costs anything finite.
fn next(policy: &Policy, chosen: Option<usize>, candidates: &[Candidate], costs: &mut [Cost]) -> Option<usize> {
    let set_aside = chosen.map(|at| (at, std::mem::replace(&mut costs[at], Cost(f64::INFINITY))));
    let next = Pick::cheapest(policy.name.among(), candidates, costs);
    if let Some((at, cost)) = set_aside {
        costs[at] = cost;
    }
    next.filter(|next| Some(*next) != chosen)
}

/// What the candidates cost by `policy`, with the session's worker cheaper.
pub(super) fn score(
    policy: &Policy,
    now: Instant,
    shape: &Shape,
    (candidates, kept): (&[Candidate], Option<Kept>),
    costs: &mut Vec<Cost>,
) -> Result<(), NoChoice> {
    policy.cost.score(now, shape, candidates, costs)?;
    if let Some(kept) = kept {
        costs[kept.at].0 -= kept.bonus(policy, shape, candidates);
    }
    Ok(())
}
