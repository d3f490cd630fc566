//! What no engine should send, over and over, beside one that behaves: no panic, 64 MiB more memory at most while a batch
//! is at hand, and not a block of the other's view is touched.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;

use warmpath_core::blocks::{DEFAULT_ROOT_SEED, Root, hash_blocks};
use warmpath_core::ids::{EngineHash, SequenceHash, Slot, TokenId};
use warmpath_core::namespace::Namespace;
use warmpath_core::overlap::{Overlaps, PrefixIndex};
use warmpath_core::units::{BlockSize, Tier};
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::codec::{decode, decode_json};
use warmpath_indexer::concurrent::{Chains, ConcurrentIndex};
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Stored};
use warmpath_indexer::index::Writer;
use warmpath_indexer::view::ViewSettings;

/// Tokens in a block.
const SIZE: u32 = 4;
/// Entries of the index.
const ROOM: usize = 100_000;
/// Blocks of the engine that behaves.
const HELD: u32 = 10_000;
/// How often each message is sent.
const TIMES: usize = if cfg!(debug_assertions) { 20 } else { 200 };
const BOUND_BYTES: usize = 64 << 20;

/// An index with a view of an engine that behaves and of one that does not.
struct Bench {
    index: Arc<ConcurrentIndex>,
    root: Root,
    honest: Writer<Chains>,
    hostile: Writer<Chains>,
    before: usize,
    most: usize,
}

impl Bench {
    fn new() -> Self {
        let pool = Namespace::plain("m", BlockSize::new(SIZE).unwrap());
        let root = Root::new(&pool, DEFAULT_ROOT_SEED);
        let index = Arc::new(ConcurrentIndex::new(ROOM));
        let settings = ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 };
        let [honest, hostile] = [Slot(0), Slot(1)].map(|slot| index.writer(slot, &settings));
        honest.apply(&[stored(0, HELD, None).into()]);
        assert_eq!(honest.entries(), 10_000);
        Self { index, root, honest, hostile, before: resident(), most: 0 }
    }

    /// Hands one message on as far as it goes.
    fn feed(&mut self, message: &[u8]) {
        for batch in [decode(message), decode_json(message).map(|event| event.batch)].into_iter().flatten() {
            self.hostile.apply(&batch.events);
            self.most = self.most.max(resident().saturating_sub(self.before));
            drop(batch);
        }
        self.most = self.most.max(resident().saturating_sub(self.before));
    }

    fn check(&self, what: &str) {
        assert_eq!(self.honest.entries(), 10_000, "{what}");
        assert!(self.index.len() <= ROOM, "{what}");
        let mut overlaps = Overlaps::default();
        self.index.match_prefix(&self.prompt(), &mut overlaps);
        assert_eq!(overlaps.of(Slot(0)).total().0, HELD, "{what}");
        assert!(self.most <= BOUND_BYTES, "{what}: {} KiB more at the most", self.most >> 10);
    }

    /// What the engine that behaves holds.
    fn prompt(&self) -> Vec<SequenceHash> {
        let mut hashes = Vec::new();
        hash_blocks(&self.root, &tokens(0, HELD), &[], &mut hashes);
        hashes
    }
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

/// Ids of one byte each, so that a message of a given length makes as many as it can. The blocks of different `first`
/// differ, and so do neighbours.
fn tokens(first: u32, blocks: u32) -> Vec<TokenId> {
    let block = |block: u32| [block & 127, (block >> 7) & 127, (block >> 14) & 127, (block >> 21) & 127];
    (first..first + blocks).flat_map(block).collect()
}

