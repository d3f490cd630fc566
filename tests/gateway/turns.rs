//! How often and when requests are tried again: turns within the budget, and pauses that workers ask for.

use std::time::{Duration, Instant};

use crate::breaker::{asked, up};
use crate::chaos::{Saw, ask, before};
use crate::faulty::{Act, Faulty, beginning, refusal, stream};
use crate::fleet::fleet;
use crate::retries::{retries, send};

#[tokio::test]
async fn a_short_pause_of_the_only_worker_is_waited_for_and_a_long_one_told() {
    for (pause, waits) in [("retry-after-ms: 60\r\n", true), ("retry-after: 2\r\n", false)] {
        let busy = move |_: &str, number: usize| {
            if number == 0 { refusal("503 Service Unavailable", pause) } else { stream(1) }
        };
        let worker = Faulty::start(busy).await;
        let fleet = before(&[&worker]).start().await;
        let start = Instant::now();
        let saw = ask(&fleet.client, &fleet.url("/v1/completions"), "x").await;
        if waits {
            assert_eq!((saw, worker.count()), (Saw::Whole, 2));
            assert!(start.elapsed() >= Duration::from_millis(60));
        } else {
            assert_eq!((saw, worker.count()), (Saw::Refused(503), 1));
        }
    }
}

/// Whatever another one says in the meantime.
#[tokio::test]
async fn a_short_pause_is_waited_for_though_another_worker_fails_after_it() {
    for status in ["429 Too Many Requests", "503 Service Unavailable"] {
        let busy = |_: &str, number: usize| {
            let pause = "retry-after-ms: 60\r\n";
            if number == 0 { refusal("503 Service Unavailable", pause) } else { stream(1) }
        };
        let (first, other) = (Faulty::start(busy).await, Faulty::start(move |_, _| refusal(status, "")).await);
        let config = "routing: {policy: round_robin, fallback: round_robin}";
        let fleet = before(&[&first, &other]).config(config).start().await;
        let start = Instant::now();
        let saw = ask(&fleet.client, &fleet.url("/v1/completions"), "x").await;
        assert_eq!((saw, first.count(), other.count()), (Saw::Whole, 2, 1), "{status}");
        assert!(start.elapsed() >= Duration::from_millis(60));
    }
}

/// One that is back has begun with few, and takes few anyway: with nothing it would be left alone until its ramp gives one.
/// The other worker is full meanwhile.
#[tokio::test]
async fn who_has_too_much_to_do_when_it_has_just_come_back_is_asked_again_when_it_said() {
    let busy = |_: &str, number: usize| {
        let pause = "retry-after-ms: 100\r\n";
        if number == 0 { refusal("429 Too Many Requests", pause) } else { stream(1) }
    };
    let worker = Faulty::start(busy).await;
    let other = Faulty::start(|_, _| [beginning(1), vec![Act::Hold]].concat()).await;
    worker.set_healthy(false);
    let fleet = fleet().engines(0).policy("least_requests").tokenizer("null");
    let fleet = [&worker, &other]
        .into_iter()
        .fold(fleet, |fleet, engine| fleet.stranger_with(engine.address, "events: none, max_num_seqs: 2"));
    let fleet = fleet.config("timeouts: {health_interval: 50ms}\nhealth: {ramp: 60s}").start_at_once().await;
    fleet.eventually("it is out", async |fleet| !up(fleet, "stranger-1").await).await;
    let first = send(&fleet).await;
    worker.set_healthy(true);
    fleet.eventually("it is back", async |fleet| up(fleet, "stranger-1").await).await;
    let second = send(&fleet).await;
    assert_eq!((worker.count(), other.count()), (1, 2), "too much");
    let start = Instant::now();
    assert_eq!(ask(&fleet.client, &fleet.url("/v1/completions"), "then").await, Saw::Whole);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert_eq!((worker.count(), other.count()), (2, 2));
    drop((first, second));
}

/// In a brown-out nobody waits for long, and clients are told to leave it.
#[tokio::test]
async fn beyond_the_budget_a_retry_is_refused() {
    let weary = || {
        let pause = vec![Act::Pause(Duration::from_millis(150))];
        Faulty::start(move |_, _| [pause.clone(), refusal("503 Service Unavailable", "")].concat())
    };
    let engines = [weary().await, weary().await];
    let config = "retries: {attempts: 1, budget: 0, budget_min: 1}\nhealth: {request_failures: 100000}";
    let fleet = before(&[&engines[0], &engines[1]]).config(config).start().await;
    let prompts: Vec<String> = (0..24).map(|number| number.to_string()).collect();
    let answers = futures_util::future::join_all(prompts.iter().map(|prompt| asked(&fleet, prompt))).await;
    assert!(answers.iter().all(|answer| answer.status == 503));
    let told = |code: &str| answers.iter().filter(|answer| answer.body["error"]["code"] == code).count();
    let (tried, refused) = (told("upstream_failed"), told("too_many_retries"));
    assert_eq!((tried + refused, engines.iter().map(Faulty::count).sum::<usize>()), (24, 24 + tried));
    // One after the other, for a second.
    assert!((1..12).contains(&tried), "{tried} retries");
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    assert_eq!(retries(&fleet, "").await, u64::try_from(tried).unwrap());
}

/// Only what is sent is a load: a budget of one retry is enough for all that wait for room, longer than any waits for a turn.
#[tokio::test]
async fn retries_that_wait_for_a_worker_take_nobodys_turn() {
    const ANSWER: Duration = Duration::from_millis(1_500);
    let dies = Faulty::start(|_, _| vec![Act::Hold]).await;
    let serves = Faulty::start(|_, _| [vec![Act::Pause(ANSWER)], stream(1)].concat()).await;
    let full = "events: none, max_num_seqs: 4";
    let fleet = fleet().engines(0).policy("least_requests").tokenizer("null");
    let fleet = fleet.stranger_with(dies.address, full).stranger_with(serves.address, full);
    let fleet = fleet.config("retries: {budget: 0, budget_min: 1}").start().await;
    let url = fleet.url("/v1/completions");
    let asking = ["a", "b", "c", "d", "e", "f", "g", "h"].map(|prompt| ask(&fleet.client, &url, prompt));
    let killing = async {
        fleet.eventually("both are full", async |_| (dies.count(), serves.count()) == (4, 4)).await;
        dies.kill().await;
    };
    let (saw, ()) = tokio::join!(futures_util::future::join_all(asking), killing);
    assert_eq!((saw, serves.count()), (vec![Saw::Whole; 8], 8));
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
}
