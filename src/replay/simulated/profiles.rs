//! What must hold of fleets of every engine, with and without tiers below its cache.

use std::sync::Arc;

use warmpath_core::policy::PolicyName;
use warmpath_simulator::tiers::{Eviction, PrefetchPolicy, Tiers, WritePolicy};
use warmpath_simulator::{Ms, Profile};

use super::ladder::{BLOCK, conversation, outcome, scenario};
use super::*;
use crate::config::Routing;

const PROFILES: [Profile; 3] = [Profile::Vllm, Profile::Nano, Profile::SglangRadix];

fn of(profile: Profile, policy: PolicyName, workers: u16, cache_blocks: u32) -> Scenario {
    let mut scenario = scenario(policy, workers, cache_blocks);
    scenario.engine.profile = profile;
    if profile != Profile::Vllm {
        (scenario.engine.null_block, scenario.engine.blocks) = (false, cache_blocks);
    }
    scenario
}

/// With host memory for so many blocks, and storage that all share for so many.
fn above(host_pages: u32, shared_pages: u32, change: impl FnOnce(&mut Tiers), scenario: Scenario) -> Scenario {
    let mut tiers = Tiers { host_pages, kv_bytes: 1000.0, ..Tiers::default() };
    change(&mut tiers);
    let mut scenario = Scenario { shared_pages, ..scenario };
    scenario.engine.tiers = Some(tiers);
    scenario
}

/// Input, cached and promised tokens.
fn tokens(outcome: &Outcome) -> [u64; 3] {
    let sum = |tokens: fn(&RequestOutcome) -> u32| outcome.requests.iter().map(|r| u64::from(tokens(r))).sum();
    [sum(|r| r.input_tokens), sum(|r| r.cached_tokens), sum(|r| r.predicted_tokens)]
}

#[test]
fn all_that_must_hold_holds_for_every_engine() {
    let trace = conversation(60);
    for profile in PROFILES {
        for policy in [PolicyName::Kv, PolicyName::RoundRobin, PolicyName::Preble, PolicyName::ApproxTree] {
            let scenario = Scenario { check: true, speed: 20.0, ..of(profile, policy, 3, 260) };
            let outcome = outcome(&trace, &scenario);
            assert!(outcome.requests.iter().all(|request| request.completed), "{profile:?} {policy}");
        }
    }
}

#[test]
fn all_that_must_hold_holds_with_every_tier_below() {
    let trace = conversation(60);
    let writes = [WritePolicy::WriteThrough, WritePolicy::Selective { uses: 2 }, WritePolicy::WriteBack];
    for profile in [Profile::Vllm, Profile::SglangRadix] {
        for eviction in [Eviction::Lru, Eviction::Lfu, Eviction::RandomLru] {
            for (write, shared_pages) in writes.into_iter().zip([0, 400, 4000]) {
                let base = of(profile, PolicyName::Kv, 3, 260);
                let change = |tiers: &mut Tiers| {
                    (tiers.write, tiers.prefetch, tiers.eviction) = (write, PrefetchPolicy::WaitComplete, eviction);
                    (tiers.ranks, tiers.slow_rank) = (2, 1.5);
                };
                let scenario = Scenario { check: true, speed: 20.0, ..above(400, shared_pages, change, base) };
                let outcome = outcome(&trace, &scenario);
                assert!(outcome.requests.iter().all(|request| request.completed), "{profile:?} {write} {eviction}");
            }
        }
    }
}

#[test]
fn with_room_for_all_every_engine_hits_all_that_can_be_hit_and_that_is_foretold() {
    let mut trace = conversation(150);
    (0_u64..).zip(&mut trace).for_each(|(number, request)| request.at_ms = number * 1_000_000);
    let reachable = reachable::hit_rate(&trace, BLOCK, usize::MAX);
    for profile in PROFILES {
        let outcome = outcome(&trace, &of(profile, PolicyName::Kv, 1, 30_000));
        let [input, cached, promised] = tokens(&outcome);
        assert_eq!((real(cached) / real(input), cached), (reachable, promised), "{profile:?}");
    }
}

