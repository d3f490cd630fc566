//! Decisions as JSON tells them, and back. Fields may be added, never renamed.

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use warmpath_core::cost::terms::combined;
use warmpath_core::cost::{Candidate, Cost, Term};
use warmpath_core::ids::{Rank, Roll, Slot, WorkerId};
use warmpath_core::observe::Enrolled;
use warmpath_core::policy::{Policy, PolicyName};
use warmpath_core::scheduler::{Considered, DecidedBy, Explanation, Kept, PlaceError, Question, Scheduler};
use warmpath_core::shape::{Objectives, Shape};

use super::why::why;
use super::{Decision, Name, Standing};

/// A decision in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its number; 0 for what was not decided but only asked.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// The request's name.
    pub request: String,
    /// The pool.
    pub model: Arc<str>,
    /// Who was chosen.
    pub worker: String,
    /// Which of its ranks.
    pub rank: u32,
    /// Who decided: `policy`, `fallback`, `load` or `least_loaded`.
    pub decided_by: String,
    /// Whose costs these are.
    pub policy: PolicyName,
    /// Tokens of the prompt; estimated where they are not known.
    pub prompt_tokens: u32,
    /// Of these, those promised to be cached where it was sent.
    pub overlap_tokens: u32,
    /// The most that any worker promised.
    pub best_overlap_tokens: u32,
    /// Those to be computed.
    pub new_tokens: u32,
    /// Whom there was to choose from.
    pub candidates: usize,
    /// Workers that had failed the request already, or cannot serve it.
    pub avoided: u32,
    /// What the chosen one costs; none where every worker was full.
    pub cost: Option<f64>,
    /// The unit of costs.
    pub unit: Option<String>,
    /// Why, in a sentence.
    pub why: String,
    /// How the request stands; none for what was only asked.
    pub outcome: Option<Standing>,
    /// Milliseconds to its first token.
    pub ttft_ms: Option<u32>,
    /// Cached tokens as the engine said.
    pub reported_cached_tokens: Option<u32>,
}

/// A decision with all that it was made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// In short.
    #[serde(flatten)]
    pub row: Row,
    /// Whether asking the same again gives the same choice; false where the policy has learned or was changed since. Then
    /// terms are told only of the chosen one and the next, or of all of a few, where they were kept, and where they still make
    /// the cost.
    pub reproduced: bool,
    /// What was asked.
    pub question: Question,
    /// The chance that ties and draws had.
    pub chance: Xoshiro256PlusPlus,
    /// Every candidate, in the order of their slots.
    pub considered: Vec<ToldCandidate>,
}

/// What another scheduler would have done in the place of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Instead {
    /// That.
    pub told: Told,
    /// Where its costs are from.
    pub costs: CostsFrom,
    /// Whether sessions are kept together there, and none is known of this request.
    pub session_unknown: bool,
}

/// Where the costs are from by which something is decided once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CostsFrom {
    /// What was recorded of the candidates, and the weights.
    Candidates,
    /// The record: its policy learns, decided then, too, and has no weights that could differ; sessions and objectives are as
    /// they were.
    Record,
    /// What a policy assumes that learns, or goes by what it has sent, before it knows anything.
    Assumptions,
    /// Nowhere: the record lacks what the policy goes by. The policies that decided do not, and it was not found out.
    Unread,
}

/// One candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToldCandidate {
    /// The worker.
    pub worker: String,
    /// Its rank.
    pub rank: u32,
    /// Whether it was chosen.
    pub chosen: bool,
    /// Its cost; the lowest wins.
    pub cost: Option<f64>,
    /// What the cost is made of.
    pub terms: Vec<ToldTerm>,
    /// What was known of it.
    pub seen: Candidate,
}

/// One term of a cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToldTerm {
    /// What it stands for.
    pub name: String,
    /// What it counts.
    pub unit: String,
    /// How much.
    pub value: f64,
    /// `adds`, or `multiplies` the sum of all that add, or `adds_last` to the product.
    pub joins: String,
}

impl Decision {
    /// All of it, with its terms as `scheduler` tells them. O(candidates), allocates.
    pub fn told(&self, scheduler: &Scheduler) -> Told {
        let (considered, reproduced) = self.considered(scheduler);
        let row = self.row_of(&considered);
        let named = |slot| self.name(slot).cloned();
        Told {
            row,
            reproduced,
            question: self.asked.0,
            chance: self.asked.1.clone(),
            considered: told_candidates(&considered, self.chosen, &named),
        }
    }

    /// The same in short.
    pub fn row(&self, scheduler: &Scheduler) -> Row {
        self.row_of(&self.considered(scheduler).0)
    }

