//! The decoder against golden byte strings and against frames that real engines sent.

#[path = "frames/golden.rs"]
mod golden;
#[path = "frames/hostile.rs"]
mod hostile;
#[path = "frames/recordings.rs"]
mod recordings;
#[path = "frames/survival.rs"]
mod survival;
#[path = "frames/views.rs"]
mod views;

use golden::{golden, hex};
use recordings::{prompts, recording};
use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;
use warmpath_indexer::codec::encode::{EncodeError, Form, HashForm, encode};
use warmpath_indexer::codec::{DecodeError, decode, rank_of};
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Medium, Removed, Stored};

/// What A1, A2, A3 and M1 say.
fn stored() -> Stored {
    Stored {
        hashes: vec![EngineHash(1), EngineHash(2)],
        parent: None,
        content: Content::Tokens((10..18).collect()),
        block_size: Some(4),
        tier: Tier::Device,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    }
}

fn removed(hashes: &[u64], tier: Tier, group: Option<u32>) -> CacheEvent {
    let hashes = hashes.iter().copied().map(EngineHash).collect();
    CacheEvent::Removed(Removed { hashes, tier, group, remaining_copy_counts: None })
}

fn batch(dp_rank: Option<u32>, events: Vec<CacheEvent>) -> EventBatch {
    EventBatch { ts: Some(1.5), dp_rank, events, ..EventBatch::default() }
}

#[test]
fn golden_array_form() {
    assert_eq!(decode(&golden("A1")), Ok(batch(None, vec![stored().into()])));
    assert_eq!(decode(&golden("A2")), Ok(batch(Some(0), vec![stored().into()])));
    let grouped = Stored { group: Some(0), attention: Attention::Prefix, ..stored() };
    assert_eq!(decode(&golden("A3")), Ok(batch(Some(0), vec![grouped.into()])));
    let events = vec![removed(&[1], Tier::Device, None), CacheEvent::Cleared];
    assert_eq!(decode(&golden("A4")), Ok(batch(None, events)));
}

#[test]
fn golden_map_form() {
    assert_eq!(decode(&golden("M1")), decode(&golden("A3")));
    assert_eq!(decode(&golden("M2")), Ok(batch(Some(0), vec![removed(&[1], Tier::Device, Some(0))])));
    assert_eq!(decode(&golden("M3")), Ok(batch(Some(0), vec![CacheEvent::Cleared])));
    let digest = removed(&[1_736_447_835_066_146_335], Tier::Host, None);
    assert_eq!(decode(&golden("M4")), Ok(batch(Some(1), vec![digest])));
    assert_eq!(decode(&golden("ME")), Ok(batch(Some(0), vec![CacheEvent::Cleared])));
}

#[test]
fn golden_sglang() {
    let salted = Stored {
        hashes: vec![EngineHash(18_446_744_073_709_551_611)],
        content: Content::Tokens(vec![1, 2]),
        block_size: Some(2),
        salt: Some("t".into()),
        ..stored()
    };
    assert_eq!(decode(&golden("S1")), Ok(batch(None, vec![salted.into()])));
}

/// A batch in array form around the bytes of its events.
fn around(events: &[&str]) -> Vec<u8> {
    let count = u8::try_from(events.len()).expect("a few");
    [vec![0x93], hex("cb3ff8000000000000"), vec![0x90 + count], hex(&events.concat()), vec![0x00]].concat()
}

/// `["BlockStored", hashes, parent, tokens, size, nil]` and whatever follows.
fn array_event(fields: u8, rest: &str) -> String {
    format!("{:02x}ab426c6f636b53746f726564{rest}", 0x90 + fields)
}

const CLEARED: &str = "91b0416c6c426c6f636b73436c6561726564";

