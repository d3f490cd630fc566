//! What the router's NATS source tells and can be asked for, over a real server.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::time::timeout;
use warmpath::bridge::{BlockSet, Bridge, Chunks, RankView};
use warmpath::events::nats::load::LoadReport;
use warmpath::events::nats::{NatsBus, NatsSettings};
use warmpath::events::source::source;
use warmpath::events::{Abilities, Ask, AskId, Heard, Message, Source};
use warmpath::shutdown::Tasks;
use warmpath_core::blocks::DEFAULT_ROOT_SEED;
use warmpath_core::namespace::Namespace;
use warmpath_core::units::BlockSize;
use warmpath_indexer::event::CacheEvent;
use warmpath_indexer::feed::{Began, Patience, Position};
use warmpath_indexer::view::ViewSettings;

use crate::bridge::{Played, until_published};
use crate::by_hand::{batch, stored};
use crate::fleet::fleet;
use crate::link::Link;
use crate::nats::NatsServer;
use crate::scripted::{Scripted, whole};
use crate::sidecar::bridge_settings;

const ABILITIES: Abilities = Abilities { patience: Patience::NATS, replays: true, snapshots: true };
const LINE: (&str, &str, u32) = ("m", "w", 0);

fn settings(url: &str) -> NatsSettings {
    NatsSettings::publisher(url.to_owned(), "warmpath".to_owned())
}

/// A source whose subscription takes so many messages, and whose owner so many.
async fn follow(url: &str, queue: usize, waiting: usize, tasks: &Tasks) -> Source {
    let bus = NatsBus::connect(NatsSettings { queue_messages: queue, ..settings(url) }).await.unwrap();
    let (source, line) = source(ABILITIES, waiting);
    tasks.spawn(bus.follow(LINE, line));
    source
}

async fn publisher(server: &NatsServer) -> NatsBus {
    let bus = NatsBus::connect(settings(&server.url())).await.unwrap();
    bus.connected().await;
    bus
}

fn again_from(from: u64) -> Ask {
    Ask::Replay { id: AskId::default(), from }
}

fn message(epoch: u64, seq: u64) -> Message {
    Message { payload: vec![7; 16].into(), seq: Some(seq), epoch: Some(epoch) }
}

/// What is told next, whether or not the bus has a history.
async fn next(source: &mut Source) -> Heard {
    loop {
        let heard = timeout(Duration::from_secs(10), source.heard.recv()).await.expect("something is told");
        match heard.expect("the source lives") {
            Heard::History(_) => {}
            heard => return heard,
        }
    }
}

/// What is told, in short.
fn short(heard: &Heard) -> String {
    match heard {
        Heard::Connected => "connected".to_owned(),
        Heard::Dropped(batches) => format!("dropped {batches}"),
        Heard::History(there) => format!("history {there}"),
        Heard::Live(message) => format!("live {}/{}", message.epoch.unwrap(), message.seq.unwrap()),
        Heard::Replayed(_, message) => format!("replayed {}/{}", message.epoch.unwrap(), message.seq.unwrap()),
        Heard::ReplayEnded(..) => "replay ended".to_owned(),
        Heard::SnapshotChunk(_, bytes) => format!("chunk of {}", bytes.len()),
        Heard::SnapshotEnded(_) => "snapshot ended".to_owned(),
    }
}

async fn told(source: &mut Source, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        told.push(short(&next(source).await));
    }
    told
}

#[tokio::test]
async fn the_stream_is_told_first_and_any_part_of_the_newest_epoch_again() {
    let (server, tasks) = (NatsServer::jetstream(), Tasks::new());
    let bus = publisher(&server).await;
    bus.prepare().await;
    for (epoch, seq) in [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)] {
        bus.publish(LINE, message(epoch, seq)).unwrap();
    }
    let mut source = follow(&server.url(), 1024, 1024, &tasks).await;
    let history = ["live 1/0", "live 1/1", "live 2/0", "live 2/1", "live 2/2"];
    let first = told(&mut source, 6).await;
    assert_eq!(first.iter().filter(|told| *told != "connected").collect::<Vec<_>>(), history);
    assert!(first.contains(&"connected".to_owned()));
    source.asks.send(again_from(1)).await.unwrap();
    assert_eq!(told(&mut source, 3).await, ["replayed 2/1", "replayed 2/2", "replay ended"]);
    bus.publish(LINE, message(2, 3)).unwrap();
    assert_eq!(told(&mut source, 1).await, ["live 2/3"]);
    source.asks.send(again_from(0)).await.unwrap();
    let again = ["replayed 2/0", "replayed 2/1", "replayed 2/2", "replayed 2/3", "replay ended"];
    assert_eq!(told(&mut source, 5).await, again);
    source.asks.send(again_from(99)).await.unwrap();
    assert_eq!(told(&mut source, 1).await, ["replay ended"]);
}