    /// What was known and what it cost then; terms where they make that cost.
    fn considered(&self, scheduler: &Scheduler) -> (Vec<Considered>, bool) {
        let (question, chance) = &self.asked;
        let again = scheduler.review(Instant::now(), (question, chance), &self.candidates).ok();
        let again = again.filter(|again| (again.policy, again.decided_by) == (self.policy, self.decided_by));
        let reproduced = again.as_ref().is_some_and(|again| again.chosen == self.chosen);
        let mut terms = again.into_iter().flat_map(|again| again.considered).map(|at| at.terms);
        let considered = self.candidates.iter().enumerate().map(|(at, candidate)| {
            let cost = self.costs.get(at).copied();
            let mut terms = terms.next().unwrap_or_default();
            if self.terms.iter().any(|(of, _)| *of == at) {
                terms = self.terms.iter().filter(|(of, _)| *of == at).map(|(_, term)| *term).collect();
            }
            if cost.is_some_and(|cost| (combined(&terms) - cost.0).abs() > 1e-6 * cost.0.abs().max(1.0)) {
                terms.clear();
            }
            Considered { candidate: *candidate, cost, terms }
        });
        (considered.collect(), reproduced)
    }

    fn row_of(&self, considered: &[Considered]) -> Row {
        let chosen = place_of(considered, self.chosen);
        let label = |at: usize| label(self.name(considered[at].candidate.slot));
        let name = self.worker();
        Row {
            number: self.number,
            at_ms: self.at_ms(),
            request: self.request_id().into_owned(),
            model: Arc::clone(&self.model),
            worker: name.map(|name| name.worker.as_str().to_owned()).unwrap_or_default(),
            rank: name.map_or(0, |name| name.rank.0),
            decided_by: self.decided_by.as_str().to_owned(),
            policy: self.policy,
            prompt_tokens: self.asked.0.shape.prompt.0,
            overlap_tokens: self.overlap.0,
            best_overlap_tokens: self.best_overlap.0,
            new_tokens: self.new_tokens.0,
            candidates: considered.len(),
            avoided: self.avoided,
            cost: considered[chosen..].first().and_then(|at| at.cost).map(|cost| cost.0),
            unit: unit(considered, chosen),
            why: why((self.decided_by, self.policy), chosen, considered, &label),
            outcome: Some(self.course.standing()),
            ttft_ms: self.course.first_token_ms(),
            reported_cached_tokens: self.course.reported(),
        }
    }
}

/// What would be decided, told in the same form.
pub fn told_dry(
    (model, request): (&Arc<str>, String),
    explanation: &Explanation,
    (question, chance): (&Question, &Xoshiro256PlusPlus),
    names: &[Name],
) -> Told {
    let Explanation { decided_by, policy, chosen, considered } = explanation;
    let named = |slot: Slot| names.iter().find(|name| name.slot == slot).cloned();
    let at = place_of(considered, *chosen);
    let candidate = &considered[at].candidate;
    let name = named(*chosen);
    let row = Row {
        number: 0,
        at_ms: 0,
        request,
        model: Arc::clone(model),
        worker: name.as_ref().map(|name| name.worker.as_str().to_owned()).unwrap_or_default(),
        rank: name.as_ref().map_or(0, |name| name.rank.0),
        decided_by: decided_by.as_str().to_owned(),
        policy: *policy,
        prompt_tokens: question.shape.prompt.0,
        overlap_tokens: candidate.overlap.total().tokens(question.shape.block_size).0,
        best_overlap_tokens: best_overlap(question, considered),
        new_tokens: candidate.new_tokens.0,
        candidates: considered.len(),
        avoided: 0,
        cost: considered[at].cost.map(|cost| cost.0),
        unit: unit(considered, at),
        why: why((*decided_by, *policy), at, considered, &|at| label(named(considered[at].candidate.slot).as_ref())),
        outcome: None,
        ttft_ms: None,
        reported_cached_tokens: None,
    };
    let (question, chance) = (*question, chance.clone());
    let considered = told_candidates(considered, *chosen, &named);
    Told { row, reproduced: true, question, chance, considered }
}

