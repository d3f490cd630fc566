//! Snapshots that are not what they were: refused, the view emptied, and nobody else harmed.

use std::sync::Arc;

use proptest::prelude::*;
use warmpath_core::ids::{EngineHash, SequenceHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::index::Writer;
use warmpath_indexer::snapshot::{Groups, Head, Parent, Record, SnapshotEncoder, SnapshotError, SnapshotFault};
use warmpath_indexer::store::Tiers;
use warmpath_indexer::view::ViewSettings;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::paths::{hashes, settings, stored};
use crate::worlds::{MARK, chunks_of};

const PATH_BLOCKS: u64 = 4000;

fn path() -> Vec<u64> {
    (0..PATH_BLOCKS).collect()
}

/// A snapshot of 4 000 blocks in three chunks.
fn snapshot() -> Vec<Vec<u8>> {
    let index = Arc::new(ConcurrentIndex::new(1 << 20));
    let writer = index.writer(Slot(0), &settings());
    writer.apply(&[stored(&path(), 0, Tier::Device), stored(&path()[..100], 99, Tier::Device)]);
    let (chunks, _) = chunks_of(&writer, 0);
    assert_eq!(chunks.len(), 3);
    chunks
}

/// An index with a neighbour, which must never notice, and a worker that already holds something.
struct Bench {
    index: Arc<ConcurrentIndex>,
    writer: Writer<Chains>,
    _neighbour: Writer<Chains>,
}

impl Bench {
    fn new() -> Self {
        let index = Arc::new(ConcurrentIndex::new(1 << 20));
        let [neighbour, writer] = [1, 0].map(|slot| index.writer(Slot(slot), &settings()));
        for writer in [&neighbour, &writer] {
            writer.apply(&[stored(&path()[..2000], 0, Tier::Device)]);
        }
        Self { index, writer, _neighbour: neighbour }
    }

    fn found(&self, slot: u16) -> u32 {
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(&hashes(&path()), &mut overlaps);
        overlaps.of(Slot(slot)).total().0
    }

    /// Restores as far as it goes; returns the first fault.
    fn read(&self, chunks: &[Vec<u8>]) -> Result<usize, SnapshotError> {
        let mut restore = self.writer.restore(MARK.owner);
        for chunk in chunks {
            restore.chunk(chunk)?;
        }
        restore.finish().map(|restored| restored.names)
    }

    /// That a snapshot is refused, leaves nothing, and the neighbour where it was.
    fn refuses(&self, chunks: &[Vec<u8>]) -> SnapshotError {
        let error = self.read(chunks).unwrap_err();
        assert_eq!((self.writer.names(), self.writer.entries(), self.found(0)), (0, 0, 0), "{error}");
        assert_eq!((self.found(1), self.index.len()), (2000, 2000), "{error}");
        error
    }
}

/// The chunk with the checksum that it should have behind one that has `before`.
fn sealed(mut chunk: Vec<u8>, before: u64) -> Vec<u8> {
    if let Some(end) = chunk.len().checked_sub(8) {
        let sum = xxh3_64_with_seed(&chunk[..end], before).to_le_bytes();
        chunk[end..].copy_from_slice(&sum);
    }
    chunk
}

#[test]
fn the_error_says_what_is_wrong_and_where() {
    let (bench, good) = (Bench::new(), snapshot());
    assert_eq!(bench.read(&good), Ok(4000));
    let changed = |chunk: usize, change: &dyn Fn(&mut Vec<u8>)| {
        let mut chunks = good.clone();
        change(&mut chunks[chunk]);
        bench.refuses(&chunks).to_string()
    };
    assert_eq!(changed(0, &|chunk| chunk[0] = b'w'), "chunk 0, byte 0: this is no snapshot");
    assert_eq!(changed(0, &|chunk| chunk[8] = 3), "chunk 0, byte 8: version 3 is not read here");
    assert_eq!(changed(0, &|chunk| chunk[10] |= 64), "chunk 0, byte 10: the flags cannot be read");
    assert_eq!(changed(0, &|chunk| chunk[16] ^= 1), "chunk 0, byte 16: it is of another model, block size or seed");
    assert_eq!(changed(0, &|chunk| chunk[24] ^= 1), "chunk 0, byte 24: it is of another worker or rank");
    assert_eq!(changed(1, &|chunk| chunk[40] ^= 1), "chunk 1, byte 32: it is of another snapshot");
    let sum = good[1].len() - 8;
    assert_eq!(changed(1, &|chunk| chunk[500] ^= 4), format!("chunk 1, byte {sum}: the checksum does not fit"));
    let len = good[2].len();
    let short = format!("chunk 2, byte {}: the chunk has {} bytes and should have {len}", len - 1, len - 1);
    assert_eq!(changed(2, &|chunk| chunk.truncate(len - 1)), short);
    assert_eq!(changed(2, &|chunk| chunk.truncate(40)), "chunk 2, byte 40: the header cannot be read");
    let long = changed(0, &|chunk| chunk[79] = 1);
    assert_eq!(long, format!("chunk 0, byte 76: a chunk of {} bytes is more than is read", (1 << 24) + good[0].len()));
}

#[test]
fn chunks_come_in_order_each_once_and_all() {
    let (bench, good) = (Bench::new(), snapshot());
    let picked = |numbers: &[usize]| {
        let chunks: Vec<Vec<u8>> = numbers.iter().map(|&number| good[number].clone()).collect();
        bench.refuses(&chunks).to_string()
    };
    assert_eq!(picked(&[]), "chunk 0, byte 0: the last chunk is missing");
    assert_eq!(picked(&[0, 1]), "chunk 2, byte 0: the last chunk is missing");
    assert_eq!(picked(&[1, 0, 2]), "chunk 0, byte 12: chunk 1 came where 0 was due");
    assert_eq!(picked(&[0, 2]), "chunk 1, byte 12: chunk 2 came where 1 was due");
    assert_eq!(picked(&[0, 0, 1, 2]), "chunk 1, byte 12: chunk 0 came where 1 was due");
    assert_eq!(picked(&[0, 1, 2, 2]), "chunk 3, byte 0: nothing more is read");
}

#[test]
fn chunks_of_two_snapshots_do_not_mix() {
    let (bench, good) = (Bench::new(), snapshot());
    let index = Arc::new(ConcurrentIndex::new(1 << 20));
    let writer = index.writer(Slot(0), &settings());
    // As many names, at the same position; the last two are others.
    let other: Vec<u64> = path().into_iter().map(|block| if block < 3998 { block } else { block + 9 }).collect();
    writer.apply(&[stored(&other, 0, Tier::Device)]);
    let (other, _) = chunks_of(&writer, 0);
    let mixed = [good[0].clone(), good[1].clone(), other[2].clone()];
    assert_eq!(bench.refuses(&mixed).fault, SnapshotFault::Checksum);
}

#[test]
fn another_namespace_is_refused() {
    let chunks = snapshot();
    let index = Arc::new(ConcurrentIndex::new(1 << 20));
    let plain = |model: &str, size| Namespace::plain(model, BlockSize::new(size).unwrap());
    for (pool, seed) in [(plain("n", 16), 1337), (plain("m", 32), 1337), (plain("m", 16), 1)] {
        let writer = index.writer(Slot(0), &ViewSettings { pool, seed, blocks: 0 });
        let error = writer.restore(MARK.owner).chunk(&chunks[0]).unwrap_err();
        assert_eq!(error, SnapshotError { chunk: 0, at: 16, fault: SnapshotFault::OtherPool });
        let error = writer.restore(MARK.owner + 1).chunk(&chunks[0]).unwrap_err();
        assert_eq!(error.fault, SnapshotFault::OtherPool);
    }
    let writer = index.writer(Slot(0), &settings());
    let error = writer.restore(MARK.owner + 1).chunk(&chunks[0]).unwrap_err();
    assert_eq!(error, SnapshotError { chunk: 0, at: 24, fault: SnapshotFault::OtherOwner });
}

/// Whole and well sealed, but wrong in itself.
#[test]
fn records_that_contradict_each_other_are_refused() {
    let bench = Bench::new();
    let head = |names| Head {
        pool: warmpath_core::blocks::Root::new(&settings().pool, settings().seed).sequence,
        mark: MARK,
        names,
    };
    let groups = Groups { plain: Some(0), ..Groups::default() };
    let record = |parent, hash, name| Record {
        parent,
        bridges: &[],
        hash: SequenceHash(hash),
        name: EngineHash(name),
        tiers: Tiers::one(Tier::Device),
        copies: &[],
    };
    let root = Parent::Root(head(0).pool);
    let fault = |names, groups: &Groups, records: &[Record<'_>]| {
        let mut encoder = SnapshotEncoder::new(head(names), groups, 0);
        assert!(records.iter().all(|record| encoder.push(record).is_none()));
        bench.refuses(&[encoder.finish(0)]).fault
    };
    let orphan = record(Parent::Block(EngineHash(9)), 2, 2);
    assert_eq!(fault(2, &groups, &[record(root, 1, 1), orphan]), SnapshotFault::UnknownParent);
    assert_eq!(fault(2, &groups, &[record(root, 1, 1), record(root, 2, 1)]), SnapshotFault::NamedTwice);
    let itself = record(Parent::Block(EngineHash(2)), 2, 2);
    assert_eq!(fault(2, &groups, &[record(root, 1, 1), itself]), SnapshotFault::UnknownParent);
    let count = SnapshotFault::Count { what: "names", expected: 1, got: 2 };
    assert_eq!(fault(1, &groups, &[record(root, 1, 1), record(root, 2, 2)]), count);
    let nobody = fault(1, &Groups::default(), &[record(root, 1, 1)]);
    assert_eq!(nobody, SnapshotFault::Malformed("copies of no group"));
    let tierless = Record { tiers: Tiers::default(), ..record(root, 1, 1) };
    assert_eq!(fault(1, &groups, &[tierless]), SnapshotFault::Malformed("the tiers of a record"));
}

#[test]
fn a_restoring_that_is_given_up_leaves_an_empty_view() {
    let (bench, good) = (Bench::new(), snapshot());
    let mut restore = bench.writer.restore(MARK.owner);
    restore.chunk(&good[0]).unwrap();
    assert!(bench.found(0) > 1000);
    drop(restore);
    assert_eq!((bench.found(0), bench.writer.names(), bench.found(1)), (0, 0, 2000));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any change of any bytes is noticed.
    #[test]
    fn a_changed_chunk_is_refused(chunk in 0..3_usize, at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        let (bench, mut chunks) = (Bench::new(), snapshot());
        let at = at.index(chunks[chunk].len());
        chunks[chunk][at] ^= flip;
        bench.refuses(&chunks);
    }

    /// Even with right checksums nothing but the worker's own view suffers.
    #[test]
    fn what_is_made_up_harms_nobody_else(
        flips in prop::collection::vec((0..3_usize, any::<prop::sample::Index>(), 1..=255_u8), 1..6),
    ) {
        let (bench, mut chunks) = (Bench::new(), snapshot());
        for (chunk, at, flip) in flips {
            let at = at.index(chunks[chunk].len());
            chunks[chunk][at] ^= flip;
        }
        let mut before = 0;
        for chunk in &mut chunks {
            *chunk = sealed(std::mem::take(chunk), before);
            before = u64::from_le_bytes(chunk[chunk.len() - 8..].try_into().unwrap());
        }
        let _ = bench.read(&chunks);
        prop_assert_eq!(bench.found(1), 2000);
        bench.writer.forget();
        prop_assert_eq!((bench.found(1), bench.index.len()), (2000, 2000));
    }

    #[test]
    fn any_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), cut in any::<prop::sample::Index>()) {
        let bench = Bench::new();
        bench.refuses(std::slice::from_ref(&bytes));
        let good = snapshot();
        let mut mixed = good[0][..cut.index(good[0].len())].to_vec();
        mixed.extend(bytes);
        bench.refuses(&[sealed(mixed, 0)]);
    }
}

/// As when a worker leaves while what the run before knew of it is still being read.
#[test]
fn who_has_left_puts_nothing_into_what_is_the_next_ones_slot() {
    let (bench, good) = (Bench::new(), snapshot());
    let mut restore = bench.writer.restore(MARK.owner);
    restore.chunk(&good[0]).unwrap();
    assert!(bench.writer.names() > 0);
    let next = bench.index.writer(Slot(0), &settings());
    assert_eq!((bench.index.len(), bench.found(0)), (2000, 0));
    assert_eq!(restore.chunk(&good[1]).unwrap_err().fault, SnapshotFault::Retired);
    drop(restore);
    assert_eq!(bench.writer.apply(&[stored(&path(), 0, Tier::Device)]).stored, 0);
    assert_eq!((bench.index.len(), bench.found(0), bench.found(1)), (2000, 0, 2000));
    next.apply(&[stored(&path()[..1000], 0, Tier::Device)]);
    bench.writer.forget();
    assert_eq!((bench.found(0), next.names()), (1000, 1000));
}