#[tokio::test]
async fn what_cannot_be_had_ends_at_once() {
    for server in [NatsServer::core(), NatsServer::jetstream()] {
        let tasks = Tasks::new();
        let mut source = follow(&server.url(), 1024, 1024, &tasks).await;
        assert_eq!(told(&mut source, 1).await, ["connected"]);
        let asked = Instant::now();
        source.asks.send(again_from(0)).await.unwrap();
        source.asks.send(Ask::Snapshot { id: AskId::default() }).await.unwrap();
        assert_eq!(told(&mut source, 2).await, ["replay ended", "snapshot ended"]);
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    }
}

#[tokio::test]
async fn a_lost_connection_is_told_once_it_is_back_within_a_reconnects_longest_pause() {
    let (server, tasks) = (NatsServer::core(), Tasks::new());
    let mut link = Link::to(&server.url()).await;
    let mut source = follow(&link.url(), 1024, 1024, &tasks).await;
    assert_eq!(told(&mut source, 1).await, ["connected"]);
    link.cut().await;
    // Long enough for the pauses to have grown as long as they do.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(source.heard.try_recv().is_err());
    link.mend().await;
    let back = Instant::now();
    assert_eq!(told(&mut source, 1).await, ["connected"]);
    assert!(back.elapsed() < Duration::from_millis(500), "{:?}", back.elapsed());
}

/// Messages of a burst: what comes within a quarter of a second at the worst pace, or as many as `WARMPATH_CHAOS_BURST` says.
fn burst() -> u64 {
    std::env::var("WARMPATH_CHAOS_BURST").ok().and_then(|count| count.parse().ok()).unwrap_or(50_000)
}

/// Messages a second, at most.
const BURST_PACE: f64 = 200_000.0;

/// When the last messages of a burst were about to be published, and when they were on their way.
#[derive(Default)]
struct Times {
    ends: OnceLock<Instant>,
    sent: OnceLock<Instant>,
}

/// Publishes a burst.
fn publishes(bus: &NatsBus, tasks: &Tasks) -> Arc<Times> {
    let (bus, times) = (bus.clone(), Arc::<Times>::default());
    let told = Arc::clone(&times);
    tasks.spawn(async move {
        let begun = Instant::now();
        for seq in 0..burst() {
            if seq + 256 >= burst() {
                told.ends.get_or_init(Instant::now);
            }
            bus.publish(LINE, message(1, seq)).unwrap();
            if seq % 256 == 255 || seq + 1 == burst() {
                bus.client().flush().await.unwrap();
                let due = Duration::from_secs_f64(f64::from(u32::try_from(seq).unwrap()) / BURST_PACE);
                tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
            }
        }
        told.sent.set(Instant::now()).unwrap();
    });
    times
}

/// R21: a burst overflows the client's queue. Each stretch that is missing is followed by a later number or by a new
/// `Connected`.
#[tokio::test]
async fn r21_every_message_that_a_burst_drops_is_noticed() {
    let (server, tasks) = (NatsServer::core(), Tasks::new());
    let bus = publisher(&server).await;
    let mut source = follow(&server.url(), 64, 1, &tasks).await;
    assert_eq!(told(&mut source, 1).await, ["connected"]);
    let times = publishes(&bus, &tasks);
    let (mut due, mut missing, mut noticed) = (0, 0, Instant::now());
    // Until it has been silent for a while: the burst is over.
    while let Ok(Some(heard)) = timeout(Duration::from_secs(2), source.heard.recv()).await {
        match heard {
            Heard::Live(message) => {
                let seq = message.seq.unwrap();
                missing += seq - due;
                due = seq + 1;
            }
            Heard::Connected | Heard::Dropped(_) => noticed = Instant::now(),
            _ => panic!("nothing was asked for"),
        }
    }
    assert!(times.sent.get().is_some(), "the burst is over");
    missing += burst() - due;
    assert!(missing > 0, "the burst was too weak to prove anything");
    // What is missing before a later number is seen by that; what is missing at the end has to be told.
    assert!(due == burst() || noticed > *times.ends.get().unwrap(), "what was lost at the end was not told of");
    println!("\nR21: {missing} of {} messages were dropped, and every one was noticed", burst());
}

/// R21, with a stream: nothing stays missing, and it is soon all there. The figure to reach is two seconds after the burst;
/// the queues are the default and the smallest that a configuration may ask for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r21_with_a_stream_a_burst_is_told_whole() {
    for queue in [16_384, 1024] {
        let (server, tasks) = (NatsServer::jetstream(), Tasks::new());
        let bus = publisher(&server).await;
        bus.prepare().await;
        let mut source = follow(&server.url(), queue, queue, &tasks).await;
        assert_eq!(told(&mut source, 1).await, ["connected"]);
        let times = publishes(&bus, &tasks);
        let mut known = BTreeSet::new();
        let mut quiet = Instant::now();
        while known.len() < usize::try_from(burst()).unwrap() {
            if let Heard::Live(message) = next(&mut source).await
                && known.insert(message.seq.unwrap())
            {
                quiet = Instant::now();
            }
            assert!(quiet.elapsed() < Duration::from_secs(20), "{} known", known.len());
        }
        let after = times.sent.get().map_or(Duration::ZERO, Instant::elapsed);
        println!("\nR21: with a stream and room for {queue} messages, {} are known {after:?} after the burst", burst());
    }
}

