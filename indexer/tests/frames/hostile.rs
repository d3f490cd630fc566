//! Bytes that nobody should send: never a panic, and never more memory than a small multiple of what was sent.

use proptest::prelude::*;
use warmpath_indexer::codec::line::describe;
use warmpath_indexer::codec::{DecodeError, Format, decode};
use warmpath_indexer::event::{CacheEvent, EventBatch};

use crate::golden::{GOLDEN, hex};
use crate::survival::survives;

/// A golden string, some of its bytes replaced, perhaps cut, perhaps with something put in.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let inserted = prop::option::of((any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 0..9)));
    (0..GOLDEN.len(), changes, inserted, prop::option::of(any::<prop::sample::Index>())).prop_map(
        |(which, changes, inserted, cut)| {
            let mut message = hex(GOLDEN[which].1);
            for (place, byte) in changes {
                let place = place.index(message.len());
                message[place] = byte;
            }
            if let Some((place, bytes)) = inserted {
                let place = place.index(message.len());
                message.splice(place..place, bytes);
            }
            if let Some(cut) = cut {
                message.truncate(cut.index(message.len()));
            }
            message
        },
    )
}

/// Bus events of Dynamo's form, some of whose characters are others.
fn mutated_json() -> impl Strategy<Value = Vec<u8>> {
    let stored = r#"{"worker_id":1,"event":{"event_id":7,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":101,"tokens_hash":5},{"block_hash":102,"tokens_hash":6}]}}}}"#;
    let removed = r#"{"worker_id":1,"event":{"event_id":8,"data":{"removed":{"block_hashes":[101,102]}}}}"#;
    let changes =
        prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(&br#"{}[]",:0129-e.nul"#[..])), 0..5);
    (prop::sample::select(vec![stored, removed]), changes).prop_map(|(message, changes)| {
        let mut message = message.as_bytes().to_vec();
        for (place, byte) in changes {
            let place = place.index(message.len());
            message[place] = byte;
        }
        message
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_are_survived(message in prop::collection::vec(any::<u8>(), 0..200)) {
        survives(Format::Msgpack, &message);
        survives(Format::Json, &message);
    }

    #[test]
    fn mutated_golden_strings_are_survived(message in mutated()) {
        survives(Format::Msgpack, &message);
    }

    #[test]
    fn mutated_json_is_survived(message in mutated_json()) {
        survives(Format::Json, &message);
    }

    #[test]
    fn any_line_has_a_description(line in "\\PC{0,60}") {
        for format in [Format::Msgpack, Format::Json] {
            prop_assert!(serde_json::from_str::<serde_json::Value>(&describe(format, line.as_bytes())).is_ok());
        }
    }
}

/// Lengths of 2³² − 1 where arrays, maps, text and bytes may stand: refused or found short, nothing reserved.
#[test]
fn announced_lengths_reserve_nothing() {
    let begin = "92c091"; // [nil, [event]]
    let stored = "96ab426c6f636b53746f726564"; // ["BlockStored", …
    for length in ["ddffffffff", "dfffffffff", "dbffffffff", "c6ffffffff", "c9ffffffff05"] {
        for before in [String::new(), begin.into(), format!("{begin}{stored}"), format!("{begin}{stored}9101c0")] {
            let message = hex(&format!("{before}{length}"));
            assert!(decode(&message).is_err(), "{before} {length}");
        }
    }
    // At the limit of tokens with none of them there.
    let message = hex(&format!("{begin}{stored}9101c0dd00200000"));
    assert_eq!(decode(&message), Err(DecodeError::Truncated { at: message.len(), field: "token_ids" }));
}

#[test]
fn depth_costs_nothing() {
    for opening in [0x91, 0x81] {
        let deep = vec![opening; 200_000];
        assert!(decode(&deep).is_err());
        // As an unknown element of a good batch: [nil, [], nil, [[[…nil]]]]
        let mut message = vec![0x94, 0xc0, 0x90, 0xc0];
        message.extend(vec![0x91; 200_000]);
        message.push(0xc0);
        assert_eq!(decode(&message), Ok(EventBatch::default()));
        // As an event: rejected, its neighbour kept.
        let mut message = hex("92c092");
        message.extend(vec![0x91; 200_000]);
        message.push(0xc0);
        message.extend(hex("91b0416c6c426c6f636b73436c6561726564"));
        let batch = decode(&message).unwrap();
        assert_eq!((batch.events, batch.rejected.len()), (vec![CacheEvent::Cleared], 1));
    }
}

#[test]
fn a_batch_of_a_million_blocks_is_refused_or_held_within_its_size() {
    // One event with 2^20 hashes: more than the limit.
    let mut message = hex("92c09196ab426c6f636b53746f726564dd00100000");
    message.extend(vec![1; 1 << 20]);
    message.extend(hex("c09004c0"));
    let batch = decode(&message).unwrap();
    assert_eq!(batch.events, []);
    assert_eq!(
        batch.rejected[0].reason,
        DecodeError::TooMany { at: 16, field: "block_hashes", count: 1 << 20, limit: 1 << 18 }
    );
    // 2^18 removals of one block each.
    let mut message = hex("92c0dd00040000");
    for _ in 0..1 << 18 {
        message.extend(hex("92ac426c6f636b52656d6f7665649101"));
    }
    assert_eq!(decode(&message).unwrap().events.len(), 1 << 18);
    survives(Format::Msgpack, &message);
}
