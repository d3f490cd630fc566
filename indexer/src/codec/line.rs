//! One payload as a line -> its machine-readable form, for debugging wire formats.

use serde::Serialize;

use super::{DecodeError, Format, MAX_MESSAGE_BYTES, decode, decode_json};
use crate::event::EventBatch;

/// Decodes one line, hexadecimal for MessagePack, JSON as it is, and describes what it holds as one line of JSON:
/// `{"events":[…],"rejected":[…],…}`, or `{"error":"…"}`.
pub fn describe(format: Format, line: &[u8]) -> String {
    let described = match format {
        Format::Msgpack => unhex(line.trim_ascii()).and_then(|message| decode(&message)).map(|batch| json(&batch)),
        Format::Json => decode_json(line).map(|event| {
            json(&BusLine { worker_id: event.worker_id.as_str(), event_id: event.event_id, batch: &event.batch })
        }),
    };
    described.unwrap_or_else(|error| json(&Failure { error: error.to_string() }))
}

/// A batch with the envelope of its bus event.
#[derive(Serialize)]
struct BusLine<'a> {
    worker_id: &'a str,
    event_id: u64,
    #[serde(flatten)]
    batch: &'a EventBatch,
}

#[derive(Serialize)]
struct Failure {
    error: String,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("these values have text keys and no failing parts")
}

/// The bytes that a hexadecimal line stands for.
fn unhex(line: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let (pairs, rest) = line.as_chunks::<2>();
    if pairs.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong { len: pairs.len(), limit: MAX_MESSAGE_BYTES });
    }
    let mut bytes = Vec::with_capacity(pairs.len());
    for (place, &[high, low]) in pairs.iter().enumerate() {
        let high = digit(high).ok_or(DecodeError::NotHex { at: 2 * place })?;
        let low = digit(low).ok_or(DecodeError::NotHex { at: 2 * place + 1 })?;
        bytes.push(16 * high + low);
    }
    if rest.is_empty() { Ok(bytes) } else { Err(DecodeError::NotHex { at: line.len() }) }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_lines() {
        let line = "93cb3ff80000000000009183a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c420000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1fa66d656469756da343505501\n";
        let expected = r#"{"ts":1.5,"dp_rank":1,"events":[{"kind":"removed","tier":"host","dp_rank":1,"group":null,"engine_hashes":[1736447835066146335],"parent":null,"token_ids":[],"block_size":null,"namespace":{"adapter":null,"salt":null}}],"rejected":[],"rejected_unlisted":0}"#;
        assert_eq!(describe(Format::Msgpack, line.as_bytes()), expected);
        let line = "92cb3ff80000000000009196ab426c6f636b53746f726564920102c0980a0b0c0d0e0f101104c0";
        let expected = r#"{"ts":1.5,"dp_rank":null,"events":[{"kind":"stored","tier":"device","dp_rank":null,"group":null,"engine_hashes":[1,2],"parent":null,"token_ids":[10,11,12,13,14,15,16,17],"block_size":4,"namespace":{"adapter":null,"salt":null},"block_hashes":[],"placeholder":false,"prefix_attention":null,"media":[],"blocks_cut":0}],"rejected":[],"rejected_unlisted":0}"#;
        assert_eq!(describe(Format::Msgpack, line.as_bytes()), expected);
    }

    #[test]
    fn a_bus_event_keeps_its_envelope() {
        let line = r#"{"worker_id":1,"event":{"event_id":9,"data":"cleared"}}"#;
        let expected = r#"{"worker_id":"1","event_id":9,"ts":null,"dp_rank":0,"events":[{"kind":"cleared","tier":"device","dp_rank":0,"group":null,"engine_hashes":[],"parent":null,"token_ids":[],"block_size":null,"namespace":{"adapter":null,"salt":null}}],"rejected":[],"rejected_unlisted":0}"#;
        assert_eq!(describe(Format::Json, line.as_bytes()), expected);
    }

    #[test]
    fn what_cannot_be_decoded_is_an_error_line() {
        assert_eq!(describe(Format::Msgpack, "9x".as_bytes()), r#"{"error":"not a hexadecimal digit at byte 1"}"#);
        assert_eq!(describe(Format::Msgpack, "930".as_bytes()), r#"{"error":"not a hexadecimal digit at byte 3"}"#);
        assert_eq!(describe(Format::Msgpack, "é0".as_bytes()), r#"{"error":"not a hexadecimal digit at byte 0"}"#);
        assert_eq!(describe(Format::Msgpack, "".as_bytes()), r#"{"error":"message ends at byte 0, inside `batch`"}"#);
        let truncated = describe(Format::Msgpack, "92cb3ff8000000000000".as_bytes());
        assert_eq!(truncated, r#"{"error":"message ends at byte 10, inside `events`"}"#);
        assert!(describe(Format::Json, b"\"\xff\"").starts_with(r#"{"error":"#));
        assert!(describe(Format::Json, "[".as_bytes()).starts_with(r#"{"error":"#));
    }

    #[test]
    fn a_rejected_event_says_why_and_where() {
        let line = "92cb3ff80000000000009191a3466f6f";
        let expected = r#"{"ts":1.5,"dp_rank":null,"events":[],"rejected":[{"index":0,"at":11,"reason":"unknown event `Foo` at byte 11 (known: BlockStored, BlockRemoved, AllBlocksCleared)"}],"rejected_unlisted":0}"#;
        assert_eq!(describe(Format::Msgpack, line.as_bytes()), expected);
    }
}
