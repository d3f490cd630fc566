//! A rank's blocks, kept as a router keeps them.

use std::sync::Arc;

use warmpath_core::ids::Slot;
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::index::Writer;
use warmpath_indexer::snapshot::{Mark, owner_of};
use warmpath_indexer::view::ViewSettings;

use super::{BlockSet, Chunks};
use crate::wall_clock;

/// Blocks that are kept at most, a rank: 500 MB.
const BLOCKS_MAX: usize = 20_000_000;

/// One rank's view, in an index of its own.
pub struct RankView {
    writer: Writer<Chains>,
    owner: u64,
}

impl RankView {
    /// An empty view of what this rank of a worker serves.
    pub fn new(worker: &str, rank: u32, settings: &ViewSettings) -> Self {
        let index = Arc::new(ConcurrentIndex::new(BLOCKS_MAX));
        Self { writer: index.writer(Slot(0), settings), owner: owner_of(worker, rank) }
    }
}

impl BlockSet for RankView {
    fn apply(&mut self, events: &[CacheEvent]) {
        self.writer.apply(events);
    }

    fn forget(&mut self) {
        self.writer.forget();
    }

    fn chunks(&self, (position, began): (Position, Began), chunk_bytes: usize) -> Chunks {
        let mark = Mark { owner: self.owner, position, began, taken_ms: wall_clock::now_ms() };
        Box::new(self.writer.snapshot(mark, chunk_bytes))
    }
}