#[test]
fn a_bad_event_does_not_cost_its_neighbours() {
    let unknown = "91a3466f6f";
    let no_tag = "90";
    let circle = array_event(6, "9201020292010201c0");
    let tape = "93ac426c6f636b52656d6f7665649101a454415045";
    let not_an_event = "07";
    let message = around(&[CLEARED, unknown, no_tag, CLEARED, &circle, tape, not_an_event, CLEARED]);
    let batch = decode(&message).unwrap();
    assert_eq!(batch.events, [CacheEvent::Cleared, CacheEvent::Cleared, CacheEvent::Cleared]);
    assert_eq!(batch.dp_rank, Some(0));
    let rejected: Vec<_> = batch.rejected.iter().map(|rejected| (rejected.index, rejected.reason.clone())).collect();
    let expected = [
        (1, DecodeError::UnknownKind { kind: "Foo".into(), at: 29 }),
        (2, DecodeError::MissingField { field: "type", at: 34 }),
        (4, DecodeError::RepeatedHash { hash: 2, at: 53 }),
        (5, DecodeError::UnknownMedium { medium: "TAPE".into(), at: 75 }),
        (6, DecodeError::WrongType { at: 96, field: "event", found: "an integer" }),
    ];
    assert_eq!(rejected, expected);
}

#[test]
fn events_that_are_rejected_and_why() {
    let reason = |event: &str| {
        let batch = decode(&around(&[event])).unwrap();
        assert_eq!((batch.events.len(), batch.rejected[0].index, batch.rejected[0].at), (0, 0, 11), "{event}");
        batch.rejected[0].reason.clone()
    };
    let repeated = array_event(6, "920101c0920a0b01c0");
    assert_eq!(reason(&repeated), DecodeError::RepeatedHash { hash: 1, at: 11 });
    let no_whole_block = array_event(6, "9101c0920a0b04c0");
    assert_eq!(reason(&no_whole_block), DecodeError::NoWholeBlock { at: 11 });
    let no_size = array_event(6, "9101c0920a0b00c0");
    assert_eq!(reason(&no_size), DecodeError::OutOfRange { at: 11, field: "block_size" });
    let short = array_event(3, "9101c0");
    assert_eq!(reason(&short), DecodeError::MissingField { field: "block_size", at: 11 });
    let negative_token = array_event(6, "9101c0920aff02c0");
    assert_eq!(reason(&negative_token), DecodeError::OutOfRange { at: 29, field: "token_ids" });
    let short_digest = array_event(6, "91c4020102c0920a0b02c0");
    assert_eq!(reason(&short_digest), DecodeError::OutOfRange { at: 25, field: "block_hashes" });
    let misaligned = array_event(9, "9101c0920a0b02c0c0c092c0c0");
    assert_eq!(reason(&misaligned), DecodeError::Misaligned { at: 34, field: "extra_keys" });
    let not_utf8 = "91a2ff00";
    assert_eq!(reason(not_utf8), DecodeError::NotText { at: 12, field: "type" });
}

#[test]
fn tokens_decide_how_many_blocks_are_kept() {
    let one = |event: &str| {
        let CacheEvent::Stored(stored) = decode(&around(&[event])).unwrap().events.remove(0) else { panic!() };
        (stored.hashes.len(), stored.content, stored.cut)
    };
    // Three hashes, five tokens, blocks of two: two whole blocks.
    let too_few = array_event(6, "93010203c0950a0b0c0d0e02c0");
    assert_eq!(one(&too_few), (2, Content::Tokens(vec![10, 11, 12, 13]), 1));
    let too_many = array_event(6, "9101c0950a0b0c0d0e02c0");
    assert_eq!(one(&too_many), (1, Content::Tokens(vec![10, 11]), 0));
    // EAGLE: the first of each pair, and the last pair's second.
    let pairs = array_event(6, "920102c094920a0b920b0c920c0d920d0e02c0");
    assert_eq!(one(&pairs), (2, Content::Tokens(vec![10, 11, 12, 13, 14]), 0));
    let placeholder = array_event(7, "920102c09000c0a3435055");
    assert_eq!(one(&placeholder), (2, Content::Nothing, 0));
}

#[test]
fn pairs_and_plain_tokens_do_not_mix() {
    for tokens in ["9392010203", "92019202039301"] {
        let batch = decode(&around(&[&array_event(6, &format!("9101c0{tokens}02c0"))]));
        assert!(batch.is_err() || batch.is_ok_and(|batch| batch.events.is_empty()), "{tokens}");
    }
}

