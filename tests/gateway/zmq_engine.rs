//! A gateway that reads a simulated engine over ZeroMQ.

use std::net::SocketAddr;
use std::time::Duration;

use warmpath::events::Message;
use warmpath::events::publish::Bus;
use warmpath::events::publish::faults::EventFaults;
use warmpath::events::publish::zmq::ZmqPublisher;
use warmpath::mock_engine::{MockEngine, MockSettings};
use warmpath::shutdown::Tasks;
use warmpath_core::units::BlockSize;
use warmpath_indexer::codec::encode::{Form, HashForm, encode};
use warmpath_indexer::event::EventBatch;
use warmpath_simulator::EngineConfig;

use crate::by_hand::stored;
use crate::fleet::{TestFleet, fleet};
use crate::scripted::{Scripted, good_stream};
use crate::zmq::{outlet, until};

/// A simulated engine that publishes over ZeroMQ.
pub(crate) struct Speaking {
    pub(crate) address: SocketAddr,
    /// What a worker's description says of it.
    pub(crate) settings: String,
    publisher: ZmqPublisher,
    tasks: Tasks,
}

impl Speaking {
    pub(crate) async fn start() -> Self {
        let tasks = Tasks::new();
        let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
        let settings = MockSettings {
            listen: "127.0.0.1:0".parse().unwrap(),
            worker: "e".to_owned(),
            model: "m".to_owned(),
            engine: EngineConfig {
                block_size: BlockSize::new(4).unwrap(),
                blocks: 1001,
                timing: "linear:0.01,0.001".parse().unwrap(),
                vocabulary: 97..123,
                ..EngineConfig::default()
            },
            ranks: vec![Bus::Zmq(publisher.clone())],
            form: Form::Array,
            hashes: HashForm::Bytes,
            faults: EventFaults::default(),
            speedup: 1.0,
            tokenizer: None,
        };
        let address = MockEngine::start(settings, &tasks).await.unwrap().address;
        let settings =
            format!("events: zmq, zmq_endpoint: '{}', capacity_blocks: 1000", publisher.events.clone().unwrap());
        Self { address, settings, publisher, tasks }
    }
}

/// Its times say nothing, but its numbers do: all that it has said ends before what was applied does.
#[tokio::test]
async fn r24_an_engine_that_starts_anew_with_its_clock_set_back_leaves_nothing_behind() {
    let tasks = Tasks::new();
    let publisher = ZmqPublisher::start(outlet(), &tasks).await.unwrap();
    let engine = Scripted::start(good_stream()).await;
    let [events, replay] = [&publisher.events, &publisher.replay].map(|at| at.clone().unwrap());
    let settings = format!("events: zmq, zmq_endpoint: '{events}', zmq_replay: '{replay}', capacity_blocks: 1000");
    let fleet = fleet().engines(0).stranger_with(engine.address, &settings).start().await;
    let says = |seq: u32, ts: u32| {
        let events = vec![stored(1000 * ts + 100 * seq, 2)];
        let batch = EventBatch { ts: Some(f64::from(ts + seq)), dp_rank: None, events, ..EventBatch::default() };
        let payload = encode(&batch, Form::Map, HashForm::Int).unwrap().into();
        let message = Message { payload, seq: Some(seq.into()), epoch: None };
        publisher.keep(message.clone());
        publisher.send(message);
    };
    (0..9).for_each(|seq| says(seq, 1000));
    fleet.until_metric("warmpath_index_blocks", "stranger-1", 18.0).await;
    publisher.restart();
    (0..3).for_each(|seq| says(seq, 10));
    fleet.until_metric("warmpath_kv_event_restarts_total", "stranger-1", 1.0).await;
    let holds =
        async |fleet: &TestFleet, blocks: f64| fleet.metric("warmpath_index_blocks", "stranger-1").await == blocks;
    fleet.eventually("it is known by its new blocks", async |fleet| holds(fleet, 6.0).await).await;
    says(3, 10);
    fleet.eventually("it is followed", async |fleet| holds(fleet, 8.0).await).await;
}

/// The whole way: an engine's sockets, a configuration, a gateway, and an engine that starts anew (R24).
#[tokio::test]
async fn a_gateway_follows_an_engine_over_zeromq() {
    let Speaking { address, settings, publisher, tasks } = Speaking::start().await;
    let fleet = fleet().engines(0).stranger_with(address, &settings).start().await;
    let tokens = |family: u32| (family * 1000..family * 1000 + 40).collect::<Vec<_>>().into();
    let first = fleet.complete(tokens(1)).await;
    assert_eq!((first.status, first.predicted, first.cached()), (200, Some(0), 0));
    fleet.until_metric("warmpath_index_blocks", "stranger-1", 10.0).await;
    let again = fleet.complete(tokens(1)).await;
    assert_eq!((again.predicted, again.cached()), (Some(36), 36));
    let restart = fleet.client.post(format!("http://{address}/restart")).send().await.unwrap();
    assert_eq!(restart.status(), 200);
    until("the gateway is back", || publisher.subscribers() == 1).await;
    fleet.complete(tokens(2)).await;
    fleet.until_metric("warmpath_kv_event_restarts_total", "stranger-1", 1.0).await;
    let again = fleet.complete(tokens(1)).await;
    assert_eq!((again.predicted, again.cached()), (Some(0), 0));
    tasks.drain(Duration::ZERO).await;
    fleet
        .eventually("the loss is told", async |fleet| {
            let degraded = fleet.health().await["degraded"].to_string();
            degraded.contains("events of stranger-1 are not connected (tcp://127.0.0.1:")
        })
        .await;
    assert_eq!(fleet.metric("warmpath_event_bus_up", "").await, 0.0);
}
