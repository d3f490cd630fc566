//! How the router starts and stops: whom it waits for, and what becomes of answers that are under way.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http_body_util::BodyExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use warmpath::shutdown::Tasks;

use crate::fleet::fleet;
use crate::fountain::{Flow, Fountain};
use crate::http2::{http2, streamed};
use crate::raw::{MODELS, ask, completion, connect, exchange, streamed_text, until_closed};
use crate::scripted::{Scripted, Step, end, event, head, piece, until, whole};
use crate::serving::Serving;

/// What comes over HTTP/2, and whether it ends cleanly.
async fn to_the_end(mut body: hyper::body::Incoming) -> (String, bool) {
    let mut text = Vec::new();
    let clean = loop {
        match body.frame().await {
            Some(Ok(frame)) => text.extend(frame.into_data().unwrap()),
            Some(Err(_)) => break false,
            None => break true,
        }
    };
    (String::from_utf8(text).unwrap(), clean)
}

/// R16. Not ready at once, alive to the end; nobody new; what runs may finish, and past the grace it is told.
#[tokio::test]
async fn r16_streams_finish_within_the_grace_and_are_told_when_it_is_over() {
    let short = Scripted::start(vec![head(), piece(event("a")), Step::Await, piece("data: [DONE]\n\n"), end()]).await;
    let long = Scripted::start(vec![head(), piece(event("a")), Step::Hold]).await;
    let fleet = fleet().engines(0).policy("round_robin").stranger(short.address).stranger(long.address);
    let fleet = fleet.config("timeouts: {shutdown_grace: 2s}").start().await;
    let (data, admin) = (fleet.app.data_address(), fleet.app.admin_address());
    let mut idle = connect(data).await;
    assert_eq!(ask(&mut idle, MODELS).await.unwrap().status, 200);
    let tasks = Tasks::new();
    let mut sender = http2(connect(data).await, 1 << 20, &tasks).await;
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = connect(data).await;
        stream.write_all(streamed_text().as_bytes()).await.unwrap();
        streams.push(stream);
    }
    short.asked(1).await;
    long.asked(1).await;
    let mut over_http2 =
        vec![sender.send_request(streamed()).await.unwrap(), sender.send_request(streamed()).await.unwrap()];
    let start = Instant::now();
    let (tell, stopped) = tokio::sync::oneshot::channel();
    let app = fleet.app;
    tasks.spawn(async move { tell.send(app.stop().await).expect("the test waits for it") });
    let status = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n");
        exchange(admin, request.as_bytes()).await.map(|answer| answer.status)
    };
    tokio::time::sleep(Duration::from_millis(30)).await;
    assert_eq!((status("/readyz").await, status("/livez").await), (Some(503), Some(200)));
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(TcpStream::connect(data).await.is_err(), "nobody new is let in");
    assert_eq!(status("/livez").await, Some(200));
    assert_eq!(until_closed(&mut idle).await, (String::new(), true));
    short.go();
    short.go();
    let told = |text: &str| text.contains("data: {\"error\":{\"message\":\"the router is shutting down\"");
    let mut outcomes = Vec::new();
    for stream in &mut streams {
        let (text, _) = until_closed(stream).await;
        outcomes.push((text.contains("data: [DONE]"), text.ends_with("0\r\n\r\n"), told(&text)));
    }
    for answer in over_http2.drain(..) {
        let (text, clean) = to_the_end(answer.into_body()).await;
        outcomes.push((text.contains("data: [DONE]"), clean, told(&text)));
    }
    outcomes.sort_unstable();
    let (finished, cut) = ((true, true, false), (false, false, true));
    assert_eq!(outcomes, [cut, cut, finished, finished]);
    assert_eq!(stopped.await, Ok(2), "one connection of HTTP/1 and that of HTTP/2");
    let took = start.elapsed();
    assert!((Duration::from_millis(1500)..Duration::from_secs(3)).contains(&took), "{took:?}");
    assert!(TcpStream::connect(admin).await.is_err());
}

