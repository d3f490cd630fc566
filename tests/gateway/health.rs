//! Workers that die, fail, come back, and are taken out by their operators.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::retries::retries;
use crate::scripted::{Scripted, Step, end, event, good_stream, head, piece, whole};

const UNAVAILABLE: &str = "503 Service Unavailable";

/// Two workers, asked in turn; the first one first. Their checks pass, and are seldom.
fn in_turn(workers: &[&Scripted]) -> FleetBuilder {
    let fleet = fleet().engines(0).policy("round_robin").config("timeouts: {health_interval: 1h}");
    workers.iter().fold(fleet, |fleet, worker| fleet.stranger(worker.address))
}

async fn good() -> Scripted {
    Scripted::start(good_stream()).await
}

fn sending(fleet: &TestFleet) -> impl Future<Output = (u16, String, String)> + use<> {
    let body = br#"{"model": "m", "prompt": "x", "stream": true}"#.to_vec();
    let request = fleet.client.post(fleet.url("/v1/completions")).body(body);
    async move {
        let response = request.send().await.expect("the gateway answers");
        let worker = response.headers().get("x-warmpath-worker");
        let worker = worker.map_or(String::new(), |worker| worker.to_str().unwrap().to_owned());
        (response.status().as_u16(), worker, response.text().await.unwrap())
    }
}

/// Which workers answer so many requests.
async fn who_answers(fleet: &TestFleet, count: usize) -> Vec<String> {
    let mut workers = Vec::new();
    for _ in 0..count {
        let (status, worker, _) = sending(fleet).await;
        assert_eq!(status, 200);
        workers.push(worker);
    }
    workers
}

async fn up(fleet: &TestFleet, worker: &str) -> bool {
    fleet.metric("warmpath_worker_up", worker).await > 0.5
}

