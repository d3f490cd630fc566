//! Filling a view from a snapshot that somebody sends part by part.

use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use warmpath_indexer::concurrent::Chains;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::index::{Restore, Writer};
use warmpath_indexer::snapshot::{SnapshotError, owner_of};

use crate::aside::in_place;

/// The most of a snapshot that is kept until it is whole: 15 million blocks.
const BYTES_MAX: usize = 256 << 20;

/// Views that are filled at once: each takes a thread for milliseconds at a time.
const AT_ONCE: usize = 4;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE);

/// Gathers the parts of one snapshot after the other.
pub(super) struct Restoring {
    owner: u64,
    parts: Vec<Bytes>,
    bytes: usize,
}

impl Restoring {
    /// Of snapshots of this rank of a worker.
    pub(super) fn new(worker: &str, rank: u32) -> Self {
        Self { owner: owner_of(worker, rank), parts: Vec::new(), bytes: 0 }
    }

    /// Keeps the next part. False if there are too many.
    pub(super) fn part(&mut self, part: Bytes) -> bool {
        self.bytes += part.len();
        self.parts.push(part);
        let fits = self.bytes <= BYTES_MAX;
        if !fits {
            self.give_up();
        }
        fits
    }

    /// Fills the view, which is emptied before; returns how far the snapshot goes and where its view began. On any
    /// fault, and where this is dropped half-way, the view is empty; if nothing has come it is as it was. Others come
    /// in between two parts.
    pub(super) async fn end(&mut self, index: &Writer<Chains>) -> Option<(Position, Began)> {
        let parts = std::mem::take(&mut self.parts);
        self.bytes = 0;
        if parts.is_empty() {
            return None;
        }
        let _turn = TURNS.acquire().await;
        filled(index.restore(self.owner), parts)
            .await
            .inspect_err(|error| tracing::warn!(%error, "a snapshot was refused"))
            .ok()
    }

    /// Forgets what was gathered.
    pub(super) fn give_up(&mut self) {
        self.parts.clear();
        self.bytes = 0;
    }
}

async fn filled(mut restore: Restore<'_, Chains>, parts: Vec<Bytes>) -> Result<(Position, Began), SnapshotError> {
    for part in parts {
        // The first one makes room, for which others may have to let go of much.
        in_place(usize::MAX, || restore.chunk(&part))?;
        yield_now().await;
    }
    let restored = restore.finish()?;
    Ok((restored.position, restored.began))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use warmpath_core::ids::Slot;
    use warmpath_core::namespace::Namespace;
    use warmpath_core::units::BlockSize;
    use warmpath_indexer::concurrent::ConcurrentIndex;
    use warmpath_indexer::snapshot::Mark;
    use warmpath_indexer::view::ViewSettings;

    fn writer() -> Writer<Chains> {
        let pool = Namespace::plain("m", BlockSize::new(4).unwrap());
        Arc::new(ConcurrentIndex::new(100)).writer(Slot(0), &ViewSettings { pool, seed: 1, blocks: 0 })
    }

    #[tokio::test]
    async fn a_snapshot_of_another_worker_is_refused_and_its_own_tells_how_far_it_goes() {
        let position = Position { epoch: Some(3), next: 9, newest: Some(1.5) };
        let taken = |worker| {
            let mark = Mark { owner: owner_of(worker, 0), position, began: Began::InTheMiddle, taken_ms: 5 };
            writer().snapshot(mark, 1 << 16).map(Bytes::from).collect::<Vec<Bytes>>()
        };
        let mut restoring = Restoring::new("w", 0);
        for (parts, expected) in
            [(taken("other"), None), (taken("w"), Some((position, Began::InTheMiddle))), (Vec::new(), None)]
        {
            assert!(parts.into_iter().all(|part| restoring.part(part)));
            assert_eq!(restoring.end(&writer()).await, expected);
        }
    }
}
