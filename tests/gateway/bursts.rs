//! Bursts of one new prefix: what is in flight counts before any event comes, and nothing of it stays.

use futures_util::future::join_all;
use serde_json::{Value, json};
use warmpath::shutdown::Tasks;

use crate::fleet::{Answered, TestFleet, fleet};
use crate::scripted::{Scripted, Step, good_stream};

const CREDIT: &str = "warmpath_in_flight_credit_blocks";

/// 60 shared blocks of 4 tokens, and one of its own.
fn tokens(number: u32) -> Value {
    (1_000..1_240).chain([number; 5]).collect::<Vec<_>>().into()
}

/// Sends 24 requests at once.
async fn burst(fleet: &TestFleet) -> Vec<Answered> {
    let answers = join_all((0..24).map(|number| fleet.complete(tokens(number)))).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    answers
}

/// How many each engine answered, most first.
fn counts(answers: &[Answered]) -> Vec<usize> {
    let mut counts: Vec<usize> = (1..=4)
        .map(|engine| answers.iter().filter(|answer| answer.worker == format!("engine-{engine}")).count())
        .collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

async fn nothing_is_left(fleet: &TestFleet) {
    fleet
        .eventually("no credit is left", async |fleet| {
            let mut left = f64::from(fleet.app.in_flight());
            for engine in 1..=4 {
                left += fleet.metric(CREDIT, &format!("engine-{engine}")).await;
            }
            left == 0.0
        })
        .await;
}

/// The engines publish nothing, so that only what is in flight can keep the burst together.
#[tokio::test]
async fn a_burst_of_one_new_prefix_is_computed_by_one_worker() {
    let fleet = fleet().engines(4).silent().start().await;
    let answers = burst(&fleet).await;
    assert_eq!(counts(&answers), [24, 0, 0, 0]);
    // All but one find the shared blocks, as all but one were told; the engine may take them in another order.
    let promised: u64 = answers.iter().filter_map(|answer| answer.predicted).sum();
    let reported: u64 = answers.iter().map(Answered::cached).sum();
    assert_eq!((promised, reported), (23 * 240, 23 * 240));
    nothing_is_left(&fleet).await;
}

#[tokio::test]
async fn with_no_credit_it_is_computed_by_all() {
    let fleet = fleet().engines(4).silent().config("index: {in_flight_credit: 0s}").start().await;
    let counts = counts(&burst(&fleet).await);
    assert!(counts[3] > 0, "{counts:?}");
}

#[tokio::test]
async fn a_request_without_a_first_token_counts_until_its_client_leaves() {
    let worker = Scripted::start(vec![Step::Hold]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start_at_once().await;
    let tasks = Tasks::new();
    let body = json!({"model": "m", "prompt": tokens(1), "max_tokens": 2}).to_string();
    let request = fleet.client.post(fleet.url("/v1/completions")).body(body).send();
    tasks.spawn(async move {
        request.await.expect_err("it is given up");
    });
    worker.asked(1).await;
    // 61 whole blocks and one token.
    assert!((fleet.metric(CREDIT, "stranger-1").await - 61.0).abs() < 1e-9);
    tasks.drain(std::time::Duration::ZERO).await;
    fleet.eventually("the credit is gone", async |fleet| fleet.metric(CREDIT, "stranger-1").await == 0.0).await;
}

#[tokio::test]
async fn a_request_without_a_first_token_counts_until_its_deadline() {
    let worker = Scripted::start(vec![Step::Await, Step::Close]).await;
    let fleet =
        fleet().engines(0).stranger(worker.address).config("index: {in_flight_credit: 1ms}").start_at_once().await;
    let waiting = fleet.complete(tokens(1));
    let watching = async {
        worker.asked(1).await;
        fleet.eventually("the credit is gone", async |fleet| fleet.metric(CREDIT, "stranger-1").await == 0.0).await;
        assert_eq!(fleet.app.in_flight(), 1);
        worker.go();
    };
    assert_eq!(tokio::join!(waiting, watching).0.status, 502);
}

/// What one worker failed to answer counts at the other one only.
#[tokio::test]
async fn a_failed_attempt_takes_its_credit_along() {
    let (broken, good) = (Scripted::start(vec![Step::Close]).await, Scripted::start(vec![Step::Hold]).await);
    let fleet = fleet().engines(0).stranger(broken.address).stranger(good.address).start_at_once().await;
    let tasks = Tasks::new();
    let body = json!({"model": "m", "prompt": tokens(1), "max_tokens": 2}).to_string();
    let request = fleet.client.post(fleet.url("/v1/completions")).body(body).send();
    tasks.spawn(async move {
        request.await.expect_err("it is given up");
    });
    good.asked(1).await;
    assert_eq!(broken.seen().len(), 1);
    let credits = (fleet.metric(CREDIT, "stranger-1").await, fleet.metric(CREDIT, "stranger-2").await);
    assert_eq!(credits, (0.0, 61.0));
    tasks.drain(std::time::Duration::ZERO).await;
    good.plays(good_stream());
    fleet.eventually("the credit is gone", async |fleet| fleet.metric(CREDIT, "stranger-2").await == 0.0).await;
}