/// R17. A balancer that asks now and then has time to hear that the router ends.
#[tokio::test]
async fn r17_until_the_delay_is_over_whoever_comes_is_served() {
    let worker = Scripted::start(Vec::new()).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("timeouts: {shutdown_delay: 1s}").start().await;
    let (data, admin) = (fleet.app.data_address(), fleet.app.admin_address());
    let coming = async {
        tokio::time::sleep(Duration::from_millis(600)).await;
        let ready = exchange(admin, b"GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n").await;
        let served = ask(&mut connect(data).await, MODELS).await;
        (ready.unwrap().status, served.unwrap().status)
    };
    let start = Instant::now();
    let (told, cut) = tokio::join!(coming, fleet.app.stop());
    assert_eq!((told, cut), ((503, 200), 0));
    assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&start.elapsed()), "{:?}", start.elapsed());
    assert!(TcpStream::connect(data).await.is_err());
}

/// Asks over and over, on one connection as long as it is kept or on a new one each time, until nobody is let in any more.
/// Returns how often there was an answer, and how often none to what was sent.
async fn ask_until_it_is_closed(address: SocketAddr, keeps: bool) -> (usize, usize) {
    let request = if keeps { MODELS.to_owned() } else { MODELS.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n") };
    let (mut answered, mut lost) = (0, 0);
    let mut kept = None;
    loop {
        let connected = match kept.take() {
            Some(stream) => Ok(stream),
            None => TcpStream::connect(address).await,
        };
        let Ok(mut stream) = connected else { return (answered, lost) };
        match ask(&mut stream, &request).await {
            Some(answer) => {
                answered += 1;
                let ends = answer.head.to_lowercase().contains("connection: close");
                kept = (!ends).then_some(stream);
            }
            None => lost += 1,
        }
    }
}

/// R16, R17. What was sent before a router ends is answered, and who keeps connections is told in time that they end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r16_what_was_sent_before_the_router_closes_is_answered() {
    let worker = Scripted::start(Vec::new()).await;
    for keeps in [false, true] {
        let fleet = fleet().engines(0).stranger(worker.address).start().await;
        let data = fleet.app.data_address();
        let clients = join_all((0..16).map(|_| ask_until_it_is_closed(data, keeps)));
        let stopping = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            fleet.app.stop().await
        };
        let (clients, cut) = tokio::join!(clients, stopping);
        let (answered, lost) = clients.iter().fold((0, 0), |sum, of_one| (sum.0 + of_one.0, sum.1 + of_one.1));
        assert_eq!(cut, 0);
        // Between the last that is let in and the end of the port the kernel may take one more.
        assert!(answered > 200 && lost <= 1, "{lost} lost, {answered} answered, kept: {keeps}");
    }
}

/// Whoever does not read OpenAI's events, or has read their end, would take the words for a part of the answer.
/// A socket that is closed with something unread takes the rest of the answer with it.
#[tokio::test]
async fn r16_the_last_answer_comes_whole_whatever_was_sent_behind_its_request() {
    let said = format!("{{\"text\":\"{}\"}}", "x".repeat(2 << 20));
    let worker = Scripted::start(vec![Step::Await, whole("200 OK", &said)]).await;
    let fleet = fleet().engines(0).stranger(worker.address).start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    let ask = crate::raw::post("{\"model\":\"m\",\"prompt\":\"x\"}");
    stream.write_all((ask + &MODELS.repeat(2_500)).as_bytes()).await.unwrap();
    worker.asked(1).await;
    let reading = async {
        worker.go();
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.map(|_| answer)
    };
    let (cut, answer) = tokio::join!(fleet.app.stop(), reading);
    let answer = answer.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(said.as_bytes()), "{} bytes", answer.len());
    assert_eq!(cut, 0);
}

