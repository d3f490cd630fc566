//! A worker whose streams flow without end, or each for its time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use warmpath::shutdown::Tasks;

use crate::scripted::event;

/// How much flows.
#[derive(Clone, Copy)]
pub(crate) enum Flow {
    /// As much as is taken.
    Endless,
    /// A token every tenth of a second; the first stream for this long, the second for twice as long, and so on.
    Drops(Duration),
}

/// The worker. It answers every GET, so that it passes health checks.
pub(crate) struct Fountain {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: Tasks,
}

struct State {
    flow: Flow,
    begun: AtomicU64,
    open: AtomicU64,
    written: AtomicU64,
}

impl Fountain {
    pub(crate) async fn start(flow: Flow) -> Self {
        // It shares a thread with its clients: hundreds may come before it accepts one, where 128 would be let wait.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1024).unwrap();
        let address = listener.local_addr().unwrap();
        let (begun, open, written) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let (state, tasks) = (Arc::new(State { flow, begun, open, written }), Tasks::new());
        let (shared, more) = (Arc::clone(&state), tasks.clone());
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                more.spawn(async move { pour(stream, &state).await });
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Streams that have begun.
    pub(crate) fn begun(&self) -> u64 {
        self.state.begun.load(Ordering::SeqCst)
    }

    /// Streams that somebody still takes.
    pub(crate) fn open(&self) -> u64 {
        self.state.open.load(Ordering::SeqCst)
    }

    /// Bytes that were taken of all streams.
    pub(crate) fn written(&self) -> u64 {
        self.state.written.load(Ordering::SeqCst)
    }

    /// Waits until so many streams are open and nothing more is taken of any.
    pub(crate) async fn blocked(&self, streams: u64) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.open() != streams {
            assert!(
                Instant::now() < deadline,
                "{} of {streams} streams are open, {} have begun",
                self.open(),
                self.begun()
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        loop {
            let before = self.written();
            tokio::time::sleep(Duration::from_millis(300)).await;
            if self.written() == before {
                return;
            }
        }
    }
}

async fn pour(mut stream: TcpStream, state: &State) {
    let mut request = Vec::new();
    while !request.windows(4).any(|window| window == b"\r\n\r\n") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return;
        }
    }
    if request.starts_with(b"GET ") {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await;
        return;
    }
    let number = u32::try_from(state.begun.fetch_add(1, Ordering::SeqCst)).unwrap() + 1;
    state.open.fetch_add(1, Ordering::SeqCst);
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    if stream.write_all(head.as_bytes()).await.is_ok() {
        match state.flow {
            Flow::Endless => gush(&mut stream, state).await,
            Flow::Drops(time) => drip(&mut stream, time * number).await,
        }
    }
    state.open.fetch_sub(1, Ordering::SeqCst);
}

fn chunk(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

async fn gush(stream: &mut TcpStream, state: &State) {
    let chunk = chunk(&event(&"x".repeat(4_000)));
    while stream.write_all(&chunk).await.is_ok() {
        state.written.fetch_add(u64::try_from(chunk.len()).unwrap(), Ordering::SeqCst);
    }
}

async fn drip(stream: &mut TcpStream, time: Duration) {
    let (start, drop) = (Instant::now(), chunk(&event("a")));
    while stream.write_all(&drop).await.is_ok() {
        if start.elapsed() >= time {
            let end = [chunk("data: [DONE]\n\n"), b"0\r\n\r\n".to_vec()].concat();
            let _ = stream.write_all(&end).await;
            // A socket that is closed with something unread takes back what it has sent.
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
