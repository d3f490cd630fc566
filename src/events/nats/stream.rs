//! The stream that keeps events, and how a batch looks in it.

use std::time::Duration;

use async_nats::jetstream::context::CreateStreamErrorKind;
use async_nats::jetstream::stream::{Config, Stream};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{Client, HeaderMap};

use super::super::{Message, subject};

/// How long events are kept for routers that start or come back.
pub(in crate::events) const KEPT: Duration = Duration::from_secs(3600);

/// Bytes that are kept at most, the oldest going first. The second is for servers that have no room for the first.
const KEPT_BYTES: [i64; 2] = [1 << 30, 1 << 26];

/// The stream of this prefix, made if it is not there.
pub(super) async fn ensure(client: &Client, prefix: &str) -> Result<Stream, async_nats::Error> {
    let context = jetstream::new(client.clone());
    let [first, second] = KEPT_BYTES;
    match context.get_or_create_stream(config(prefix, first)).await {
        Err(error) if has_no_room(&error.kind()) => Ok(context.get_or_create_stream(config(prefix, second)).await?),
        made => Ok(made?),
    }
}

fn has_no_room(kind: &CreateStreamErrorKind) -> bool {
    let full = [ErrorCode::STORAGE_RESOURCES_EXCEEDED, ErrorCode::INSUFFICIENT_RESOURCES];
    matches!(kind, CreateStreamErrorKind::JetStream(error) if full.contains(&error.error_code()))
}

fn config(prefix: &str, max_bytes: i64) -> Config {
    Config {
        name: subject::stream_name(prefix),
        subjects: vec![subject::all_events(prefix)],
        max_age: KEPT,
        max_bytes,
        allow_direct: true,
        ..Config::default()
    }
}

/// A batch as it came off the bus.
pub(super) fn batch(payload: &bytes::Bytes, headers: Option<&HeaderMap>) -> Message {
    Message {
        payload: payload.clone(),
        seq: number(headers, subject::SEQUENCE_HEADER),
        epoch: number(headers, subject::EPOCH_HEADER),
    }
}

/// A number in a header.
pub(super) fn number(headers: Option<&HeaderMap>, name: &str) -> Option<u64> {
    headers?.get(name)?.as_str().parse().ok()
}

/// What a batch says beside its payload.
pub(super) fn headers((worker, rank): (&str, u32), message: &Message) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let (Some(seq), Some(epoch)) = (message.seq, message.epoch) {
        headers.insert(subject::SEQUENCE_HEADER, seq.to_string().as_str());
        headers.insert(subject::EPOCH_HEADER, epoch.to_string().as_str());
        headers.insert(subject::MESSAGE_ID_HEADER, format!("{worker}/{rank}/{epoch}/{seq}").as_str());
    }
    headers
}