/// Three chunks, whatever is in it.
struct Three;

impl BlockSet for Three {
    fn apply(&mut self, _: &[CacheEvent]) {}

    fn forget(&mut self) {}

    fn chunks(&self, (position, _): (Position, Began), chunk_bytes: usize) -> Chunks {
        assert_eq!((position.epoch, position.next, chunk_bytes), (Some(1_000_000), 1, 512 << 10));
        Box::new([chunk_bytes, chunk_bytes, 9].into_iter().map(|bytes| vec![1; bytes]))
    }
}

#[tokio::test]
async fn a_bridge_hands_out_its_blocks_chunk_by_chunk() {
    let (server, tasks) = (NatsServer::jetstream(), Tasks::new());
    let (engine, mut feed) = crate::bridge::Played::start().await;
    feed.blocks = Some(Box::new(Three));
    let settings = bridge_settings(engine.address, "m", "w", &server.url());
    let _bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    let mut source = follow(&server.url(), 1024, 1, &tasks).await;
    assert_eq!(told(&mut source, 1).await, ["connected"]);
    source.asks.send(Ask::Snapshot { id: AskId::default() }).await.unwrap();
    assert_eq!(told(&mut source, 1).await, ["snapshot ended"], "there is nothing yet");
    engine.says(Heard::Connected).await;
    engine.batch(1001.0, true).await;
    assert_eq!(told(&mut source, 1).await, ["live 1000000/0"]);
    source.asks.send(Ask::Snapshot { id: AskId::default() }).await.unwrap();
    let chunks = ["chunk of 524288", "chunk of 524288", "chunk of 9", "snapshot ended"];
    assert_eq!(told(&mut source, 4).await, chunks);
}

#[tokio::test]
async fn load_is_told_twice_a_second() {
    let server = NatsServer::core();
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut reports = client.subscribe("warmpath.load.w").await.unwrap();
    client.flush().await.unwrap();
    let (played, feed) = crate::bridge::Played::start().await;
    let settings = bridge_settings(played.address, "m", "w", &server.url());
    let _bridge = Bridge::start(settings, vec![feed]).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        let message = tokio::time::timeout(Duration::from_secs(5), reports.next()).await.unwrap().unwrap();
        let report = LoadReport::read("w", &message.payload).unwrap();
        assert_eq!((report.blocks, report.block_size, report.started_ms), (Some(129), Some(16), Some(1_000_000)));
        assert_eq!((report.ranks.len(), report.ranks[0].running), (1, Some(2.0)));
        told.push(report.at_ms);
    }
    assert!((900..2000).contains(&(told[2] - told[0])), "{told:?}");
}

/// What the bridge came too late for is in none of its snapshots: the router says so, until the engine begins anew.
#[tokio::test]
async fn a_view_that_a_bridge_has_only_the_rest_of_is_cold() {
    for server in [NatsServer::core(), NatsServer::jetstream()] {
        let (engine, mut feed) = Played::start().await;
        let pool = Namespace::plain("m", BlockSize::new(4).unwrap());
        let view = RankView::new("stranger-1", 0, &ViewSettings { pool, seed: DEFAULT_ROOT_SEED, blocks: 0 });
        feed.blocks = Some(Box::new(view));
        let settings = bridge_settings(engine.address, "m", "stranger-1", &server.url());
        let bridge = Bridge::start(settings, vec![feed]).await.unwrap();
        let says = async |seq, first| {
            let payload = batch(Some(0), vec![stored(first, 10)]).into();
            engine.says(Heard::Connected).await;
            engine.says(Heard::Live(Message { payload, seq: Some(seq), epoch: None })).await;
        };
        says(50, 1000).await;
        until_published(&bridge, 1).await;
        let answer = whole("200 OK", r#"{"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}"#);
        let worker = Scripted::start(vec![answer]).await;
        let fleet = fleet().engines(0).nats(server.url()).stranger_with(worker.address, "events: nats").start().await;
        let seen = async |name: &str| fleet.metric(name, "worker=\"stranger-1\"").await;
        let view = async || (seen("warmpath_index_blocks").await, seen("warmpath_kv_view_cold").await);
        fleet.eventually("it has the rest, and is cold", async |_| view().await == (10.0, 1.0)).await;
        engine.restarts(2000.0);
        says(0, 2000).await;
        fleet.eventually("it has all", async |_| view().await == (10.0, 0.0)).await;
    }
}
