//! Hears what bridges tell of engines' load, for workers whose events come over NATS. Nothing waits for any of it.
//!
//! A worker may be asked for its metrics as well: whatever says more counts, and with neither, what was said fades.

use std::sync::Arc;

use super::scrape::Readers;
use crate::events::nats::NatsBus;
use crate::events::nats::load::{LoadError, LoadReport, LoadReports};
use crate::fleet::Worker;
use crate::shutdown::{Restarts, Tasks};

/// Starts to listen for the reports on one worker, for all its ranks.
pub(super) fn start(readers: &Readers, bus: &NatsBus, ranks: Vec<Arc<Worker>>, (tasks, restarts): (&Tasks, Restarts)) {
    let (readers, bus) = (readers.clone(), bus.clone());
    tasks.supervise(restarts, move || listen(readers.clone(), bus.clone(), ranks.clone()));
}

async fn listen(readers: Readers, bus: NatsBus, ranks: Vec<Arc<Worker>>) {
    let Some(first) = ranks.first() else { return };
    match bus.load_reports(first.id.as_str()).await {
        Ok(reports) => follow(readers, reports, &ranks).await,
        Err(error) => tracing::warn!(worker = %first.id, error = %error, "reports of its load cannot be heard"),
    }
}

async fn follow(readers: Readers, mut reports: LoadReports, ranks: &[Arc<Worker>]) {
    let look = || ranks.iter().map(|worker| readers.look(worker)).collect::<Vec<_>>();
    // The engine was asked after the report before this one came: what was in flight then and now bounds what was.
    let (mut before, mut understood) = (look(), true);
    while let Some(report) = reports.next().await {
        let seen = std::mem::replace(&mut before, look());
        for (worker, seen) in ranks.iter().zip(seen) {
            let outcome = match (report.as_ref().map(|report| report.reading(worker.rank)), seen) {
                (Ok(Some(reading)), Some(seen)) => readers.note(worker, &seen, &reading),
                (Ok(_), _) => "absent",
                (Err(_), _) => "refused",
            };
            worker.metrics.belief.reported(outcome);
        }
        say_if_refused(&mut understood, &report, ranks);
    }
}

/// Once, until one is understood again.
fn say_if_refused(understood: &mut bool, report: &Result<LoadReport, LoadError>, ranks: &[Arc<Worker>]) {
    if let (true, Err(error), Some(worker)) = (*understood, report, ranks.first()) {
        tracing::warn!(worker = %worker.id, %error, "a report of its load is refused");
    }
    *understood = report.is_ok();
}