#[test]
fn a_map_in_the_place_of_the_adapter_is_metadata() {
    let event = array_event(8, "9101c0920a0b02c0a3475055") + "82aa63616368655f73616c74a174a17805";
    let CacheEvent::Stored(stored) = decode(&around(&[&event])).unwrap().events.remove(0) else { panic!() };
    assert_eq!((stored.salt.as_deref(), stored.adapter), (Some("t"), None));
}

#[test]
fn an_adapter_without_a_name_is_not_the_plain_model() {
    let event = array_event(7, "9101c0920a0b0203a3475055");
    let CacheEvent::Stored(stored) = decode(&around(&[&event])).unwrap().events.remove(0) else { panic!() };
    assert_eq!(stored.adapter.as_deref(), Some("#3"));
}

#[test]
fn keys_of_a_map_come_in_any_order_and_unknown_ones_pass() {
    // {"x": [[]], "medium": "CPU", "block_hashes": [9], "type": "BlockRemoved", 5: nil}
    let event =
        "85a1789190a66d656469756da3435055ac626c6f636b5f6861736865739109a474797065ac426c6f636b52656d6f76656405c0";
    assert_eq!(decode(&around(&[event])).unwrap().events, [removed(&[9], Tier::Host, None)]);
}

#[test]
fn what_is_not_at_its_publisher_lies_outside_whatever_it_is_made_of() {
    let hex = |text: &str| {
        let bytes: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("{:02x}{bytes}", 0xa0 + text.len())
    };
    let tier = |medium: &str, locality: &str| {
        // {"type": "BlockRemoved", "block_hashes": [9], "medium": …, "locality": …}
        let event = "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f6861736865739109a66d656469756d".to_owned()
            + &hex(medium)
            + "a86c6f63616c697479"
            + &hex(locality);
        let CacheEvent::Removed(removed) = decode(&around(&[&event])).unwrap().events.remove(0) else { panic!() };
        removed.tier
    };
    for medium in ["STORAGE", "FS", "OBJ"] {
        assert_eq!((tier(medium, "REMOTE"), tier(medium, "LOCAL")), (Tier::External, Tier::Disk), "{medium}");
    }
    assert_eq!((tier("CPU", "LOCAL"), tier("GPU", "LOCAL")), (Tier::Host, Tier::Device));
}

#[test]
fn copy_counts_are_read_if_they_are_aligned() {
    let counts = |list: &str| {
        let event = format!(
            "83a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573920102b572656d61696e696e675f636f70795f636f756e7473{list}"
        );
        let CacheEvent::Removed(removed) = decode(&around(&[&event])).unwrap().events.remove(0) else { panic!() };
        removed.remaining_copy_counts
    };
    assert_eq!(counts("920003"), Some(vec![0, 3]));
    assert_eq!(counts("9100"), None);
    assert_eq!(counts("c0"), None);
}

#[test]
fn a_message_that_cannot_be_walked_is_an_error() {
    let a1 = golden("A1");
    for len in 0..a1.len() {
        let error = decode(&a1[..len]).unwrap_err();
        assert!(matches!(error, DecodeError::Truncated { at, .. } if at == len), "{len}: {error}");
    }
    assert_eq!(decode(&hex("93cb3ff8000000000000900000")), Err(DecodeError::TrailingBytes { at: 12 }));
    assert_eq!(decode(&hex("91c0")), Err(DecodeError::MissingField { field: "events", at: 0 }));
    assert_eq!(decode(&hex("80")), Err(DecodeError::MissingField { field: "events", at: 0 }));
    assert_eq!(decode(&hex("2a")), Err(DecodeError::WrongType { at: 0, field: "batch", found: "an integer" }));
    assert_eq!(
        decode(&hex("92c0ddffffffff")),
        Err(DecodeError::TooMany { at: 2, field: "events", count: 4_294_967_295, limit: 262_144 })
    );
    assert_eq!(decode(&vec![0xc0; (32 << 20) + 1]), Err(DecodeError::TooLong { len: (32 << 20) + 1, limit: 32 << 20 }));
}

