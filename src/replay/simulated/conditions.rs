//! What the conditions between clients and engines change, and by how much.

use std::sync::Arc;
use std::time::Duration;

use warmpath_core::policy::PolicyName;
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{EventWay, Reports};
use warmpath_simulator::{Ms, Profile, Timing};

use super::ladder::{BLOCK, conversation, outcome, scenario};
use super::*;
use crate::config::Routing;
use crate::replay::trace::About;

/// A prompt of so many blocks that begins as all others do and of which as many tokens are generated.
fn request(at_ms: u64, blocks: u64, output_length: u32) -> TraceRequest {
    let input_length = u32::try_from(blocks).unwrap() * BLOCK;
    TraceRequest { at_ms, input_length, output_length, hash_ids: (0..blocks).collect(), ..TraceRequest::default() }
}

fn rounded(ms: f64) -> f64 {
    (ms * 1e6).round() / 1e6
}

#[test]
fn an_event_that_leaves_by_itself_is_heard_while_its_step_still_runs() {
    // A step of 1024 ms; the second request comes in the middle of it, 1 ms and some after the first was scheduled.
    let trace = [request(0, 2, 1), request(500, 2, 1)];
    let mut base = scenario(PolicyName::Kv, 2, 100);
    base.engine.timing = Timing::Linear { computed: Ms(1.0), cached: Ms(0.0) };
    base.router.in_flight_credit = Duration::ZERO;
    for (profile, alone, known) in [(Profile::Vllm, BLOCK, BLOCK), (Profile::SglangRadix, 0, 0)] {
        let mut base = base.clone();
        base.engine.profile = profile;
        let predicted = |events| {
            let outcome = outcome(&trace, &Scenario { events, check: true, ..base.clone() });
            outcome.requests[1].predicted_tokens
        };
        assert_eq!(predicted(EventWay::AfterStep(Ms(1.0))), 0, "{profile:?}: the step is not over");
        assert_eq!(predicted(EventWay::Singly(Ms(1.0))), alone, "{profile:?}: SGLang has a page once it is computed");
        assert_eq!(predicted(EventWay::Singly(Ms(499.0))), known, "{profile:?}");
        assert_eq!(predicted(EventWay::Singly(Ms(501.0))), 0, "{profile:?}: still on its way");
    }
}

#[test]
fn sessions_of_a_trace_stay_with_their_workers() {
    let turn = |number: u64, session: Option<&str>| {
        let about = About { session: session.map(str::to_owned), ..About::default() };
        TraceRequest { about: Some(Box::new(about)), ..request(number * 60_000, 2, 1) }
    };
    let workers = |weight: f64, sessions: [Option<&str>; 3]| {
        let mut scenario = Scenario { check: true, ..scenario(PolicyName::RoundRobin, 2, 100) };
        let mut routing = Routing::default();
        routing.sessions.weight = weight.try_into().unwrap();
        scenario.router.routing = Arc::new(routing);
        let trace: Vec<TraceRequest> =
            (0..9).map(|number| turn(number, sessions[usize::try_from(number % 3).unwrap()])).collect();
        outcome(&trace, &scenario).requests.iter().map(|request| request.worker.unwrap()).collect::<Vec<_>>()
    };
    let in_turn = vec![0, 1, 0, 1, 0, 1, 0, 1, 0];
    assert_eq!(workers(0.0, [Some("a"), Some("b"), Some("c")]), in_turn);
    assert_eq!(workers(1.0, [None; 3]), in_turn);
    assert_eq!(workers(1.0, [Some("a"), Some("b"), Some("c")]), [0, 1, 0, 0, 1, 0, 0, 1, 0]);
}

#[test]
fn clients_have_no_more_in_flight_than_there_are_of_them_and_overload_is_hidden() {
    let trace = conversation(300);
    let open = Scenario { speed: 60.0, check: true, ..scenario(PolicyName::Kv, 2, 600) };
    let mut closed = open.clone();
    closed.conditions.clients = Some(6);
    let most = |outcome: &Outcome| {
        let mut changes: Vec<(f64, i32)> = Vec::new();
        for request in &outcome.requests {
            changes.push((request.arrived.0, 1));
            changes.push(((request.arrived + request.e2e).0, -1));
        }
        // Whoever ends makes room before the next is sent.
        changes.sort_by(|one, other| (rounded(one.0), one.1).partial_cmp(&(rounded(other.0), other.1)).unwrap());
        changes
            .iter()
            .scan(0, |now, (_, change)| {
                *now += change;
                Some(*now)
            })
            .max()
            .unwrap()
    };
    let mean = |outcome: &Outcome| outcome.requests.iter().map(|request| request.ttft.0).sum::<f64>() / 300.0;
    let (open, closed) = (outcome(&trace, &open), outcome(&trace, &closed));
    assert!(closed.requests.iter().all(|request| request.completed));
    assert!(most(&closed) == 6 && most(&open) > 60, "{} {}", most(&closed), most(&open));
    assert!(mean(&closed) < mean(&open) / 4.0 && closed.end > open.end, "{} {}", mean(&closed), mean(&open));
    let in_order = closed.requests.windows(2).all(|pair| pair[0].arrived <= pair[1].arrived);
    assert!(in_order, "who waited longest is sent first");
}

