//! Events that a test publishes by hand: repeated, foreign, in JSON, malformed, hostile.

use std::time::Duration;

use serde_json::{Value, json};
use warmpath_core::ids::EngineHash;
use warmpath_core::units::Tier;
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::event::{Attention, CacheEvent, Content, EventBatch, Removed, Stored};

use crate::fleet::{TestFleet, fleet};
use crate::nats::NatsServer;
use crate::warm::Folder;

/// A gateway before two engines that publish nothing, and a test that speaks for them.
struct Bench {
    fleet: TestFleet,
    bus: async_nats::Client,
    _server: NatsServer,
}

impl Bench {
    async fn start() -> Self {
        Self::start_with("").await
    }

    async fn start_with(config: &str) -> Self {
        Self::start_over(NatsServer::core(), config).await
    }

    async fn start_over(server: NatsServer, config: &str) -> Self {
        let fleet = fleet().nats(server.url()).silent().config(config).start().await;
        let bus = async_nats::connect(server.url()).await.unwrap();
        Self { fleet, bus, _server: server }
    }

    async fn publish(&self, worker: u32, number: Option<(u64, u64)>, payload: Vec<u8>) {
        let numbers = number.map(|(epoch, seq)| [("Warmpath-Epoch", epoch), ("Warmpath-Seq", seq)]);
        self.publish_with(worker, numbers.as_ref().map_or(&[], |numbers| numbers), payload).await;
    }

    async fn publish_with(&self, worker: u32, numbers: &[(&str, u64)], payload: Vec<u8>) {
        let mut headers = async_nats::HeaderMap::new();
        for (name, number) in numbers {
            headers.insert(*name, number.to_string().as_str());
        }
        let subject = format!("warmpath.kv.m.engine-{worker}.0");
        self.bus.publish_with_headers(subject, headers, payload.into()).await.unwrap();
        self.bus.flush().await.unwrap();
    }

    async fn events(&self, worker: u32, outcome: &str) -> f64 {
        let labels = format!("worker=\"engine-{worker}\",outcome=\"{outcome}\"");
        self.fleet.metric("warmpath_kv_events_total", &labels).await
    }

    async fn until_events(&self, worker: u32, outcome: &str, count: f64) {
        let what = format!("engine-{worker} has {count} events {outcome}");
        self.fleet.eventually(&what, async |_| self.events(worker, outcome).await == count).await;
    }

    async fn blocks(&self, worker: u32) -> f64 {
        self.fleet.metric("warmpath_index_blocks", &format!("engine-{worker}")).await
    }

    async fn until_blocks(&self, worker: u32, count: f64) {
        let what = format!("engine-{worker} has {count} blocks");
        self.fleet.eventually(&what, async |_| self.blocks(worker).await == count).await;
    }

    /// Worker and predicted tokens of a prompt.
    async fn predicted(&self, prompt: Vec<u32>) -> (String, u64) {
        let answer = self.fleet.complete(prompt.into()).await;
        (answer.worker.clone(), answer.predicted.expect("a policy decided"))
    }
}

/// A stored event of `blocks` blocks of 4 tokens, from the token `first` on.
pub(crate) fn stored(first: u32, blocks: u32) -> CacheEvent {
    Stored {
        hashes: (0..blocks).map(|block| EngineHash(u64::from(first + block * 4) + 1)).collect(),
        parent: None,
        content: Content::Tokens((first..first + 4 * blocks).collect()),
        block_size: Some(4),
        tier: Tier::Device,
        group: Some(0),
        attention: Attention::Prefix,
        adapter: None,
        salt: None,
        media: Vec::new(),
        cut: 0,
    }
    .into()
}

fn removed(first: u32) -> CacheEvent {
    CacheEvent::Removed(Removed {
        hashes: [EngineHash(u64::from(first) + 1)].into_iter().collect(),
        tier: Tier::Device,
        group: Some(0),
        remaining_copy_counts: None,
    })
}

pub(crate) fn batch(rank: Option<u32>, events: Vec<CacheEvent>) -> Vec<u8> {
    let batch = EventBatch { ts: Some(1.0), dp_rank: rank, events, ..EventBatch::default() };
    encode(&batch, Form::Map, HashForm::Int).unwrap()
}

