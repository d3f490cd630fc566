//! The JSON bus event of Dynamo 0.1: one event a message, with the publisher's own number, and with ready block hashes
//! in place of token ids. Numbers beyond 2⁵³ may come as decimal strings, since not every JSON library keeps them exact.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use warmpath_core::ids::{BlockHash, EngineHash, WorkerId};
use warmpath_core::units::Tier;

use super::fields::refuse_repeats;
use super::{DecodeError, MAX_EXTRA_KEYS, MAX_HASHES, MAX_MESSAGE_BYTES, MAX_TEXT_BYTES, shortened};
use crate::event::{Attention, CacheEvent, Content, EventBatch, Medium, Rejected, Removed, Stored};

/// One event, with what its envelope says.
#[derive(Clone, Debug, PartialEq)]
pub struct BusEvent {
    /// The publisher; a number is read as its decimal text.
    pub worker_id: WorkerId,
    /// Consecutive for each worker and rank.
    pub event_id: u64,
    /// The event, or its rejection. The rank is 0 where the event does not say.
    pub batch: EventBatch,
}

/// Decodes one message. O(message).
///
/// # Errors
/// When the message is no JSON event with its envelope. An event whose content is not believable is rejected inside
/// the batch, so that its `event_id` still counts.
pub fn decode_json(message: &[u8]) -> Result<BusEvent, DecodeError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong { len: message.len(), limit: MAX_MESSAGE_BYTES });
    }
    let envelope: Envelope = serde_json::from_slice(message).map_err(|error| syntax_error(message, &error))?;
    let mut batch = EventBatch { dp_rank: Some(envelope.event.dp_rank.unwrap_or(0)), ..EventBatch::default() };
    let takes_away = matches!(envelope.event.data, Data::Removed(_) | Data::Cleared);
    match event(envelope.event.data, envelope.storage_tier.as_deref()) {
        Ok(event) => batch.events.push(event),
        Err(reason) => {
            // In a tier that nobody knows there are no blocks to lose.
            batch.removal_rejected = takes_away && !matches!(reason, DecodeError::UnknownMedium { .. });
            batch.rejected.push(Rejected { index: 0, at: 0, reason });
        }
    }
    Ok(BusEvent {
        worker_id: WorkerId::from(envelope.worker_id.0.as_str()),
        event_id: envelope.event.event_id.0,
        batch,
    })
}

fn event(data: Data, storage_tier: Option<&str>) -> Result<CacheEvent, DecodeError> {
    let tier = tier(storage_tier)?;
    match data {
        Data::Cleared if tier == Tier::Device => Ok(CacheEvent::Cleared),
        Data::Cleared => Err(DecodeError::ClearedTier { tier: shortened(storage_tier.unwrap_or_default()) }),
        Data::Other(kind) => Err(DecodeError::UnknownKind { kind: shortened(&kind), at: 0 }),
        Data::Removed(removed) => {
            bounded(removed.block_hashes.len(), MAX_HASHES, "block_hashes")?;
            let hashes = removed.block_hashes.iter().map(|hash| EngineHash(hash.0)).collect();
            Ok(CacheEvent::Removed(Removed { hashes, tier, group: None, remaining_copy_counts: None }))
        }
        Data::Stored(stored) => chain(stored, tier),
    }
}

fn chain(stored: StoredData, tier: Tier) -> Result<CacheEvent, DecodeError> {
    bounded(stored.blocks.len(), MAX_HASHES, "blocks")?;
    let hashes: Vec<EngineHash> = stored.blocks.iter().map(|block| EngineHash(block.block_hash.0)).collect();
    let blocks = stored.blocks.iter().map(|block| BlockHash(block.tokens_hash.0)).collect();
    let parent = stored.parent_hash.map(|hash| EngineHash(hash.0));
    refuse_repeats(&hashes, parent, 0)?;
    let mut media = Vec::new();
    for (block, data) in stored.blocks.into_iter().enumerate() {
        for object in data.mm_extra_info.into_iter().flat_map(|info| info.mm_objects) {
            bounded(media.len() + 1, MAX_EXTRA_KEYS, "mm_objects")?;
            media.push(Medium { block, identifier: object.mm_hash.0.into() });
        }
    }
    Ok(CacheEvent::from(Stored {
        hashes,
        parent,
        content: Content::Hashes(blocks),
        block_size: None,
        tier,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media,
        cut: 0,
    }))
}

fn tier(storage_tier: Option<&str>) -> Result<Tier, DecodeError> {
    Ok(match storage_tier {
        None | Some("device") => Tier::Device,
        Some("host_pinned") => Tier::Host,
        Some("disk") => Tier::Disk,
        Some("external") => Tier::External,
        Some(other) => return Err(DecodeError::UnknownMedium { medium: shortened(other), at: 0 }),
    })
}

fn bounded(count: usize, limit: usize, field: &'static str) -> Result<(), DecodeError> {
    if count <= limit {
        return Ok(());
    }
    Err(DecodeError::TooMany { at: 0, field, count: u64::try_from(count).unwrap_or(u64::MAX), limit })
}

