//! Requests that wait for a worker: in which order, how long, how many, and what their clients are told.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::fleet::{Answered, FleetBuilder, TestFleet, fleet};
use crate::scripted::{Scripted, Seen, Step, good_stream};
use crate::sdk::python;

const LENGTH: &str = "warmpath_queue_length";
const REFUSALS: &str = "warmpath_queue_refusals_total";

/// A worker that answers each request after one [`Scripted::go`].
async fn slow() -> Scripted {
    Scripted::start([vec![Step::Await], good_stream()].concat()).await
}

/// A fleet of these workers, each of which takes one request at once.
fn one_at_a_time(workers: &[&Scripted]) -> FleetBuilder {
    let fleet = fleet().engines(0).policy("round_robin");
    workers.iter().fold(fleet, |fleet, worker| fleet.stranger_with(worker.address, "events: none, max_num_seqs: 1"))
}

/// A request that is on its way, with the answer's status at its end.
type Sent = tokio::task::JoinHandle<u16>;

/// Sends a request of this name in a task of its own.
#[expect(clippy::disallowed_methods, reason = "a test aborts single requests, and needs what they return")]
fn send(fleet: &TestFleet, name: &str, priority: i32, key: &str) -> Sent {
    let body = json!({"model": "m", "prompt": name, "stream": true, "priority": priority}).to_string();
    let request = fleet.client.post(fleet.url("/v1/completions")).bearer_auth(key).body(body);
    tokio::spawn(async move {
        let answer = request.send().await.expect("the gateway answers");
        let status = answer.status().as_u16();
        let text = answer.text().await.expect("the answer is whole");
        assert!(status != 200 || text.ends_with("data: [DONE]\n\n"), "{text}");
        status
    })
}