/// Whatever is wrong with it, what it took away is not there any more. In a medium that nobody knows nothing was.
#[test]
fn a_removal_that_is_rejected_is_told() {
    let told = |events: &[&str]| {
        let batch = decode(&around(events)).unwrap();
        (batch.removal_rejected, batch.rejected.len())
    };
    let removed = |hashes: &str| format!("92ac426c6f636b52656d6f766564{hashes}");
    assert_eq!(told(&[&removed("9101"), CLEARED]), (false, 0));
    assert_eq!(told(&[&removed("9201c0"), CLEARED]), (true, 1));
    let map = format!("82ac626c6f636b5f68617368657391c3a474797065{}", "ac426c6f636b52656d6f766564");
    assert_eq!(told(&[CLEARED, &map]), (true, 1));
    // {…"TierBlocksCleared"}: a kind that is still to come.
    assert_eq!(told(&["91b154696572426c6f636b73436c6561726564"]), (true, 1));
    let tape = "93ac426c6f636b52656d6f7665649101a454415045";
    // An empty event says nothing, whatever follows it.
    assert_eq!(told(&[tape, "90", "91a3466f6f", &array_event(6, "9201020292010201c0")]), (false, 4));
    assert_eq!(told(&["90", CLEARED]), (false, 1));
}

#[test]
fn a_time_that_is_no_number_is_no_time() {
    for ts in ["c0", "cb7ff8000000000000", "cb7ff0000000000000"] {
        assert_eq!(decode(&hex(&format!("92{ts}90"))), Ok(EventBatch::default()), "{ts}");
    }
    assert_eq!(decode(&hex("920590")).unwrap().ts, Some(5.0));
    let further_elements = decode(&hex("9505900791a17880")).unwrap();
    assert_eq!((further_elements.ts, further_elements.dp_rank), (Some(5.0), Some(7)));
}

#[test]
fn rejects_beyond_the_limit_are_counted_only() {
    let message = [hex("92c0dc012c"), vec![0x07; 300]].concat();
    let batch = decode(&message).unwrap();
    assert_eq!((batch.rejected.len(), batch.rejected_unlisted, batch.rejected_total()), (256, 44, 300));
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let salted = Stored {
        hashes: vec![EngineHash(u64::MAX), EngineHash(0)],
        group: Some(0),
        attention: Attention::Prefix,
        adapter: Some("lora".into()),
        salt: Some("tenant-1".into()),
        media: vec![
            Medium { block: 0, identifier: "img-1".into() },
            Medium { block: 1, identifier: "img-1".into() },
            Medium { block: 1, identifier: "img-2".into() },
        ],
        ..stored()
    };
    let child = Stored { hashes: vec![EngineHash(5), EngineHash(6)], parent: Some(EngineHash(2)), ..stored() };
    let placeholder = Stored { content: Content::Nothing, block_size: Some(0), tier: Tier::Host, ..stored() };
    let mut counted = removed(&[1, 2], Tier::External, Some(7));
    let CacheEvent::Removed(inner) = &mut counted else { panic!() };
    inner.remaining_copy_counts = Some(vec![0, 3]);
    let events = vec![stored().into(), salted.into(), child.into(), placeholder.into(), counted, CacheEvent::Cleared];
    for (ts, rank) in [(Some(1.5), Some(3)), (None, None)] {
        let batch = EventBatch { ts, dp_rank: rank, events: events.clone(), ..EventBatch::default() };
        for hashes in [HashForm::Int, HashForm::Bytes] {
            let forms = [Form::Map, Form::Array].map(|form| rank_of(&encode(&batch, form, hashes).unwrap()));
            assert_eq!(forms, [rank, rank]);
            assert_eq!(decode(&encode(&batch, Form::Map, hashes).unwrap()), Ok(batch.clone()));
            let mut known_to_arrays = batch.clone();
            for event in &mut known_to_arrays.events {
                match event {
                    CacheEvent::Stored(stored) => stored.attention = Attention::Unstated,
                    CacheEvent::Removed(removed) => removed.remaining_copy_counts = None,
                    CacheEvent::Cleared => {}
                }
            }
            assert_eq!(decode(&encode(&batch, Form::Array, hashes).unwrap()), Ok(known_to_arrays));
        }
    }
}