/// Of two engines one tells the numbers of its batches.
#[tokio::test]
async fn a_view_outlives_the_router_only_where_a_loss_would_be_noticed() {
    let folder = Folder::new("numbers");
    let Bench { fleet, bus, _server } = {
        let bench = Bench::start_with(&format!("index: {{{}}}", folder.key())).await;
        bench.publish(1, None, batch(None, vec![stored(0, 4)])).await;
        bench.publish(2, Some((7, 0)), batch(None, vec![stored(0, 4)])).await;
        bench.until_blocks(1, 4.0).await;
        bench.until_blocks(2, 4.0).await;
        bench
    };
    let resting = fleet.stop_gateway().await;
    assert_eq!(folder.files(), ["engine-2.0.snapshot"]);
    let bench = Bench { fleet: resting.start_gateway().await, bus, _server };
    assert_eq!((bench.blocks(1).await, bench.blocks(2).await), (0.0, 4.0));
    // The numbers cease: what was missed until now is anybody's guess.
    bench.publish(2, None, batch(None, vec![stored(100, 3)])).await;
    bench.until_blocks(2, 3.0).await;
    assert_eq!(bench.predicted((0..20).collect()).await.1, 0);
    bench.fleet.stop_gateway().await;
    assert_eq!(folder.files(), Vec::<String>::new());
}

/// R22.
#[tokio::test]
async fn r22_what_is_said_twice_counts_once() {
    let bench = Bench::start().await;
    let (store, remove) = (batch(Some(0), vec![stored(0, 4)]), batch(Some(0), vec![removed(12)]));
    for _ in 0..3 {
        bench.publish(1, Some((7, 0)), store.clone()).await;
    }
    bench.until_events(1, "duplicate", 2.0).await;
    assert_eq!((bench.blocks(1).await, bench.events(1, "stored").await), (4.0, 4.0));
    bench.publish(1, Some((7, 1)), remove.clone()).await;
    // Late repeats of both; the first would bring back what the second removed.
    bench.publish(1, Some((7, 0)), store.clone()).await;
    bench.publish(1, Some((7, 1)), remove).await;
    bench.until_events(1, "duplicate", 4.0).await;
    assert_eq!((bench.blocks(1).await, bench.events(1, "removed").await), (3.0, 1.0));
    // A life that is over.
    bench.publish(1, Some((6, 9)), store).await;
    bench.until_events(1, "duplicate", 5.0).await;
    assert_eq!(bench.blocks(1).await, 3.0);
    assert_eq!(bench.predicted((0..20).collect()).await, ("engine-1".to_owned(), 12));
    assert_eq!(bench.fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 0.0);
}

/// What one tells of storage outside of it is there for everybody of its pool, until it tells that it is gone.
#[tokio::test]
async fn blocks_in_external_storage_count_for_the_whole_pool() {
    let bench = Bench::start().await;
    let CacheEvent::Stored(event) = stored(0, 4) else { panic!("it is a store") };
    let external = Stored { tier: Tier::External, ..*event };
    let overlaps = async || {
        let prompt: Vec<u32> = (0..20).collect();
        let (status, told) = bench.fleet.explain(&json!({"model": "m", "prompt": prompt})).await;
        assert_eq!(status, 200, "{told}");
        let considered = told["considered"].as_array().unwrap();
        considered.iter().map(|of| of["seen"]["overlap"].clone()).collect::<Vec<_>>()
    };
    bench.publish(1, Some((7, 0)), batch(None, vec![external.into()])).await;
    bench.until_blocks(1, 4.0).await;
    assert_eq!(overlaps().await, [json!([0, 0, 0, 4]), json!([0, 0, 0, 4])]);
    bench.publish(2, Some((7, 0)), batch(None, vec![stored(0, 2)])).await;
    bench.until_blocks(2, 2.0).await;
    assert_eq!(overlaps().await, [json!([0, 0, 0, 4]), json!([2, 0, 0, 2])]);
    let CacheEvent::Removed(event) = removed(8) else { panic!("it is a removal") };
    let gone = Removed { tier: Tier::External, ..event };
    bench.publish(1, Some((7, 1)), batch(None, vec![CacheEvent::Removed(gone)])).await;
    bench.until_blocks(1, 3.0).await;
    assert_eq!(overlaps().await, [json!([0, 0, 0, 2]), json!([2, 0, 0, 0])]);
}

#[tokio::test]
async fn a_gap_that_is_closed_in_time_is_none() {
    let bench = Bench::start().await;
    let messages: Vec<_> = (0..4).map(|number| batch(None, vec![stored(100 * number, 2)])).collect();
    for seq in [0, 2, 3, 1] {
        bench.publish(1, Some((1, seq)), messages[usize::try_from(seq).unwrap()].clone()).await;
    }
    bench.until_blocks(1, 8.0).await;
    assert_eq!(bench.fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 0.0);
    // One that is not: all that was known is forgotten, and what comes later is believed.
    bench.publish(1, Some((1, 5)), batch(None, vec![stored(600, 3)])).await;
    bench.until_blocks(1, 3.0).await;
    assert_eq!(bench.fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 1.0);
}

