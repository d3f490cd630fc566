//! Decisions of simulated routers, told as those of gateways are.

use std::collections::HashMap;
use std::sync::Arc;

use warmpath_core::ids::{Rank, Slot, WorkerId};
use warmpath_simulator::fleet::{Failure, MODEL, Outcome, RequestOutcome, Scenario};

use crate::decisions::told::{Row, Told, told_dry};
use crate::decisions::{Name, Standing};

/// Those that were to be told, each under the number of its request, from 1, and with what came of that: of several for one
/// request the last is what became of it, for the workers of those before it have failed it.
pub(super) fn told(scenario: &Scenario, outcome: &Outcome) -> Vec<Told> {
    let model: Arc<str> = MODEL.into();
    let name = |slot: u16| {
        let worker = WorkerId::from(format!("worker-{}", slot + 1).as_str());
        Name { slot: Slot(slot), worker, rank: Rank(0) }
    };
    let names: Vec<Name> = (0..scenario.workers).map(name).collect();
    let last: HashMap<usize, usize> =
        outcome.decided.iter().enumerate().map(|(place, decided)| (decided.request, place)).collect();
    let decided = outcome.decided.iter().enumerate().map(|(place, decided)| {
        let number = u64::try_from(decided.request).unwrap_or(u64::MAX).saturating_add(1);
        let (question, chance) = &decided.asked;
        let mut told = told_dry((&model, number.to_string()), &decided.explanation, (question, chance), &names);
        (told.row.number, told.row.at_ms, told.row.avoided) = (number, whole(decided.at.0), decided.avoided);
        if last.get(&decided.request) == Some(&place) {
            end(&mut told.row, &outcome.requests[decided.request]);
        } else {
            told.row.outcome = Some(Standing::Failed);
        }
        told
    });
    decided.collect()
}

/// What became of a request, as its router saw it: to that an answer which is as long as its engine could make it is whole.
fn end(row: &mut Row, became: &RequestOutcome) {
    let standing = match became.failure {
        None | Some(Failure::CutShort) => Standing::Answered,
        Some(Failure::Refused | Failure::WorkerDied | Failure::NoWorker) => Standing::Failed,
    };
    let has_begun = became.output_tokens > 0;
    row.ttft_ms = has_begun.then(|| u32::try_from(whole(became.ttft.0)).unwrap_or(u32::MAX));
    row.reported_cached_tokens = (standing == Standing::Answered).then_some(became.cached_tokens);
    row.outcome = Some(standing);
}

/// Whole milliseconds.
fn whole(ms: f64) -> u64 {
    let span = std::time::Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
