//! Why a request would go where it would go.

use std::time::Instant;

use rand::rngs::Xoshiro256PlusPlus;

use super::scratch::{Terms, Whose};
use super::survey::opening;
use super::{DecidedBy, Kept, PlaceError, Question, Scheduler, Scratch};
use crate::cost::{Candidate, Cost, Needs, Term, Unit};
use crate::ids::Slot;
use crate::overlap::PrefixIndex;
use crate::policy::PolicyName;
use crate::shape::Request;
use crate::workers::{Pool, WorkerTable};

/// A decision that was not carried out, with all that led to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Who decided.
    pub decided_by: DecidedBy,
    /// Whose costs these are: the pool's policy, or the fallback.
    pub policy: PolicyName,
    /// The target.
    pub chosen: Slot,
    /// Every target, in the order of their slots.
    pub considered: Vec<Considered>,
}

/// One candidate and what it costs.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered {
    /// What is known of it.
    pub candidate: Candidate,
    /// Its cost; none where every target was full, and no policy was asked.
    pub cost: Option<Cost>,
    /// What the cost is made of, as [`terms::combined`](crate::cost::terms::combined) puts it together. The last one may be
    /// `session`, which is added to all the rest.
    pub terms: Vec<Term>,
}

impl Scheduler {
    /// What [`place`](Self::place) would do with the same arguments and the same `scratch` next, and why. Reserves nothing,
    /// remembers nothing and draws nothing: whoever places afterwards gets what was explained. How the request begins and
    /// what it would add are told, too, where no policy here looks at it: others may be asked about it. Allocates.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub fn explain(
        &self,
        now: Instant,
        request: &Request<'_>,
        index: &dyn PrefixIndex,
        fleet: (&WorkerTable, &Pool),
        scratch: &mut Scratch,
    ) -> Result<Explanation, PlaceError> {
        self.refuse_early(now, request, fleet)?;
        let needs = Needs { added_blocks: true, ..self.needs };
        let mut question = self.ask(now, request, index, fleet, (needs, scratch));
        question.shape.opening = question.shape.opening.or_else(|| opening(request, &scratch.hashes));
        scratch.asked = scratch.asked.take().map(|(_, chance)| (question, chance));
        self.explained(now, &question, scratch)
    }

    /// What these policies would do, asked the same about the same candidates with the same chance: for the policy that was
    /// asked, what it has done, unless it has learned since. What cached blocks are worth and how far views are believed
    /// stays as it was. A scheduler that has placed nothing yet must be told who the candidates are, by
    /// [`enrol`](Self::enrol). Reserves and learns nothing. Allocates.
    ///
    /// # Errors
    /// [`PlaceError::AllBusy`], [`PlaceError::NoWorker`]: as [`place`](Self::place).
    pub fn review(
        &self,
        now: Instant,
        (question, chance): (&Question, &Xoshiro256PlusPlus),
        candidates: &[Candidate],
    ) -> Result<Explanation, PlaceError> {
        let kept = question.kept.zip(self.session_weight()).map(|(kept, weight)| Kept { weight, ..kept });
        let kept = kept.filter(|kept| kept.at < candidates.len());
        let mut scratch = Scratch::new(0);
        scratch.rng = chance.clone();
        scratch.candidates.extend_from_slice(candidates);
        self.explained(now, &Question { kept, ..*question }, &mut scratch)
    }

    /// Decides, and takes the chance back.
    fn explained(&self, now: Instant, question: &Question, scratch: &mut Scratch) -> Result<Explanation, PlaceError> {
        let Question { shape, kept, .. } = question;
        let chance = scratch.rng.clone();
        // What a policy that learns goes by is another thing a moment later: its terms are those of this decision.
        let kept_before = scratch.terms.replace(Terms::of(Whose::All));
        let decided = self.decide(now, question, scratch);
        scratch.vary_chance();
        scratch.rng = chance;
        let told = std::mem::replace(&mut scratch.terms, kept_before).map(|terms| terms.heard).unwrap_or_default();
        let (chosen, decided_by) = decided?;
        let policy = match decided_by {
            DecidedBy::Fallback(_) | DecidedBy::Load => &self.fallback,
            DecidedBy::Policy | DecidedBy::LeastLoaded => &self.policy,
        };
        let Scratch { candidates, costs, .. } = scratch;
        let cost = |at: usize| costs.get(at).copied();
        let considered = candidates.iter().enumerate();
        let mut considered: Vec<_> = considered
            .map(|(at, candidate)| Considered { candidate: *candidate, cost: cost(at), terms: Vec::new() })
            .collect();
        if !told.is_empty() {
            told.into_iter().for_each(|(at, term)| considered[at].terms.push(term));
        } else if decided_by != DecidedBy::LeastLoaded {
            policy.cost.explain(now, shape, candidates, &mut |at, term| considered[at].terms.push(term));
            if let Some(kept) = kept {
                let bonus = kept.bonus(policy, shape, candidates);
                let terms = &mut considered[kept.at].terms;
                terms.push(Term::adds_last(SESSION, unit_of(terms.first()), -bonus));
            }
        }
        Ok(Explanation { decided_by, policy: policy.name, chosen: candidates[chosen].slot, considered })
    }
}

/// The name of the term by which a session's last worker is cheaper.
pub const SESSION: &str = "session";

/// The unit of a cost: that of its first term.
pub(super) fn unit_of(first: Option<&Term>) -> Unit {
    first.map_or(Unit::Requests, |term| term.unit)
}