async fn waiting(fleet: &TestFleet) -> f64 {
    let metrics = fleet.admin("/metrics").await.1;
    let series = metrics.lines().filter(|line| line.starts_with(LENGTH));
    series.map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

async fn until_waiting(fleet: &TestFleet, count: u32) {
    fleet.eventually("so many wait", async |fleet| waiting(fleet).await == f64::from(count)).await;
}

/// Sends a request, and waits until it is the `count`-th in the queue.
async fn queue_up(fleet: &TestFleet, name: &str, priority: i32, key: &str, count: u32) -> Sent {
    let sent = send(fleet, name, priority, key);
    until_waiting(fleet, count).await;
    sent
}

/// Names of the requests that came, in order.
fn names(seen: &[Seen]) -> Vec<String> {
    let name =
        |seen: &Seen| serde_json::from_slice::<Value>(&seen.body).unwrap()["prompt"].as_str().unwrap().to_owned();
    seen.iter().map(name).collect()
}

async fn is_idle(fleet: &TestFleet) {
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    assert_eq!(waiting(fleet).await, 0.0);
}

async fn ask(fleet: &TestFleet, headers: &[(&str, &str)]) -> Answered {
    let request = fleet.client.post(fleet.url("/v1/completions")).body(r#"{"model": "m", "prompt": "late"}"#);
    let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let response = request.send().await.expect("the gateway answers");
    Answered {
        status: response.status().as_u16(),
        worker: String::new(),
        predicted: None,
        headers: response.headers().clone(),
        body: response.json().await.unwrap_or(Value::Null),
    }
}

/// Status, code, and what the client is told of trying again.
fn told(answer: &Answered) -> (u16, &str, Option<&str>, Option<u64>) {
    let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    let after_ms: Option<u64> = header("retry-after-ms").map(|text| text.parse().unwrap());
    let after_s: Option<u64> = header("retry-after").map(|text| text.parse().unwrap());
    assert_eq!(after_s, after_ms.map(|millis| millis.div_ceil(1_000).max(1)));
    (answer.status, answer.body["error"]["code"].as_str().unwrap_or_default(), header("x-should-retry"), after_ms)
}

#[tokio::test]
async fn a_full_worker_is_given_what_waits_in_the_order_of_urgency() {
    let worker = slow().await;
    let fleet = one_at_a_time(&[&worker]).start().await;
    let mut sent = vec![send(&fleet, "first", 9, "a")];
    worker.asked(1).await;
    for ((name, priority), count) in [("low", 1), ("normal", 0), ("high", -1), ("second", 0)].into_iter().zip(1..) {
        sent.push(queue_up(&fleet, name, priority, "a", count).await);
    }
    for (class, length) in [("high", 1.0), ("normal", 2.0), ("low", 1.0), ("returned", 0.0)] {
        assert_eq!(fleet.metric(LENGTH, &format!("class=\"{class}\"")).await, length, "{class}");
    }
    assert_eq!(fleet.health().await["queued"], 4);
    for count in 1..=5 {
        worker.asked(count).await;
        // What waits is here, and not at the worker.
        assert_eq!(worker.seen().len(), count);
        worker.go();
    }
    for sent in sent {
        assert_eq!(sent.await.unwrap(), 200);
    }
    assert_eq!(names(&worker.seen()), ["first", "high", "normal", "low", "second"]);
    assert_eq!(fleet.metric("warmpath_queue_wait_seconds_count", "normal").await, 2.0);
    is_idle(&fleet).await;
}

#[tokio::test]
async fn tenants_share_however_many_requests_one_of_them_sends() {
    for header in ["", "queue: {tenant_header: x-fair}"] {
        let worker = slow().await;
        let fleet = one_at_a_time(&[&worker]).config(header).start().await;
        let mut sent = vec![send(&fleet, "first", 0, "a")];
        worker.asked(1).await;
        for (name, count) in ["a1", "a2", "a3", "b1", "b2"].iter().zip(1..) {
            sent.push(queue_up(&fleet, name, 0, &name[..1], count).await);
        }
        for count in 1..=6 {
            worker.asked(count).await;
            worker.go();
        }
        join_all(sent).await;
        let order = names(&worker.seen());
        // By the other header, which nobody sent, all are one tenant.
        let fair = if header.is_empty() { ["a1", "b1", "a2", "b2", "a3"] } else { ["a1", "a2", "a3", "b1", "b2"] };
        assert_eq!(order[1..], fair, "{header}");
    }
}

#[tokio::test]
async fn a_client_is_told_whether_its_own_share_is_full_or_the_queue() {
    let worker = slow().await;
    let fleet = one_at_a_time(&[&worker]).config("queue: {requests: 3, requests_per_tenant: 2}").start().await;
    let mut sent = vec![send(&fleet, "first", 0, "a")];
    worker.asked(1).await;
    sent.push(queue_up(&fleet, "a1", 0, "a", 1).await);
    sent.push(queue_up(&fleet, "a2", 0, "a", 2).await);
    let own = ask(&fleet, &[("authorization", "Bearer a")]).await;
    assert!(matches!(told(&own), (429, "rate_limit_exceeded", Some("true"), Some(1_000..=1_500))), "{own:?}");
    let newest = queue_up(&fleet, "b1", 0, "b", 3).await;
    let health = fleet.health().await;
    assert_eq!(health["degraded"], json!(["the queue of `m` is full: 3 requests wait for a worker"]));
    let all = ask(&fleet, &[("authorization", "Bearer c")]).await;
    assert!(matches!(told(&all), (503, "queue_full", Some("true"), Some(1_000..=1_500))), "{all:?}");
    assert_eq!(all.body["error"]["message"], "too many requests are waiting");
    // Something urgent takes the place of the newest.
    sent.push(send(&fleet, "urgent", -1, "c"));
    assert_eq!(newest.await.unwrap(), 503);
    for reason in ["\"full\"", "tenant_full", "displaced"] {
        assert_eq!(fleet.metric(REFUSALS, reason).await, 1.0, "{reason}");
    }
    for count in 1..=4 {
        worker.asked(count).await;
        worker.go();
    }
    join_all(sent).await;
    assert_eq!(names(&worker.seen()), ["first", "urgent", "a1", "a2"]);
    is_idle(&fleet).await;
    assert_eq!(fleet.health().await["status"], "ok");
}

/// Nothing goes to a worker that is of no use any more when it is a request's turn.
#[tokio::test]
async fn a_request_waits_as_long_as_the_queue_and_its_client_allow() {
    let worker = slow().await;
    let fleet = one_at_a_time(&[&worker]).config("queue: {timeout: 400ms}").start().await;
    let first = send(&fleet, "first", 0, "a");
    worker.asked(1).await;
    let start = Instant::now();
    let brief = ask(&fleet, &[("x-request-timeout-ms", "150")]).await;
    assert_eq!(told(&brief), (504, "deadline_exceeded", Some("false"), None));
    assert!(start.elapsed() >= Duration::from_millis(150) && start.elapsed() < Duration::from_millis(390));
    let patient = ask(&fleet, &[]).await;
    assert!(matches!(told(&patient), (503, "queue_timeout", Some("true"), Some(_))), "{patient:?}");
    assert!(start.elapsed() >= Duration::from_millis(550));
    fleet.until_metric(REFUSALS, "expired", 1.0).await;
    assert_eq!(fleet.metric(REFUSALS, "deadline").await, 1.0);
    worker.go();
    assert_eq!(first.await.unwrap(), 200);
    is_idle(&fleet).await;
    // Now there is room, and still no time.
    let late = ask(&fleet, &[("x-request-timeout-ms", "0")]).await;
    assert_eq!(told(&late), (504, "deadline_exceeded", Some("false"), None));
    for nonsense in ["soon", "-5", "1.5"] {
        let answer = ask(&fleet, &[("x-request-timeout-ms", nonsense)]).await;
        assert_eq!((answer.status, &answer.body["error"]["param"]), (400, &json!("x-request-timeout-ms")));
    }
    assert_eq!(names(&worker.seen()), ["first"]);
}

/// R36 and R9's part in the queue: of a thousand clients that vanish while they wait, none reaches a worker.
#[tokio::test]
async fn r36_clients_that_vanish_leave_the_queue_and_never_reach_a_worker() {
    let worker = slow().await;
    let fleet = one_at_a_time(&[&worker]).start().await;
    let mut cancelled = 0_u32;
    let mut expected = Vec::new();
    for round in 0..20_u32 {
        expected.push(format!("{round}-holds"));
        let mut sent = vec![send(&fleet, &format!("{round}-holds"), 0, "a")];
        worker.asked(expected.len()).await;
        let name = |number: u32| format!("{round}-{number}");
        let waits: Vec<Sent> = (0..55).map(|number| send(&fleet, &name(number), 0, "a")).collect();
        until_waiting(&fleet, 55).await;
        // Every eleventh stays; which those are changes from round to round.
        for (number, waits) in (0..).zip(waits) {
            if (number + round) % 11 == 0 {
                sent.push(waits);
            } else {
                waits.abort();
                cancelled += 1;
            }
        }
        until_waiting(&fleet, 5).await;
        for stays in 0..6 {
            worker.asked(expected.len() + stays).await;
            worker.go();
        }
        assert!(join_all(sent).await.iter().all(|status| *status.as_ref().unwrap() == 200));
        let mut stayed: Vec<String> = (0..55).filter(|number| (number + round) % 11 == 0).map(name).collect();
        let seen = names(&worker.seen());
        let mut came = seen[expected.len()..].to_vec();
        came.sort();
        stayed.sort();
        assert_eq!(came, stayed);
        expected = seen;
    }
    assert_eq!((cancelled, worker.seen().len()), (1_000, 120));
    fleet.until_metric(REFUSALS, "client_left", 1_000.0).await;
    assert_eq!(fleet.metric(REFUSALS, "client_left").await, 1_000.0);
    is_idle(&fleet).await;
}

/// R30: clients that come all at once after a restart, and again when they are told to.
#[tokio::test]
async fn r30_a_thundering_herd_is_served_bit_by_bit() {
    let engines = "limits: {in_flight: 8}\nqueue: {requests: 32, requests_per_tenant: 64}";
    let mut fleet = fleet().without_events().config(engines).start().await;
    fleet.restart_gateway().await;
    let client = async |number: u32| {
        let mut refused = 0_u32;
        loop {
            let answer = fleet.complete(json!([number, 1, 2, 3, 4, 5])).await;
            if answer.status == 200 {
                return refused;
            }
            let (status, code, should, after) = told(&answer);
            assert_eq!((status, code, should), (503, "queue_full", Some("true")));
            refused += 1;
            tokio::time::sleep(Duration::from_millis(after.unwrap())).await;
        }
    };
    let done = std::cell::Cell::new(false);
    let watch = async {
        let mut most = (0.0_f64, 0);
        while !done.get() {
            most = (most.0.max(waiting(&fleet).await), most.1.max(fleet.app.in_flight()));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        most
    };
    let herd = async {
        let refused = join_all((0..300).map(client)).await;
        done.set(true);
        refused.iter().sum::<u32>()
    };
    let (refused, (most_waiting, most_in_flight)) = tokio::join!(herd, watch);
    // Placements that run at one instant may each take the last place; a test's runtime has one thread.
    assert!(most_waiting <= 32.0 && most_waiting > 0.0 && most_in_flight <= 8, "{most_waiting}, {most_in_flight}");
    assert!(refused > 0);
    is_idle(&fleet).await;
}

/// Whatever makes room wakes one that waits; where there is nobody left to wait for, it is told so.
#[tokio::test]
async fn workers_that_come_back_or_go_for_good_end_the_waiting() {
    let (one, two) = (slow().await, slow().await);
    let fleet = one_at_a_time(&[&one, &two]).start().await;
    assert_eq!(fleet.operate("stranger-2", "drain").await.0, 200);
    let first = send(&fleet, "first", 0, "a");
    one.asked(1).await;
    let second = queue_up(&fleet, "second", 0, "a", 1).await;
    assert_eq!(fleet.operate("stranger-2", "undrain").await.0, 200);
    two.asked(1).await;
    let third = queue_up(&fleet, "third", 0, "a", 1).await;
    for worker in ["stranger-1", "stranger-2"] {
        assert_eq!(fleet.operate(worker, "drain").await.0, 200);
    }
    // What runs may finish; what waits has nobody to wait for.
    assert_eq!(third.await.unwrap(), 503);
    one.go();
    two.go();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (200, 200));
    assert_eq!((names(&one.seen()), names(&two.seen())), (vec!["first".to_owned()], vec!["second".to_owned()]));
    is_idle(&fleet).await;
}

#[tokio::test]
async fn what_looks_for_another_worker_goes_before_what_is_new() {
    let fails = Scripted::start(vec![Step::Await, Step::Close]).await;
    let good = slow().await;
    let fleet = one_at_a_time(&[&fails, &good]).start().await;
    let sent = [send(&fleet, "fails", 0, "a")];
    fails.asked(1).await;
    let sent: Vec<Sent> = sent.into_iter().chain([send(&fleet, "holds", 0, "a")]).collect();
    good.asked(1).await;
    let new = queue_up(&fleet, "new", -9, "b", 1).await;
    assert_eq!(fleet.operate("stranger-1", "drain").await.0, 200);
    fails.go();
    until_waiting(&fleet, 2).await;
    assert_eq!(fleet.metric(LENGTH, "returned").await, 1.0);
    for count in 1..=3 {
        good.asked(count).await;
        good.go();
    }
    for sent in sent.into_iter().chain([new]) {
        assert_eq!(sent.await.unwrap(), 200);
    }
    assert_eq!(names(&good.seen()), ["holds", "fails", "new"]);
    is_idle(&fleet).await;
}

/// A worker that has come is given one request more each time that its limit has grown, with nobody asking.
#[tokio::test]
async fn a_worker_is_given_more_as_its_limit_grows() {
    let worker = slow().await;
    let file = std::env::temp_dir().join(format!("warmpath-{}-growing.yaml", std::process::id()));
    let listed = format!("- {{id: w, url: 'http://{}', model: m, events: none, max_num_seqs: 3}}\n", worker.address);
    std::fs::write(&file, listed).unwrap();
    let config = format!(
        "discovery: {{file: {{path: '{}', interval: 20ms}}}}\nhealth: {{ramp: 2s, ramp_from: 1}}\n\
         timeouts: {{health_interval: 20ms}}",
        file.display()
    );
    let fleet = fleet().engines(0).unlisted().config(&config).start().await;
    fleet.eventually("it is in", async |fleet| fleet.metric("warmpath_worker_up", "\"w\"").await == 1.0).await;
    let sent = vec![send(&fleet, "a", 0, "a"), send(&fleet, "b", 0, "a"), send(&fleet, "c", 0, "a")];
    until_waiting(&fleet, 2).await;
    assert_eq!(worker.seen().len(), 1);
    // None of them ends meanwhile: only time makes room.
    worker.asked(2).await;
    until_waiting(&fleet, 1).await;
    worker.asked(3).await;
    (0..3).for_each(|_| worker.go());
    for sent in sent {
        assert_eq!(sent.await.unwrap(), 200);
    }
    std::fs::remove_file(&file).unwrap();
    is_idle(&fleet).await;
}

/// OpenAI's own SDK: which error it raises, how often it tries, and how long it waits in between.
#[tokio::test]
async fn the_openai_sdk_understands_what_the_queue_says() {
    let worker = slow().await;
    let fleet = one_at_a_time(&[&worker]).config("queue: {requests: 2, requests_per_tenant: 1}").start().await;
    let mut sent = vec![send(&fleet, "first", 0, "a")];
    worker.asked(1).await;
    sent.push(queue_up(&fleet, "a1", 0, "greedy", 1).await);
    sent.push(queue_up(&fleet, "b1", 0, "b", 2).await);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gateway/sdk_queue.py");
    let mut command = Command::new(python());
    command.arg(script).arg(fleet.url("")).env_remove("OPENAI_BASE_URL").env("NO_PROXY", "*");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("Python starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((String::from_utf8_lossy(&output.stdout).trim(), output.status.code()), ("ok", Some(0)), "{said}");
    // Each that may be tried again was, twice.
    assert_eq!(fleet.metric(REFUSALS, "tenant_full").await, 3.0);
    assert_eq!(fleet.metric(REFUSALS, "\"full\"").await, 3.0);
    for count in 1..=3 {
        worker.asked(count).await;
        worker.go();
    }
    join_all(sent).await;
    is_idle(&fleet).await;
}