fn names(first: u32, blocks: u32) -> Vec<EngineHash> {
    (first..first + blocks).map(|block| EngineHash(u64::from(block).wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect()
}

fn stored(first: u32, blocks: u32, parent: Option<EngineHash>) -> Stored {
    Stored {
        hashes: names(first, blocks),
        parent,
        content: Content::Tokens(tokens(first, blocks)),
        block_size: Some(SIZE),
        tier: Tier::Device,
        group: None,
        attention: Attention::Unstated,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    }
}

fn message(ts: Option<f64>, events: Vec<Stored>) -> Vec<u8> {
    let events: Vec<CacheEvent> = events.into_iter().map(Into::into).collect();
    let batch = EventBatch { ts, dp_rank: Some(0), events, ..EventBatch::default() };
    encode(&batch, Form::Map, HashForm::Int).unwrap()
}

/// Every message with what it is.
fn poison() -> Vec<(&'static str, Vec<u8>)> {
    let [own] = names(900, 1).try_into().unwrap();
    let [next] = names(901, 1).try_into().unwrap();
    let circle = vec![stored(900, 1, Some(next)), stored(901, 1, Some(own))];
    let sizes = [0, 1, 3, SIZE * 2, u32::MAX].map(|size| Stored { block_size: Some(size), ..stored(950, 8, None) });
    let whole = message(Some(1.0), vec![stored(1000, 64, None)]);
    let million = (0..4).map(|part| {
        let parent = (part > 0).then(|| names(2_000_000 + part * 250_000 - 1, 1)[0]);
        stored(2_000_000 + part * 250_000, 250_000, parent)
    });
    let text = |text: &str| text.as_bytes().to_vec();
    let bus = |data: &str| text(&format!(r#"{{"worker_id":1,"event":{{"event_id":1,"data":{data}}}}}"#));
    vec![
        ("nothing", Vec::new()),
        ("reserved bytes", vec![0xc1; 4096]),
        ("2^32 elements", vec![0xdd, 0xff, 0xff, 0xff, 0xff]),
        ("2^32 events", vec![0x92, 0xc0, 0xdd, 0xff, 0xff, 0xff, 0xff]),
        ("2^32 bytes", vec![0xc6, 0xff, 0xff, 0xff, 0xff, 0]),
        ("200 000 deep", vec![0x91; 200_000]),
        ("200 000 deep in a batch", [[0x92, 0xc0].as_slice(), &vec![0x91; 200_000]].concat()),
        ("cut in the middle", whole[..whole.len() / 2].to_vec()),
        ("wrong types", vec![0x93, 0xa1, b'x', 0xa1, b'y', 0xa1, b'z']),
        ("no time", message(Some(f64::NAN), vec![stored(960, 2, None)])),
        ("its own parent", message(None, vec![stored(900, 1, Some(own))])),
        ("a circle", message(None, circle)),
        ("an unknown parent", message(None, vec![stored(970, 4, Some(EngineHash(3)))])),
        ("sizes that change", message(None, sizes.to_vec())),
        (
            "too few tokens",
            message(None, vec![Stored { content: Content::Tokens(vec![1; 7]), ..stored(980, 2, None) }]),
        ),
        ("a million blocks", message(None, million.collect())),
        ("JSON that ends", text(r#"{"worker_id":"#)),
        ("JSON 900 000 deep", b"[".repeat(900_000)),
        ("JSON of its own parent", bus(r#"{"stored":{"parent_hash":5,"blocks":[{"block_hash":5,"tokens_hash":5}]}}"#)),
        ("JSON of wrong types", bus(r#"{"stored":{"parent_hash":"x","blocks":7}}"#)),
    ]
}

#[test]
fn r28_poisoned_events_cost_little_memory_and_nobody_elses_blocks() {
    let poison = poison();
    let million = poison.iter().find(|(what, _)| *what == "a million blocks").unwrap();
    assert_eq!(decode(&million.1).unwrap().events.len(), 4, "it is read, not refused");
    let mut bench = Bench::new();
    let mut rounds = 0;
    for _ in 0..TIMES {
        for (what, message) in &poison {
            bench.feed(message);
            bench.check(what);
            rounds += 1;
        }
    }
    println!(
        "R28: {rounds} messages, {} KiB more memory at the most, bound {} KiB",
        bench.most >> 10,
        BOUND_BYTES >> 10
    );
    // What was good in between has arrived, and it can all be let go.
    assert!(bench.hostile.entries() > 0);
    bench.hostile.forget();
    bench.check("after all is forgotten");
    assert_eq!(bench.index.len(), 10_000);
}