/// serde_json tells line and column; a message is bytes.
fn syntax_error(message: &[u8], error: &serde_json::Error) -> DecodeError {
    let before = error.line().saturating_sub(1);
    let line_at: usize = message.split_inclusive(|&byte| byte == b'\n').take(before).map(<[u8]>::len).sum();
    let text = error.to_string();
    let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
    // The reason may quote what stands in the message.
    DecodeError::Json {
        at: line_at.saturating_add(error.column().saturating_sub(1)),
        reason: reason.chars().take(160).collect(),
    }
}

#[derive(serde::Deserialize)]
struct Envelope {
    worker_id: Text,
    #[serde(default)]
    storage_tier: Option<String>,
    event: EventData,
}

#[derive(serde::Deserialize)]
struct EventData {
    event_id: Number,
    #[serde(default)]
    dp_rank: Option<u32>,
    data: Data,
}

#[derive(serde::Deserialize)]
struct StoredData {
    #[serde(default)]
    parent_hash: Option<Number>,
    blocks: Vec<BlockData>,
}

#[derive(serde::Deserialize)]
struct BlockData {
    block_hash: Number,
    tokens_hash: Number,
    #[serde(default)]
    mm_extra_info: Option<MediaData>,
}

#[derive(serde::Deserialize)]
struct MediaData {
    #[serde(default)]
    mm_objects: Vec<MediaObject>,
}

#[derive(serde::Deserialize)]
struct MediaObject {
    mm_hash: Text,
}

#[derive(serde::Deserialize)]
struct RemovedData {
    block_hashes: Vec<Number>,
}

/// A u64 as a number or as decimal text; a negative number by its bit pattern.
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Digits;
        impl Visitor<'_> for Digits {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a 64-bit integer, as a number or as decimal text")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number.cast_unsigned()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                let number = text.parse::<u64>().ok().or_else(|| text.parse().ok().map(i64::cast_unsigned));
                number.map(Number).ok_or_else(|| E::invalid_value(de::Unexpected::Other("other text"), &self))
            }
        }
        deserializer.deserialize_any(Digits)
    }
}

/// Text, or a number as its decimal text.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;
        impl Visitor<'_> for Name {
            type Value = Text;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a number or text of at most {MAX_TEXT_BYTES} bytes")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Text, E> {
                Ok(Text(number.to_string()))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                if text.len() > MAX_TEXT_BYTES {
                    return Err(E::invalid_length(text.len(), &self));
                }
                Ok(Text(text.to_owned()))
            }
        }
        deserializer.deserialize_any(Name)
    }
}

