//! An engine that fails on demand: what it does with a request is a function of the request, it can be killed and started
//! again, and it remembers when requests came and when their clients went.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use warmpath::shutdown::Tasks;

use crate::scripted::{Seen, Step, event, head, piece, read_request};

/// What it does next.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits.
    Pause(Duration),
    /// Sends an event at this interval until the client goes.
    Drip(Duration),
    /// Is silent until the client goes.
    Hold,
    /// RST.
    Reset,
    /// FIN.
    Close,
}

/// What it does with a request, by its prompt and by how many have come before.
pub(crate) type Behaviour = dyn Fn(&str, usize) -> Vec<Act> + Send + Sync;

/// The engine.
pub(crate) struct Faulty {
    pub(crate) address: SocketAddr,
    stage: Arc<Stage>,
    tasks: Mutex<Tasks>,
}

#[derive(Default)]
struct Log {
    count: usize,
    checks: usize,
    arrived: HashMap<String, Vec<Instant>>,
    left: HashMap<String, Instant>,
}

struct Stage {
    behaviour: Box<Behaviour>,
    healthy: std::sync::atomic::AtomicBool,
    log: Mutex<Log>,
}

impl Faulty {
    /// Listens.
    pub(crate) async fn start(behaviour: impl Fn(&str, usize) -> Vec<Act> + Send + Sync + 'static) -> Self {
        let listener = listen(([127, 0, 0, 1], 0).into()).expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let stage = Stage { behaviour: Box::new(behaviour), healthy: true.into(), log: Mutex::default() };
        let stage = Arc::new(stage);
        let tasks = Mutex::new(serve_all(listener, &stage));
        Self { address, stage, tasks }
    }

    /// As SIGKILL does: the port is closed, and every connection with it.
    pub(crate) async fn kill(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap());
        tasks.drain(Duration::ZERO).await;
    }

    /// Listens again where it did.
    pub(crate) async fn revive(&self) {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            // Somebody's outgoing connection may have been given the port in the meantime.
            match listen(self.address) {
                Ok(listener) => break *self.tasks.lock().unwrap() = serve_all(listener, &self.stage),
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether its checks pass from now on.
    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.stage.healthy.store(healthy, std::sync::atomic::Ordering::SeqCst);
    }

    /// Requests so far.
    pub(crate) fn count(&self) -> usize {
        self.stage.log.lock().unwrap().count
    }

    /// How often it was asked how it is.
    pub(crate) fn checks(&self) -> usize {
        self.stage.log.lock().unwrap().checks
    }

    /// When requests with this prompt came.
    pub(crate) fn arrived(&self, prompt: &str) -> Vec<Instant> {
        self.stage.log.lock().unwrap().arrived.get(prompt).cloned().unwrap_or_default()
    }

    /// When the client of the request with this prompt was seen to have gone.
    pub(crate) fn left(&self, prompt: &str) -> Option<Instant> {
        self.stage.log.lock().unwrap().left.get(prompt).copied()
    }
}

/// With room for as many at once as engines have.
fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(2048)
}

fn serve_all(listener: TcpListener, stage: &Arc<Stage>) -> Tasks {
    let tasks = Tasks::new();
    let (stage, more) = (Arc::clone(stage), tasks.clone());
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let stage = Arc::clone(&stage);
            more.spawn(async move { serve(stream, &stage).await.unwrap_or_default() });
        }
    });
    tasks
}

async fn serve(mut stream: TcpStream, stage: &Stage) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(seen) = read_request(&mut stream).await? {
        if seen.head.starts_with("GET ") {
            stage.log.lock().unwrap().checks += usize::from(seen.head.starts_with("GET /health "));
            let healthy = stage.healthy.load(std::sync::atomic::Ordering::SeqCst);
            let status = if healthy { "200 OK" } else { "503 Service Unavailable" };
            stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).await?;
            continue;
        }
        let prompt = prompt_of(&seen);
        let number = {
            let mut log = stage.log.lock().unwrap();
            log.arrived.entry(prompt.clone()).or_default().push(Instant::now());
            log.count += 1;
            log.count - 1
        };
        for act in (stage.behaviour)(&prompt, number) {
            match act {
                Act::Send(bytes) => stream.write_all(&bytes).await?,
                Act::Pause(time) => tokio::time::sleep(time).await,
                Act::Reset => return stream.set_zero_linger(),
                Act::Close => return stream.shutdown().await,
                Act::Hold | Act::Drip(_) => {
                    let every = if let Act::Drip(every) = act { every } else { Duration::from_secs(3600) };
                    until_gone(&mut stream, every).await;
                    stage.log.lock().unwrap().left.insert(prompt, Instant::now());
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

async fn until_gone(stream: &mut TcpStream, every: Duration) {
    let Step::Send(event) = piece(event("a")) else { unreachable!("a piece is sent") };
    let (mut reads, mut writes) = stream.split();
    let mut byte = [0];
    loop {
        tokio::select! {
            read = reads.read(&mut byte) => if matches!(read, Ok(0) | Err(_)) { return },
            () = tokio::time::sleep(every) => if writes.write_all(&event).await.is_err() { return },
        }
    }
}

fn prompt_of(seen: &Seen) -> String {
    let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    body["prompt"].as_str().unwrap_or_default().to_owned()
}

/// The head of a stream and `tokens` events, without its end.
pub(crate) fn beginning(tokens: usize) -> Vec<Act> {
    let events = std::iter::repeat_n(piece(event("a")), tokens);
    std::iter::once(head()).chain(events).map(send).collect()
}

/// The same, and so many bytes of the next event.
pub(crate) fn torn(tokens: usize, bytes: usize) -> Vec<Act> {
    let event = event("a");
    let half = event.get(..bytes).filter(|half| !half.is_empty()).map(|half| send(piece(half)));
    beginning(tokens).into_iter().chain(half).collect()
}

/// A whole stream.
pub(crate) fn stream(tokens: usize) -> Vec<Act> {
    let end = [piece("data: [DONE]\n\n"), crate::scripted::end()].map(send);
    beginning(tokens).into_iter().chain(end).collect()
}

/// A refusal with further header lines, each with its line's end.
pub(crate) fn refusal(status: &str, headers: &str) -> Vec<Act> {
    let text = "{\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":null}}";
    let head = format!(
        "HTTP/1.1 {status}\r\n{headers}content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        text.len()
    );
    vec![Act::Send((head + text).into_bytes())]
}

fn send(step: Step) -> Act {
    let Step::Send(bytes) = step else { unreachable!("these are sent") };
    Act::Send(bytes)
}
