//! Workers that hang, flap, refuse or die of what they are sent: who is taken out, who is not, and what clients hear.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos::{Saw, ask, before, load};
use crate::faulty::{Act, Faulty, beginning, refusal, stream};
use crate::fleet::{Answered, TestFleet};
use crate::retries::retries;

async fn good() -> Faulty {
    Faulty::start(|_, _| stream(1)).await
}

pub(crate) async fn asked(fleet: &TestFleet, prompt: &str) -> Answered {
    fleet.post("/v1/completions", &json!({"model": "m", "prompt": prompt})).await
}

pub(crate) async fn up(fleet: &TestFleet, worker: &str) -> bool {
    fleet.metric("warmpath_worker_up", worker).await > 0.5
}

pub(crate) fn header(answer: &Answered, name: &str) -> Option<String> {
    answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
}

/// R3: one worker accepts and never answers.
async fn hangs_before_the_first_byte(count: usize) {
    const TIMEOUT: Duration = Duration::from_millis(200);
    let (hangs, other) = (Faulty::start(|_, _| vec![Act::Hold]).await, good().await);
    let fleet = before(&[&hangs, &other]).config("timeouts: {first_byte: 200ms}\nhealth: {request_failures: 100000}");
    let fleet = fleet.start().await;
    let url = fleet.url("/v1/completions");
    let mut slowest = Duration::ZERO;
    for number in 0..count {
        let start = Instant::now();
        assert_eq!(ask(&fleet.client, &url, &number.to_string()).await, Saw::Whole);
        slowest = slowest.max(start.elapsed());
        fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    }
    println!("R3: {count} requests behind a silence of {TIMEOUT:?}: slowest {slowest:?}, none stuck");
    assert_eq!((hangs.count(), retries(&fleet, "first_byte_timeout").await), (count, u64::try_from(count).unwrap()));
    assert!(slowest < TIMEOUT + Duration::from_millis(500), "{slowest:?}");
}

