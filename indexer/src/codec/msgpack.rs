//! MessagePack batches of vLLM and SGLang: `[ts, [event…], rank]`, or the same as a map. Events are arrays or maps, in
//! one stream, even in one batch.

use super::cursor::{Cursor, Value};
use super::fields::{Field, Fields, REMOVED, STORED};
use super::{DecodeError, MAX_EVENTS, MAX_LISTED_REJECTS, MAX_MESSAGE_BYTES, shortened};
use crate::event::{CacheEvent, EventBatch, Rejected};

/// Decodes one message. O(message); memory within a small factor of the message's length.
///
/// # Errors
/// When the batch itself cannot be walked to its end. A bad event does not cost its neighbours: it goes to
/// `batch.rejected`, they to `batch.events`.
pub fn decode(message: &[u8]) -> Result<EventBatch, DecodeError> {
    if message.len() > MAX_MESSAGE_BYTES {
        return Err(DecodeError::TooLong { len: message.len(), limit: MAX_MESSAGE_BYTES });
    }
    let mut cursor = Cursor::new(message);
    let mut batch = EventBatch::default();
    match cursor.value("batch")? {
        Value::Array(elements) => array_batch(&mut cursor, elements, &mut batch)?,
        Value::Map(pairs) => map_batch(&mut cursor, pairs, &mut batch)?,
        other => return Err(DecodeError::WrongType { at: 0, field: "batch", found: other.name() }),
    }
    if cursor.left() > 0 {
        return Err(DecodeError::TrailingBytes { at: cursor.at() });
    }
    Ok(batch)
}

/// Which rank a batch says it is from, its events passed over: none where it names none or cannot be walked. O(message),
/// and nothing is allocated.
pub fn rank_of(message: &[u8]) -> Option<u32> {
    let mut cursor = Cursor::new(message);
    match cursor.value("batch").ok()? {
        Value::Array(elements) if elements > 2 => {
            cursor.skip("ts").ok()?;
            cursor.skip("events").ok()?;
            cursor.count("data_parallel_rank").ok()?
        }
        Value::Map(pairs) => {
            let mut rank = None;
            for _ in 0..pairs {
                match key(&mut cursor).ok()? {
                    b"data_parallel_rank" | b"attn_dp_rank" => rank = cursor.count("data_parallel_rank").ok()?,
                    _ => cursor.skip("batch").ok()?,
                }
            }
            rank
        }
        _ => None,
    }
}

fn array_batch(cursor: &mut Cursor<'_>, elements: u32, batch: &mut EventBatch) -> Result<(), DecodeError> {
    if elements < 2 {
        return Err(DecodeError::MissingField { field: "events", at: 0 });
    }
    batch.ts = time(cursor)?;
    events(cursor, batch)?;
    if elements > 2 {
        batch.dp_rank = cursor.count("data_parallel_rank")?;
    }
    for _ in 3..elements {
        cursor.skip("batch")?;
    }
    Ok(())
}

fn map_batch(cursor: &mut Cursor<'_>, pairs: u32, batch: &mut EventBatch) -> Result<(), DecodeError> {
    let mut has_events = false;
    for _ in 0..pairs {
        match key(cursor)? {
            b"ts" => batch.ts = time(cursor)?,
            b"events" if !has_events => {
                has_events = true;
                events(cursor, batch)?;
            }
            b"data_parallel_rank" | b"attn_dp_rank" => batch.dp_rank = cursor.count("data_parallel_rank")?,
            _ => cursor.skip("batch")?,
        }
    }
    if has_events { Ok(()) } else { Err(DecodeError::MissingField { field: "events", at: 0 }) }
}

/// The batch's time. What is no finite number is no time: the events count all the same.
fn time(cursor: &mut Cursor<'_>) -> Result<Option<f64>, DecodeError> {
    let at = cursor.at();
    match cursor.value("ts")? {
        Value::Float(ts) => Ok(Some(ts).filter(|ts| ts.is_finite())),
        Value::Unsigned(ts) => Ok(u32::try_from(ts).ok().map(f64::from)),
        Value::Negative(_) | Value::Nil => Ok(None),
        other => Err(DecodeError::WrongType { at, field: "ts", found: other.name() }),
    }
}

/// The next key of a map; empty, and so unknown, if it is no text.
fn key<'a>(cursor: &mut Cursor<'a>) -> Result<&'a [u8], DecodeError> {
    let before = *cursor;
    if let Value::Text(name) = cursor.value("key")? {
        return Ok(name);
    }
    *cursor = before;
    cursor.skip("key")?;
    Ok(b"")
}