#[tokio::test]
async fn r16_what_is_no_stream_of_openais_or_has_told_its_end_is_cut_without_a_word() {
    let head_of = |coding| {
        format!("HTTP/1.1 200 OK\r\n{coding}content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    };
    for (path, coding, said) in [
        ("/v1/completions", "content-encoding: gzip\r\n", "compressed"),
        ("/v1/completions", "", &*(event("a") + "data: [DONE]\n\n")),
        ("/v1/messages", "", "event: message_start\ndata: {}\n\n"),
    ] {
        let worker = Scripted::start(vec![Step::Send(head_of(coding).into()), piece(said), Step::Hold]).await;
        let fleet = fleet().engines(0).stranger(worker.address);
        let fleet = fleet.config("timeouts: {shutdown_grace: 300ms}").start().await;
        let mut stream = connect(fleet.app.data_address()).await;
        stream.write_all(streamed_text().replace("/v1/completions", path).as_bytes()).await.unwrap();
        let mut begun = Vec::new();
        while !String::from_utf8_lossy(&begun).contains(said) {
            assert_ne!(stream.read_buf(&mut begun).await.unwrap(), 0, "{path}");
        }
        assert_eq!(fleet.app.stop().await, 1, "{path}");
        let (rest, _) = until_closed(&mut stream).await;
        assert_eq!(rest.trim_ascii(), "", "{path} {coding}");
    }
}

/// What has not begun when the grace is over is 503, and says so.
#[tokio::test]
async fn a_request_that_still_waits_when_the_grace_is_over_is_503() {
    let worker = Scripted::start(vec![Step::Hold]).await;
    let fleet = fleet().engines(0).stranger(worker.address).config("timeouts: {shutdown_grace: 300ms}").start().await;
    let mut stream = connect(fleet.app.data_address()).await;
    stream.write_all(completion("").as_bytes()).await.unwrap();
    worker.asked(1).await;
    let (cut, answer) = tokio::join!(fleet.app.stop(), crate::raw::answer(&mut stream));
    let answer = answer.unwrap();
    assert_eq!((cut, answer.status, answer.refusal().as_str()), (1, 503, "the router is shutting down"));
    assert!(answer.body.contains("\"code\":\"shutting_down\"") && answer.head.contains("retry-after: 1\r\n"));
    until("the worker is let go", || worker.hangups() == 1).await;
}

/// It keeps its client's name, and is not taken for one whose client has left, as is a stream that is cut.
#[tokio::test]
async fn what_the_router_gives_up_when_it_stops_is_its_own_doing() {
    let named = |name: &str| streamed_text().replacen("\r\n", &format!("\r\nx-request-id: {name}\r\n"), 1);
    let worker = Scripted::start(vec![Step::Hold]).await;
    let mut serving = Serving::start("given-up", worker.address, "timeouts: {shutdown_grace: 300ms}");
    let mut waits = connect(serving.data).await;
    waits.write_all(named("waits").as_bytes()).await.unwrap();
    worker.asked(1).await;
    worker.plays(vec![head(), piece(event("a")), Step::Hold]);
    let mut flows = connect(serving.data).await;
    flows.write_all(named("flows").as_bytes()).await.unwrap();
    worker.asked(2).await;
    serving.signal("TERM");
    let answer = crate::raw::answer(&mut waits).await.unwrap();
    assert!(answer.status == 503 && answer.head.contains("x-request-id: waits\r\n"), "{answer:?}");
    assert!(until_closed(&mut flows).await.0.contains("shutting_down"));
    serving.ended(Duration::from_secs(10)).await;
    let logged = serving.logged();
    for name in ["waits", "flows"] {
        let of = |line: &&String| line.contains(" access: ") && line.contains(&format!("request=\"{name}\""));
        let line = logged.iter().find(of).unwrap_or_else(|| panic!("{name}: {logged:?}"));
        assert!(line.contains("outcome=\"shutting_down\""), "{line}");
    }
}

/// R16 with a real process and a real signal: streams that end within the grace all finish, and it ends with 0.
async fn r16(name: &str, streams: u32, longest: Duration) {
    let worker = Fountain::start(Flow::Drops(longest / streams)).await;
    let mut serving = Serving::start(name, worker.address, "timeouts: {shutdown_grace: 30s}");
    let mut clients = Vec::new();
    for _ in 0..streams {
        let mut client = connect(serving.data).await;
        client.write_all(streamed_text().as_bytes()).await.unwrap();
        clients.push(client);
    }
    until("all have begun", || worker.begun() == u64::from(streams)).await;
    let start = Instant::now();
    serving.signal("TERM");
    let mut whole = 0;
    for client in &mut clients {
        let (text, _) = until_closed(client).await;
        let is_whole = text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n");
        assert!(is_whole, "{text}");
        whole += u32::from(is_whole);
    }
    let status = serving.ended(Duration::from_secs(5)).await;
    println!("R16: {whole} of {streams} streams finished, the router ended after {:?} with {status}", start.elapsed());
    assert_eq!((whole, status.code()), (streams, Some(0)));
}

/// systemd's notification protocol: one datagram for each state.
#[tokio::test]
async fn a_supervisor_is_told_that_it_serves_and_that_it_drains() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let path = std::env::temp_dir().join(format!("warmpath-notify-{}", std::process::id()));
    let socket = tokio::net::UnixDatagram::bind(&path).unwrap();
    let told = async || {
        let mut text = [0; 64];
        let told = tokio::time::timeout(Duration::from_secs(30), socket.recv(&mut text)).await;
        String::from_utf8_lossy(&text[..told.expect("it tells").unwrap()]).trim_end().to_owned()
    };
    let mut serving = Serving::supervised("supervised", worker.address, &path);
    assert_eq!(told().await, "READY=1");
    assert!(TcpStream::connect(serving.data).await.is_ok());
    serving.signal("TERM");
    assert_eq!(told().await, "STOPPING=1");
    assert!(serving.ended(Duration::from_secs(30)).await.success());
    std::fs::remove_file(&path).unwrap();
}

#[tokio::test]
async fn r16_a_process_that_is_told_to_stop_finishes_its_streams() {
    r16("r16", 10, Duration::from_secs(2)).await;
}

/// The full count; `scripts/chaos/door.sh` runs it.
#[tokio::test]
#[ignore = "takes 20 seconds and 100 streams"]
async fn chaos_r16_100_streams_of_up_to_20_seconds() {
    r16("chaos-r16", 100, Duration::from_secs(20)).await;
}

/// Two signals: it ends at once.
#[tokio::test]
async fn a_second_signal_is_obeyed_at_once() {
    let worker = Fountain::start(Flow::Drops(Duration::from_secs(60))).await;
    let mut serving = Serving::start("second", worker.address, "timeouts: {shutdown_grace: 30s}");
    let mut client = connect(serving.data).await;
    client.write_all(streamed_text().as_bytes()).await.unwrap();
    until("it has begun", || worker.begun() == 1).await;
    serving.signal("TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    serving.signal("TERM");
    serving.ended(Duration::from_secs(2)).await;
}

/// with `ready_when: all` the router is not ready before every worker was seen, and ends if one never is.
#[tokio::test]
async fn r045_a_router_whose_workers_do_not_come_ends_with_an_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = free.local_addr().unwrap();
    drop(free);
    let waiting = "ready_when: all\ntimeouts: {start: 1s, start_interval: 100ms}";
    let mut serving = Serving::start("r045", absent, waiting);
    let request = "GET /readyz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    assert_eq!(exchange(serving.admin, request.as_bytes()).await.unwrap().status, 503);
    assert_eq!(serving.ended(Duration::from_secs(10)).await.code(), Some(1));
}

/// A worker that is there in time is admitted at the next look.
#[tokio::test]
async fn r045_a_router_whose_workers_come_is_ready_at_the_next_look() {
    let worker = Scripted::start(Vec::new()).await;
    let waiting = "ready_when: all\ntimeouts: {start: 10s, start_interval: 50ms}";
    let fleet = fleet().engines(0).stranger(worker.address).config(waiting).start().await;
    fleet.eventually("it is ready", async |fleet| fleet.admin("/readyz").await.0 == 200).await;
}

/// SIGHUP asks for certificates; where there are none it changes nothing.
#[tokio::test]
async fn a_hangup_does_not_end_a_router_without_certificates() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let mut serving = Serving::start("hangup", worker.address, "");
    for _ in 0..3 {
        serving.signal("HUP");
        assert_eq!(exchange(serving.data, MODELS.as_bytes()).await.unwrap().status, 200);
    }
    serving.signal("TERM");
    assert_eq!(serving.ended(Duration::from_secs(10)).await.code(), Some(0));
}

/// A file system that hangs, as a pipe that nobody writes into: what reads from it is not waited for.
#[tokio::test]
async fn r16_a_read_that_hangs_does_not_hold_up_the_end() {
    let worker = Scripted::start(vec![whole("200 OK", "{}")]).await;
    let pipe = std::env::temp_dir().join(format!("warmpath-hangs-{}", std::process::id()));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let list = pipe.with_extension("yaml");
    let line = format!("- {{id: v, url: 'http://a:1', model: m, api_key: '${{file:{}}}'}}\n", pipe.display());
    std::fs::write(&list, line).unwrap();
    let found = format!("discovery: {{file: {{path: '{}'}}}}", list.display());
    let mut serving = Serving::start("hangs", worker.address, &found);
    serving.signal("TERM");
    let ended = serving.ended(Duration::from_secs(10)).await.code();
    [&pipe, &list].into_iter().for_each(|file| std::fs::remove_file(file).unwrap());
    assert_eq!(ended, Some(0));
}
