//! Clients that do not read what they are sent.

use std::time::{Duration, Instant};

use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::time::timeout;
use warmpath::shutdown::Tasks;

use crate::door::until_counted;
use crate::fleet::{fleet, value_of};
use crate::fountain::{Flow, Fountain};
use crate::http2::{http2, models, streamed};
use crate::raw::{MODELS, connect, exchange, post, streamed_text};
use crate::scripted::{Scripted, until, whole};
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

/// A client that takes its answer slowly is not idle: it gets all of it, however long that takes.
#[tokio::test]
async fn an_answer_that_is_taken_slowly_is_not_cut_for_idleness() {
    const BYTES: usize = 1_000_000;
    let json = format!("{{\"pad\":\"{}\"}}", "x".repeat(BYTES));
    let worker = Scripted::start(vec![whole("200 OK", &json)]).await;
    let timeouts = "timeouts: {client_idle: 300ms, client_stall: 10s}";
    let fleet = fleet().engines(0).stranger(worker.address).config(timeouts).start().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 * 1024).unwrap();
    let mut client = socket.connect(fleet.app.data_address()).await.unwrap();
    client.write_all(post("{\"model\":\"m\",\"prompt\":\"x\"}").as_bytes()).await.unwrap();
    let (mut text, mut piece) = (Vec::new(), vec![0; 20_000]);
    loop {
        let read = client.read(&mut piece).await.unwrap();
        if read == 0 {
            break;
        }
        text.extend_from_slice(&piece[..read]);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let text = String::from_utf8(text).unwrap();
    let body = text.split_once("\r\n\r\n").unwrap().1;
    assert!(body == json, "{} of {} bytes came", body.len(), json.len());
    // HTTP/2 as well.
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 16 * 1024, &tasks).await;
    let request = http::Request::post("http://router/v1/completions")
        .body(http_body_util::Full::from("{\"model\":\"m\",\"prompt\":\"x\"}"));
    let mut body = sender.send_request(request.unwrap()).await.unwrap().into_body();
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        len += frame.unwrap().into_data().unwrap().len();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    assert_eq!(len, json.len());
}

/// The time of a request is over when it is, for a client that takes nothing, or little, as for any other: the worker is given
/// back then.
#[tokio::test]
async fn a_client_that_does_not_read_gets_no_more_time_than_its_request_has() {
    let fountain = Fountain::start(Flow::Endless).await;
    let timeouts = "timeouts: {total: 700ms, client_stall: 1h}";
    let fleet = fleet().engines(0).stranger(fountain.address).config(timeouts).start().await;
    let mut reads_nothing = connect(fleet.app.data_address()).await;
    reads_nothing.write_all(streamed_text().as_bytes()).await.unwrap();
    let mut reads_little = connect(fleet.app.data_address()).await;
    reads_little.write_all(streamed_text().as_bytes()).await.unwrap();
    let tasks = Tasks::new();
    let mut sender = http2(connect(fleet.app.data_address()).await, 64 * 1024, &tasks).await;
    let unread = sender.send_request(streamed()).await.unwrap();
    let little = async {
        let mut piece = vec![0; 4_000];
        while matches!(reads_little.read(&mut piece).await, Ok(1..)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(20), little).await.expect("it ends");
    until("all workers are given back", || fountain.begun() == 3 && fountain.open() == 0).await;
    fleet.until_metric("warmpath_requests_total", "outcome=\"deadline\"", 3.0).await;
    assert_eq!(fleet.app.in_flight(), 0);
    drop((reads_nothing, unread));
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

/// Reads a stream of a drop every 100 ms; the gaps between what arrives, without those before the first.
async fn gaps(address: std::net::SocketAddr, drops: usize) -> Vec<Duration> {
    let mut client = connect(address).await;
    client.write_all(post(r#"{"model":"live","prompt":"x","stream":true}"#).as_bytes()).await.unwrap();
    let (mut text, mut gaps, mut last) = (Vec::new(), Vec::new(), None::<Instant>);
    while gaps.len() < drops {
        assert_ne!(client.read_buf(&mut text).await.unwrap(), 0, "the stream goes on");
        let now = Instant::now();
        gaps.extend(last.map(|last| now - last));
        last = Some(now);
    }
    assert!(text.starts_with(b"HTTP/1.1 200 OK"));
    gaps
}

/// R11. Streams whose clients read nothing do not hold up others. Returns the 99th percentile of the gaps between what
/// live clients got, without and with the stalled ones.
async fn r11(name: &str, streams: u64, drops: usize) -> (Duration, Duration) {
    let (endless, live) =
        (Fountain::start(Flow::Endless).await, Fountain::start(Flow::Drops(Duration::from_secs(600))).await);
    let second = format!(
        "models: [{{name: m}}, {{name: live}}]\nworkers:\n- {{id: w, url: 'http://{}', model: m, events: none}}\n\
         - {{id: l, url: 'http://{}', model: live, events: none}}",
        endless.address, live.address
    );
    let serving = Serving::configured(name, &second);
    let measured = async || {
        let streams = (0..streams).map(|_| gaps(serving.data, drops));
        let mut gaps: Vec<_> = futures_util::future::join_all(streams).await.concat();
        gaps.sort_unstable();
        gaps[gaps.len() * 99 / 100]
    };
    let alone = measured().await;
    let mut stalled = Vec::new();
    for _ in 0..streams {
        let mut client = connect(serving.data).await;
        client.write_all(streamed_text().as_bytes()).await.unwrap();
        stalled.push(client);
    }
    endless.blocked(streams).await;
    let beside = measured().await;
    assert_eq!(endless.open(), streams, "they are stalled still");
    (alone, beside)
}

#[tokio::test]
async fn r11_stalled_clients_hold_nobody_up() {
    let (_, beside) = r11("r11", 20, 10).await;
    assert!(beside < Duration::from_secs(1), "{beside:?} between two drops of 100 ms");
}

/// The full count; `scripts/chaos/door.sh` runs it.
#[tokio::test]
#[ignore = "needs an idle machine and 200 streams"]
async fn chaos_r11_100_live_streams_beside_100_stalled_ones() {
    let (alone, beside) = r11("chaos-r11", 100, 50).await;
    println!("R11: between two drops of 100 ms at most (p99): {alone:?} alone, {beside:?} beside 100 stalled streams");
    assert!(beside.as_secs_f64() <= alone.as_secs_f64() * 1.2, "{alone:?} became {beside:?}");
}