/// One cache after the other gives its blocks to the tier below: what a small device and a large host find is what a large
/// device finds, and the router knows of it.
#[test]
fn what_the_host_keeps_is_found_and_foretold() {
    let mut trace = conversation(300);
    (0_u64..).zip(&mut trace).for_each(|(number, request)| request.at_ms = number * 1_000_000);
    for profile in [Profile::Vllm, Profile::SglangRadix] {
        let base = || of(profile, PolicyName::Kv, 1, 300);
        let [_, small, _] = tokens(&outcome(&trace, &base()));
        let [_, large, _] = tokens(&outcome(&trace, &of(profile, PolicyName::Kv, 1, 50_000)));
        let mut with_host = above(50_000, 0, |_| (), base());
        // A block is worth what it is worth on the device, so that promises can be compared with what is found.
        let whole = serde_json::json!({ "device": 1.0, "host": 1.0, "disk": 1.0, "external": 1.0 });
        let tiers = serde_json::from_value(whole).unwrap();
        with_host.router.routing = Arc::new(Routing { tiers, ..Routing::default() });
        let [_, found, promised] = tokens(&outcome(&trace, &with_host));
        assert!(small < large, "{profile:?}");
        assert_eq!((found, promised), (large, large), "{profile:?}");
    }
}

#[test]
fn storage_that_all_share_gives_to_one_worker_what_another_computed() {
    let trace = conversation(200);
    let hits = |shared_pages| {
        let base = of(Profile::SglangRadix, PolicyName::RoundRobin, 4, 1000);
        let change = |tiers: &mut Tiers| tiers.prefetch = PrefetchPolicy::WaitComplete;
        let [input, cached, _] = tokens(&outcome(&trace, &above(2000, shared_pages, change, base)));
        real(cached) / real(input)
    };
    let (alone, shared) = (hits(0), hits(100_000));
    let reachable = reachable::hit_rate(&trace, BLOCK, usize::MAX);
    assert!(
        shared > alone + 0.05 && shared <= reachable,
        "{alone} alone, {shared} with storage, {reachable} reachable"
    );
}

#[test]
fn bytes_and_token_ids_change_nothing_for_any_engine_and_tier() {
    let trace = conversation(80);
    for profile in PROFILES {
        let base = Scenario { speed: 8.0, ..of(profile, PolicyName::Kv, 3, 400) };
        let plain = if profile == Profile::Nano { base } else { above(600, 2000, |_| (), base) };
        let wire = Scenario { wire: true, ..plain.clone() };
        assert_eq!(outcome(&trace, &plain), outcome(&trace, &wire), "{profile:?}");
    }
}

#[test]
fn storage_without_host_memory_or_without_end_is_refused() {
    let trace = conversation(5);
    let prepared = prepare(&trace, scenario(PolicyName::Kv, 1, 100).engine.block_size);
    let refused = |scenario: &Scenario| run(&prepared, scenario, &|| ()).unwrap_err().to_string();
    let alone = Scenario { shared_pages: 5, ..scenario(PolicyName::Kv, 1, 100) };
    assert_eq!(refused(&alone), "a fleet shares at most 16777216 pages of storage, below host memory, got 5");
    let endless = above(10, u32::MAX, |_| (), scenario(PolicyName::Kv, 1, 100));
    assert!(refused(&endless).ends_with("got 4294967295"));
    let nano = above(10, 0, |tiers| tiers.network.latency = Ms(1.0), of(Profile::Nano, PolicyName::Kv, 1, 100));
    assert_eq!(refused(&nano), "the engines cannot be set up");
}

/// The experiment of the tiers' authors: hit rate, time to first token and requests a second with tiers and without. At more
/// than the fleet can bear, what is found below saves prefill, and more is served.
#[test]
fn tiers_raise_the_hit_rate_lower_the_time_to_first_token_and_serve_more() {
    let trace = conversation(300);
    let trials = Trials::new(&trace, warmpath_core::units::BlockSize::new(BLOCK).unwrap(), 0);
    let change = |tiers: &mut Tiers| tiers.prefetch = PrefetchPolicy::WaitComplete;
    let with =
        Scenario { speed: 100.0, ..above(3000, 30_000, change, of(Profile::Vllm, PolicyName::RoundRobin, 4, 400)) };
    let without = Trial { scenario: with.clone().without(Effect::Tiers), without: Some(Effect::Tiers) };
    let tried = trials.run(&[Trial { scenario: with, without: None }, without], 1, &|| ()).unwrap();
    let lost = tried[1].row.ablation.as_ref().unwrap();
    assert!(lost.hit_rate < -0.1 && lost.ttft_mean_ms > 0.0 && lost.requests_per_s < 0.0, "{lost:?}");
}
