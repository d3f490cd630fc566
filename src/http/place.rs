//! The decision itself: carried out and written down, or only asked for.

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::Xoshiro256PlusPlus;
use warmpath_core::blocks::Root;
use warmpath_core::policy::PolicyName;
use warmpath_core::scheduler::{DecidedBy, Explanation, Placement, Question, Scratch};
use warmpath_core::shape::{Prompt, Request as PlaceRequest, Shape};
use warmpath_core::slot_set::SlotSet;

use super::forward::Understood;
use super::gateway::Gateway;
use crate::decisions::told::{Told, ToldCandidate};
use crate::decisions::{Course, Decision, Made, Name, names};
use crate::error::GatewayError;
use crate::fleet::Worker;
use crate::fleet::roster::Roster;
use crate::telemetry::access::Chosen;

/// A request that has a worker.
pub(super) struct Placed {
    /// When it was decided.
    pub(super) at: Instant,
    pub(super) placement: Placement,
    pub(super) worker: Arc<Worker>,
    /// Where what comes of it is written down.
    pub(super) course: Option<Arc<Course>>,
}

/// What would be decided, and what that is made of.
pub(super) struct DryRun {
    pub(super) explanation: Explanation,
    pub(super) asked: (Question, Xoshiro256PlusPlus),
    pub(super) names: Vec<Name>,
}

/// Decides where the request goes, and reserves it.
pub(super) fn place(gateway: &Gateway, request: &Understood, avoid: &SlotSet) -> Result<Placed, GatewayError> {
    let roster = gateway.fleet.roster();
    let table = roster.table();
    let pool = table.pool(&request.pool.model).ok_or(GatewayError::NoSuchSlot)?;
    let mut lacking = SlotSet::new();
    let avoid = avoided(request, avoid, &roster, &mut lacking);
    let start = Instant::now();
    let (placement, decision) = asking(request, avoid, |place| {
        gateway.with_scratch(|scratch| {
            let scheduler = &request.pool.scheduler;
            let placement = scheduler.place(start, place, &*gateway.index, (table, pool), scratch)?;
            let active = scheduler.policy().name;
            scratch.shadows().iter().for_each(|choice| request.pool.metrics.shadow(active, choice));
            gateway.metrics.routing_latency.record(start.elapsed());
            let policy = match placement.decided_by {
                DecidedBy::Fallback(_) | DecidedBy::Load => scheduler.fallback().name,
                DecidedBy::Policy | DecidedBy::LeastLoaded => scheduler.policy().name,
            };
            let decision = gateway.decisions.record(&Made {
                request: request.id.as_bytes(),
                avoided: u32::try_from(avoid.len()).unwrap_or(u32::MAX),
                placement: &placement,
                policy,
                fleet: (table, pool),
                scratch,
            });
            if let Some(access) = &request.access {
                access.chosen(chosen((&placement, policy), decision.as_deref(), scratch));
            }
            Ok::<_, GatewayError>((placement, decision))
        })
    })?;
    if let DecidedBy::Fallback(_) = placement.decided_by {
        gateway.metrics.fallback("all_zero");
    }
    let worker = roster.worker(placement.target.slot).cloned().ok_or(GatewayError::NoSuchSlot)?;
    worker.metrics.placed.increment(1);
    tracing::debug!(
        request = request.key.0,
        worker = %placement.target.worker,
        prompt_tokens = request.shape.prompt.0,
        overlap_tokens = placement.overlap_tokens.0,
        "placed"
    );
    if tracing::enabled!(tracing::Level::TRACE)
        && let Some(decision) = &decision
    {
        let weighed = weighed(&decision.told(&request.pool.scheduler));
        tracing::trace!(decision = decision.number, weighed = %weighed, "weighed");
    }
    // Nobody who is being served keeps all that was considered for it.
    let course = decision.map(|decision| Arc::clone(&decision.course));
    Ok(Placed { at: start, placement, worker, course })
}

/// Every candidate with its cost and what that is made of, in one line.
fn weighed(told: &Told) -> String {
    let candidate = |at: &ToldCandidate| {
        let cost = at.cost.map_or_else(|| "not asked".to_owned(), |cost| format!("{cost:.4}"));
        let terms = at.terms.iter().map(|term| {
            let joins = if term.joins == "multiplies" { "×" } else { "" };
            format!(" {} {joins}{:.4}", term.name, term.value)
        });
        format!("{}/{} {cost}{}", at.worker, at.rank, terms.collect::<String>())
    };
    told.considered.iter().map(candidate).collect::<Vec<_>>().join("; ")
}

/// What is logged of a decision.
fn chosen((placement, policy): (&Placement, PolicyName), decision: Option<&Decision>, scratch: &Scratch) -> Chosen {
    let target = &placement.target;
    let at = scratch.candidates().iter().position(|candidate| candidate.slot == target.slot);
    Chosen {
        worker: target.worker.clone(),
        rank: target.rank,
        overlap: placement.overlap_tokens,
        policy: policy.as_str(),
        decided_by: placement.decided_by.as_str(),
        cost: at.and_then(|at| scratch.costs().get(at)).map(|cost| cost.0),
        decision: decision.map(|decision| decision.number),
    }
}

/// What [`place`] would do at this moment. Reserves nothing, sends nothing, and is written down nowhere.
pub(super) fn dry_run(gateway: &Gateway, request: &Understood) -> Result<DryRun, GatewayError> {
    let roster = gateway.fleet.roster();
    let table = roster.table();
    let pool = table.pool(&request.pool.model).ok_or(GatewayError::NoSuchSlot)?;
    let mut lacking = SlotSet::new();
    let nobody = SlotSet::new();
    let avoid = avoided(request, &nobody, &roster, &mut lacking);
    asking(request, avoid, |place| {
        gateway.with_scratch(|scratch| {
            let scheduler = &request.pool.scheduler;
            let explanation = scheduler.explain(Instant::now(), place, &*gateway.index, (table, pool), scratch)?;
            let asked = scratch.asked().cloned().ok_or(GatewayError::NoSuchSlot)?;
            Ok(DryRun { explanation, asked, names: names(table, pool).collect() })
        })
    })
}

/// Those in `avoid`, and those that lack the adapter that is asked for, or the alias where others have it.
pub(super) fn avoided<'a>(
    request: &Understood,
    avoid: &'a SlotSet,
    roster: &Roster,
    lacking: &'a mut SlotSet,
) -> &'a SlotSet {
    let Some(pool) = roster.table().pool(&request.pool.model) else { return avoid };
    match (&request.adapter, &request.alias) {
        (None, None) => return avoid,
        (Some(adapter), _) => {
            lacking.copy_from(avoid);
            roster.avoid_without(adapter, pool, lacking);
        }
        (None, Some(alias)) => {
            lacking.copy_from(avoid);
            roster.avoid_unnamed(alias, pool, lacking);
        }
    }
    lacking
}

/// Asks with the request as the scheduler sees it.
fn asking<T>(request: &Understood, avoid: &SlotSet, ask: impl FnOnce(&PlaceRequest<'_>) -> T) -> T {
    let prompts = request.prompts.below(request.root);
    let texts = prompts_of(request.texts.0, &request.texts.1);
    let shape = Shape { waited: request.arrived.elapsed(), ..request.shape };
    ask(&PlaceRequest { key: request.key, shape, prompts: &prompts, texts: &texts, avoid })
}

/// Prompts below `root`, without media.
fn prompts_of(root: Root, prompts: &[Vec<u32>]) -> Vec<Prompt<'_>> {
    prompts.iter().map(|tokens| Prompt::of(root, tokens)).collect()
}
