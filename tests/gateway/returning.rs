//! Workers and requests that come back: before their time where the others go, gently after a drain, first in the queue after
//! a pause; and who is given the slot of a worker that has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::json;

use crate::breaker::{asked, up};
use crate::chaos::{Saw, ask, before};
use crate::faulty::{Act, Faulty, refusal, stream};
use crate::fleet::{TestFleet, fleet};

async fn good() -> Faulty {
    Faulty::start(|_, _| stream(1)).await
}

/// How many workers pass their checks.
async fn ready(fleet: &TestFleet) -> usize {
    let metrics = fleet.admin("/metrics").await.1;
    metrics.lines().filter(|line| line.starts_with("warmpath_worker_up{") && line.ends_with(" 1")).count()
}

async fn breaker_of(fleet: &TestFleet, worker: &str) -> String {
    let (_, text) = fleet.admin("/api/v1/workers").await;
    let told: serde_json::Value = serde_json::from_str(&text).unwrap();
    let workers = told["workers"].as_array().unwrap();
    let worker = workers.iter().find(|it| it["id"] == worker).unwrap();
    worker["breaker"].as_str().unwrap().to_owned()
}

/// Its requests took it out, and its checks pass: where nobody else is left it serves on trial after the first of them, not
/// after the second.
#[tokio::test]
async fn who_is_out_by_its_requests_is_back_where_the_others_go() {
    let fails = Faulty::start(|prompt, _| if prompt == "bad" { vec![Act::Reset] } else { stream(1) }).await;
    let (second, third) = (good().await, good().await);
    let config = "timeouts: {health_interval: 3s}\nhealth: {request_failures: 1}\nretries: {suspicion: 0s}";
    let fleet = before(&[&fails, &second, &third]).config(config).start().await;
    fleet.eventually("all are up", async |fleet| ready(fleet).await == 3).await;
    while up(&fleet, "stranger-1").await {
        assert_eq!(asked(&fleet, "bad").await.status, 200, "another one answers");
    }
    assert_eq!(breaker_of(&fleet, "stranger-1").await, "open");
    let out = fails.checks();
    fleet.eventually("a check passes", async |_| fails.checks() > out).await;
    assert_eq!(fleet.operate("stranger-2", "drain").await.0, 200);
    assert!(!up(&fleet, "stranger-1").await, "one is left, and one is out");
    assert_eq!(fleet.operate("stranger-3", "drain").await.0, 200);
    assert!(up(&fleet, "stranger-1").await);
    assert_eq!((breaker_of(&fleet, "stranger-1").await.as_str(), fails.checks()), ("trial", out + 1));
    assert_eq!(ask(&fleet.client, &fleet.url("/v1/completions"), "good").await, Saw::Whole);
    assert_eq!(breaker_of(&fleet, "stranger-1").await, "closed");
}

/// A worker that was restarted during its drain comes back with an empty cache, and is not flooded.
#[tokio::test]
async fn who_was_restarted_during_a_drain_is_given_little_at_first() {
    let slow = || Faulty::start(|_, _| [vec![Act::Pause(Duration::from_millis(400))], stream(1)].concat());
    let (drained, other) = (slow().await, slow().await);
    let config = "timeouts: {health_interval: 30ms}\nhealth: {ramp: 60s, ramp_from: 1}";
    let fleet = before(&[&drained, &other]).config(config).start().await;
    let burst = async || {
        let (first, second) = (drained.count(), other.count());
        let url = fleet.url("/v1/completions");
        let prompts: Vec<_> = (0..8).map(|number| number.to_string()).collect();
        let saw = join_all(prompts.iter().map(|prompt| ask(&fleet.client, &url, prompt))).await;
        assert_eq!(saw, [Saw::Whole; 8]);
        (drained.count() - first, other.count() - second)
    };
    fleet.eventually("both are up", async |fleet| ready(fleet).await == 2).await;
    assert_eq!(burst().await, (4, 4));
    // A drain alone leaves its cache as it is.
    assert_eq!(fleet.operate("stranger-1", "drain").await.0, 200);
    assert_eq!(burst().await, (0, 8));
    assert_eq!(fleet.operate("stranger-1", "undrain").await.0, 200);
    assert_eq!(burst().await, (4, 4));
    assert_eq!(fleet.operate("stranger-1", "drain").await.0, 200);
    drained.kill().await;
    fleet.eventually("it is down", async |fleet| breaker_of(fleet, "stranger-1").await == "open").await;
    drained.revive().await;
    fleet.eventually("it is back", async |fleet| breaker_of(fleet, "stranger-1").await == "closed").await;
    assert_eq!(fleet.operate("stranger-1", "undrain").await.0, 200);
    assert_eq!(burst().await, (1, 7));
}

