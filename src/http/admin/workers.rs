//! `GET /api/v1/workers`: every routing target, what is in flight on it, what is known of its cache and how far that is
//! believed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use warmpath_core::trust::Report;
use warmpath_core::workers::Target;

use super::Admin;
use super::guard::Reader;
use crate::fleet::scrape::Scrape;
use crate::fleet::{Condition, Worker, kv_load};

#[derive(Serialize)]
struct Workers {
    workers: Vec<Row>,
}

/// One routing target. Fields may be added, never renamed.
#[derive(Serialize)]
pub(super) struct Row {
    id: String,
    slot: u16,
    rank: u32,
    model: String,
    /// `up` while it may be chosen, else why not: `draining`, `ejected`, `down`.
    state: &'static str,
    /// What keeps it from being chosen, or `active`: `draining`, `ejected`, `down`.
    condition: &'static str,
    /// `closed`, `trial` while one more failed request would open it, or `open`.
    breaker: &'static str,
    in_flight: InFlight,
    index_blocks: usize,
    view: &'static str,
    /// Predicted overlap over prompt tokens, last five minutes.
    hit_rate: f64,
    /// Blocks in flight over those of its cache.
    kv_load: f64,
    /// The most requests that it computes at once.
    max_num_seqs: u32,
    trust_weight: f64,
    /// Whether what the router sent counts where the view does not.
    falls_back: bool,
    reasons: Vec<String>,
    last_event_age_s: Option<f64>,
    cached_tokens: CachedTokens,
    /// LoRA adapters that it has.
    adapters: Vec<Arc<str>>,
    engine: Option<Engine>,
}

#[derive(Serialize)]
struct InFlight {
    requests: u32,
    sequences: u32,
    before_first_token: u32,
    prefill_tokens: u32,
    blocks: u32,
}

/// Sums over the requests in which both are known.
#[derive(Serialize)]
struct CachedTokens {
    requests: u64,
    predicted: u64,
    reported: u64,
}

/// What the engine said last, and how long ago.
#[derive(Serialize)]
struct Engine {
    age_s: f64,
    #[serde(flatten)]
    said: Scrape,
}

/// Answers with every routing target, ascending by slot.
pub(super) async fn list(Reader(admin): Reader) -> Response {
    Json(Workers { workers: rows(&admin) }).into_response()
}

/// Every routing target, ascending by slot.
pub(super) fn rows(admin: &Admin) -> Vec<Row> {
    let now = Instant::now();
    let roster = admin.fleet.roster();
    let rows = roster.table().iter().filter_map(|target| {
        let worker = roster.worker(target.slot)?;
        let pool = admin.fleet.pool(&worker.model)?;
        let report = worker.trust(now, target, pool.block_size);
        Some(row(now, (worker, target), report, admin.index.entries(target.slot)))
    });
    rows.collect()
}

fn row(now: Instant, (worker, target): (&Worker, &Target), report: Report, index_blocks: usize) -> Row {
    let (load, condition) = (target.account.read(), worker.condition());
    let Report { view, weight, falls_back, reasons, totals, last_event } = report;
    Row {
        id: worker.id.as_str().to_owned(),
        slot: target.slot.0,
        rank: target.rank.0,
        model: worker.model.as_ref().to_owned(),
        state: if condition == Condition::Active { "up" } else { condition.label() },
        condition: condition.label(),
        breaker: worker.breaker(),
        in_flight: InFlight {
            requests: load.requests,
            sequences: load.sequences,
            before_first_token: load.before_first_token,
            prefill_tokens: load.prefill_tokens.0,
            blocks: load.active_blocks.0,
        },
        index_blocks,
        view: view.as_str(),
        hit_rate: worker.hit_rate.read(now),
        kv_load: kv_load(target),
        max_num_seqs: target.limits.sequences,
        trust_weight: weight,
        falls_back,
        reasons: reasons.iter().map(ToString::to_string).collect(),
        last_event_age_s: last_event.as_ref().map(Duration::as_secs_f64),
        cached_tokens: CachedTokens {
            requests: totals.compared,
            predicted: totals.promised,
            reported: totals.reported,
        },
        adapters: adapters(worker),
        engine: worker
            .engine
            .last()
            .map(|(at, said)| Engine { age_s: now.saturating_duration_since(at).as_secs_f64(), said }),
    }
}

fn adapters(worker: &Worker) -> Vec<Arc<str>> {
    let offer = worker.offer.load();
    offer.iter().flat_map(|offer| offer.adapters()).map(|card| Arc::clone(&card.id)).collect()
}
