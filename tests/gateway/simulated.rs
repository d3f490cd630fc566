//! What the simulator says of a trace, against what real routers and engines make of it.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use warmpath::config::Config;
use warmpath::demo::{self, DemoOptions};
use warmpath::replay::simulated::{Trial, Trials, Tried};
use warmpath::replay::trace::TraceRequest;
use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Conditions, EventWay, Reports, Scenario};
use warmpath_simulator::{EngineConfig, Ms};

/// Orders that are tried.
const ORDERS: u64 = 40;

/// Tokens in a block of the demo's engines.
const BLOCK: u32 = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_hits_over_http_what_it_hits_in_virtual_time() {
    let policies = vec![PolicyName::RoundRobin, PolicyName::Kv];
    // So few blocks that much is evicted, and so many requests that they do not follow one another.
    let options = DemoOptions {
        requests: Some(300),
        cache_blocks: 1500,
        scale: 32,
        speed: 300.0,
        policies: policies.clone(),
        progress: false,
        ..DemoOptions::default()
    };
    let measured = tokio::time::timeout(Duration::from_secs(120), demo::run(&options)).await.unwrap().unwrap();
    if let Some(fleet) = measured.1 {
        fleet.stop().await;
    }
    let trace: Vec<_> =
        demo::slice(&options).unwrap().iter().map(|request| request.split(options.scale / BLOCK)).collect();
    let block_size = BlockSize::new(BLOCK).unwrap();
    let scenario = |policy| Scenario {
        router: Config::default().simulated(policy),
        workers: u16::try_from(options.workers).unwrap(),
        engine: EngineConfig { block_size, blocks: options.cache_blocks + 1, ..EngineConfig::default() },
        shared_pages: 0,
        speed: options.speed,
        seed: options.seed,
        events: EventWay::AfterStep(Ms(1.0)),
        slow: 1.0,
        reports: Reports::Every(Ms(1000.0)),
        conditions: Conditions::default(),
        wire: false,
        check: false,
        explained: Vec::new(),
    };
    let trials: Vec<Trial> =
        policies.into_iter().map(|policy| Trial { scenario: scenario(policy), without: None }).collect();
    // The trace leaves open in which order requests of one moment come, and so does HTTP.
    let orders = (0..ORDERS).map(|seed| {
        let trace = in_some_order(&trace, seed);
        Trials::new(&trace, block_size, 0).run(&trials, 1, &|| ()).unwrap()
    });
    let orders: Vec<_> = orders.collect();
    for (place, real) in measured.0.iter().enumerate() {
        let rows: Vec<_> = orders.iter().map(|order| &order[place].row).collect();
        assert_eq!((real.completed, rows[0].completed), (300, 300), "{}", real.policy);
        assert_eq!(real.input_tokens, rows[0].input_tokens, "{}", real.policy);
        let rates = || rows.iter().map(|row| row.hit_rate.unwrap());
        let (least, most, measured) =
            (rates().fold(1.0, f64::min), rates().fold(0.0, f64::max), real.hit_rate.unwrap());
        assert!(
            (least - 0.01..=most + 0.01).contains(&measured),
            "{}: {measured} over HTTP, {least} to {most} in virtual time",
            real.policy,
        );
        println!("{}: {measured} over HTTP, {least} to {most} in virtual time", real.policy);
    }
    let apart = |order: &Vec<Tried>| order[1].row.hit_rate.unwrap() > order[0].row.hit_rate.unwrap() + 0.02;
    assert!(orders.iter().all(apart), "the policies are told apart");
}

/// The trace with requests of one moment in another order.
fn in_some_order(trace: &[TraceRequest], seed: u64) -> Vec<TraceRequest> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut trace = trace.to_vec();
    for moment in trace.chunk_by_mut(|one, other| one.at_ms == other.at_ms) {
        moment.shuffle(&mut rng);
    }
    trace
}
