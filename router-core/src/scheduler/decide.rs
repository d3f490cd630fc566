//! From candidates to one of them: by the policy, by the fallback, or by load alone.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::explain::{SESSION, unit_of};
use super::scratch::Terms;
use super::{DecidedBy, PlaceError, Scheduler, Scratch};
use crate::admission::{self, OnAllBusy};
use crate::cost::{BEHIND, Candidate, Cost, NoChoice, Standing, Term};
use crate::policy::Policy;
use crate::shape::{Request, Shape};

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
    /// The last worker of its session, where that counts.
    pub kept: Option<Kept>,
}

impl Question {
    /// What `request` asks once it was surveyed.
    pub(super) fn of(request: &Request<'_>, shape: Shape, kept: Option<Kept>) -> Self {
        Self { shape, has_tokens: !request.prompts.is_empty(), has_texts: !request.texts.is_empty(), kept }
    }
}

impl Kept {
    /// What it costs less by this policy; never so much that it would come before whom a rule names.
    pub(super) fn bonus(self, policy: &Policy, shape: &Shape, candidates: &[Candidate]) -> f64 {
        (self.weight * policy.cost.prompt_worth_among(shape, candidates, self.at)).min(BEHIND / 2.0)
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
        terms.iter_mut().for_each(Vec::clear);
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
        let decided_by = if !question.has_tokens && !self.policy.goes_without_tokens(question.has_texts, shape) {
            DecidedBy::Load
        } else {
            match priced(&self.policy, now, shape, (candidates, kept), (costs, terms)) {
                Ok(()) => DecidedBy::Policy,
                Err(reason) => DecidedBy::Fallback(reason),
            }
        };
        let mut policy = &self.policy;
        if decided_by != DecidedBy::Policy {
            costs.clear();
            policy = &self.fallback;
            let asked = (candidates.as_slice(), kept);
            priced(policy, now, shape, asked, (costs, terms)).or(Err(PlaceError::NoWorker))?;
        }
        let chosen = policy.choose(kept.map(|kept| kept.at), candidates, costs, rng);
        Ok((chosen.ok_or(PlaceError::NoWorker)?, decided_by))
    }
}

/// The costs, and what they are made of where that is to be kept and the policy learns.
fn priced(
    policy: &Policy,
    now: Instant,
    shape: &Shape,
    (candidates, kept): (&[Candidate], Option<Kept>),
    (costs, terms): (&mut Vec<Cost>, &mut Option<Terms>),
) -> Result<(), NoChoice> {
    let Some(terms) = terms.as_mut().filter(|_| policy.learn.is_some()) else {
        return score(policy, now, shape, (candidates, kept), costs);
    };
    terms.clear();
    policy.cost.score_aloud(now, shape, candidates, costs, &mut |at, term| terms.push((at, term)))?;
    if let Some(kept) = kept {
        let bonus = kept.bonus(policy, shape, candidates);
        costs[kept.at].0 -= bonus;
        let unit = unit_of(terms.first().map(|(_, term)| term));
        terms.push((kept.at, Term::adds_last(SESSION, unit, -bonus)));
    }
    Ok(())
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