/// `"cleared"`, `{"stored": …}` or `{"removed": …}`.
enum Data {
    Stored(StoredData),
    Removed(RemovedData),
    Cleared,
    Other(String),
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tagged;
        impl<'de> Visitor<'de> for Tagged {
            type Value = Data;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"cleared\", {\"stored\": …} or {\"removed\": …}")
            }
            fn visit_str<E: de::Error>(self, kind: &str) -> Result<Data, E> {
                Ok(if kind == "cleared" { Data::Cleared } else { Data::Other(kind.to_owned()) })
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
                let kind: String = map.next_key()?.ok_or_else(|| de::Error::invalid_length(0, &self))?;
                let data = match kind.as_str() {
                    "stored" => Data::Stored(map.next_value()?),
                    "removed" => Data::Removed(map.next_value()?),
                    "cleared" => map.next_value::<IgnoredAny>().map(|_| Data::Cleared)?,
                    _ => map.next_value::<IgnoredAny>().map(|_| Data::Other(kind))?,
                };
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(data)
            }
        }
        deserializer.deserialize_any(Tagged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(text: &str) -> CacheEvent {
        let batch = decode_json(text.as_bytes()).unwrap().batch;
        assert_eq!(batch.rejected, []);
        batch.events.into_iter().next().unwrap()
    }

    fn reason(text: &str) -> DecodeError {
        let batch = decode_json(text.as_bytes()).unwrap().batch;
        assert_eq!(batch.events, []);
        batch.rejected.into_iter().next().unwrap().reason
    }

    fn stored(hashes: &[u64], parent: Option<u64>, blocks: &[u64], tier: Tier) -> Stored {
        Stored {
            hashes: hashes.iter().copied().map(EngineHash).collect(),
            parent: parent.map(EngineHash),
            content: Content::Hashes(blocks.iter().copied().map(BlockHash).collect()),
            block_size: None,
            tier,
            group: None,
            attention: Attention::Unstated,
            adapter: None,
            salt: None,
            media: Vec::new(),
            cut: 0,
        }
    }

    #[test]
    fn golden_stored_removed_cleared() {
        let text = r#"{"worker_id":1,"event":{"event_id":7,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":101,"tokens_hash":14643705804678351452}]}}}}"#;
        let decoded = decode_json(text.as_bytes()).unwrap();
        assert_eq!((decoded.worker_id.as_str(), decoded.event_id, decoded.batch.dp_rank), ("1", 7, Some(0)));
        let expected = stored(&[101], None, &[14_643_705_804_678_351_452], Tier::Device);
        assert_eq!(decoded.batch.events, [CacheEvent::from(expected)]);

        let removed = event(r#"{"worker_id":1,"event":{"event_id":8,"data":{"removed":{"block_hashes":[101]}}}}"#);
        let expected = Removed {
            hashes: [EngineHash(101)].into_iter().collect(),
            tier: Tier::Device,
            group: None,
            remaining_copy_counts: None,
        };
        assert_eq!(removed, CacheEvent::Removed(expected));
        assert_eq!(event(r#"{"worker_id":1,"event":{"event_id":9,"data":"cleared"}}"#), CacheEvent::Cleared);
    }

    #[test]
    fn numbers_may_be_decimal_text_and_the_envelope_may_say_more() {
        let text = r#"{"worker_id":"w-3","storage_tier":"host_pinned","event":{"event_id":"18446744073709551615","dp_rank":2,"data":{"stored":{
            "parent_hash":"9007199254740993","blocks":[{"block_hash":"18446744073709551615","tokens_hash":"-1","extra":{}}]}}},"unknown":[1]}"#;
        let decoded = decode_json(text.as_bytes()).unwrap();
        assert_eq!((decoded.worker_id.as_str(), decoded.event_id), ("w-3", u64::MAX));
        assert_eq!(decoded.batch.dp_rank, Some(2));
        let expected = stored(&[u64::MAX], Some(9_007_199_254_740_993), &[u64::MAX], Tier::Host);
        assert_eq!(decoded.batch.events, [CacheEvent::from(expected)]);
    }

    #[test]
    fn media_of_a_block_are_kept_with_the_block() {
        let event = event(
            r#"{"worker_id":1,"event":{"event_id":1,"data":{"stored":{"blocks":[{"block_hash":1,"tokens_hash":2},
            {"block_hash":2,"tokens_hash":2,"mm_extra_info":{"mm_objects":[{"mm_hash":77,"offsets":[[0,3]]}]}}]}}}}"#,
        );
        let mut expected = stored(&[1, 2], None, &[2, 2], Tier::Device);
        expected.media = vec![Medium { block: 1, identifier: "77".into() }];
        assert_eq!(event, CacheEvent::from(expected));
    }

    #[test]
    fn what_is_not_believable_is_rejected_and_keeps_its_number() {
        let with = |data: &str| format!(r#"{{"worker_id":1,"event":{{"event_id":5,"data":{data}}}}}"#);
        let block = |hash: u64| format!(r#"{{"block_hash":{hash},"tokens_hash":1}}"#);
        let twice = with(&format!(r#"{{"stored":{{"blocks":[{},{}]}}}}"#, block(3), block(3)));
        assert_eq!(reason(&twice), DecodeError::RepeatedHash { hash: 3, at: 0 });
        let other = r#"{"worker_id":1,"storage_tier":"disk","event":{"event_id":5,"data":"cleared"}}"#;
        assert_eq!(reason(other).to_string(), "`cleared` of the tier `disk` (known: device)");
        let circle = with(&format!(r#"{{"stored":{{"parent_hash":3,"blocks":[{}]}}}}"#, block(3)));
        assert_eq!(reason(&circle), DecodeError::RepeatedHash { hash: 3, at: 0 });
        assert_eq!(reason(&with(r#""moved""#)), DecodeError::UnknownKind { kind: "moved".into(), at: 0 });
        assert_eq!(decode_json(twice.as_bytes()).unwrap().event_id, 5);
        let tape = r#"{"worker_id":1,"storage_tier":"tape","event":{"event_id":5,"data":"cleared"}}"#;
        assert_eq!(reason(tape), DecodeError::UnknownMedium { medium: "tape".into(), at: 0 });
    }

    #[test]
    fn what_is_no_event_is_an_error_with_its_place() {
        let error = decode_json(b"{\"worker_id\":1,\n\"event\":7}").unwrap_err();
        let DecodeError::Json { at, reason } = error else { panic!("{error:?}") };
        assert_eq!((at, reason.starts_with("invalid type: integer `7`")), (24, true), "{reason}");
        let inexact = br#"{"worker_id":1,"event":{"event_id":1.5e19,"data":"cleared"}}"#;
        assert!(matches!(decode_json(inexact), Err(DecodeError::Json { .. })));
        let deep = [&br#"{"worker_id":1,"x":"#[..], &[b'['; 100_000]].concat();
        assert!(matches!(decode_json(&deep), Err(DecodeError::Json { .. })));
        assert!(matches!(decode_json(b""), Err(DecodeError::Json { at: 0, .. })));
    }

    #[test]
    fn a_removal_that_is_rejected_is_told() {
        let cleared = |tier: &str| {
            let text =
                format!(r#"{{"worker_id":1,"storage_tier":"{tier}","event":{{"event_id":9,"data":"cleared"}}}}"#);
            let batch = decode_json(text.as_bytes()).unwrap().batch;
            (batch.removal_rejected, batch.rejected.len())
        };
        assert_eq!(["device", "host_pinned", "tape"].map(cleared), [(false, 0), (true, 1), (false, 1)]);
    }
}
