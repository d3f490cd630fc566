//! The engine behind every proxy: answers at once, or event by event, as the client's order says. One thread.

use std::convert::Infallible;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Context;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};
use warmpath::shutdown::Tasks;

use super::canned::{self, FIELD, Order, Pace};
use super::wire::{Wire, field, number};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4_096;

/// Serves on so many ports, which are printed once they are open, until standard input ends.
///
/// # Errors
/// When no port is free.
pub(crate) fn run(ports: usize) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let tasks = Tasks::new();
        let mut line = String::from("ready");
        for _ in 0..ports {
            let socket = tokio::net::TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
            let listener = socket.listen(BACKLOG)?;
            line.push_str(&format!(" {}", listener.local_addr()?.port()));
            let connections = tasks.clone();
            tasks.spawn(async move {
                let Err(error) = accept(&listener, &connections).await;
                eprintln!("worker: {error}");
            });
        }
        println!("{line}");
        // Ends with the program that started this one, however that ends.
        let ended = tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new()));
        ended.await.context("standard input")??;
        std::process::exit(0)
    })
}

async fn accept(listener: &TcpListener, tasks: &Tasks) -> io::Result<Infallible> {
    loop {
        let (stream, _) = listener.accept().await?;
        tasks.spawn(async move {
            // A proxy that hangs up is no fault of the worker; what is lost by it the client sees.
            let _ = serve(stream).await;
        });
    }
}

async fn serve(stream: TcpStream) -> io::Result<()> {
    let mut wire = Wire::new(stream)?;
    let (mut head, mut body, mut text) = (Vec::new(), Vec::new(), String::new());
    while wire.head(&mut head).await? {
        if head.starts_with(b"GET ") {
            answer_get(&mut wire, &head).await?;
            continue;
        }
        body.clear();
        wire.exactly(number(&head, "content-length").unwrap_or(0), &mut body).await?;
        let Some(order) = field(&head, FIELD).and_then(Order::read) else {
            wire.stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await?;
            continue;
        };
        let digest = canned::digest(&body);
        if let Some(pace) = order.stream {
            stream_events(&mut wire, digest, pace, &mut text).await?;
        } else {
            text.clear();
            canned::answer(digest, &order, &mut text);
            respond(&mut wire, &text).await?;
        }
    }
    Ok(())
}

/// What a router asks of an engine by itself.
async fn answer_get(wire: &mut Wire, head: &[u8]) -> io::Result<()> {
    if head.starts_with(b"GET /health ") {
        respond(wire, "{}").await
    } else if head.starts_with(b"GET /v1/models ") {
        respond(
            wire,
            r#"{"object":"list","data":[{"id":"bench","object":"model","created":1767225600,"owned_by":"b"}]}"#,
        )
        .await
    } else {
        wire.stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await
    }
}

async fn respond(wire: &mut Wire, body: &str) -> io::Result<()> {
    let whole = format!(
        "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    wire.stream.write_all(whole.as_bytes()).await
}

async fn stream_events(wire: &mut Wire, digest: u64, pace: Pace, text: &mut String) -> io::Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    wire.stream.write_all(head).await?;
    let interval = Duration::from_millis(u64::from(pace.interval_ms));
    let start = Instant::now();
    let mut event = String::new();
    for number in 0..pace.events {
        tokio::select! {
            biased;
            () = sleep_until(start + interval * number) => {}
            // Nobody sends anything into a stream: the proxy has hung up.
            _ = wire.stream.readable() => return Err(io::ErrorKind::ConnectionAborted.into()),
        }
        event.clear();
        canned::event(digest, number, pace.events, &mut event);
        text.clear();
        text.push_str(&format!("{:x}\r\n{event}\r\n", event.len()));
        if number + 1 == pace.events {
            text.push_str("0\r\n\r\n");
        }
        wire.stream.write_all(text.as_bytes()).await?;
    }
    Ok(())
}
