//! Whether requests can be served, and who is in the way of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::offers;
use super::sources::Sources;
use crate::config::ReadyWhen;
use crate::fleet::{Condition, Duty, Fleet, Worker};

/// Workers of a model that are told by name.
const NAMED: usize = 4;

/// Whether requests can be served, or why not.
pub(super) type Ready = Arc<dyn Fn() -> Result<(), NotReady> + Send + Sync>;

/// Why requests cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotReady {
    #[error("the router is stopping")]
    Stopping,
    #[error("it waits for every worker, as `ready_when: all` says{}", .0.as_ref().map(|missing| format!(": {missing}")).unwrap_or_default())]
    Mustering(Option<Unserved>),
    #[error("what the router before it knew is still being read")]
    Cold,
    #[error("what its workers serve is still being read")]
    Unread,
    #[error(transparent)]
    Unserved(#[from] Unserved),
}

/// Why not, in words.
pub(super) fn refusal(ready: &Ready) -> Box<dyn Fn() -> Option<String> + Send + Sync> {
    let ready = Arc::clone(ready);
    Box::new(move || ready().err().map(|why| why.to_string()))
}

/// Ready once nobody is waited for, the views of the run before are read, each model has a worker that is well, and those that
/// are have said what they serve; until it drains. That every worker is well is asked for at the start only: one that dies later
/// must not take the routers out.
pub(super) fn readiness(
    (fleet, sources): (&Arc<Fleet>, &Arc<Sources>),
    (mustered, draining): (Arc<AtomicBool>, &Arc<AtomicBool>),
) -> Ready {
    let (fleet, sources, draining) = (fleet.clone(), sources.clone(), draining.clone());
    let read_until = Instant::now() + offers::READING;
    Arc::new(move || {
        if draining.load(Ordering::Relaxed) {
            return Err(NotReady::Stopping);
        }
        if !mustered.load(Ordering::Relaxed) {
            return Err(NotReady::Mustering(ready(&fleet, ReadyWhen::All).err()));
        }
        if !sources.are_warm() {
            return Err(NotReady::Cold);
        }
        ready(&fleet, ReadyWhen::Any)?;
        // Until then requests for adapters would be told that there is no such model, which nobody tries again.
        if Instant::now() < read_until && !offers::are_read(&fleet) {
            return Err(NotReady::Unread);
        }
        Ok(())
    })
}

/// Why requests for a model cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{who} serves `{model}`: {why}")]
pub(super) struct Unserved {
    who: &'static str,
    model: Arc<str>,
    why: String,
}

impl Unserved {
    fn new(model: &Arc<str>, workers: &[&Arc<Worker>]) -> Self {
        let mut said: Vec<String> =
            workers.iter().map(|worker| format!("{} is {}", worker.id, state(worker))).collect();
        // Ranks have one duty and are asked together.
        said.dedup();
        let more = said.len().saturating_sub(NAMED);
        said.truncate(NAMED);
        if more > 0 {
            said.push(format!("and {more} more"));
        }
        let why = if said.is_empty() { "no worker was found".to_owned() } else { said.join(", ") };
        let serves = |worker: &&Arc<Worker>| worker.duty() == Duty::Active && worker.health().is_ready();
        let who = if workers.iter().any(serves) { "not every worker" } else { "nobody" };
        Self { who, model: Arc::clone(model), why }
    }
}

fn state(worker: &Worker) -> &'static str {
    match worker.condition() {
        Condition::Active if worker.health().is_ready() => "well",
        Condition::Active => "not checked yet",
        condition => condition.label(),
    }
}

/// Whether enough workers of every model have passed their checks and are to serve. Those that operators have taken out are
/// not waited for, but do not serve either.
///
/// # Errors
/// The first model that nobody, or not everybody, serves.
pub(super) fn ready(fleet: &Fleet, when: ReadyWhen) -> Result<(), Unserved> {
    let roster = fleet.roster();
    let unready = fleet.pools().find_map(|pool| {
        let of_pool: Vec<_> = roster.serving(&pool.model).collect();
        let mut on_duty = of_pool.iter().filter(|worker| worker.duty() == Duty::Active).peekable();
        let is_ready = match when {
            ReadyWhen::Any => on_duty.any(|worker| worker.health().is_ready()),
            ReadyWhen::All => on_duty.peek().is_some() && on_duty.all(|worker| worker.health().is_ready()),
        };
        (!is_ready).then(|| Unserved::new(&pool.model, &of_pool))
    });
    unready.map_or(Ok(()), Err)
}

/// Models that no worker was found for, or whose workers are all out, some of them because their operators want it so, in
/// words.
pub(super) fn unserved(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let unserved = fleet.pools().filter_map(|pool| {
        let of_pool: Vec<_> = roster.serving(&pool.model).collect();
        let is_off_duty = of_pool.is_empty() || of_pool.iter().any(|worker| worker.duty() != Duty::Active);
        let is_served = of_pool.iter().any(|worker| worker.may_serve());
        (is_off_duty && !is_served).then(|| Unserved::new(&pool.model, &of_pool).to_string())
    });
    unserved.collect()
}

/// Workers that are out, or refuse the router's key, in words.
pub(super) fn complaints(fleet: &Fleet) -> Vec<String> {
    let roster = fleet.roster();
    let trouble = |worker: &Arc<Worker>| {
        if worker.denies() {
            return Some((worker.id.clone(), "refuses the router's key (`api_key`)".to_owned()));
        }
        let what = worker.health().trouble()?;
        let why = worker.unwell().map_or_else(String::new, |why| format!(" ({why})"));
        Some((worker.id.clone(), format!("{what}{why}")))
    };
    let mut amiss: Vec<_> = roster.workers().filter_map(trouble).collect();
    // Ranks are asked together.
    amiss.sort_by(|a, b| a.0.cmp(&b.0));
    amiss.dedup_by(|a, b| a.0 == b.0);
    amiss.iter().map(|(id, what)| format!("worker `{id}` {what}")).collect()
}