#[test]
fn the_encoder_writes_what_the_engines_write() {
    for (form, folder) in
        [(Form::Array, "vllm-0.20.2-array-int64-block16"), (Form::Map, "vllm-0.32.0-map-int64-block32")]
    {
        for message in recording(folder) {
            // vLLM adds a session's name and the adapter's number, which mean nothing here.
            if ["session_id", "lora", "lora_and_salt"].contains(&message.step.as_str()) {
                continue;
            }
            let batch = decode(&message.payload).unwrap();
            assert_eq!(encode(&batch, form, HashForm::Int).unwrap(), message.payload, "{}", message.step);
        }
    }
}

#[test]
fn block_hashes_have_no_place_in_an_engine_event() {
    let hashed = Stored { content: Content::Hashes(Vec::new()), ..stored() };
    let batch = batch(None, vec![CacheEvent::Cleared, hashed.into()]);
    assert_eq!(encode(&batch, Form::Map, HashForm::Int), Err(EncodeError::NoTokens { index: 1 }));
}

#[test]
fn recorded_frames_decode_without_a_reject() {
    for (folder, size, messages, events) in
        [("vllm-0.20.2-array-int64-block16", 16, 33, 462), ("vllm-0.32.0-map-int64-block32", 32, 34, 269)]
    {
        let recording = recording(folder);
        assert_eq!(recording.len(), messages);
        let mut count = 0;
        for (message, seq) in recording.iter().zip(0..) {
            assert_eq!(message.seq, seq);
            let batch = decode(&message.payload).unwrap();
            assert_eq!((batch.rejected_total(), batch.dp_rank), (0, Some(0)));
            assert!(batch.ts.is_some_and(|ts| ts > 1.7e9));
            count += batch.events.len();
            for event in batch.events {
                let CacheEvent::Stored(stored) = event else { continue };
                assert_eq!((stored.block_size, stored.tier, stored.group), (Some(size), Tier::Device, Some(0)));
                assert_eq!((stored.cut, stored.media), (0, vec![]));
            }
        }
        assert_eq!(count, events);
    }
}

#[test]
fn recorded_tokens_and_names_are_those_of_the_requests() {
    for folder in ["vllm-0.20.2-array-int64-block16", "vllm-0.32.0-map-int64-block32"] {
        let recording = recording(folder);
        for prompt in prompts(folder) {
            let batches = recording.iter().filter(|message| message.step == prompt.step);
            let events = batches.flat_map(|message| decode(&message.payload).unwrap().events);
            let mut tokens: Vec<u32> = Vec::new();
            let mut chained = true;
            for event in events {
                let CacheEvent::Stored(stored) = event else { continue };
                let Content::Tokens(ids) = &stored.content else { panic!() };
                chained &= tokens.is_empty() == stored.parent.is_none();
                if stored.parent.is_none() {
                    let adapter = (prompt.model != "tiny").then_some(prompt.model.as_str());
                    assert_eq!((stored.adapter.as_deref(), stored.salt.as_deref()), (adapter, prompt.salt.as_deref()));
                }
                tokens.extend(ids);
            }
            // A chain that begins below cached blocks names only the tail of the prompt; generated tokens may follow.
            let overlap = if chained {
                let len = tokens.len().min(prompt.ids.len());
                assert_eq!(tokens[..len], prompt.ids[..len], "{}", prompt.step);
                len
            } else {
                let start = prompt.ids.windows(tokens.len()).position(|window| window == tokens);
                assert!(start.is_some_and(|start| start > 0), "{}", prompt.step);
                tokens.len()
            };
            assert!(overlap > 0, "{}", prompt.step);
        }
    }
}