impl Told {
    /// What `scheduler`, which has placed nothing yet, would have done in the same place, where the request's class was
    /// promised these `objectives`. Where its policy learns, has no weights and made the decision, and nothing else changes
    /// what that came to, the costs are those that it had then.
    ///
    /// # Errors
    /// Nobody could be chosen.
    pub fn under(&self, scheduler: &Scheduler, objectives: Objectives) -> Result<Instead, PlaceError> {
        let workers: Vec<Name> = self.considered.iter().map(ToldCandidate::name).collect();
        let enrolled = workers.iter().map(|name| Enrolled { slot: name.slot, worker: &name.worker, rank: name.rank });
        scheduler.enrol(Roll(1), enrolled);
        let candidates: Vec<Candidate> = self.considered.iter().map(|told| told.seen).collect();
        let question = Question { shape: Shape { objectives, ..self.question.shape }, ..self.question };
        let again = scheduler.review(Instant::now(), (&question, &self.chance), &candidates)?;
        let costs = self.costs_of(scheduler, objectives, &again);
        let session_unknown = scheduler.session_weight().is_some() && question.shape.affinity.is_none();
        if costs == CostsFrom::Record {
            let row = Row { outcome: None, ttft_ms: None, reported_cached_tokens: None, ..self.row.clone() };
            return Ok(Instead { told: Told { row, ..self.clone() }, costs, session_unknown });
        }
        let named = (&self.row.model, self.row.request.clone());
        let told = told_dry(named, &again, (&question, &self.chance), &workers);
        let told = Told { row: Row { number: self.row.number, at_ms: self.row.at_ms, ..told.row }, ..told };
        Ok(Instead { told, costs, session_unknown })
    }

    /// Where the costs are to be from by which `again` was decided.
    fn costs_of(&self, scheduler: &Scheduler, objectives: Objectives, again: &Explanation) -> CostsFrom {
        let policy = again.policy;
        let kept_is_worth = |kept: Kept| scheduler.session_weight() == Some(kept.weight);
        let as_then = objectives == self.question.shape.objectives && self.question.kept.is_none_or(kept_is_worth);
        let was_it = (self.row.policy, self.row.decided_by.as_str()) == (policy, DecidedBy::Policy.as_str());
        if again.decided_by != DecidedBy::LeastLoaded && self.lacks(scheduler.policy()) {
            CostsFrom::Unread
        } else if again.decided_by != DecidedBy::Policy {
            CostsFrom::Candidates
        } else if policy.learns() {
            if was_it && as_then && !policy.has_weights() { CostsFrom::Record } else { CostsFrom::Assumptions }
        } else if policy.goes_by_history() && self.row.policy != policy {
            CostsFrom::Assumptions
        } else {
            CostsFrom::Candidates
        }
    }

    /// Whether what `policy` goes by was not found out: the prompt was not read, or what it would add is not told, or how it
    /// begins, or by another number of characters.
    fn lacks(&self, policy: &Policy) -> bool {
        let Shape { opening, opening_characters, .. } = self.question.shape;
        let differs = |needed| opening.is_none() || opening_characters.is_some_and(|characters| characters != needed);
        let Question { unread, has_added_blocks, .. } = self.question;
        let lacks_blocks = policy.needs.added_blocks && !has_added_blocks;
        !policy.name.is_baseline() && (unread || lacks_blocks || policy.needs.opening.is_some_and(differs))
    }
}

impl ToldCandidate {
    fn name(&self) -> Name {
        Name { slot: self.seen.slot, worker: WorkerId::from(self.worker.as_str()), rank: Rank(self.rank) }
    }
}

fn told_candidates(
    considered: &[Considered],
    chosen: Slot,
    named: &dyn Fn(Slot) -> Option<Name>,
) -> Vec<ToldCandidate> {
    let told = |Considered { candidate, cost, terms }: &Considered| {
        let name = named(candidate.slot);
        ToldCandidate {
            worker: name.as_ref().map(|name| name.worker.as_str().to_owned()).unwrap_or_default(),
            rank: name.map_or(0, |name| name.rank.0),
            chosen: candidate.slot == chosen,
            cost: cost.map(|Cost(cost)| cost),
            terms: terms.iter().map(told_term).collect(),
            seen: *candidate,
        }
    };
    considered.iter().map(told).collect()
}

fn told_term(term: &Term) -> ToldTerm {
    let (name, unit, joins) = (term.name, term.unit.label(), term.joins.label());
    ToldTerm { name: name.to_owned(), unit: unit.to_owned(), value: term.value, joins: joins.to_owned() }
}

/// The place of `slot`; 0 where it is not among them, which no decision leaves.
fn place_of(considered: &[Considered], slot: Slot) -> usize {
    considered.iter().position(|at| at.candidate.slot == slot).unwrap_or(0)
}

fn best_overlap(question: &Question, considered: &[Considered]) -> u32 {
    let best = considered.iter().map(|at| at.candidate.overlap.total()).max().unwrap_or_default();
    best.tokens(question.shape.block_size).0
}

fn unit(considered: &[Considered], chosen: usize) -> Option<String> {
    Some(considered.get(chosen)?.terms.first()?.unit.label().to_owned())
}

fn label(name: Option<&Name>) -> String {
    match name {
        Some(Name { worker, rank: Rank(0), .. }) => worker.to_string(),
        Some(Name { worker, rank: Rank(rank), .. }) => format!("{worker} rank {rank}"),
        None => "another".to_owned(),
    }
}
