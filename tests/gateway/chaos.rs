//! Workers that fail under load. Each recipe has a quick form, which always runs, and a full one, `chaos_…`, with the
//! counts that are promised; `scripts/chaos.sh` runs those.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos_proxy::ChaosProxy;
use crate::faulty::{Act, Faulty, beginning, refusal, stream};
use crate::fleet::{FleetBuilder, TestFleet, fleet};
use crate::retries::retries;
use crate::scripted::whole;

/// A router before these engines.
pub(crate) fn before(engines: &[&Faulty]) -> FleetBuilder {
    let fleet = fleet().engines(0).policy("least_requests").tokenizer("null");
    engines.iter().fold(fleet, |fleet, engine| fleet.stranger(engine.address))
}

/// What a client saw of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saw {
    /// All of an answer.
    Whole,
    /// A stream that said that it broke, and did not end properly.
    Broken,
    /// A stream that ended as if it were whole, or said nothing.
    Silent,
    /// Another status.
    Refused(u16),
}

/// Sends a streamed request, and reads the answer to its end.
pub(crate) async fn ask(client: &reqwest::Client, url: &str, prompt: &str) -> Saw {
    let body = json!({"model": "m", "prompt": prompt, "stream": true, "max_tokens": 60});
    let mut answer = client.post(url).json(&body).send().await.expect("the gateway answers");
    if answer.status() != 200 {
        let status = answer.status().as_u16();
        // Whose refusal it is: a balancer has pages of its own.
        println!("{status}: {}", answer.text().await.unwrap_or_default());
        return Saw::Refused(status);
    }
    let mut text = String::new();
    let clean = loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => text.push_str(&String::from_utf8_lossy(&chunk)),
            ended => break ended.is_ok(),
        }
    };
    match (clean, text.ends_with("data: [DONE]\n\n"), text.contains("\"error\"")) {
        (true, true, false) => Saw::Whole,
        (false, false, true) => Saw::Broken,
        _ => {
            println!("{prompt}: ended properly: {clean}; {text:?}");
            Saw::Silent
        }
    }
}

/// Has `clients` ask `each` times, every time with a prompt of its own. Returns what they saw, and the slowest.
pub(crate) async fn load(fleet: &TestFleet, clients: usize, each: usize) -> (Vec<Saw>, Duration) {
    let url = fleet.url("/v1/completions");
    let lanes = (0..clients).map(|lane| {
        let (client, url) = (fleet.client.clone(), url.clone());
        async move {
            let (mut saw, mut slowest) = (Vec::new(), Duration::ZERO);
            for number in 0..each {
                let start = Instant::now();
                saw.push(ask(&client, &url, &format!("lane-{lane}-{number}")).await);
                slowest = slowest.max(start.elapsed());
            }
            (saw, slowest)
        }
    });
    let lanes = futures_util::future::join_all(lanes).await;
    let slowest = lanes.iter().map(|(_, slowest)| *slowest).max().unwrap_or_default();
    (lanes.into_iter().flat_map(|(saw, _)| saw).collect(), slowest)
}

/// R1: engines are killed before they answer.
async fn killed_before_the_answer(clients: usize, each: usize, every: Duration) {
    let slow = |_: &str, _| [vec![Act::Pause(Duration::from_millis(50))], stream(1)].concat();
    let engines: Arc<[Faulty]> = futures_util::future::join_all((0..4).map(|_| Faulty::start(slow))).await.into();
    let fleet = before(&engines.iter().collect::<Vec<_>>()).start().await;
    let over = Arc::new(AtomicBool::new(false));
    let killing = async {
        let mut kills = 0_usize;
        while !over.load(Ordering::SeqCst) {
            tokio::time::sleep(every).await;
            let engine = &engines[kills % 4];
            engine.kill().await;
            tokio::time::sleep(every / 4).await;
            engine.revive().await;
            kills += 1;
        }
        kills
    };
    let loading = async {
        let loaded = load(&fleet, clients, each).await;
        over.store(true, Ordering::SeqCst);
        loaded
    };
    let (kills, (saw, slowest)) = tokio::join!(killing, loading);
    let lost: Vec<&Saw> = saw.iter().filter(|saw| **saw != Saw::Whole).collect();
    let sent: usize = engines.iter().map(Faulty::count).sum();
    let (extra, stale) = (sent - saw.len(), retries(&fleet, "stale_connection").await);
    println!(
        "R1: {} requests, {kills} kills: {} lost, {extra} extra attempts ({stale} on a new connection), slowest {slowest:?}",
        saw.len(),
        lost.len()
    );
    assert!(lost.is_empty(), "{lost:?}");
    assert!(kills > 0);
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
}

