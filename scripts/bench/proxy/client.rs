//! The load: a fixed number of connections, each of which sends its next request when the last is answered. Every answer
//! is compared with what the worker must have sent. One thread, a process of its own.
//!
//! It prints `ready` once every connection is open and warm, begins at a line on standard input, and prints what it saw
//! when the last request that it began is answered. It keeps its connections until standard input ends.

use std::cell::RefCell;
use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::task::{JoinSet, LocalSet};

use super::canned::{self, FIELD, Order, Pace};
use super::wire::{Answer, Wire};
use crate::bodies::{Bodies, Body, CONVERSATIONS, Kind};
use crate::times::Times;

/// Requests that may be connecting at once.
const CONNECTING: usize = 64;
/// Faults that are told one by one.
const FAULTS_TOLD: usize = 5;
/// Nothing here takes as long: a request without an answer is lost.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// What to do.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// The proxy, or the worker itself.
    pub(crate) to: SocketAddr,
    /// The address to come from.
    pub(crate) from: Ipv4Addr,
    pub(crate) connections: usize,
    pub(crate) kind: Kind,
    pub(crate) stream: Option<Pace>,
    /// How long requests are begun. Streams that are `held` last until standard input ends.
    pub(crate) window_ms: u64,
    pub(crate) held: bool,
    pub(crate) seed: u64,
    /// The file of the corpus.
    pub(crate) corpus: PathBuf,
    /// Tokens of each conversation that the workers hold.
    pub(crate) cached: Vec<u32>,
}

/// What was seen.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Requests that were answered as they should be.
    pub(crate) requests: u64,
    /// From the first request to the last answer.
    pub(crate) seconds: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Until the first data of the answer.
    pub(crate) first_p50_us: f64,
    pub(crate) first_p99_us: f64,
    /// Tokens of the prompts, and those of them that the worker said were cached.
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    /// Requests that were not, and why the first of them.
    pub(crate) failed: u64,
    pub(crate) faults: Vec<String>,
}

/// What all connections share.
struct Shared {
    spec: Spec,
    bodies: RefCell<Bodies>,
    seen: RefCell<Seen>,
}

#[derive(Default)]
struct Seen {
    outcome: Outcome,
    whole: Times,
    first: Times,
}

/// One connection, with the buffers that its requests reuse.
struct Connection {
    wire: Wire,
    body: Body,
    request: String,
    head: Vec<u8>,
    answer: Vec<u8>,
    expected: String,
}