/// The JSON bus event of Dynamo 0.1: the worker's id is a name or a number, hashes may be text.
#[tokio::test]
async fn json_events_are_understood() {
    let bench = Bench::start().await;
    // Of the tokens 1 to 4: xxh3-64 with seed 1337 over little-endian u32.
    let known = "14643705804678351452";
    let event = |id: &str, number: u32, data: Value| {
        json!({"worker_id": id, "event": {"event_id": number, "data": data}}).to_string().into_bytes()
    };
    let block = json!({"stored": {"parent_hash": null, "blocks": [{"block_hash": 101, "tokens_hash": known}]}});
    bench.publish(1, None, event("engine-1", 0, block.clone())).await;
    bench.until_blocks(1, 1.0).await;
    assert_eq!(bench.predicted(vec![1, 2, 3, 4, 5, 6]).await, ("engine-1".to_owned(), 4));
    bench.publish(1, None, event("engine-2", 1, block.clone())).await;
    bench.until_events(1, "foreign", 1.0).await;
    assert_eq!((bench.blocks(1).await, bench.blocks(2).await), (1.0, 0.0));
    bench.publish(1, None, event("engine-1", 1, json!({"removed": {"block_hashes": [101]}}))).await;
    bench.until_blocks(1, 0.0).await;
    bench.publish(1, None, event("engine-1", 2, block)).await;
    bench.until_blocks(1, 1.0).await;
    bench.publish(1, None, event("engine-1", 3, json!("cleared"))).await;
    bench.until_blocks(1, 0.0).await;
    assert_eq!(bench.fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 0.0);
}

/// Such events tell no lives apart but by their numbers, and a stream tells all that it has.
#[tokio::test]
async fn r23_a_json_event_that_no_stream_has_is_asked_for_ever_later() {
    let bench = Bench::start_over(NatsServer::jetstream(), "").await;
    let publish = async |number: u64| {
        let block = json!({"parent_hash": null, "blocks": [{"block_hash": 100 + number, "tokens_hash": 200 + number}]});
        let event = json!({"worker_id": "engine-1", "event": {"event_id": number, "data": {"stored": block}}});
        bench.publish(1, None, event.to_string().into_bytes()).await;
    };
    for number in [0, 1, 2, 3, 4, 6] {
        publish(number).await;
    }
    bench.until_events(1, "replayed", 12.0).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!((bench.events(1, "replayed").await, bench.blocks(1).await), (12.0, 5.0));
    publish(5).await;
    bench.until_blocks(1, 7.0).await;
    for metric in ["warmpath_kv_event_restarts_total", "warmpath_kv_event_gaps_total"] {
        assert_eq!(bench.fleet.metric(metric, "engine-1").await, 0.0);
    }
}

#[tokio::test]
async fn a_batch_of_another_rank_is_refused_and_counted() {
    let bench = Bench::start().await;
    bench.publish(1, None, batch(Some(3), vec![stored(0, 4)])).await;
    bench.until_events(1, "foreign", 1.0).await;
    let other = json!({"worker_id": "engine-1", "event": {"event_id": 0, "dp_rank": 3, "data": "cleared"}});
    bench.publish(1, None, other.to_string().into_bytes()).await;
    bench.until_events(1, "foreign", 2.0).await;
    assert_eq!(bench.blocks(1).await, 0.0);
    for (rank, first) in [(Some(0), 0), (None, 100)] {
        bench.publish(1, None, batch(rank, vec![stored(first, 4)])).await;
    }
    bench.until_blocks(1, 8.0).await;
    assert_eq!(bench.events(1, "undecodable").await, 0.0);
}