#[test]
fn kv_that_travels_makes_every_token_of_a_request_later_by_what_its_prompt_takes() {
    let trace: Vec<_> = (0..20).map(|number| request(number * 50_000, number % 5 + 1, 8)).collect();
    let here = Scenario { check: true, ..scenario(PolicyName::RoundRobin, 1, 100) };
    let mut far = here.clone();
    far.conditions.kv_transfer = Ms(0.003);
    let (here, far) = (outcome(&trace, &here), outcome(&trace, &far));
    for (near, far) in here.requests.iter().zip(&far.requests) {
        let later = rounded(0.003 * f64::from(near.input_tokens));
        assert_eq!(rounded((far.ttft - near.ttft).0), later);
        assert_eq!(rounded((far.e2e - near.e2e).0), later);
        assert_eq!((near.cached_tokens, near.queued), (far.cached_tokens, far.queued));
    }
    let gaps = |outcome: &Outcome| outcome.gaps.iter().map(|(_, gap)| f64::from(*gap)).collect::<Vec<_>>();
    assert!(gaps(&here).iter().zip(gaps(&far)).all(|(near, far)| (near - far).abs() < 1e-3));
}

#[test]
fn what_the_router_misreads_it_foretells_wrongly_and_finds_all_the_same_where_there_is_one_worker() {
    let trace = conversation(200);
    let mut base = Scenario { check: true, speed: 4.0, ..scenario(PolicyName::Kv, 3, 800) };
    let exact = |outcome: &Outcome| {
        let same = outcome.requests.iter().filter(|request| request.predicted_tokens == request.cached_tokens);
        same.count()
    };
    let right = outcome(&trace, &base);
    base.conditions.misread = 0.5;
    let wrong = outcome(&trace, &base);
    assert!(wrong.requests.iter().all(|request| request.completed));
    assert!(exact(&wrong) < exact(&right) - 30, "{} {}", exact(&wrong), exact(&right));
    let wire = outcome(&trace, &Scenario { wire: true, ..base.clone() });
    assert_eq!(wrong, wire, "token ids are misread as blocks are");
    let cached = |outcome: &Outcome| outcome.requests.iter().map(|r| u64::from(r.cached_tokens)).sum::<u64>();
    assert!(cached(&wrong) < cached(&right), "{} {}", cached(&wrong), cached(&right));
    let alone = Scenario { workers: 1, speed: 0.1, ..base };
    let mut read = alone.clone();
    read.conditions.misread = 0.0;
    assert_eq!(cached(&outcome(&trace, &alone)), cached(&outcome(&trace, &read)));
}

#[test]
fn an_answer_that_outlasts_the_trace_by_far_is_looked_at_less_and_less_often() {
    let trace = [request(0, 2, 20_000)];
    let outcome = outcome(&trace, &scenario(PolicyName::Kv, 2, 2000));
    let times: Vec<f64> = outcome.samples.iter().map(|sample| sample.at.0).collect();
    assert!((2_000..=4_097).contains(&times.len()) && times[0].abs() < 1e-9, "{}", times.len());
    let gaps: Vec<f64> = times.windows(2).map(|pair| rounded(pair[1] - pair[0])).collect();
    assert!(gaps.iter().all(|gap| rounded(gap - gaps[0]) == 0.0) && gaps[0] > 1.0, "{gaps:?}");
    assert!(times.last() > Some(&(outcome.end.0 - gaps[0])));
}

#[test]
fn caches_that_do_not_overflow_keep_all_and_then_no_policy_is_better_than_another_for_its_hits() {
    let trace = conversation(250);
    let trials = Trials::new(&trace, BlockSize::new(BLOCK).unwrap(), 0);
    let trial = |policy, overflow| {
        let mut scenario = scenario(policy, 1, 260);
        scenario.conditions.overflow = overflow;
        scenario.speed = 0.05;
        Trial { scenario, without: None }
    };
    let wanted = [trial(PolicyName::Kv, true), trial(PolicyName::Kv, false), trial(PolicyName::RoundRobin, false)];
    let tried = trials.run(&wanted, 1, &|| ()).unwrap();
    let rates: Vec<_> = tried.iter().map(|tried| tried.row.hit_rate.unwrap()).collect();
    let all = reachable::hit_rate(&trace, BLOCK, usize::MAX);
    assert!(rates[0] < all - 0.05 && tried[0].row.reachable_hit_rate < all - 0.05, "{rates:?} {all}");
    assert_eq!((rates[1], rates[2], tried[1].row.reachable_hit_rate), (all, all, all));
}

