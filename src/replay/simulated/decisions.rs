//! Decisions of simulated routers, told as those of gateways are.

use std::sync::Arc;

use warmpath_core::ids::{Rank, Slot, WorkerId};
use warmpath_simulator::fleet::{MODEL, Outcome, Scenario};

use crate::decisions::Name;
use crate::decisions::told::{Told, told_dry};

/// Those that were to be told, each under the number of its request, from 1, and with what came of that.
pub(super) fn told(scenario: &Scenario, outcome: &Outcome) -> Vec<Told> {
    let model: Arc<str> = MODEL.into();
    let name = |slot: u16| {
        let worker = WorkerId::from(format!("worker-{}", slot + 1).as_str());
        Name { slot: Slot(slot), worker, rank: Rank(0) }
    };
    let names: Vec<Name> = (0..scenario.workers).map(name).collect();
    let decided = outcome.decided.iter().map(|decided| {
        let number = u64::try_from(decided.request).unwrap_or(u64::MAX).saturating_add(1);
        let (question, chance) = &decided.asked;
        let mut told = told_dry((&model, number.to_string()), &decided.explanation, (question, chance), &names);
        let became = &outcome.requests[decided.request];
        (told.row.number, told.row.at_ms) = (number, whole(decided.at.0));
        told.row.ttft_ms = became.completed.then(|| u32::try_from(whole(became.ttft.0)).unwrap_or(u32::MAX));
        told.row.reported_cached_tokens = became.completed.then_some(became.cached_tokens);
        told
    });
    decided.collect()
}

/// Whole milliseconds.
fn whole(ms: f64) -> u64 {
    let span = std::time::Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
