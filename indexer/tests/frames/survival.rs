//! What must hold of any bytes; the tests here and the fuzz targets in `indexer/fuzz` try it.

use std::sync::Arc;

use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::Slot;
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::{Format, decode, decode_json, rank_of};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::event::{CacheEvent, Content, EventBatch};
use warmpath_indexer::view::ViewSettings;

/// Room of the index, so that it is full now and then.
const ENTRIES: usize = 64;

/// Bytes that a batch holds, capacities counted.
fn footprint(batch: &EventBatch) -> usize {
    let events = batch.events.capacity() * size_of::<CacheEvent>();
    let rejected = batch.rejected.capacity() * 256;
    let inner = |event: &CacheEvent| match event {
        CacheEvent::Cleared => 0,
        CacheEvent::Removed(removed) => {
            8 * removed.hashes.capacity() + 4 * removed.remaining_copy_counts.as_ref().map_or(0, Vec::capacity)
        }
        CacheEvent::Stored(stored) => {
            let content = match &stored.content {
                Content::Tokens(tokens) => 4 * tokens.capacity(),
                Content::Hashes(hashes) => 8 * hashes.capacity(),
                Content::Nothing => 0,
            };
            let media: usize = stored.media.iter().map(|medium| medium.identifier.len()).sum();
            200 + content + 8 * stored.hashes.capacity() + 24 * stored.media.capacity() + media
        }
    };
    events + rejected + batch.events.iter().map(inner).sum::<usize>()
}

/// A batch of a few bytes holds a few bytes, and an index takes it without harm.
fn is_harmless(batch: &EventBatch, message: &[u8]) {
    let held = footprint(batch);
    assert!(held <= 1024 + 64 * message.len() + 256 * 256, "{held} bytes held for {} bytes", message.len());
    assert!(batch.events.len() + batch.rejected_total() <= message.len());
    let index = Arc::new(ConcurrentIndex::new(ENTRIES));
    let pool = Namespace::plain("m", BlockSize::new(4).expect("not 0"));
    let writer = index.writer(Slot(0), &ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 });
    writer.apply(&batch.events);
    assert!(index.len() <= ENTRIES && writer.entries() <= index.len());
    writer.forget();
    assert!(index.is_empty());
}

/// Whatever a message says, nothing comes of it but a batch or an error.
pub(crate) fn survives(format: Format, message: &[u8]) {
    let batch = match format {
        Format::Msgpack => {
            let (rank, batch) = (rank_of(message), decode(message));
            assert!(batch.as_ref().is_ok_and(|batch| batch.dp_rank == rank) || batch.is_err());
            batch
        }
        Format::Json => decode_json(message).map(|event| event.batch),
    };
    if let Ok(batch) = batch {
        is_harmless(&batch, message);
    }
}