#[test]
fn chance_makes_steps_longer_or_shorter_the_same_way_for_the_same_seed() {
    let trace = conversation(60);
    let busy = |jitter, seed| {
        let mut scenario = Scenario { seed, ..scenario(PolicyName::RoundRobin, 2, 2000) };
        scenario.engine.realism.jitter = jitter;
        outcome(&trace, &scenario)
    };
    let (still, one) = (busy(0.0, 1), busy(0.2, 1));
    assert_eq!(one, busy(0.2, 1));
    assert_ne!(one, busy(0.2, 2));
    let total = |outcome: &Outcome| outcome.busy.iter().map(|busy| busy.0).sum::<f64>();
    let ratio = total(&one) / total(&still);
    assert!(ratio != 1.0 && (ratio - 1.0).abs() < 0.05, "thousands of steps: {ratio}");
}

#[test]
fn requests_that_warm_the_caches_count_where_that_effect_is_left_out() {
    let trace = conversation(120);
    let trials = Trials::new(&trace, BlockSize::new(BLOCK).unwrap(), 40);
    let whole = scenario(PolicyName::Kv, 2, 500);
    let wanted = [
        Trial { scenario: whole.clone(), without: None },
        Trial { scenario: whole.without(Effect::WarmUp), without: Some(Effect::WarmUp) },
    ];
    let tried = trials.run(&wanted, 1, &|| ()).unwrap();
    assert_eq!([0, 1].map(|at: usize| tried[at].row.requests), [80, 120]);
    assert_eq!(tried[0].outcome, tried[1].outcome, "the same run");
    let rates = [40, 0].map(|warm_up| reachable::hit_rate_after(warm_up, &trace, BLOCK, 1000));
    assert_eq!([0, 1].map(|at: usize| tried[at].row.reachable_hit_rate), rates);
    assert!(tried[1].row.ablation.as_ref().is_some_and(|lost| lost.hit_rate < 0.0), "cold caches hit less");
}

/// A worker that dies gives its requests to others where nothing had been answered yet, and the router believes nothing of
/// what it held: neither before it is back nor after.
#[test]
fn a_worker_that_restarts_loses_its_cache_and_what_it_had_begun_to_answer() {
    let trace = conversation(140);
    for (policy, wire) in [(PolicyName::Kv, true), (PolicyName::Predicted, false)] {
        for reports in [Reports::Never, Reports::Every(Ms(1000.0))] {
            let whole = Scenario { speed: 12.0, check: true, wire, reports, ..scenario(policy, 3, 800) };
            let mut broken = whole.clone();
            broken.conditions.restart = Some(Ms(2_000.0));
            let (whole, broken) = (outcome(&trace, &whole), outcome(&trace, &broken));
            let arrived = |outcome: &Outcome, number: usize| outcome.requests[number].arrived.0;
            let death = (arrived(&broken, 139) - arrived(&broken, 0)) / 2.0;
            let failed = broken.requests.iter().filter(|request| !request.completed).collect::<Vec<_>>();
            assert!(!failed.is_empty() && failed.len() < 60, "{policy}: {}", failed.len());
            for request in &failed {
                let began = request.arrived + request.ttft;
                assert!(request.worker == Some(0) && request.output_tokens > 0 && began.0 <= death, "{request:?}");
            }
            let on_first = |from: f64, to: f64| {
                let there = broken.requests.iter().filter(|request| request.worker == Some(0));
                there.filter(|request| request.arrived.0 > from && request.arrived.0 < to).count()
            };
            assert_eq!(on_first(death, death + 2_000.0), 0, "{policy}: while it is gone");
            assert!(on_first(death + 3_500.0, f64::MAX) > 0, "{policy}: when it is back");
            let cached = |outcome: &Outcome| outcome.requests.iter().map(|r| u64::from(r.cached_tokens)).sum::<u64>();
            assert!(cached(&broken) < cached(&whole), "{policy}: {} {}", cached(&broken), cached(&whole));
        }
    }
}

/// The first worker is slow, and dies half-way through what it answers.
#[test]
fn a_request_that_failed_counts_in_no_time() {
    let trace = [request(0, 1, 2000), request(0, 1, 2000), request(20_000, 1, 2), request(20_000, 1, 2)];
    let mut scenario = Scenario { slow: 50.0, check: true, ..scenario(PolicyName::RoundRobin, 2, 100) };
    scenario.conditions.restart = Some(Ms(1_000.0));
    let trials = Trials::new(&trace, BlockSize::new(BLOCK).unwrap(), 0);
    let row = trials.run(&[Trial { scenario, without: None }], 1, &|| ()).unwrap().remove(0).row;
    assert_eq!((row.requests, row.completed), (4, 3));
    assert!(row.itl_ms.p99 < 10.0, "{:?}", row.itl_ms);
}

