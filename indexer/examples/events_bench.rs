//! Measures the way of an event: decoding, and decoding with applying to the index, in every form, for events of one
//! block (16 to a batch, as engines decode) and of 128 (one to a batch, as they prefill).
//!
//! `cargo run --release -p warmpath-indexer --example events_bench -- [--json FILE] [--blocks N]`
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a program for measuring may panic and prints")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::ids::{EngineHash, Slot};
use warmpath_core::namespace::Namespace;
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::codec::{decode, decode_json};
use warmpath_indexer::concurrent::ConcurrentIndex;
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Stored};
use warmpath_indexer::view::ViewSettings;

const BLOCK: usize = 16;
/// Blocks of a conversation; the next one starts at the root again.
const CONVERSATION: usize = 1024;

/// How messages are written.
#[derive(Clone, Copy)]
enum Wire {
    Msgpack(Form, HashForm),
    Json,
}

const WIRES: [(&str, Wire); 4] = [
    ("msgpack arrays", Wire::Msgpack(Form::Array, HashForm::Int)),
    ("msgpack maps", Wire::Msgpack(Form::Map, HashForm::Int)),
    ("msgpack maps, 32-byte hashes", Wire::Msgpack(Form::Map, HashForm::Bytes)),
    ("json", Wire::Json),
];

#[expect(clippy::disallowed_methods, reason = "measuring is the only thing that this program is for")]
fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn name(block: usize) -> u64 {
    u64::try_from(block + 1).unwrap().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The event that stores blocks `from..to`.
fn stored(from: usize, to: usize) -> CacheEvent {
    CacheEvent::from(Stored {
        hashes: (from..to).map(|block| EngineHash(name(block))).collect(),
        parent: (!from.is_multiple_of(CONVERSATION)).then(|| EngineHash(name(from - 1))),
        content: Content::Tokens((from * BLOCK..to * BLOCK).map(|token| u32::try_from(token).unwrap()).collect()),
        block_size: Some(u32::try_from(BLOCK).unwrap()),
        tier: Tier::Device,
        group: Some(0),
        attention: Attention::Prefix,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    })
}

/// The message of Dynamo's form that stores blocks `from..to`; their contents are told as hashes.
fn bus_event(number: usize, from: usize, to: usize) -> Vec<u8> {
    let parent = if from.is_multiple_of(CONVERSATION) { "null".to_owned() } else { name(from - 1).to_string() };
    let mut blocks = String::new();
    for block in from..to {
        let comma = if block == from { "" } else { "," };
        let (hash, tokens) = (name(block), name(block) ^ 0x5555);
        write!(blocks, r#"{comma}{{"block_hash":{hash},"tokens_hash":{tokens}}}"#).unwrap();
    }
    let data = format!(r#"{{"stored":{{"parent_hash":{parent},"blocks":[{blocks}]}}}}"#);
    format!(r#"{{"worker_id":1,"event":{{"event_id":{number},"data":{data}}}}}"#).into_bytes()
}

/// Messages that store `blocks` blocks in events of `event`, and how many events they hold.
fn messages(wire: Wire, blocks: usize, event: usize) -> (Vec<Vec<u8>>, usize) {
    let starts: Vec<usize> = (0..blocks).step_by(event).collect();
    let written = match wire {
        Wire::Json => starts.iter().enumerate().map(|(number, &from)| bus_event(number, from, from + event)).collect(),
        Wire::Msgpack(form, hashes) => {
            let batch = |starts: &[usize]| {
                let events = starts.iter().map(|&from| stored(from, from + event)).collect();
                let batch = EventBatch { ts: Some(1.0), dp_rank: Some(0), events, ..EventBatch::default() };
                encode(&batch, form, hashes).unwrap()
            };
            starts.chunks(if event == 1 { 16 } else { 1 }).map(batch).collect()
        }
    };
    (written, starts.len())
}

fn decoded(wire: Wire, message: &[u8]) -> EventBatch {
    match wire {
        Wire::Json => decode_json(message).unwrap().batch,
        Wire::Msgpack(..) => decode(message).unwrap(),
    }
}

fn measure((label, wire): (&str, Wire), blocks: usize, event: usize) -> Value {
    let (messages, events) = messages(wire, blocks, event);
    let bytes: usize = messages.iter().map(Vec::len).sum();
    let decoding = timed(|| {
        for message in &messages {
            black_box(decoded(wire, message));
        }
    });
    let index = Arc::new(ConcurrentIndex::new(blocks * 2));
    let pool = Namespace::plain("m", BlockSize::new(u32::try_from(BLOCK).unwrap()).unwrap());
    let writer = index.writer(Slot(0), &ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks });
    let both = timed(|| {
        for message in &messages {
            writer.apply(&decoded(wire, message).events);
        }
    });
    assert_eq!(writer.entries(), blocks, "every block arrived");
    let rate = |count: usize, time: Duration| f64::from(u32::try_from(count).unwrap()) / time.as_secs_f64();
    let size = rate(bytes, Duration::from_secs(1)) / rate(blocks, Duration::from_secs(1));
    println!(
        "{label:<30} {event:>4} {:>13.0} {:>13.0} {:>13.0} {:>13.0} {size:>11.1}",
        rate(events, decoding),
        rate(events, both),
        rate(blocks, decoding),
        rate(blocks, both)
    );
    json!({
        "form": label, "blocks_per_event": event, "bytes_per_block": size,
        "decoded_events_per_s": rate(events, decoding), "applied_events_per_s": rate(events, both),
        "decoded_blocks_per_s": rate(blocks, decoding), "applied_blocks_per_s": rate(blocks, both),
    })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.get(arguments.iter().position(|argument| argument == flag)? + 1).cloned();
    let blocks: usize = value("--blocks").map_or(1 << 20, |blocks| blocks.parse().unwrap());
    println!(
        "{:<30} {:>4} {:>13} {:>13} {:>13} {:>13} {:>11}",
        "stored blocks, one thread",
        "each",
        "decoded ev/s",
        "applied ev/s",
        "decoded bl/s",
        "applied bl/s",
        "bytes/block"
    );
    let sizes = [1, 128];
    let rows: Vec<Value> = WIRES
        .into_iter()
        .flat_map(|wire| sizes.map(|event| measure(wire, blocks / CONVERSATION * CONVERSATION, event)))
        .collect();
    if let Some(file) = value("--json") {
        let report = json!({ "bench": "events", "block_size": BLOCK, "blocks": blocks, "rows": rows });
        std::fs::write(&file, format!("{report:#}\n")).unwrap();
        println!("written to {file}");
    }
}
