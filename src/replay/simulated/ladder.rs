//! Steps by which simulated figures earn belief: what must hold by construction, what theory says, and what no estimated
//! constant may change.

use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Conditions, EventWay, Reports};
use warmpath_simulator::timing::Roofline;
use warmpath_simulator::{EngineConfig, Ms, Tiers, Timing};

use super::*;
use crate::config::Config;
use crate::replay::trace;

pub(super) const BLOCK: u32 = 512;

/// The first requests of the bundled slice of the conversation trace, which begins anew where it is too short.
pub(super) fn conversation(requests: usize) -> Vec<TraceRequest> {
    let slice = trace::read(include_bytes!("../../demo/conversation-slice.jsonl.gz")).unwrap();
    let span = slice.last().unwrap().at_ms;
    let rounds = (0_u64..).flat_map(|round| slice.iter().map(move |request| (round * span, request)));
    let shifted = rounds.map(|(later, request)| TraceRequest { at_ms: request.at_ms + later, ..request.clone() });
    shifted.take(requests).collect()
}

pub(super) fn scenario(policy: PolicyName, workers: u16, cache_blocks: u32) -> Scenario {
    Scenario {
        router: Config::default().simulated(policy),
        workers,
        engine: EngineConfig {
            block_size: BlockSize::new(BLOCK).unwrap(),
            blocks: cache_blocks + 1,
            max_num_seqs: 256,
            timing: Timing::Polynomial,
            ..EngineConfig::default()
        },
        shared_pages: 0,
        speed: 1.0,
        seed: 1,
        events: EventWay::AfterStep(Ms(1.0)),
        slow: 1.0,
        reports: Reports::Every(Ms(1000.0)),
        conditions: Conditions::default(),
        wire: false,
        check: false,
        explained: Vec::new(),
    }
}

pub(super) fn outcome(trace: &[TraceRequest], scenario: &Scenario) -> Outcome {
    let prepared = prepare(trace, scenario.engine.block_size);
    run(&prepared, scenario, &|| ()).unwrap()
}

#[test]
fn all_that_must_hold_holds_after_every_step_under_every_policy() {
    let trace = conversation(60);
    for policy in PolicyName::ALL {
        // Speed and size make requests wait, blocks go, and running requests give way.
        let scenario = Scenario { check: true, speed: 20.0, ..scenario(policy, 3, 260) };
        let outcome = outcome(&trace, &scenario);
        assert!(outcome.requests.iter().all(|request| request.completed), "{policy}");
        for (request, asked) in outcome.requests.iter().zip(&trace) {
            assert_eq!((request.input_tokens, request.output_tokens), (asked.input_length, asked.output_length.max(1)));
        }
    }
}

#[test]
fn equal_scenarios_give_equal_outcomes_and_another_seed_another() {
    let trace = conversation(200);
    for policy in PolicyName::ALL {
        let scenario = Scenario { speed: 4.0, ..scenario(policy, 4, 512) };
        assert_eq!(outcome(&trace, &scenario), outcome(&trace, &scenario), "{policy}");
    }
    let [one, two] = [1, 2].map(|seed| outcome(&trace, &Scenario { seed, ..scenario(PolicyName::Random, 4, 512) }));
    assert_ne!(one, two);
}

#[test]
fn bytes_and_token_ids_give_the_same_outcome_as_batches_and_hashes() {
    let trace = conversation(1000);
    for policy in [PolicyName::Kv, PolicyName::RoundRobin, PolicyName::ApproxLru] {
        let plain = Scenario { speed: 8.0, ..scenario(policy, 4, 1024) };
        let wire = Scenario { wire: true, ..plain.clone() };
        assert_eq!(outcome(&trace, &plain), outcome(&trace, &wire), "{policy}");
    }
}

#[test]
fn what_the_first_request_generates_is_no_block_of_a_later_prompt() {
    // Its first block is full with its fourth token; the later prompt begins with the block whose id is 4.
    let asked = |at_ms, input_length, output_length, ids: &[u64]| TraceRequest {
        at_ms,
        input_length,
        output_length,
        hash_ids: ids.to_vec(),
        ..TraceRequest::default()
    };
    let trace = [asked(0, 3, 4, &[4]), asked(900, 9, 1, &[4, 5, 16])];
    let mut scenario = scenario(PolicyName::Kv, 1, 100);
    scenario.engine.block_size = BlockSize::new(4).unwrap();
    for wire in [false, true] {
        let outcome = outcome(&trace, &Scenario { wire, ..scenario.clone() });
        assert_eq!(outcome.requests[1].cached_tokens, 0, "wire: {wire}");
    }
}