#[tokio::test]
async fn r3_a_silent_worker_is_replaced_in_time() {
    hangs_before_the_first_byte(3).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r3_two_hundred_silences() {
    hangs_before_the_first_byte(200).await;
}

#[tokio::test]
async fn r3_where_all_are_silent_the_client_hears_504_after_two() {
    let silent = || Faulty::start(|_, _| vec![Act::Hold]);
    let workers = [silent().await, silent().await, silent().await];
    let fleet = before(&[&workers[0], &workers[1], &workers[2]]).config("timeouts: {first_byte: 100ms}").start().await;
    let answer = asked(&fleet, "x").await;
    assert_eq!((answer.status, &answer.body["error"]["code"]), (504, &json!("upstream_timeout")));
    assert_eq!(header(&answer, "x-should-retry").as_deref(), Some("false"));
    assert_eq!(workers.iter().map(Faulty::count).sum::<usize>(), 2);
}

/// R4: three events, then silence.
async fn hangs_in_mid_stream(count: usize) {
    const IDLE: Duration = Duration::from_millis(150);
    let worker = Faulty::start(|_, _| [beginning(3), vec![Act::Hold]].concat()).await;
    let fleet = before(&[&worker]).config("timeouts: {stream_idle: 150ms}").start().await;
    let url = fleet.url("/v1/completions");
    let mut slowest = Duration::ZERO;
    for number in 0..count {
        let start = Instant::now();
        assert_eq!(ask(&fleet.client, &url, &number.to_string()).await, Saw::Broken);
        slowest = slowest.max(start.elapsed());
    }
    println!("R4: {count} streams with a silence of {IDLE:?}: told after {slowest:?} at the latest");
    assert!(slowest < IDLE + Duration::from_millis(500), "{slowest:?}");
}

#[tokio::test]
async fn r4_a_stream_that_falls_silent_is_told_in_time() {
    hangs_in_mid_stream(3).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r4_a_hundred_silent_streams() {
    hangs_in_mid_stream(100).await;
}

/// R32: all workers die, and come back.
async fn all_die(down: Duration) {
    let engines = [good().await, good().await, good().await, good().await];
    let fleet = before(&engines.iter().collect::<Vec<_>>()).start().await;
    let url = fleet.url("/v1/completions");
    assert_eq!(ask(&fleet.client, &url, "before").await, Saw::Whole);
    for engine in &engines {
        engine.kill().await;
    }
    let start = Instant::now();
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    while start.elapsed() < down {
        let sent = Instant::now();
        let answer = asked(&fleet, "down").await;
        slowest = slowest.max(sent.elapsed());
        assert_eq!((answer.status, header(&answer, "retry-after").as_deref()), (503, Some("1")), "{answer:?}");
        answers += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for name in ["stranger-1", "stranger-2", "stranger-3", "stranger-4"] {
        assert!(!up(&fleet, name).await, "{name}");
    }
    for engine in &engines {
        engine.revive().await;
    }
    let back = Instant::now();
    while ask(&fleet.client, &url, "after").await != Saw::Whole {
        assert!(back.elapsed() < Duration::from_secs(5), "nobody is used again");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let recovery = back.elapsed();
    println!("R32: {answers} answers while all were down, slowest {slowest:?}; served again after {recovery:?}");
    assert!(slowest < Duration::from_millis(500), "{slowest:?}");
    assert!(recovery < Duration::from_millis(1_500), "{recovery:?}");
}

#[tokio::test]
async fn r32_with_all_workers_down_answers_are_quick_and_so_is_the_way_back() {
    Box::pin(all_die(Duration::from_millis(1_500))).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r32_all_workers_are_down_for_ten_seconds() {
    Box::pin(all_die(Duration::from_secs(10))).await;
}

/// R32: whatever requests say, half of a pool stays in, unless nobody can connect.
#[tokio::test]
async fn r32_failing_requests_take_out_half_of_a_pool_at_most() {
    let unwell = Arc::new(AtomicBool::new(true));
    let engine =
        || {
            let unwell = Arc::clone(&unwell);
            Faulty::start(move |_, _| {
                if unwell.load(Ordering::SeqCst) { refusal("503 Service Unavailable", "") } else { stream(1) }
            })
        };
    let engines = [engine().await, engine().await, engine().await, engine().await];
    let fleet = before(&engines.iter().collect::<Vec<_>>()).config("timeouts: {health_interval: 1h}").start().await;
    for number in 0..40 {
        let answer = asked(&fleet, &number.to_string()).await;
        assert_eq!((answer.status, header(&answer, "x-should-retry").as_deref()), (503, Some("true")));
    }
    let mut in_service = 0;
    for name in ["stranger-1", "stranger-2", "stranger-3", "stranger-4"] {
        in_service += usize::from(up(&fleet, name).await);
    }
    assert_eq!(in_service, 2);
    unwell.store(false, Ordering::SeqCst);
    assert_eq!(ask(&fleet.client, &fleet.url("/v1/completions"), "well").await, Saw::Whole);
}

/// R32: who is out anyway, by its operators or its checks, is neither of those that stay in nor of those that go.
#[tokio::test]
async fn r32_half_of_those_that_would_serve_stay_in_whoever_is_out_for_another_reason() {
    for by_checks in [false, true] {
        let bad = Faulty::start(|_, _| refusal("500 Internal Server Error", "")).await;
        let engines = [good().await, good().await, good().await];
        let all = [&engines[0], &engines[1], &bad, &engines[2]];
        engines[..2].iter().for_each(|engine| engine.set_healthy(!by_checks));
        let config = "timeouts: {health_interval: 1h}\nrouting: {policy: round_robin, fallback: round_robin}";
        let fleet = before(&all).config(config).start().await;
        for name in ["stranger-1", "stranger-2"] {
            if !by_checks {
                assert_eq!(fleet.operate(name, "drain").await.0, 200);
            }
            fleet.eventually("it is out", async |fleet| !up(fleet, name).await).await;
        }
        let mut failed = 0;
        for number in 0..12 {
            failed += u32::from(asked(&fleet, &number.to_string()).await.status == 500);
        }
        assert_eq!((failed, up(&fleet, "stranger-3").await, up(&fleet, "stranger-4").await), (3, false, true));
        // The last one stays, whatever its requests say, though those that are out are more than half.
        assert_eq!(fleet.operate("stranger-4", "drain").await.0, 200);
        assert_eq!(fleet.operate("stranger-3", "reset_breaker").await.0, 200);
        for number in 0..6 {
            assert_eq!(asked(&fleet, &number.to_string()).await.status, 500, "{number}");
        }
    }
}

#[tokio::test]
async fn r32_whoever_cannot_be_connected_to_goes_even_if_nobody_is_left() {
    let engine = good().await;
    let fleet = before(&[&engine]).config("timeouts: {health_interval: 1h}").start().await;
    let url = fleet.url("/v1/completions");
    assert_eq!(ask(&fleet.client, &url, "before").await, Saw::Whole);
    engine.kill().await;
    let mut codes = Vec::new();
    for _ in 0..4 {
        codes.push(asked(&fleet, "x").await.body["error"]["code"].as_str().unwrap().to_owned());
    }
    assert_eq!(codes, ["upstream_failed", "upstream_failed", "upstream_failed", "no_worker"]);
}

/// R32: one of two flaps, and says so by its checks.
#[tokio::test]
async fn r32_a_worker_that_flaps_loses_nothing() {
    let (flaps, steady) = (good().await, good().await);
    let fleet = before(&[&flaps, &steady]).config("timeouts: {health_interval: 50ms}").start().await;
    let flapping = async {
        for healthy in [false, true, false, true] {
            flaps.set_healthy(healthy);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    };
    let ((), (saw, _)) = tokio::join!(flapping, load(&fleet, 4, 40));
    assert!(saw.iter().all(|saw| *saw == Saw::Whole), "{saw:?}");
}

#[tokio::test]
async fn a_500_is_tried_again_only_where_it_is_wished() {
    for (setting, count, status) in [("false", 0, 500), ("true", 1, 200)] {
        let (bad, other) = (Faulty::start(|_, _| refusal("500 Internal Server Error", "")).await, good().await);
        let fleet = before(&[&bad, &other]).config(&format!("retries: {{server_errors: {setting}}}")).start().await;
        let answer = asked(&fleet, "x").await;
        assert_eq!((answer.status, other.count()), (status, count));
        let should = header(&answer, "x-should-retry");
        assert_eq!(should.as_deref(), if status == 500 { Some("false") } else { None });
    }
}

#[tokio::test]
async fn where_workers_say_nothing_but_500_the_last_one_is_the_answer() {
    let broken = || Faulty::start(|_, _| refusal("500 Internal Server Error", ""));
    let engines = [broken().await, broken().await];
    let fleet = before(&[&engines[0], &engines[1]]).config("retries: {server_errors: true}").start().await;
    let answer = asked(&fleet, "x").await;
    assert_eq!((answer.status, engines[0].count() + engines[1].count()), (500, 2));
    assert_eq!(header(&answer, "x-should-retry").as_deref(), Some("false"));
    assert!(header(&answer, "x-warmpath-worker").is_some());
    assert_eq!(answer.body["error"]["message"], "no", "as it came: {answer:?}");
    assert_eq!(fleet.metric("warmpath_requests_total", "outcome=\"worker_error\"").await, 1.0);
}

/// R5: a worker that is still loading says 503. It is left alone until two checks have passed, and then not flooded.
async fn a_worker_that_loads(loading: Duration, ramp: Duration) {
    const CHECKS: Duration = Duration::from_millis(200);
    let pause = || vec![Act::Pause(Duration::from_millis(10))];
    let ready = Arc::new(AtomicBool::new(false));
    let is_ready = Arc::clone(&ready);
    let loads = Faulty::start(move |_, _| {
        if is_ready.load(Ordering::SeqCst) {
            [pause(), stream(1)].concat()
        } else {
            refusal("503 Service Unavailable", "")
        }
    });
    let (loads, other) = (loads.await, Faulty::start(move |_, _| [pause(), stream(1)].concat()).await);
    loads.set_healthy(false);
    let config = format!(
        "timeouts: {{health_interval: {}ms}}\nhealth: {{ramp: {}ms, ramp_from: 1}}",
        CHECKS.as_millis(),
        ramp.as_millis()
    );
    let fleet = before(&[&loads, &other]).config(&config).start().await;
    let over = AtomicBool::new(false);
    let url = fleet.url("/v1/completions");
    let lanes = (0..16).map(|lane| {
        let (url, over, client) = (&url, &over, &fleet.client);
        async move {
            let mut saw = Vec::new();
            while !over.load(Ordering::SeqCst) {
                saw.push(ask(client, url, &format!("{lane}-{}", saw.len())).await);
            }
            saw
        }
    });
    let watching = async {
        fleet.eventually("it is out", async |fleet| !up(fleet, "stranger-1").await).await;
        let tried = loads.count();
        tokio::time::sleep(loading).await;
        assert_eq!(loads.count(), tried, "nobody goes where checks fail");
        ready.store(true, Ordering::SeqCst);
        let (since, others) = (Instant::now(), other.count());
        loads.set_healthy(true);
        fleet.eventually("it is tried", async |_| loads.count() > tried).await;
        assert!(since.elapsed() >= CHECKS / 2, "two checks are that far apart: {:?}", since.elapsed());
        let back = other.count() - others;
        tokio::time::sleep(ramp).await;
        let (own, all) = (loads.count() - tried, loads.count() - tried + other.count() - others - back);
        println!("R5: {own} of {all} requests while it warms up, of two workers");
        assert!(own * 4 <= all * 3, "{own} of {all}: more than one and a half times its share");
        over.store(true, Ordering::SeqCst);
    };
    let (saw, ()) = tokio::join!(futures_util::future::join_all(lanes), watching);
    let failed: Vec<Saw> = saw.into_iter().flatten().filter(|saw| *saw != Saw::Whole).collect();
    assert_eq!(failed, []);
}

#[tokio::test]
async fn r5_a_worker_that_loads_is_left_alone_and_then_not_flooded() {
    a_worker_that_loads(Duration::from_millis(600), Duration::from_secs(1)).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r5_five_seconds_of_loading_and_thirty_of_warming_up() {
    a_worker_that_loads(Duration::from_secs(5), Duration::from_secs(30)).await;
}
