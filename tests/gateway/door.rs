//! Connections: how long they may be silent, how many there may be, and how they end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fleet::{TestFleet, fleet, value_of};
use crate::raw::{MODELS, ask, completion, connect, exchange, until_closed};
use crate::scripted::{Scripted, whole};
use crate::serving::Serving;

/// The value of a metric about the data port.
pub(crate) async fn counted(fleet: &TestFleet, name: &str, label: &str) -> f64 {
    let (_, text) = fleet.admin("/metrics").await;
    let of_data: Vec<&str> = text.lines().filter(|line| line.contains("listener=\"data\"")).collect();
    value_of(&of_data.join("\n"), name, label)
}

/// Waits until a metric about the data port has this value.
pub(crate) async fn until_counted(fleet: &TestFleet, name: &str, label: &str, count: f64) {
    let is_so = async |fleet: &TestFleet| (counted(fleet, name, label).await - count).abs() < 1e-9;
    fleet.eventually(&format!("{name}{{{label}}} is {count}"), is_so).await;
}

#[tokio::test]
async fn a_kept_connection_outlives_the_time_for_a_head_and_ends_with_its_own() {
    let timeouts = "timeouts: {header_read: 200ms, client_idle: 900ms}";
    let fleet = fleet().engines(1).config(timeouts).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    for _ in 0..2 {
        assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(ask(&mut stream, &completion("")).await.unwrap().status, 200);
    let start = Instant::now();
    assert_eq!(until_closed(&mut stream).await, (String::new(), true));
    let idle = start.elapsed();
    assert!((Duration::from_millis(800)..Duration::from_secs(5)).contains(&idle), "{idle:?}");
    until_counted(&fleet, "warmpath_client_connections_closed_total", "reason=\"idle\"", 1.0).await;
}

/// The second head on a connection has no more time than the first.
#[tokio::test]
async fn half_a_head_is_408_on_a_new_connection_and_on_a_kept_one() {
    let fleet = fleet().engines(1).config("timeouts: {header_read: 300ms}").start().await;
    for kept in [false, true] {
        let mut stream = connect(fleet.app.data_address()).await;
        if kept {
            assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
        }
        let start = Instant::now();
        for byte in MODELS.as_bytes().iter().take(20) {
            stream.write_all(&[*byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let answer = crate::raw::answer(&mut stream).await.unwrap();
        assert_eq!((answer.status, answer.refusal().as_str()), (408, "the request's head did not arrive in time"));
        assert_eq!(until_closed(&mut stream).await, (String::new(), true));
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
    until_counted(&fleet, "warmpath_client_connections_closed_total", "reason=\"head_timeout\"", 2.0).await;
}

/// Neither a request before it nor a body that nobody read gives a head more time.
#[tokio::test]
async fn half_a_head_behind_a_request_is_408() {
    let timeouts = "timeouts: {header_read: 300ms, client_idle: 1h}";
    let fleet = fleet().engines(1).config(timeouts).start().await;
    let nowhere = "POST /nope HTTP/1.1\r\nhost: r\r\ncontent-length: 5\r\n\r\nabcde";
    let half = &MODELS[..20];
    for (first, status) in [(MODELS, 200), (&completion(""), 200), (nowhere, 404)] {
        for at_once in [true, false] {
            let mut stream = connect(fleet.app.data_address()).await;
            let mut text = String::new();
            if at_once {
                stream.write_all([first, half].concat().as_bytes()).await.unwrap();
            } else {
                let answer = ask(&mut stream, first).await.unwrap();
                text = answer.head + &answer.body;
                stream.write_all(half.as_bytes()).await.unwrap();
            }
            text += &until_closed(&mut stream).await.0;
            let statuses: Vec<&str> = text.split("HTTP/1.1 ").skip(1).map(|answer| &answer[..3]).collect();
            assert_eq!(statuses, [status.to_string().as_str(), "408"], "{text}");
        }
    }
    until_counted(&fleet, "warmpath_client_connections_closed_total", "reason=\"head_timeout\"", 6.0).await;
}

/// However a client leaves that has all it asked for, nothing is broken.
#[tokio::test]
async fn who_leaves_between_requests_is_done() {
    let fleet = fleet().engines(1).start().await;
    for (left, resets) in [(1.0, false), (2.0, true)] {
        let mut stream = connect(fleet.app.data_address()).await;
        assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
        if resets {
            stream.set_zero_linger().unwrap();
        }
        drop(stream);
        until_counted(&fleet, "warmpath_client_connections_closed_total", "reason=\"done\"", left).await;
    }
}

/// What is no request of HTTP is refused at once, however long it is before its first line ends.
#[tokio::test]
async fn another_protocol_is_told_at_once() {
    let fleet = fleet().engines(1).config("timeouts: {header_read: 1h}").start().await;
    for bytes in [vec![0; 100], [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], &[0x77; 500]].concat()] {
        let mut stream = connect(fleet.app.data_address()).await;
        stream.write_all(&bytes).await.unwrap();
        assert_eq!(crate::raw::answer(&mut stream).await.unwrap().status, 400);
    }
}

/// Some clients send an empty line behind a body. It begins no request, and nobody hears of one that did not come.
#[tokio::test]
async fn empty_lines_between_requests_begin_nothing() {
    let fleet = fleet().engines(1).config("timeouts: {header_read: 300ms}").start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    for behind in ["\r\n", "\r\n\r\n"] {
        let answer = ask(&mut stream, &(completion("") + behind)).await.expect("an answer");
        assert_eq!(answer.status, 200);
        // Longer than a head may take.
        let heard = tokio::time::timeout(Duration::from_millis(900), stream.read_u8()).await;
        assert!(heard.is_err(), "{heard:?}");
        stream.write_all(b"\r\n").await.unwrap();
        assert_eq!(ask(&mut stream, MODELS).await.expect("it is still there").status, 200);
    }
}

/// What HTTP/2 begins with is no request: who sends nothing else has no more time than who is silent.
#[tokio::test]
async fn an_http2_connection_whose_first_request_does_not_come_is_closed_in_time() {
    let timeouts = "timeouts: {header_read: 300ms, client_idle: 1h}";
    let fleet = fleet().engines(1).config(timeouts).start().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].as_slice();
    let half_a_frame = [0, 0, 9, 1].as_slice();
    let headers_that_go_on = [0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82].as_slice();
    for bytes in [vec![preface], vec![preface, settings, half_a_frame], vec![preface, settings, headers_that_go_on]] {
        let mut stream = connect(fleet.app.data_address()).await;
        stream.write_all(&bytes.concat()).await.unwrap();
        let mut answer = Vec::new();
        let closed = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut answer);
        drop(tokio::time::timeout(Duration::from_secs(10), closed).await.expect("it is closed"));
    }
    until_counted(&fleet, "warmpath_client_connections_closed_total", "reason=\"head_timeout\"", 3.0).await;
}

/// R12. Silence, half heads and half bodies from `clients` each, beside requests that make sense.
async fn r12(fleet: &TestFleet, clients: usize, patience: Duration) {
    let (start, address) = (Instant::now(), fleet.app.data_address());
    let mut slow = Vec::new();
    for begin in [
        "",
        "PR",
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\nx-",
        "POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 9\r\n\r\n{",
    ] {
        for _ in 0..clients {
            let mut stream = connect(address).await;
            stream.write_all(begin.as_bytes()).await.unwrap();
            slow.push(stream);
        }
    }
    let count = u32::try_from(slow.len()).unwrap();
    until_counted(fleet, "warmpath_client_connections", "", f64::from(count)).await;
    let closing = async {
        for stream in &mut slow {
            until_closed(stream).await;
        }
        start.elapsed()
    };
    let healthy = async {
        let mut served = 0;
        loop {
            let answer = exchange(address, completion("").as_bytes()).await.unwrap();
            assert_eq!(answer.status, 200);
            served += 1;
            if start.elapsed() > patience {
                return served;
            }
        }
    };
    let (closed_after, served) = tokio::join!(closing, healthy);
    println!("R12: {count} slow clients closed after {closed_after:?}, {served} requests served meanwhile, 0 failed");
    assert!(closed_after < patience, "{closed_after:?}");
    assert!(served > 10, "{served}");
}

#[tokio::test]
async fn r12_slow_clients_are_closed_and_nobody_waits_for_them() {
    let fleet = fleet().engines(1).config("timeouts: {header_read: 700ms, body_read: 700ms}").start().await;
    r12(&fleet, 25, Duration::from_secs(2)).await;
}

/// The full counts, with the times that are shipped; `scripts/chaos/door.sh` runs it.
#[tokio::test]
#[ignore = "takes half a minute and a thousand connections"]
async fn chaos_r12_a_thousand_slow_clients() {
    let fleet = fleet().engines(1).config("timeouts: {body_read: 10s}").start().await;
    r12(&fleet, 250, Duration::from_secs(11)).await;
}

#[tokio::test]
async fn beyond_their_number_connections_are_turned_away_in_words() {
    let limits = "limits: {connections: 4, connections_per_address: 3}\ntimeouts: {client_idle: 1h}";
    let fleet = fleet().engines(1).config(limits).start().await;
    let address = fleet.app.data_address();
    let mut kept = Vec::new();
    for _ in 0..3 {
        let mut stream = connect(address).await;
        assert_eq!(ask(&mut stream, MODELS).await.unwrap().status, 200);
        kept.push(stream);
    }
    let mut turned_away = connect(address).await;
    let (text, _) = until_closed(&mut turned_away).await;
    assert!(text.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{text}");
    assert!(text.contains("retry-after: 1\r\n") && text.contains("\"code\":\"too_many_connections\""), "{text}");
    assert!(text.contains("\r\nx-request-id: wp-"), "{text}");
    assert!(
        (counted(&fleet, "warmpath_client_connections_refused_total", "reason=\"address\"").await - 1.0).abs() < 1e-9
    );
    // Another address of this machine has room of its own, until the door is full.
    let mut others = Vec::new();
    for _ in 0..2 {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
        others.push(socket.connect(address).await.unwrap());
    }
    assert_eq!(ask(&mut others[0], MODELS).await.unwrap().status, 200);
    assert!(until_closed(&mut others[1]).await.0.starts_with("HTTP/1.1 503 "));
    assert!((counted(&fleet, "warmpath_client_connections_refused_total", "reason=\"full\"").await - 1.0).abs() < 1e-9);
    drop(kept);
    until_counted(&fleet, "warmpath_client_connections", "", 1.0).await;
    assert_eq!(exchange(address, MODELS.as_bytes()).await.unwrap().status, 200);
}

/// R33: a process without descriptors accepts again as soon as it has some.
#[tokio::test]
async fn r33_a_router_without_descriptors_recovers() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let serving = Serving::limited("r33", worker.address, "timeouts: {client_idle: 1h}", 48);
    // Kept, so that it can be asked while nothing is accepted.
    let admin = reqwest::Client::new();
    let metrics = format!("http://{}/metrics", serving.admin);
    let read = async || admin.get(&metrics).send().await.unwrap().text().await.unwrap();
    read().await;
    drop(crowd_out(serving.data, &read).await);
    let start = Instant::now();
    // Whoever comes before it has let go of the crowd may be served by nobody yet, and is told to try again.
    loop {
        let answer = exchange(serving.data, post_text().as_bytes()).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}: {answer:?}", start.elapsed());
        if answer.status == 200 {
            break;
        }
        assert_eq!(answer.status, 503, "{answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It tried rarely meanwhile, not all the time.
    assert!(value_of(&read().await, ACCEPT_FAILURES, "no_descriptors") < 100.0);
}

/// R33: what it lacks is told as its own, and is held against no worker.
#[tokio::test]
async fn r33_a_router_without_descriptors_blames_no_worker() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let serving = Serving::limited("r33-blame", worker.address, "timeouts: {client_idle: 1h}", 48);
    let admin = reqwest::Client::new();
    let metrics = format!("http://{}/metrics", serving.admin);
    let read = async || admin.get(&metrics).send().await.unwrap().text().await.unwrap();
    read().await;
    let mut kept = connect(serving.data).await;
    assert_eq!(ask(&mut kept, MODELS).await.unwrap().status, 200);
    let crowd = crowd_out(serving.data, &read).await;
    // More than the failures in a row that take a worker out.
    for _ in 0..5 {
        let answer = ask(&mut kept, &post_text()).await.unwrap();
        assert_eq!(answer.status, 503, "{answer:?}");
        assert!(answer.body.contains(r#""code":"no_descriptors""#), "{answer:?}");
        assert!(answer.head.contains("retry-after: 1\r\n"), "{answer:?}");
    }
    let seen = read().await;
    assert_eq!(value_of(&seen, "warmpath_requests_total", "outcome=\"no_descriptors\""), 5.0, "{seen}");
    assert_eq!(value_of(&seen, "warmpath_worker_up", ""), 1.0, "{seen}");
    drop(crowd);
    let start = Instant::now();
    while ask(&mut kept, &post_text()).await.unwrap().status != 200 {
        assert!(start.elapsed() < Duration::from_secs(2));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

const ACCEPT_FAILURES: &str = "warmpath_accept_failures_total";

/// Connects until the router has no descriptor left, as what `read` gives of its metrics shows.
async fn crowd_out(data: SocketAddr, read: &impl AsyncFn() -> String) -> Vec<TcpStream> {
    let mut crowd = Vec::new();
    for _ in 0..64 {
        crowd.push(connect(data).await);
    }
    let deadline = Instant::now() + Duration::from_secs(10);
    while value_of(&read().await, ACCEPT_FAILURES, "no_descriptors") < 3.0 {
        assert!(Instant::now() < deadline, "descriptors never run out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    crowd
}

fn post_text() -> String {
    crate::raw::post("{\"model\":\"m\",\"prompt\":\"x\"}")
}