#[test]
fn requests_that_can_never_run_are_refused_and_the_others_go_on() {
    let mut trace = conversation(20);
    trace[7].input_length = 64 * BLOCK;
    trace.iter_mut().for_each(|request| request.input_length = request.input_length.min(64 * BLOCK));
    let outcome = outcome(&trace, &scenario(PolicyName::Kv, 2, 40));
    assert!(!outcome.requests[7].completed);
    let longest = 40 * BLOCK;
    for request in &outcome.requests {
        assert_eq!(request.completed, request.input_tokens <= longest);
    }
}

/// Prompts of whole blocks that end in a block of their own, one after the other, with nothing of their output cached: what
/// one least-recently-used cache sees. Else partly filled blocks and second copies take room for which it has no name.
#[test]
fn one_worker_is_one_least_recently_used_cache() {
    let mut trace = conversation(700);
    for (number, request) in (0_u64..).zip(&mut trace) {
        request.input_length -= request.input_length % BLOCK;
        request.hash_ids.truncate(usize::try_from(request.input_length / BLOCK).unwrap());
        *request = TraceRequest { at_ms: number * 1_000_000, output_length: 1, ..request.clone() };
        if let Some(last) = request.hash_ids.last_mut() {
            *last = u64::MAX - number;
        }
    }
    trace.retain(|request| request.input_length > 0);
    let longest = trace.iter().map(|request| request.hash_ids.len()).max().unwrap();
    let first = u32::try_from(longest).unwrap();
    for capacity in [first, 400, 1000, 2500, 6000, 20_000] {
        let outcome = outcome(&trace, &scenario(PolicyName::RoundRobin, 1, capacity));
        assert!(outcome.requests.iter().all(|request| request.completed));
        let sum =
            |tokens: fn(&RequestOutcome) -> u32| outcome.requests.iter().map(|r| u64::from(tokens(r))).sum::<u64>();
        let rate = real(sum(|request| request.cached_tokens)) / real(sum(|request| request.input_tokens));
        let expected = reachable::hit_rate(&trace, BLOCK, usize::try_from(capacity).unwrap());
        assert_eq!(rate, expected, "{capacity} blocks");
    }
}

#[test]
fn with_room_for_all_one_worker_hits_all_that_can_be_hit() {
    let mut trace = conversation(700);
    (0_u64..).zip(&mut trace).for_each(|(number, request)| request.at_ms = number * 1_000_000);
    let outcome = outcome(&trace, &scenario(PolicyName::Kv, 1, 100_000));
    let sum = |tokens: fn(&RequestOutcome) -> u32| outcome.requests.iter().map(|r| u64::from(tokens(r))).sum::<u64>();
    let rate = real(sum(|request| request.cached_tokens)) / real(sum(|request| request.input_tokens));
    assert_eq!(rate, reachable::hit_rate(&trace, BLOCK, 100_000));
    assert_eq!(sum(|request| request.cached_tokens), sum(|request| request.predicted_tokens));
}

/// Requests of one size that come by chance, each alone in its step: a queue with one server and constant service, whose
/// mean wait is ρ / (2μ(1 − ρ)).
#[test]
fn the_wait_at_one_worker_is_that_of_queueing_theory() {
    let service = 10.0;
    for load in [0.5, 0.8] {
        let mut at = 0.0_f64;
        let mut trace = Vec::new();
        for number in 0..400_000_u64 {
            let chance = (xxhash_rust::xxh3::xxh3_64_with_seed(&number.to_le_bytes(), 7) >> 11) + 1;
            at -= (real(chance) / real(1 << 53)).ln() * service / load;
            #[expect(clippy::as_conversions, reason = "nanoseconds of a positive time")]
            let at_ms = (at * 1000.0) as u64;
            trace.push(TraceRequest {
                at_ms,
                input_length: 10,
                output_length: 1,
                hash_ids: vec![number],
                ..TraceRequest::default()
            });
        }
        let mut scenario = scenario(PolicyName::RoundRobin, 1, 64);
        scenario.engine.prefix_caching = false;
        scenario.engine.max_num_seqs = 1;
        scenario.engine.timing = Timing::Linear { computed: Ms(service / 10.0), cached: Ms(0.0) };
        // The trace counts in thousandths of what it says.
        scenario.speed = 1000.0;
        let outcome = outcome(&trace, &scenario);
        let waits: f64 = outcome.requests.iter().map(|request| request.ttft.0 - service).sum();
        let mean = waits / real_len(outcome.requests.len());
        let expected = load * service / (2.0 * (1.0 - load));
        assert!((mean / expected - 1.0).abs() < 0.02, "load {load}: {mean} ms, expected {expected} ms");
    }
}

