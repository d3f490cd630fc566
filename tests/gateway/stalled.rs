//! Clients that do not read what they are sent.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;
use warmpath::shutdown::Tasks;

use crate::door::{http2, models, streamed, until_counted};
use crate::fleet::{fleet, value_of};
use crate::fountain::{Flow, Fountain};
use crate::raw::{MODELS, connect, exchange, streamed_text};
use crate::scripted::until;
use crate::serving::Serving;

/// R10. Clients that read nothing: what is kept for them is bounded, and they do not hold their workers for ever.
async fn r10(name: &str, readers: u64, stall: u64) {
    let fountain = Fountain::start(Flow::Endless).await;
    let serving = Serving::start(name, fountain.address, &format!("timeouts: {{client_stall: {stall}s}}"));
    assert_eq!(exchange(serving.data, MODELS.as_bytes()).await.unwrap().status, 200);
    let streams = async |count: u64| {
        let mut clients = Vec::new();
        for _ in 0..count {
            let mut client = connect(serving.data).await;
            client.write_all(streamed_text().as_bytes()).await.unwrap();
            clients.push(client);
        }
        clients
    };
    // What a process takes once is no stream's.
    let first = streams(4).await;
    fountain.blocked(4).await;
    drop(first);
    until("they have gone", || fountain.open() == 0).await;
    let (before, _) = serving.memory();
    let _clients = streams(readers).await;
    let start = Instant::now();
    fountain.blocked(readers).await;
    let (now, most) = serving.memory();
    let each = now.saturating_sub(before) / readers;
    let written = fountain.written() / readers / 1024;
    println!(
        "R10: {readers} readers at rest: {each} KiB of memory each ({} at most), {written} KiB taken from each worker",
        most.saturating_sub(before) / readers
    );
    assert!(each <= 128, "{each} KiB of memory a stream");
    let patience = Duration::from_secs(stall + 10);
    let closed = async {
        while fountain.open() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(patience, closed).await.expect("the workers are given back");
    println!("R10: all workers were given back after {:?}", start.elapsed());
    let metrics = serving.metrics().await;
    let stalled = value_of(&metrics, "warmpath_client_connections_closed_total", "reason=\"stalled\"");
    assert!((stalled - f64::from(u32::try_from(readers).unwrap())).abs() < 1e-9, "{stalled}");
}

#[tokio::test]
async fn r10_clients_that_read_nothing_cost_little_and_are_cut() {
    r10("r10", 40, 3).await;
}

/// The full count; `scripts/chaos/door.sh` runs it.
#[tokio::test]
#[ignore = "takes a minute and 200 streams"]
async fn chaos_r10_200_clients_that_read_nothing() {
    r10("chaos-r10", 200, 60).await;
}

/// Streams at rest, between two tokens: what they keep of both connections and of the request is bounded.
#[tokio::test]
async fn a_stream_at_rest_costs_little() {
    const STREAMS: u64 = 200;
    let fountain = Fountain::start(Flow::Drops(Duration::from_secs(60))).await;
    let serving = Serving::start("at-rest", fountain.address, "");
    let mut clients = Vec::new();
    let mut before = 0;
    for number in 1..=STREAMS + 8 {
        let mut client = connect(serving.data).await;
        client.write_all(streamed_text().as_bytes()).await.unwrap();
        clients.push(client);
        until("the worker has it", || fountain.begun() == number).await;
        if number == 8 {
            // What a process takes once is no stream's.
            before = serving.memory().0;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let each = serving.memory().0.saturating_sub(before) / STREAMS;
    println!("{STREAMS} streams at rest: {each} KiB of memory each");
    assert!(each <= 100, "{each} KiB of memory a stream");
}

/// One stream of HTTP/2 that is not read is reset; its neighbours on the connection notice nothing.
#[tokio::test]
async fn an_http2_stream_that_is_not_read_is_reset_alone() {
    let fountain = Fountain::start(Flow::Endless).await;
    let timeouts = "timeouts: {client_stall: 800ms}";
    let fleet = fleet().engines(0).stranger(fountain.address).config(timeouts).start().await;
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 32 * 1024, &tasks).await;
    let unread = sender.send_request(streamed()).await.unwrap();
    let read = sender.send_request(streamed()).await.unwrap();
    let mut read = read.into_body();
    let reading = async {
        let start = Instant::now();
        let mut bytes = 0;
        while start.elapsed() < Duration::from_secs(2) {
            bytes += read.frame().await.unwrap().unwrap().into_data().unwrap().len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        bytes
    };
    assert!(reading.await > 100_000);
    until_counted(&fleet, "warmpath_client_streams_reset_total", "reason=\"stalled\"", 1.0).await;
    until("one worker is given back", || fountain.open() == 1).await;
    let mut unread = unread.into_body();
    let broken = async { while unread.frame().await.expect("it does not end cleanly").is_ok() {} };
    timeout(Duration::from_secs(5), broken).await.expect("the stream is reset");
    assert_eq!(sender.send_request(models()).await.unwrap().status(), 200);
}