fn events(cursor: &mut Cursor<'_>, batch: &mut EventBatch) -> Result<(), DecodeError> {
    let count = cursor.array("events", MAX_EVENTS)?;
    // An event takes at least a dozen bytes; what announces more than that is no reason to reserve.
    batch.events.reserve(count.min(cursor.left() / 12));
    for index in 0..count {
        let at = cursor.at();
        let mut reader = *cursor;
        match event(&mut reader) {
            Ok(event) => {
                batch.events.push(event);
                *cursor = reader;
            }
            Err(reason) => {
                batch.removal_rejected |= takes_away(&reason, *cursor);
                if let Err(broken) = cursor.skip("events") {
                    return Err(if matches!(reason, DecodeError::Truncated { .. }) { reason } else { broken });
                }
                if batch.rejected.len() < MAX_LISTED_REJECTS {
                    batch.rejected.push(Rejected { index, at, reason });
                } else {
                    batch.rejected_unlisted += 1;
                }
            }
        }
    }
    Ok(())
}

/// Whether the event that begins here, rejected for this reason, may have told of blocks that are gone. Engines name events
/// of that sort so, whichever are still to come; in a medium that nobody knows there are no blocks to lose.
fn takes_away(reason: &DecodeError, event: Cursor<'_>) -> bool {
    match reason {
        DecodeError::UnknownMedium { .. } => false,
        DecodeError::UnknownKind { kind, .. } => kind.ends_with("Removed") || kind.ends_with("Cleared"),
        _ => matches!(kind_of(event), Some(Kind::Removed | Kind::Cleared)),
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Stored,
    Removed,
    Cleared,
}

fn kind(cursor: &mut Cursor<'_>, event_at: usize) -> Result<Kind, DecodeError> {
    match cursor.text("type")? {
        Some("BlockStored") => Ok(Kind::Stored),
        Some("BlockRemoved") => Ok(Kind::Removed),
        Some("AllBlocksCleared") => Ok(Kind::Cleared),
        Some(other) => Err(DecodeError::UnknownKind { kind: shortened(other), at: event_at }),
        None => Err(DecodeError::MissingField { field: "type", at: event_at }),
    }
}

/// The kind of the event that begins here, if that much of it can be read.
fn kind_of(mut cursor: Cursor<'_>) -> Option<Kind> {
    let at = cursor.at();
    match cursor.value("event").ok()? {
        Value::Array(1..) => kind(&mut cursor, at).ok(),
        Value::Map(pairs) => kind_in_map(cursor, pairs, at).ok(),
        _ => None,
    }
}

/// The kind of the event whose pairs begin here. Every encoder known puts it first, but the order of keys is nobody's
/// promise.
fn kind_in_map(mut ahead: Cursor<'_>, pairs: u32, at: usize) -> Result<Kind, DecodeError> {
    for _ in 0..pairs {
        if key(&mut ahead)? == b"type" {
            return kind(&mut ahead, at);
        }
        ahead.skip("event")?;
    }
    Err(DecodeError::MissingField { field: "type", at })
}

fn event(cursor: &mut Cursor<'_>) -> Result<CacheEvent, DecodeError> {
    let at = cursor.at();
    let mut fields = Fields::default();
    let kind = match cursor.value("event")? {
        Value::Array(elements) => array_event(cursor, elements, at, &mut fields)?,
        Value::Map(pairs) => map_event(cursor, pairs, at, &mut fields)?,
        other => return Err(DecodeError::WrongType { at, field: "event", found: other.name() }),
    };
    match kind {
        Kind::Stored => fields.stored(at),
        Kind::Removed => fields.removed(at),
        Kind::Cleared => Ok(CacheEvent::Cleared),
    }
}

fn array_event<'a>(
    cursor: &mut Cursor<'a>,
    elements: u32,
    at: usize,
    fields: &mut Fields<'a>,
) -> Result<Kind, DecodeError> {
    let Some(mut left) = elements.checked_sub(1) else {
        return Err(DecodeError::MissingField { field: "type", at });
    };
    let kind = kind(cursor, at)?;
    let positions: &[Field] = match kind {
        Kind::Stored => &STORED,
        Kind::Removed => &REMOVED,
        Kind::Cleared => &[],
    };
    for &field in positions {
        if left == 0 {
            break;
        }
        fields.read(field, cursor)?;
        left -= 1;
    }
    for _ in 0..left {
        cursor.skip("event")?;
    }
    Ok(kind)
}

fn map_event<'a>(cursor: &mut Cursor<'a>, pairs: u32, at: usize, fields: &mut Fields<'a>) -> Result<Kind, DecodeError> {
    let kind = kind_in_map(*cursor, pairs, at)?;
    for _ in 0..pairs {
        match Field::named(key(cursor)?) {
            Some(field) => fields.read(field, cursor)?,
            None => cursor.skip("event")?,
        }
    }
    Ok(kind)
}