/// Where batches have numbers, one without is somebody else's, and takes the place of none.
#[tokio::test]
async fn r22_a_batch_without_numbers_among_others_with_is_refused() {
    let bench = Bench::start().await;
    for seq in 0..3 {
        bench.publish(1, Some((5, seq)), batch(None, vec![stored(100 * u32::try_from(seq).unwrap(), 1)])).await;
    }
    let stray = batch(None, vec![stored(5000, 4)]);
    let json = json!({"worker_id": "engine-1", "event": {"event_id": 3, "data": "cleared"}}).to_string().into_bytes();
    for numbers in [&[][..], &[("Warmpath-Seq", 7)], &[("Warmpath-Epoch", 5)]] {
        bench.publish_with(1, numbers, stray.clone()).await;
    }
    bench.publish(1, None, json).await;
    bench.until_events(1, "foreign", 4.0).await;
    let why = "a batch lacks number or epoch, which others have: does somebody else publish for it?";
    assert_eq!(bench.fleet.bus().await["sources"][0]["last_error"], why);
    bench.publish(1, Some((5, 3)), batch(None, vec![stored(300, 1)])).await;
    bench.until_blocks(1, 4.0).await;
    assert_eq!(bench.events(1, "duplicate").await, 0.0);
    assert_eq!(bench.fleet.metric("warmpath_kv_event_gaps_total", "engine-1").await, 0.0);
}

/// As of an engine whose ranks begin elsewhere than the configuration says.
#[tokio::test]
async fn a_worker_of_whom_every_batch_is_another_rank_s_is_told_of() {
    let bench = Bench::start().await;
    for _ in 0..8 {
        bench.publish(1, None, batch(Some(1), vec![stored(0, 4)])).await;
    }
    bench.until_events(1, "foreign", 8.0).await;
    let why = "its batches are of rank 1, not 0: `dp_start_rank`, `dp_ranks`?";
    assert_eq!(bench.fleet.bus().await["sources"][0]["last_error"], why);
    let said = format!("events of engine-1 cannot be used ({why}): routed to by load and by what was known before");
    assert_eq!(bench.fleet.health().await["degraded"], json!([said]));
    bench.publish(1, None, batch(Some(0), vec![stored(0, 4)])).await;
    bench.until_blocks(1, 4.0).await;
    assert_eq!(bench.fleet.health().await["status"], "ok");
}

/// Its neighbours are taken, so all seems well but for a counter.
#[tokio::test]
async fn why_an_event_was_rejected_is_told() {
    let bench = Bench::start().await;
    let bytes = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x97\xabBlockStored\x92\x01\x02\xc0\x98\x0a\x0b\x0c\x0d\x0e\x0f\x10\x11\x04\xc0\xa4HBM2\0";
    bench.publish(1, None, bytes.to_vec()).await;
    bench.until_events(1, "rejected", 1.0).await;
    let told = bench.fleet.bus().await["sources"][0]["last_error"].clone();
    assert_eq!(told, "event 0 of a batch: unknown medium `HBM2` at byte 11");
}

/// R28.
#[tokio::test]
async fn r28_hostile_payloads_are_counted_and_cost_nobody_anything() {
    let bench = Bench::start().await;
    for worker in [1, 2] {
        bench.publish(worker, None, batch(Some(0), vec![stored(100 * worker, 4)])).await;
        bench.until_blocks(worker, 4.0).await;
    }
    let good = batch(Some(0), vec![stored(0, 4)]);
    let hostile: Vec<Vec<u8>> = vec![
        Vec::new(),
        vec![0xc1; 100],
        b"{\"worker_id\":".to_vec(),
        b"[".repeat(900_000),
        [b"{\"worker_id\": \"engine-1\", \"event\": ".as_slice(), &b"[".repeat(200_000)].concat(),
        vec![0x91; 200_000],
        vec![0xdd, 0xff, 0xff, 0xff, 0xff],
        vec![0xdf, 0xff, 0xff, 0xff, 0xff],
        [[0x93, 0xc0].as_slice(), &[0xdd, 0xff, 0xff, 0xff, 0xff]].concat(),
        vec![0xc6, 0xff, 0xff, 0xff, 0xff, 0],
        good[..good.len() / 2].to_vec(),
        vec![0x93, 0xa1, b'x', 0xa1, b'y', 0xa1, b'z'],
    ];
    let count = f64::from(u32::try_from(hostile.len()).unwrap());
    for payload in hostile {
        bench.publish(1, None, payload).await;
    }
    bench.until_events(1, "undecodable", count).await;
    assert_eq!((bench.blocks(1).await, bench.blocks(2).await), (4.0, 4.0));
    bench.publish(1, None, good).await;
    bench.until_blocks(1, 8.0).await;
    for worker in [1_u32, 2] {
        let prompt = (100 * worker..100 * worker + 20).collect();
        assert_eq!(bench.predicted(prompt).await, (format!("engine-{worker}"), 16));
    }
    assert_eq!(bench.events(2, "undecodable").await, 0.0);
    assert_eq!(bench.fleet.health().await["status"], "ok");
}
