//! `GET /api/v1/index`: how much the prefix index holds, for whom, and what found no room in it.

use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::Admin;
use super::guard::Reader;

/// The prefix index. Fields may be added, never renamed.
#[derive(Serialize)]
struct IndexState {
    /// Blocks, one for each worker that holds it.
    entries: usize,
    /// How many there may be: `index.max_entries`.
    capacity: usize,
    /// Heap, the engines' own names for blocks included.
    bytes: usize,
    /// Entries that were let go to make room for others, since the start.
    shed_entries: u64,
    /// Blocks not remembered because there was no room, since the start.
    refused_blocks: u64,
    /// Ascending by slot.
    workers: Vec<Share>,
}

/// What it holds for one routing target.
#[derive(Serialize)]
struct Share {
    worker: String,
    rank: u32,
    slot: u16,
    /// One in several tiers counts once.
    blocks: usize,
    /// Heap of the engine's own names for them.
    bytes: usize,
}

/// Answers with all of it. O(chains), as `/metrics`.
pub(super) async fn show(Reader(admin): Reader) -> Response {
    Json(state(&admin)).into_response()
}

fn state(admin: &Admin) -> IndexState {
    let (index, roster) = (&admin.index, admin.fleet.roster());
    let workers = roster.table().iter().filter_map(|target| {
        Some(Share {
            worker: roster.worker(target.slot)?.id.as_str().to_owned(),
            rank: target.rank.0,
            slot: target.slot.0,
            blocks: index.entries(target.slot),
            bytes: index.bytes_of(target.slot),
        })
    });
    IndexState {
        entries: index.len(),
        capacity: index.capacity(),
        bytes: index.bytes(),
        shed_entries: index.shed(),
        refused_blocks: index.refused(),
        workers: workers.collect(),
    }
}