/// The constants of a timing model are estimates: a ranking of policies that hangs on them is none.
#[test]
fn rankings_of_policies_survive_other_constants() {
    let trace = conversation(900);
    // Not `random`: whether it is worse than `round_robin` hangs on the constants indeed.
    let policies = [PolicyName::Kv, PolicyName::LeastRequests, PolicyName::RoundRobin];
    let base = Roofline::PRESETS[0];
    let hardware = |change: fn(&mut Roofline, f64)| {
        [0.7, 1.3].map(|factor| {
            let mut hardware = base;
            change(&mut hardware, factor);
            hardware
        })
    };
    let mut worlds = vec![base];
    worlds.extend(hardware(|hardware, factor| hardware.mfu *= factor));
    worlds.extend(hardware(|hardware, factor| hardware.mbu *= factor));
    worlds.extend(hardware(|hardware, factor| hardware.overhead.0 *= factor));
    let prepared = prepare(&trace, BlockSize::new(BLOCK).unwrap());
    let ranking = |hardware: &Roofline| {
        let mut means = policies.map(|policy| {
            let mut scenario = Scenario { speed: 40.0, ..scenario(policy, 4, 1024) };
            scenario.engine.timing = Timing::Roofline(*hardware);
            let outcome = run(&prepared, &scenario, &|| ()).unwrap();
            (outcome.requests.iter().map(|request| request.ttft.0).sum::<f64>(), policy)
        });
        means.sort_by(|one, other| one.0.total_cmp(&other.0));
        means.map(|(_, policy)| policy)
    };
    let rankings: Vec<_> = worlds.iter().map(ranking).collect();
    assert!(rankings.iter().all(|ranking| *ranking == rankings[0]), "{rankings:?}");
    assert_eq!(rankings[0], policies);
}

/// Four effects change nothing here: the names of a trace's blocks are never those of generated ones, a second copy is found
/// only after the first was evicted, who counts is a matter of the row, and there are no tiers: below them, whether a block was
/// evicted a step ago matters little.
#[test]
fn every_effect_that_is_left_out_changes_something() {
    let mut trace = conversation(400);
    for request in &mut trace {
        request.input_length = request.input_length.next_multiple_of(BLOCK);
    }
    // Prompts that come again at once, to the last token.
    for number in (2..trace.len()).step_by(3) {
        trace[number] = TraceRequest { at_ms: trace[number].at_ms, ..trace[number - 1].clone() };
    }
    let mut whole = Scenario { speed: 30.0, ..scenario(PolicyName::Kv, 2, 300) };
    whole.engine.timing = Timing::default();
    whole.engine.realism.jitter = 0.1;
    whole.conditions = Conditions { kv_transfer: Ms(0.003), misread: 0.1, ..Conditions::default() };
    let mut tiered = whole.clone();
    tiered.engine.tiers = Some(Tiers::default());
    assert!(Effect::ALL.into_iter().all(|effect| tiered.has(effect) && !tiered.clone().without(effect).has(effect)));
    let with_all = outcome(&trace, &whole);
    let same: Vec<Effect> = Effect::ALL
        .into_iter()
        .filter(|effect| {
            let left_out = outcome(&trace, &whole.clone().without(*effect));
            assert!(left_out.requests.iter().all(|request| request.completed), "{effect}");
            left_out == with_all
        })
        .collect();
    assert_eq!(same, [Effect::Duplicates, Effect::OutputBlocks, Effect::WarmUp, Effect::Tiers]);
}

#[test]
fn trials_side_by_side_give_the_rows_that_they_give_alone() {
    let trace = conversation(150);
    let trials = Trials::new(&trace, BlockSize::new(BLOCK).unwrap(), 15);
    let trial = |policy, without: Option<Effect>| {
        let scenario = scenario(policy, 4, 512);
        let scenario = without.iter().fold(scenario, |scenario, effect| scenario.without(*effect));
        Trial { scenario, without }
    };
    let wanted =
        [trial(PolicyName::Kv, None), trial(PolicyName::Kv, Some(Effect::LastToken)), trial(PolicyName::Random, None)];
    let figures = |threads| {
        let mut tried = trials.run(&wanted, threads, &|| ()).unwrap();
        tried.iter_mut().for_each(|tried| tried.row.wall_s = 0.0);
        serde_json::to_string(&tried.iter().map(|tried| &tried.row).collect::<Vec<_>>()).unwrap()
    };
    assert_eq!(figures(1), figures(3));
    let tried = trials.run(&wanted, 1, &|| ()).unwrap();
    let lost = tried[1].row.ablation.clone().unwrap();
    assert_eq!((lost.without.as_str(), tried[0].row.requests), ("last-token", 135));
    let rates = [0, 1].map(|at: usize| tried[at].row.hit_rate.unwrap());
    assert!((lost.hit_rate - (rates[1] - rates[0])).abs() < 1e-12);
    let lines = csv(&tried);
    assert_eq!(lines.lines().count(), 1 + 3 * 150);
    assert!(lines.lines().nth(1).unwrap().starts_with("kv,4,1,,1,0,1,true,"), "{:?}", lines.lines().nth(1));
}