/// Does what the specification says.
///
/// # Errors
/// When it is wrong, or no connection can be made.
pub(crate) fn run(spec: &str) -> anyhow::Result<()> {
    let spec: Spec = serde_json::from_str(spec).context("the specification")?;
    let corpus = serde_json::from_slice(&std::fs::read(&spec.corpus)?).context("the corpus")?;
    let bodies = RefCell::new(Bodies::new(spec.kind, spec.stream.is_some(), corpus, spec.seed, &spec.cached));
    let shared = Rc::new(Shared { spec, bodies, seen: RefCell::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if shared.spec.held { runtime.block_on(LocalSet::new().run_until(hold(shared))) } else { drive(&shared, &runtime) }
}

fn drive(shared: &Rc<Shared>, runtime: &tokio::runtime::Runtime) -> anyhow::Result<()> {
    let connections = runtime.block_on(LocalSet::new().run_until(open_and_warm(shared)))?;
    println!("ready");
    wait_for_line()?;
    let start = Instant::now();
    let until = start + Duration::from_millis(shared.spec.window_ms);
    let kept = runtime.block_on(LocalSet::new().run_until(load(shared, connections, until)));
    tell(shared, start)?;
    wait_for_line()?;
    drop(kept);
    Ok(())
}

fn wait_for_line() -> io::Result<usize> {
    io::stdin().lock().read_line(&mut String::new())
}

fn tell(shared: &Shared, start: Instant) -> anyhow::Result<()> {
    let mut seen = shared.seen.borrow_mut();
    let Seen { outcome, whole, first } = &mut *seen;
    outcome.seconds = start.elapsed().as_secs_f64();
    (outcome.p50_us, outcome.p99_us) = (whole.percentile(50), whole.percentile(99));
    (outcome.first_p50_us, outcome.first_p99_us) = (first.percentile(50), first.percentile(99));
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

/// Opens every connection and sends enough over each that proxies have theirs open, and every conversation was seen.
async fn open_and_warm(shared: &Rc<Shared>) -> anyhow::Result<Vec<Connection>> {
    let count = shared.spec.connections;
    let each = (2 * usize::try_from(CONVERSATIONS)?).div_ceil(count);
    let mut opening = JoinSet::new();
    for _ in 0..count {
        let shared = Rc::clone(shared);
        opening.spawn_local(async move {
            let mut connection = Connection::open(&shared.spec).await?;
            for _ in 0..if shared.spec.stream.is_some() { 1 } else { each } {
                connection.exchange(&shared).await?;
            }
            anyhow::Ok(connection)
        });
    }
    let mut connections = Vec::with_capacity(count);
    while let Some(opened) = opening.join_next().await {
        connections.push(opened??);
    }
    *shared.seen.borrow_mut() = Seen::default();
    Ok(connections)
}

async fn load(shared: &Rc<Shared>, connections: Vec<Connection>, until: Instant) -> Vec<Connection> {
    let mut loading = JoinSet::new();
    let spread = shared.spec.stream.map_or(0, |pace| u64::from(pace.interval_ms) * 1_000);
    for (number, mut connection) in (0_u64..).zip(connections) {
        let shared = Rc::clone(shared);
        // Streams that begin at once would have their events at once.
        let late = Duration::from_micros(spread * (number % 64) / 64);
        loading.spawn_local(async move {
            tokio::time::sleep(late).await;
            while Instant::now() < until {
                if let Err(error) = connection.exchange(&shared).await {
                    shared.fault(&error);
                    // The connection is of no use any more; without a new one, nothing more can be asked.
                    match Connection::open(&shared.spec).await {
                        Ok(new) => connection = new,
                        Err(error) => return shared.fail_to_open(&error),
                    }
                }
            }
            Some(connection)
        });
    }
    let mut kept = Vec::new();
    while let Some(done) = loading.join_next().await {
        kept.extend(done.ok().flatten());
    }
    kept
}

/// Holds streams open: all have begun when it prints what it saw, and none may end before standard input does.
async fn hold(shared: Rc<Shared>) -> anyhow::Result<()> {
    println!("ready");
    tokio::task::spawn_blocking(wait_for_line).await??;
    let start = Instant::now();
    let opening = Rc::new(tokio::sync::Semaphore::new(CONNECTING));
    let begun = Rc::new(tokio::sync::Semaphore::new(0));
    let mut held = JoinSet::new();
    for _ in 0..shared.spec.connections {
        let (shared, opening, begun) = (Rc::clone(&shared), Rc::clone(&opening), Rc::clone(&begun));
        held.spawn_local(async move {
            let error = shared.hold_one(&opening, &begun).await;
            shared.fault(&error);
            begun.add_permits(1);
        });
    }
    let all = u32::try_from(shared.spec.connections)?;
    begun.acquire_many(all).await?.forget();
    tell(&shared, start)?;
    tokio::task::spawn_blocking(wait_for_line).await??;
    tell(&shared, start)
}

impl Shared {
    fn fault(&self, error: &anyhow::Error) {
        let outcome = &mut self.seen.borrow_mut().outcome;
        outcome.failed += 1;
        if outcome.faults.len() < FAULTS_TOLD {
            outcome.faults.push(format!("{error:#}"));
        }
    }

    fn fail_to_open(&self, error: &anyhow::Error) -> Option<Connection> {
        self.fault(error);
        None
    }

    /// Begins a stream and reads it until it fails, which it should not before the end of the program.
    async fn hold_one(&self, opening: &tokio::sync::Semaphore, begun: &tokio::sync::Semaphore) -> anyhow::Error {
        let begin = async {
            let _turn = opening.acquire().await?;
            let mut connection = Connection::open(&self.spec).await?;
            let digest = connection.send(self).await?;
            let mut answer = Answer::begin(&mut connection.wire, &mut connection.head).await?;
            anyhow::ensure!(answer.status == 200, "status {}", answer.status);
            connection.answer.clear();
            answer.piece(&mut connection.wire, &mut connection.answer).await?;
            let events = self.spec.stream.map_or(0, |pace| pace.events);
            canned::event(digest, 0, events, &mut connection.expected);
            anyhow::ensure!(connection.answer == connection.expected.as_bytes(), "the first event has other bytes");
            anyhow::Ok((connection, answer))
        };
        let (mut connection, mut answer) = match begin.await {
            Ok(begun) => begun,
            Err(error) => return error,
        };
        self.seen.borrow_mut().outcome.requests += 1;
        begun.add_permits(1);
        loop {
            connection.answer.clear();
            match answer.piece(&mut connection.wire, &mut connection.answer).await {
                Ok(true) => {}
                Ok(false) => return anyhow::anyhow!("a held stream ended"),
                Err(error) => return anyhow::Error::new(error).context("a held stream broke"),
            }
        }
    }
}

impl Connection {
    async fn open(spec: &Spec) -> anyhow::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind((spec.from, 0).into()).context("cannot bind")?;
        let stream = socket.connect(spec.to).await.context("cannot connect")?;
        let (body, request, expected) = (Body::default(), String::new(), String::new());
        Ok(Self { wire: Wire::new(stream)?, body, request, head: Vec::new(), answer: Vec::new(), expected })
    }

    /// Sends the next request and tells the digest of its body.
    async fn send(&mut self, shared: &Shared) -> anyhow::Result<u64> {
        shared.bodies.borrow_mut().write(&mut self.body);
        let Body { json, prompt_tokens, cached_tokens } = &self.body;
        let order = Order { prompt_tokens: *prompt_tokens, cached_tokens: *cached_tokens, stream: shared.spec.stream };
        self.request.clear();
        self.request.push_str("POST ");
        self.request.push_str(shared.spec.kind.path());
        self.request.push_str(" HTTP/1.1\r\nhost: bench\r\nuser-agent: OpenAI/Python 3.52.0\r\naccept: application/json\r\nauthorization: Bearer sk-bench\r\ncontent-type: application/json\r\n");
        self.request.push_str(FIELD);
        self.request.push_str(": ");
        order.write(&mut self.request);
        self.request.push_str("\r\ncontent-length: ");
        self.request.push_str(&json.len().to_string());
        self.request.push_str("\r\n\r\n");
        self.request.push_str(json);
        self.expected.clear();
        let digest = canned::digest(json.as_bytes());
        self.wire.stream.write_all(self.request.as_bytes()).await.context("cannot send")?;
        Ok(digest)
    }

    /// One request and its answer, which must be the worker's to the byte.
    async fn exchange(&mut self, shared: &Shared) -> anyhow::Result<()> {
        tokio::time::timeout(LOST_AFTER, self.exchange_at_leisure(shared)).await.context("no answer")?
    }

    async fn exchange_at_leisure(&mut self, shared: &Shared) -> anyhow::Result<()> {
        let start = Instant::now();
        let digest = self.send(shared).await?;
        let mut answer = Answer::begin(&mut self.wire, &mut self.head).await.context("no head")?;
        self.answer.clear();
        let mut more = answer.piece(&mut self.wire, &mut self.answer).await.context("no body")?;
        let first = start.elapsed();
        while more {
            more = answer.piece(&mut self.wire, &mut self.answer).await.context("a broken body")?;
        }
        let whole = start.elapsed();
        anyhow::ensure!(answer.status == 200, "status {}: {}", answer.status, String::from_utf8_lossy(&self.answer));
        let Body { prompt_tokens, cached_tokens, .. } = self.body;
        match shared.spec.stream {
            Some(pace) => (0..pace.events).for_each(|at| canned::event(digest, at, pace.events, &mut self.expected)),
            None => canned::answer(digest, &Order { prompt_tokens, cached_tokens, stream: None }, &mut self.expected),
        }
        anyhow::ensure!(self.answer == self.expected.as_bytes(), "an answer of other bytes");
        let Seen { outcome, whole: wholes, first: firsts } = &mut *shared.seen.borrow_mut();
        outcome.requests += 1;
        outcome.prompt_tokens += u64::from(prompt_tokens);
        outcome.cached_tokens += u64::from(cached_tokens);
        wholes.push(whole);
        firsts.push(first);
        Ok(())
    }
}