/// Who was sent away for a moment by the only worker is not behind those that came meanwhile.
#[tokio::test]
async fn who_is_back_from_a_pause_comes_first() {
    let worker = Faulty::start(|prompt, number| match (prompt, number) {
        ("early", 0) => refusal("503 Service Unavailable", "retry-after: 1\r\n"),
        ("between", _) => [vec![Act::Pause(Duration::from_millis(1_600))], stream(1)].concat(),
        _ => stream(1),
    });
    let worker = worker.await;
    let fleet = fleet().engines(0).stranger_with(worker.address, "events: none, max_num_seqs: 1").start().await;
    let url = fleet.url("/v1/completions");
    let sent = |prompt: &'static str, after| {
        let (url, client) = (&url, &fleet.client);
        async move {
            tokio::time::sleep(Duration::from_millis(after)).await;
            ask(client, url, prompt).await
        }
    };
    let saw = join_all([sent("early", 0), sent("between", 200), sent("late", 400), sent("later", 600)]).await;
    assert_eq!(saw, [Saw::Whole; 4]);
    let at = |prompt| worker.arrived(prompt);
    assert_eq!([at("early").len(), at("between").len(), at("late").len(), at("later").len()], [2, 1, 1, 1]);
    assert!(at("between")[0] < at("early")[1], "it came while the other paused");
    assert!(at("early")[1] < at("late")[0] && at("late")[0] < at("later")[0]);
}

/// A request that two workers have failed goes to the one that took the first one's place: that one has failed nothing.
#[tokio::test]
async fn who_comes_where_another_left_has_failed_nobody() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let failing = || {
        let attempts = Arc::clone(&attempts);
        Faulty::start(move |_, _| {
            let pause = if attempts.fetch_add(1, Ordering::SeqCst) == 0 { 0 } else { 1_500 };
            [vec![Act::Pause(Duration::from_millis(pause))], refusal("503 Service Unavailable", "")].concat()
        })
    };
    let (first, second, new) = (failing().await, failing().await, good().await);
    let file = std::env::temp_dir().join(format!("warmpath-{}-places.yaml", std::process::id()));
    let list = |workers: &[(&str, &Faulty)]| {
        let lines = workers
            .iter()
            .map(|(id, worker)| format!("- {{id: {id}, url: 'http://{}', model: m, events: none}}\n", worker.address));
        std::fs::write(&file, lines.collect::<String>()).unwrap();
    };
    list(&[("first", &first), ("second", &second)]);
    let config = format!(
        "discovery: {{file: {{path: '{}', interval: 20ms}}}}\ntimeouts: {{health_interval: 20ms}}\n\
         retries: {{attempts: 2}}",
        file.display()
    );
    let fleet = fleet().engines(0).unlisted().policy("least_requests").config(&config).start().await;
    fleet.eventually("both are in", async |fleet| ready(fleet).await == 2).await;
    let body = json!({"model": "m", "prompt": "x", "stream": true});
    let replacing = async {
        fleet.eventually("it is at the second", async |_| first.count() + second.count() == 2).await;
        let (gone, stays) = match first.arrived("x")[0] < second.arrived("x")[0] {
            true => ("first", ("second", &second)),
            false => ("second", ("first", &first)),
        };
        list(&[stays]);
        let left = |text: &str| !text.contains(&format!("worker=\"{gone}\""));
        fleet.eventually("the first has left", async |fleet| left(&fleet.admin("/metrics").await.1)).await;
        list(&[stays, ("new", &new)]);
        fleet.eventually("the new one serves", async |fleet| up(fleet, "\"new\"").await).await;
    };
    let (answer, ()) = tokio::join!(fleet.post("/v1/completions", &body), replacing);
    assert_eq!((answer.status, answer.worker.as_str(), new.count()), (200, "new", 1), "{answer:?}");
    std::fs::remove_file(&file).unwrap();
}