/// R1, the way back, at the default interval.
#[tokio::test]
async fn a_worker_that_comes_back_takes_its_first_request_within_two_seconds() {
    let mut fleet = fleet().engines(1).start().await;
    assert_eq!(fleet.complete(json!("before")).await.status, 200);
    std::mem::take(&mut fleet.tasks).drain(Duration::ZERO).await;
    fleet.eventually("it is out", async |fleet| !up(fleet, "engine-1").await).await;
    assert_eq!(fleet.complete(json!("without")).await.status, 503);
    fleet.restart_engines().await;
    let back = Instant::now();
    while fleet.complete(json!("after")).await.status != 200 {
        assert!(back.elapsed() < Duration::from_secs(2), "it is not used again");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_worker_whose_requests_fail_is_taken_out_though_its_checks_pass_and_the_last_one_stays() {
    let (bad, other) = (Scripted::start(vec![whole(UNAVAILABLE, "{}")]).await, good().await);
    let fleet = in_turn(&[&bad, &other]).start().await;
    bad.checked().await;
    assert_eq!(who_answers(&fleet, 6).await, ["stranger-2"; 6]);
    assert!(!up(&fleet, "stranger-1").await && up(&fleet, "stranger-2").await);
    assert_eq!((bad.seen().len(), retries(&fleet, "unavailable").await), (3, 3));
    assert_eq!(who_answers(&fleet, 4).await, ["stranger-2"; 4]);
    assert_eq!(bad.seen().len(), 3);
    other.plays(vec![whole(UNAVAILABLE, "{}")]);
    for _ in 0..5 {
        assert_eq!(sending(&fleet).await.0, 503);
    }
    assert!(up(&fleet, "stranger-2").await);
    assert_eq!(other.seen().len(), 15);
}

#[tokio::test]
async fn an_operator_who_resets_a_breaker_gives_the_worker_another_chance() {
    let (bad, other) = (Scripted::start(vec![whole(UNAVAILABLE, "{}")]).await, good().await);
    let fleet = in_turn(&[&bad, &other]).start().await;
    bad.checked().await;
    let breaker = async || {
        let told: Value = serde_json::from_str(&fleet.admin("/api/v1/workers").await.1).unwrap();
        told["workers"][0]["breaker"].as_str().unwrap().to_owned()
    };
    assert_eq!(breaker().await, "closed");
    assert_eq!(who_answers(&fleet, 6).await, ["stranger-2"; 6]);
    assert_eq!((breaker().await, bad.seen().len()), ("open".to_owned(), 3));
    let reset = (200, json!({"worker": "stranger-1", "state": "closed"}));
    assert_eq!(fleet.operate("stranger-1", "reset_breaker").await, reset);
    assert!(breaker().await == "closed" && up(&fleet, "stranger-1").await);
    // As many faults are borne as before.
    assert_eq!(who_answers(&fleet, 6).await, ["stranger-2"; 6]);
    assert_eq!((breaker().await, bad.seen().len()), ("open".to_owned(), 6));
    bad.plays(good_stream());
    assert_eq!(fleet.operate("stranger-1", "reset_breaker").await, reset);
    assert!(who_answers(&fleet, 2).await.contains(&"stranger-1".to_owned()));
    assert_eq!(fleet.operate("nobody", "reset_breaker").await.0, 404);
}

#[tokio::test]
async fn a_client_s_faults_take_nobody_out() {
    let (first, second) = (Scripted::start(vec![whole("400 Bad Request", "{}")]).await, good().await);
    let fleet = in_turn(&[&first, &second]).start().await;
    for _ in 0..10 {
        sending(&fleet).await;
    }
    assert_eq!(first.seen().len(), 5);
    assert!(up(&fleet, "stranger-1").await);
}

#[tokio::test]
async fn a_worker_that_is_drained_finishes_what_it_has_and_gets_nothing_more() {
    let slow = vec![head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()];
    let (first, second) = (Scripted::start(slow).await, good().await);
    let fleet = in_turn(&[&first, &second]).start().await;
    let (running, drained) = tokio::join!(sending(&fleet), async {
        first.asked(1).await;
        let drained = fleet.operate("stranger-1", "drain").await;
        assert_eq!(who_answers(&fleet, 4).await, ["stranger-2"; 4]);
        first.go();
        drained
    });
    assert_eq!(drained, (200, json!({"worker": "stranger-1", "state": "draining"})));
    assert_eq!((running.0, running.1.as_str()), (200, "stranger-1"));
    assert_eq!(running.2, event("a") + "data: [DONE]\n\n");
    let state = "worker=\"stranger-1\",state=\"draining\"";
    assert_eq!(fleet.metric("warmpath_worker_state", state).await, 1.0);
    assert_eq!(fleet.health().await["off_duty"], json!(["stranger-1: draining"]));
    let again = json!({"error": {"message": "worker `stranger-1` is draining already", "code": 409}});
    assert_eq!(fleet.operate("stranger-1", "drain").await, (409, again));
    first.plays(good_stream());
    assert_eq!(fleet.operate("stranger-1", "undrain").await.0, 200);
    assert!(who_answers(&fleet, 2).await.contains(&"stranger-1".to_owned()));
}

#[tokio::test]
async fn what_an_ejected_worker_has_not_answered_goes_to_another() {
    let (first, second) = (Scripted::start(vec![Step::Hold]).await, good().await);
    let fleet = in_turn(&[&first, &second]).start().await;
    let (answer, ejected) = tokio::join!(sending(&fleet), async {
        first.asked(1).await;
        fleet.operate("stranger-1", "eject").await
    });
    assert_eq!(ejected, (200, json!({"worker": "stranger-1", "state": "ejected"})));
    assert_eq!((answer.0, answer.1.as_str()), (200, "stranger-2"));
    assert_eq!(retries(&fleet, "ejected").await, 1);
}

#[tokio::test]
async fn a_cache_that_is_reset_is_forgotten() {
    let fleet = fleet().engines(1).start().await;
    let prompt: Value = (100..140).collect::<Vec<u32>>().into();
    fleet.complete(prompt.clone()).await;
    fleet.until_metric("warmpath_index_blocks", "engine-1", 10.0).await;
    assert_eq!(fleet.operate("engine-1", "reset_cache").await.0, 200);
    let empty = async |fleet: &TestFleet| fleet.metric("warmpath_index_blocks", "engine-1").await == 0.0;
    fleet.eventually("its view is empty", empty).await;
    let answer = fleet.complete(prompt).await;
    assert_eq!((answer.predicted, answer.cached()), (Some(0), 0));
}

#[tokio::test]
async fn what_operators_may_not_do_is_said_in_json() {
    let worker = good().await;
    let fleet = in_turn(&[&worker]).start().await;
    let of = |body: &Value| body["error"]["code"].as_u64();
    for (worker, action, status) in
        [("nobody", "drain", 404), ("stranger-1", "hug", 404), ("stranger-1", "undrain", 409)]
    {
        let (got, body) = fleet.operate(worker, action).await;
        assert_eq!((u64::from(got), of(&body)), (status, Some(status)), "{worker} {action}: {body}");
    }
    let url = format!("http://{}/api/v1/workers/stranger-1/drain", fleet.app.admin_address());
    assert_eq!(fleet.get(url.clone()).await.0, 405);
    for (name, value) in [("origin", "http://evil.example"), ("host", "evil.example")] {
        let answer = fleet.client.post(&url).header(name, value).send().await.unwrap();
        assert_eq!(answer.status(), 403, "{name}");
    }
    // It has no such path, neither vLLM's nor SGLang's.
    worker.plays(vec![whole("404 Not Found", "")]);
    let (status, body) = fleet.operate("stranger-1", "reset_cache").await;
    assert!(status == 502 && body.to_string().contains("neither /reset_prefix_cache"), "{status} {body}");
    let asked: Vec<String> =
        worker.seen().iter().rev().take(2).map(|seen| seen.head.lines().next().unwrap().into()).collect();
    assert_eq!(asked, ["POST /flush_cache HTTP/1.1", "POST /reset_prefix_cache HTTP/1.1"]);
    assert!(up(&fleet, "stranger-1").await);
}

#[tokio::test]
async fn ranks_are_targets_numbered_as_the_engine_numbers_them() {
    let worker = good().await;
    let builder = fleet().engines(0).policy("round_robin");
    let fleet = builder.stranger_with(worker.address, "events: none, dp_ranks: 2, dp_start_rank: 4").start().await;
    who_answers(&fleet, 4).await;
    let seen = worker.seen();
    let ranks: Vec<&str> = seen.iter().flat_map(|seen| seen.header("x-data-parallel-rank")).collect();
    assert_eq!(ranks, ["4", "5", "4", "5"]);
    for rank in ["4", "5"] {
        let labels = format!("worker=\"stranger-1\",rank=\"{rank}\"");
        assert_eq!(fleet.metric("warmpath_placed_requests_total", &labels).await, 2.0);
    }
}

#[tokio::test]
async fn a_single_rank_of_a_larger_deployment_is_told_no_rank() {
    let worker = good().await;
    let builder = fleet().engines(0);
    let fleet = builder.stranger_with(worker.address, "events: none, dp_start_rank: 4").start().await;
    who_answers(&fleet, 1).await;
    assert_eq!(worker.seen()[0].header("x-data-parallel-rank"), Vec::<&str>::new());
    assert_eq!(fleet.metric("warmpath_placed_requests_total", "rank=\"4\"").await, 1.0);
}
