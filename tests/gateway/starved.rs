//! R33: a router without what every process takes for granted: a processor, and a disk that takes what is written.
//! (Without descriptors: `door`.)

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fleet::value_of;
use crate::raw::{exchange, post};
use crate::scripted::{Scripted, whole};
use crate::serving::Serving;

const BODY: &str = r#"{"model":"m","prompt":[1,2,3]}"#;
const ANSWER: &str = r#"{"choices":[{"index":0,"text":"a","finish_reason":"stop"}],"usage":{"completion_tokens":1}}"#;

#[tokio::test]
async fn r33_a_full_disk_costs_nobody_an_answer() {
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let more = "log: {level: debug}\nrecord: /dev/full";
    let mut serving = Serving::unheard("full-disk", worker.address, more, full.into());
    for _ in 0..50 {
        assert_eq!(exchange(serving.data, post(BODY).as_bytes()).await.unwrap().status, 200);
        assert_eq!(exchange(serving.data, post("{").as_bytes()).await.unwrap().status, 400);
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    let lost = [
        ("warmpath_recorded_requests_total", "outcome=\"failed\"", 50.0),
        ("warmpath_log_lines_dropped_total", "", 100.0),
    ];
    for (name, labels, lost) in lost {
        while value_of(&serving.metrics().await, name, labels) < lost {
            assert!(Instant::now() < deadline, "{name} does not count what cannot be written");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let metrics = serving.metrics().await;
    let restarts: Vec<&str> = metrics.lines().filter(|line| line.starts_with("warmpath_task_restarts_total")).collect();
    assert!(!restarts.is_empty() && restarts.iter().all(|line| line.ends_with(" 0")), "{restarts:?}");
    serving.signal("TERM");
    assert!(serving.ended(Duration::from_secs(10)).await.success());
}

/// A pipe holds 64 KiB. What goes beyond that and the lines that may wait is dropped and counted.
#[tokio::test]
async fn r33_a_log_that_nobody_reads_holds_nobody_up() {
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let mut serving = Serving::unheard("unread-log", worker.address, "log: {level: debug}", Stdio::piped());
    let deadline = Instant::now() + Duration::from_secs(60);
    while value_of(&serving.metrics().await, "warmpath_log_lines_dropped_total", "") == 0.0 {
        assert!(Instant::now() < deadline, "nothing is dropped, or nobody counts it");
        let clients = (0..8).map(async |_| {
            for _ in 0..250 {
                assert_eq!(exchange(serving.data, post(BODY).as_bytes()).await.unwrap().status, 200);
            }
        });
        futures_util::future::join_all(clients).await;
    }
    assert_eq!(exchange(serving.data, post(BODY).as_bytes()).await.unwrap().status, 200);
    serving.signal("TERM");
    assert!(serving.ended(Duration::from_secs(10)).await.success());
}

/// Processes that take all the time that they are given.
struct Crowd(Vec<Child>);

impl Crowd {
    fn of(count: usize) -> Self {
        Self((0..count).map(|_| Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap()).collect())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// For so long, so many processes for each processor beside a router that eight clients use.
async fn starve(name: &str, each: usize, period: Duration) {
    let worker = Scripted::start(vec![whole("200 OK", ANSWER)]).await;
    let mut serving = Serving::start(name, worker.address, "");
    let data = serving.data;
    let crowd = Crowd::of(each * std::thread::available_parallelism().unwrap().get());
    let end = Instant::now() + period;
    let clients = (0..8).map(async |_| {
        let (mut answered, mut slowest) = (0, Duration::ZERO);
        while Instant::now() < end {
            let start = Instant::now();
            assert_eq!(exchange(data, post(BODY).as_bytes()).await.unwrap().status, 200);
            (answered, slowest) = (answered + 1, slowest.max(start.elapsed()));
        }
        (answered, slowest)
    });
    let told = futures_util::future::join_all(clients).await;
    drop(crowd);
    let (since, mut last) = (Instant::now(), Duration::MAX);
    while last > Duration::from_millis(250) {
        assert!(since.elapsed() < Duration::from_secs(2), "it does not recover: {last:?}");
        let start = Instant::now();
        assert_eq!(exchange(data, post(BODY).as_bytes()).await.unwrap().status, 200);
        last = start.elapsed();
    }
    let answered: u32 = told.iter().map(|(answered, _)| answered).sum();
    let slowest = told.iter().map(|(_, slowest)| *slowest).max().unwrap_or_default();
    println!("R33: {answered} answers beside {each} busy processes a processor, slowest {slowest:?}, then {last:?}");
    assert!(answered >= 8);
    serving.signal("TERM");
    assert!(serving.ended(Duration::from_secs(10)).await.success());
}

#[tokio::test]
async fn r33_a_router_that_is_starved_recovers() {
    starve("starved", 2, Duration::from_millis(300)).await;
}

#[tokio::test]
#[ignore = "five seconds of a machine that is busy: scripts/chaos.sh"]
async fn chaos_r33_eight_busy_processes_a_processor() {
    starve("starved-long", 8, Duration::from_secs(5)).await;
}