#[tokio::test]
async fn r1_no_request_is_lost_when_engines_die_before_they_answer() {
    killed_before_the_answer(20, 25, Duration::from_millis(300)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r1_ten_thousand_requests() {
    killed_before_the_answer(50, 200, Duration::from_secs(2)).await;
}

/// R2: engines are killed in mid-stream.
async fn killed_in_mid_stream(clients: usize, each: usize, every: Duration) {
    let slow = |_: &str, _| {
        let tokens = stream(20).into_iter().flat_map(|act| [act, Act::Pause(Duration::from_millis(3))]);
        tokens.collect::<Vec<_>>()
    };
    let engines: Arc<[Faulty]> = futures_util::future::join_all((0..4).map(|_| Faulty::start(slow))).await.into();
    let fleet = before(&engines.iter().collect::<Vec<_>>()).start().await;
    let over = Arc::new(AtomicBool::new(false));
    let killing = async {
        for kills in 0_usize.. {
            tokio::time::sleep(every).await;
            if over.load(Ordering::SeqCst) {
                return;
            }
            engines[kills % 4].kill().await;
            engines[kills % 4].revive().await;
        }
    };
    let loading = async {
        let loaded = load(&fleet, clients, each).await;
        over.store(true, Ordering::SeqCst);
        loaded
    };
    let ((), (saw, _)) = tokio::join!(killing, loading);
    let count = |what: Saw| saw.iter().filter(|saw| **saw == what).count();
    let (whole, broken, silent) = (count(Saw::Whole), count(Saw::Broken), count(Saw::Silent));
    println!("R2: {} streams: {whole} whole, {broken} told that they broke, {silent} silent", saw.len());
    assert_eq!((silent, whole + broken), (0, saw.len()), "{saw:?}");
    assert!(broken > 0, "nobody was hit");
}

#[tokio::test]
async fn r2_every_stream_that_breaks_says_so() {
    killed_in_mid_stream(20, 15, Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r2_ten_thousand_streams() {
    killed_in_mid_stream(50, 200, Duration::from_millis(250)).await;
}

/// R6: one of three says at every second request that it is full.
async fn one_is_full(clients: usize, each: usize) {
    let half = |_: &str, number: usize| {
        if number.is_multiple_of(2) { refusal("429 Too Many Requests", "retry-after-ms: 1\r\n") } else { stream(1) }
    };
    let full = Faulty::start(half).await;
    let others = [Faulty::start(|_, _| stream(1)).await, Faulty::start(|_, _| stream(1)).await];
    let fleet = before(&[&full, &others[0], &others[1]]).start().await;
    let (saw, _) = load(&fleet, clients, each).await;
    let refused = saw.iter().filter(|saw| **saw != Saw::Whole).count();
    println!("R6: {} requests, {} refused by one worker, {refused} by the router", saw.len(), full.count() / 2);
    assert_eq!(refused, 0);
    assert!(full.count() >= 2);
    assert!(fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5, "a load is no fault");
}

#[tokio::test]
async fn r6_nobody_hears_that_one_worker_is_full() {
    one_is_full(8, 10).await;
}

#[tokio::test]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r6_one_worker_is_full() {
    one_is_full(16, 500).await;
}

#[tokio::test]
async fn r6_where_all_are_full_the_client_hears_the_soonest_time_to_come_back() {
    let full = |seconds: u32| {
        Faulty::start(move |_, _| refusal("429 Too Many Requests", &format!("retry-after: {seconds}\r\n")))
    };
    let engines = [full(9).await, full(4).await];
    let fleet = before(&[&engines[0], &engines[1]]).start().await;
    let answer = fleet.post("/v1/completions", &json!({"model": "m", "prompt": "x"})).await;
    let header = |name: &str| answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!((answer.status, header("retry-after").as_deref()), (429, Some("4")));
    assert_eq!(
        (header("retry-after-ms").as_deref(), header("x-should-retry").as_deref()),
        (Some("4000"), Some("true"))
    );
    assert_eq!(answer.body["error"]["code"], "rate_limit_exceeded");
    assert_eq!((engines[0].count(), engines[1].count()), (1, 1));
}

/// R7: the worker closes what is idle for 20 ms, and requests come every 18 to 23 ms on 40 lanes. There is no other worker.
async fn keep_alive_race(rounds: u64, worker_idle: &str) -> u64 {
    let answer = whole("200 OK", "{\"choices\":[]}");
    let crate::scripted::Step::Send(answer) = answer else { unreachable!("it is sent") };
    let worker = Faulty::start(move |_, _| vec![Act::Send(answer.clone())]).await;
    let proxy = ChaosProxy::start(worker.address, Some(Duration::from_millis(20))).await;
    let fleet = fleet().engines(0).stranger(proxy.address);
    let fleet = fleet.config(&format!("timeouts: {{worker_idle: {worker_idle}}}")).start().await;
    let failures = AtomicUsize::new(0);
    for round in 0..rounds {
        let lanes = (0..40).map(|_| async {
            let answer = fleet.post_bytes("/v1/completions", b"{\"model\":\"m\",\"prompt\":\"x\"}".to_vec()).await;
            failures.fetch_add(usize::from(answer.status != 200), Ordering::SeqCst);
        });
        futures_util::future::join_all(lanes).await;
        tokio::time::sleep(Duration::from_micros(18_000 + (round * 7_919) % 5_000)).await;
    }
    let again = retries(&fleet, "stale_connection").await;
    let (requests, failed) = (rounds * 40, failures.into_inner());
    println!(
        "R7: {requests} requests, idle {worker_idle}: {failed} failed, {again} sent again, {} connections",
        proxy.connections()
    );
    assert_eq!(failed, 0);
    assert!(fleet.metric("warmpath_worker_up", "stranger-1").await > 0.5);
    again
}

#[tokio::test]
async fn r7_a_connection_that_the_worker_closes_meanwhile_costs_nobody_an_answer() {
    keep_alive_race(12, "4s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r7_twenty_thousand_requests_against_the_keep_alive_race() {
    keep_alive_race(500, "4s").await;
    let again = keep_alive_race(500, "12ms").await;
    assert!(again <= 20, "below the worker's own limit hardly a connection is stale: {again}");
}

/// R9: clients leave at random moments. The workers see it, and nothing stays in flight.
async fn clients_leave(count: u64, every: Duration) {
    let endless = move |_: &str, _| [beginning(1), vec![Act::Drip(every)]].concat();
    let workers = [Faulty::start(endless).await, Faulty::start(endless).await];
    let fleet = before(&[&workers[0], &workers[1]]).start().await;
    let url = fleet.url("/v1/completions");
    let all_here = tokio::sync::Barrier::new(usize::try_from(count).unwrap());
    let clients = (0..count).map(|number| {
        let (client, url, all_here) = (fleet.client.clone(), url.clone(), &all_here);
        async move {
            let prompt = format!("leaves-{number}");
            let body = json!({"model": "m", "prompt": prompt, "stream": true});
            let mut answer = client.post(url).json(&body).send().await.expect("the gateway answers");
            if answer.status() != 200 {
                panic!("{}", answer.text().await.unwrap_or_default());
            }
            // Else those who leave first are measured against the arrival of the others.
            all_here.wait().await;
            let stays = Duration::from_micros(number * 7_919 % 2_000_000);
            let reading = async { while answer.chunk().await.expect("it streams").is_some() {} };
            assert!(tokio::time::timeout(stays, reading).await.is_err(), "the stream ended");
            drop(answer);
            (prompt, Instant::now())
        }
    });
    let gone = futures_util::future::join_all(clients).await;
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
    let seen = |prompt: &str| workers.iter().find_map(|worker| worker.left(prompt));
    let mut delays = Vec::new();
    for (prompt, at) in &gone {
        let deadline = Instant::now() + Duration::from_secs(5);
        let noticed = loop {
            match seen(prompt) {
                Some(noticed) => break noticed,
                None => assert!(Instant::now() < deadline, "no worker saw that {prompt} left"),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        delays.push(noticed.saturating_duration_since(*at));
    }
    delays.sort();
    let p99 = delays[delays.len() * 99 / 100];
    println!(
        "R9: {count} streams left; the worker saw it after {:?} (median), {p99:?} (p99)",
        delays[delays.len() / 2]
    );
    assert!(p99 <= Duration::from_millis(500), "{p99:?}");
}

#[tokio::test]
async fn r9_a_client_that_leaves_is_missed_by_its_worker() {
    clients_leave(40, Duration::from_millis(10)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r9_five_hundred_clients_leave() {
    clients_leave(500, Duration::from_millis(200)).await;
}

/// R36: clients leave while their requests are being tried again. Nothing is sent for them afterwards.
async fn clients_leave_between_attempts(count: u64) {
    // Each asks to come back after a while, which is waited for, as there is nobody else.
    let later = |_: &str, _| {
        [vec![Act::Pause(Duration::from_millis(5))], refusal("503 Service Unavailable", "retry-after-ms: 40\r\n")]
            .concat()
    };
    let worker = Faulty::start(later).await;
    let fleet = before(&[&worker]).config("health: {request_failures: 1000000}\nretries: {budget: 1}").start().await;
    let url = fleet.url("/v1/completions");
    let clients = (0..count).map(|number| {
        let (client, url) = (fleet.client.clone(), url.clone());
        async move {
            tokio::time::sleep(Duration::from_millis(number / 4)).await;
            let prompt = format!("cancels-{number}");
            let body = json!({"model": "m", "prompt": prompt});
            let sending = client.post(url).json(&body).send();
            let stays = Duration::from_micros(number * 7_919 % 150_000);
            let answered = tokio::time::timeout(stays, sending).await.is_ok();
            (prompt, Instant::now(), answered)
        }
    });
    let gone = futures_util::future::join_all(clients).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let late = Duration::from_millis(100);
    let orphans = gone.iter().filter(|(prompt, at, _)| worker.arrived(prompt).iter().any(|came| *came > *at + late));
    let (orphans, left) = (orphans.count(), gone.iter().filter(|(_, _, answered)| !answered).count());
    println!("R36: {left} of {count} clients left between attempts: {orphans} requests were sent after that");
    assert_eq!(orphans, 0);
    assert!(left > 0);
    fleet.eventually("nothing is in flight", async |fleet| fleet.app.in_flight() == 0).await;
}

#[tokio::test]
async fn r36_nothing_is_tried_again_for_a_client_that_has_left() {
    clients_leave_between_attempts(60).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "scripts/chaos.sh runs it"]
async fn chaos_r36_a_thousand_cancels() {
    clients_leave_between_attempts(1_000).await;
}