#[test]
fn a_fleet_of_one_worker_refuses_what_comes_while_it_is_gone() {
    // Far apart, and long done when the next one comes: at 0, 100, …, 1000 s; the worker is gone from 500 to 650 s.
    let trace: Vec<_> = (0..11).map(|number| request(number * 100_000, 3, 2)).collect();
    let mut alone = Scenario { check: true, ..scenario(PolicyName::Kv, 1, 100) };
    alone.conditions.restart = Some(Ms(150_000.0));
    let outcome = outcome(&trace, &alone);
    let served: Vec<_> = outcome.requests.iter().map(|request| request.completed).collect();
    let cached: Vec<_> = outcome.requests.iter().map(|request| request.cached_tokens / BLOCK).collect();
    assert_eq!(served, [true, true, true, true, true, false, false, true, true, true, true]);
    assert_eq!(cached, [0, 2, 2, 2, 2, 0, 0, 0, 2, 2, 2]);
    let predicted: Vec<_> = outcome.requests.iter().map(|request| request.predicted_tokens / BLOCK).collect();
    assert_eq!(predicted[7..], [0, 2, 2, 2], "the metrics of the new process tell before its events do");
}

/// The first request's events arrive when the metrics of the next process were read; the view stays empty.
#[test]
fn what_a_process_that_is_gone_has_told_is_not_heard_after_the_next_one() {
    let trace = [request(0, 3, 1), request(11_000, 3, 1), request(30_000, 3, 1)];
    let late = EventWay::AfterStep(Ms(16_500.0));
    let mut alone = Scenario { check: true, events: late, ..scenario(PolicyName::Kv, 1, 100) };
    alone.conditions.restart = Some(Ms(200.0));
    let blocks = |outcome: &Outcome, of: fn(&RequestOutcome) -> u32| -> Vec<u32> {
        outcome.requests.iter().map(|request| of(request) / BLOCK).collect()
    };
    for (reports, predicted) in [(Reports::Every(Ms(500.0)), [0, 0, 0]), (Reports::Never, [0, 0, 2])] {
        let outcome = outcome(&trace, &Scenario { reports, ..alone.clone() });
        assert_eq!(blocks(&outcome, |request| request.predicted_tokens), predicted, "{reports:?}");
        assert_eq!(blocks(&outcome, |request| request.cached_tokens), [0, 2, 0], "{reports:?}");
    }
}

/// Its first prompt fills no block, so there was nothing to tell before it died.
#[test]
fn a_process_that_follows_one_that_said_nothing_is_heard_from_its_first_event_on() {
    let trace = [TraceRequest { input_length: BLOCK / 2, ..request(0, 0, 1) }, request(50_000, 3, 1)];
    let mut alone = Scenario { check: true, reports: Reports::Never, ..scenario(PolicyName::Kv, 1, 100) };
    alone.conditions.restart = Some(Ms(1_000.0));
    let outcome = outcome(&trace, &alone);
    assert!(outcome.requests.iter().all(|request| request.completed));
}

#[test]
fn who_is_not_told_how_much_is_generated_goes_by_a_guess() {
    let trace = conversation(200);
    let worker = |policy, output_known| {
        let mut scenario = Scenario { speed: 12.0, ..scenario(policy, 4, 800) };
        scenario.conditions.output_known = output_known;
        outcome(&trace, &scenario).requests.iter().map(|request| request.worker).collect::<Vec<_>>()
    };
    assert_ne!(worker(PolicyName::Preble, true), worker(PolicyName::Preble, false));
    for policy in PolicyName::ALL.into_iter().filter(|policy| *policy != PolicyName::Preble) {
        assert_eq!(worker(policy, true), worker(policy, false), "{policy} never asks");
    }
}

#[test]
fn routers_that_know_of_each_other_by_metrics_alone_share_a_fleet() {
    let trace = conversation(200);
    for policy in [PolicyName::Kv, PolicyName::Predicted, PolicyName::LeastRequests] {
        let of = |routers| {
            let mut scenario = Scenario { speed: 12.0, check: true, ..scenario(policy, 4, 800) };
            scenario.conditions.routers = routers;
            outcome(&trace, &scenario)
        };
        let [one, two] = [1, 2].map(of);
        assert!(two.requests.iter().all(|request| request.completed), "{policy}");
        let workers = |outcome: &Outcome| outcome.requests.iter().map(|request| request.worker).collect::<Vec<_>>();
        assert_ne!(workers(&one), workers(&two), "{policy}");
        assert_eq!(workers(&two), workers(&of(2)), "{policy}");
    }
}
