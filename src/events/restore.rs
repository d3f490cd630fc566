//! Filling a view from a snapshot that somebody sends part by part.

use bytes::Bytes;
use warmpath_indexer::concurrent::Chains;
use warmpath_indexer::feed::Position;
use warmpath_indexer::index::Writer;
use warmpath_indexer::snapshot::owner_of;

/// The most of a snapshot that is kept until it is whole: 15 million blocks.
const BYTES_MAX: usize = 256 << 20;

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

    /// Fills the view, which is emptied before; returns how far the snapshot goes. On any fault the view is empty; if
    /// nothing has come it is as it was.
    pub(super) fn end(&mut self, index: &Writer<Chains>) -> Option<Position> {
        let parts = std::mem::take(&mut self.parts);
        self.bytes = 0;
        if parts.is_empty() {
            return None;
        }
        let mut restore = index.restore(self.owner);
        let read = parts.iter().try_for_each(|part| restore.chunk(part));
        match read.and_then(|()| restore.finish()) {
            Ok(restored) => Some(restored.position),
            Err(error) => {
                tracing::warn!(%error, "a snapshot was refused");
                None
            }
        }
    }

    /// Forgets what was gathered.
    pub(super) fn give_up(&mut self) {
        self.parts.clear();
        self.bytes = 0;
    }
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

    #[test]
    fn a_snapshot_of_another_worker_is_refused_and_its_own_gives_the_position() {
        let position = Position { epoch: Some(3), next: 9, newest: Some(1.5) };
        let taken = |worker| {
            let mark = Mark { owner: owner_of(worker, 0), position, taken_ms: 5 };
            writer().snapshot(mark, 1 << 16).map(Bytes::from).collect::<Vec<Bytes>>()
        };
        let mut restoring = Restoring::new("w", 0);
        let mut fill = |parts: Vec<Bytes>| {
            assert!(parts.into_iter().all(|part| restoring.part(part)));
            restoring.end(&writer())
        };
        assert_eq!([fill(taken("other")), fill(taken("w")), fill(Vec::new())], [None, Some(position), None]);
    }
}
