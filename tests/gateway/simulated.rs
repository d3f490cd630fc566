//! What the simulator says of a trace, against what real routers and engines make of it.

use std::time::Duration;

use warmpath::config::Config;
use warmpath::demo::{self, DemoOptions};
use warmpath::replay::simulated::{Trial, Trials};
use warmpath::sim::fleet::{EventWay, Reports, RouterSettings, Scenario};
use warmpath::sim::{EngineConfig, Ms};
use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;

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
        router: RouterSettings::new(policy, &Config::default()),
        workers: u16::try_from(options.workers).unwrap(),
        engine: EngineConfig { block_size, blocks: options.cache_blocks + 1, ..EngineConfig::default() },
        shared_pages: 0,
        speed: options.speed,
        seed: options.seed,
        events: EventWay::AfterStep(Ms(1.0)),
        reports: Reports::Every(Ms(1000.0)),
        wire: false,
        check: false,
    };
    let trials: Vec<Trial> =
        policies.into_iter().map(|policy| Trial { scenario: scenario(policy), without: None }).collect();
    let simulated = Trials::new(&trace, block_size, 0).run(&trials, 1, &|| ()).unwrap();
    for (real, simulated) in measured.0.iter().zip(&simulated) {
        let virtual_row = &simulated.row;
        assert_eq!((real.completed, virtual_row.completed), (300, 300), "{}", real.policy);
        assert_eq!(real.input_tokens, virtual_row.input_tokens, "{}", real.policy);
        let apart = (real.hit_rate - virtual_row.hit_rate).abs();
        assert!(
            apart <= 0.01,
            "{}: {} over HTTP, {} in virtual time",
            real.policy,
            real.hit_rate,
            virtual_row.hit_rate
        );
    }
    assert!(simulated[1].row.hit_rate > simulated[0].row.hit_rate + 0.02, "the policies are told apart");
}
