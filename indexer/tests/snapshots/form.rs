//! The bytes themselves, written and read without an index.

use warmpath_core::ids::{EngineHash, SequenceHash};
use warmpath_core::units::Tier;
use warmpath_indexer::feed::{Began, Position};
use warmpath_indexer::snapshot::{
    CopyCount, Groups, HEADER_BYTES, Head, Mark, Parent, Record, SnapshotDecoder, SnapshotEncoder, Told, chunk_len,
    owner_of,
};
use warmpath_indexer::store::Tiers;

/// The only form that version 1 has. Whoever changes it changes the version.
const GOLDEN: &str = include_str!("golden.hex");

fn head() -> Head {
    let position = Position { epoch: Some(5), next: 258, newest: Some(1.5) };
    let mark = Mark { owner: owner_of("worker-1", 2), position, began: Began::AtStart, taken_ms: 1_700_000_000_000 };
    Head { pool: SequenceHash(18_369_467_139_933_072_015), mark, names: 4 }
}

fn groups() -> Groups {
    Groups { plain: Some(0), told: vec![(1, false), (3, true)], zero_is_a_name: true }
}

fn record(parent: Parent, hash: u64, name: u64, tiers: Tiers) -> Record<'static> {
    Record { parent, bridges: &[], hash: SequenceHash(hash), name: EngineHash(name), tiers, copies: &[] }
}

const COPIES: [CopyCount; 2] =
    [CopyCount { group: 0, tier: Tier::Device, count: 2 }, CopyCount { group: 3, tier: Tier::Disk, count: 1 }];
const BRIDGES: [SequenceHash; 2] = [SequenceHash(0x31), SequenceHash(0x32)];

fn records() -> [Record<'static>; 4] {
    let device = Tiers::one(Tier::Device);
    [
        record(Parent::Root(head().pool), 0x11, 0xa1, device),
        Record { copies: &COPIES, ..record(Parent::Block(EngineHash(0xa1)), 0x12, 0, device.with(Tier::Disk)) },
        // Another name of the same block.
        record(Parent::Block(EngineHash(0xa1)), 0x12, 0xa2, Tiers::one(Tier::Host)),
        Record { bridges: &BRIDGES, ..record(Parent::Block(EngineHash(0xa2)), 0x13, 0xa3, device) },
    ]
}

fn written() -> Vec<u8> {
    written_with(head())
}

fn written_with(head: Head) -> Vec<u8> {
    let mut encoder = SnapshotEncoder::new(head, &groups(), 0);
    assert!(records().iter().all(|record| encoder.push(record).is_none()));
    encoder.finish(7)
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(32).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect()
}

#[test]
fn the_form_of_version_1_stays_what_it_is() {
    assert_eq!(hex(&written()), GOLDEN);
}

/// Whoever reads version 1 alone refuses it, and does not take it for whole.
#[test]
fn a_view_that_began_in_the_middle_is_of_a_version_of_its_own() {
    let whole = head();
    let cut = Head { mark: Mark { began: Began::InTheMiddle, ..whole.mark }, ..whole };
    let (bytes, of_whole) = (written_with(cut), written());
    let end = bytes.len() - 8;
    let differ: Vec<usize> = (0..end).filter(|&at| bytes[at] != of_whole[at]).collect();
    assert_eq!((differ, bytes[8], bytes[10] ^ of_whole[10]), (vec![8, 10], 2, 8));
    let mut decoder = SnapshotDecoder::new(whole.pool, whole.mark.owner);
    decoder.read(&bytes, |_| Ok(())).unwrap();
    assert_eq!(decoder.head(), Some(&cut));
}

#[test]
fn what_was_written_is_read() {
    let bytes = written();
    let header = bytes[..HEADER_BYTES].try_into().unwrap();
    assert_eq!(chunk_len(header), Ok(bytes.len()));
    let mut decoder = SnapshotDecoder::new(head().pool, head().mark.owner);
    let mut number = 0;
    let mut told = 0;
    let take = |item: Told<'_>| {
        match item {
            Told::Head(found, beside) => assert_eq!((number, found, beside), (0, &head(), &groups())),
            Told::Record(record) => {
                assert_eq!(record, records()[number]);
                number += 1;
            }
        }
        told += 1;
        Ok(())
    };
    decoder.read(&bytes, take).unwrap();
    assert_eq!((told, number, decoder.is_complete(), decoder.finish()), (5, 4, true, Ok(())));
    assert_eq!((decoder.head(), decoder.left_out()), (Some(&head()), 7));
}

#[test]
fn an_owner_is_a_worker_and_a_rank() {
    assert_eq!(owner_of("worker-1", 0), 3_370_360_653_206_153_291);
    let owners = [owner_of("worker-1", 0), owner_of("worker-1", 1), owner_of("worker-2", 0), owner_of("", 0)];
    assert!((0..4).all(|one| (0..one).all(|other| owners[one] != owners[other])));
}
