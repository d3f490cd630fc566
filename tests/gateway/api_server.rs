//! A Kubernetes API server as far as EndpointSlices of one namespace go: it lists in pages and watches from a version on, tells
//! that a version is too old, denies, goes away and comes back, as Kubernetes' documentation of its API describes it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use warmpath::shutdown::Tasks;

/// Events that a watch may be behind.
const BEHIND_MAX: usize = 64;

/// What the server does in place of answering.
#[derive(Clone, Copy)]
pub(crate) enum Denial {
    /// Every request gets this status and message.
    Everything(u16, &'static str),
    /// Watches do.
    Watches(u16, &'static str),
    /// Lists are this.
    Body(&'static str),
}

/// The server.
pub(crate) struct ApiServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    tasks: Tasks,
}

#[derive(Default)]
struct State {
    slices: BTreeMap<String, Value>,
    /// All changes, with their versions.
    log: Vec<(u64, String)>,
    version: u64,
    /// Watches from before this version cannot be served.
    oldest: u64,
    /// Whether that is said by an event, not by the answer's head.
    is_told_late: bool,
    is_silent: bool,
    page: usize,
    denial: Option<Denial>,
    seen: Vec<String>,
    watches: Vec<mpsc::Sender<String>>,
}

impl ApiServer {
    /// Listens. There are no slices yet.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = State { version: 100, page: 500, ..State::default() };
        let server =
            Self { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)), tasks: Tasks::new() };
        server.listen(listener);
        server
    }

    fn listen(&self, listener: TcpListener) {
        let (state, more) = (Arc::clone(&self.state), self.tasks.clone());
        self.tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&state);
                more.spawn(async move { serve(stream, &state).await.unwrap_or_default() });
            }
        });
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes or changes a slice.
    pub(crate) fn put(&self, slice: Value) {
        let mut state = self.state.lock().unwrap();
        let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = if state.slices.contains_key(&name) { "MODIFIED" } else { "ADDED" };
        let slice = state.change(kind, slice);
        state.slices.insert(name, slice);
    }

    /// Removes a slice.
    pub(crate) fn remove(&self, name: &str) {
        let mut state = self.state.lock().unwrap();
        let slice = state.slices.remove(name).unwrap();
        state.change("DELETED", slice);
    }

    /// Slices in a page of a list, at most.
    pub(crate) fn page(&self, slices: usize) {
        self.state.lock().unwrap().page = slices;
    }

    /// Denies from now on.
    pub(crate) fn deny(&self, denial: Option<Denial>) {
        self.state.lock().unwrap().denial = denial;
    }

    /// Watches tell nothing from now on.
    pub(crate) fn be_silent(&self) {
        self.state.lock().unwrap().is_silent = true;
    }

    /// Forgets all changes so far, and tells that to whoever asks by an event, or by a status.
    pub(crate) fn forget(&self, is_told_late: bool) {
        let mut state = self.state.lock().unwrap();
        state.oldest = state.version + 1;
        state.is_told_late = is_told_late;
    }

    /// Whether a watch stands.
    pub(crate) fn is_watched(&self) -> bool {
        !self.state.lock().unwrap().watches.is_empty()
    }

    /// Ends all watches.
    pub(crate) fn end_watches(&self) {
        self.state.lock().unwrap().watches.clear();
    }

    /// Says something to all watches that stand.
    pub(crate) fn say(&self, line: &str) {
        self.state.lock().unwrap().watches.iter().for_each(|watch| drop(watch.try_send(line.to_owned())));
    }

    /// The requests so far: method, target and authorization.
    pub(crate) fn seen(&self) -> Vec<String> {
        self.state.lock().unwrap().seen.clone()
    }

    /// Closes everything.
    pub(crate) async fn leave(&mut self) {
        self.tasks.drain(Duration::ZERO).await;
        self.state.lock().unwrap().watches.clear();
    }

    /// Listens again, where it did.
    pub(crate) async fn come_back(&mut self) {
        self.tasks = Tasks::new();
        self.listen(TcpListener::bind(self.address).await.unwrap());
    }
}

impl State {
    fn change(&mut self, kind: &str, mut slice: Value) -> Value {
        self.version += 1;
        slice["metadata"]["resourceVersion"] = self.version.to_string().into();
        let line = format!("{}\n", json!({"type": kind, "object": slice}));
        self.log.push((self.version, line.clone()));
        if !self.is_silent {
            self.watches.retain(|watch| watch.try_send(line.clone()).is_ok());
        }
        slice
    }

    /// The part of the list that begins with the `start`-th slice.
    fn list(&self, start: usize, limit: usize) -> Value {
        let items: Vec<&Value> = self.slices.values().skip(start).take(limit.min(self.page)).collect();
        let rest = self.slices.len().saturating_sub(start + items.len());
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if rest > 0 {
            metadata["continue"] = format!("from={}&+", start + items.len()).into();
            metadata["remainingItemCount"] = rest.into();
        }
        json!({"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata, "items": items})
    }

    /// A watch from a version on, or why there is none: a status, and whether it comes as an event.
    fn watch(&mut self, version: u64) -> Result<mpsc::Receiver<String>, (Value, bool)> {
        if version < self.oldest {
            let message = format!("too old resource version: {version} ({})", self.oldest);
            return Err((status(410, &message, "Expired"), self.is_told_late));
        }
        let (watch, lines) = mpsc::channel(BEHIND_MAX);
        if !self.is_silent {
            self.log.iter().filter(|(at, _)| *at > version).for_each(|(_, line)| watch.try_send(line.clone()).unwrap());
            let meta = json!({"resourceVersion": self.version.to_string(), "creationTimestamp": null});
            let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "metadata": meta,
                "addressType": "", "endpoints": null, "ports": null}});
            watch.try_send(format!("{bookmark}\n")).unwrap();
        }
        self.watches.push(watch);
        Ok(lines)
    }
}

fn status(code: u16, message: &str, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason,
        "code": code})
}

async fn serve(mut stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some((target, authorization)) = read_head(&mut stream).await? {
        let query: BTreeMap<&str, &str> = target
            .split_once('?')
            .map_or("", |(_, query)| query)
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let number = |key: &str| query.get(key).and_then(|text| text.parse::<u64>().ok());
        let is_watch = query.contains_key("watch");
        let denial = {
            let mut state = state.lock().unwrap();
            state.seen.push(format!("GET {target} {authorization}"));
            state.denial
        };
        match denial {
            Some(Denial::Everything(code, message)) => answer(&mut stream, code, &status(code, message, "")).await?,
            Some(Denial::Watches(code, message)) if is_watch => {
                answer(&mut stream, code, &status(code, message, "")).await?
            }
            Some(Denial::Body(body)) => write(&mut stream, 200, body).await?,
            _ if is_watch => {
                let watch = state.lock().unwrap().watch(number("resourceVersion").unwrap());
                match watch {
                    Ok(lines) => tell(&mut stream, lines).await?,
                    Err((status, true)) => {
                        let (tell_it, lines) = mpsc::channel(1);
                        tell_it.try_send(format!("{}\n", json!({"type": "ERROR", "object": status}))).unwrap();
                        drop(tell_it);
                        tell(&mut stream, lines).await?;
                    }
                    Err((status, false)) => answer(&mut stream, 410, &status).await?,
                }
            }
            _ => {
                // The token is the server's own business: it has to come back as it was.
                let start = query.get("continue").map_or(0, |token| {
                    let digits = token.strip_prefix("from%3D").and_then(|rest| rest.strip_suffix("%26%2B"));
                    digits.unwrap().parse().unwrap()
                });
                let limit = usize::try_from(number("limit").unwrap()).unwrap();
                let list = state.lock().unwrap().list(start, limit);
                answer(&mut stream, 200, &list).await?;
            }
        }
    }
    Ok(())
}

/// The target and the authorization of the next request; none: the client is gone.
async fn read_head(stream: &mut TcpStream) -> std::io::Result<Option<(String, String)>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut authorization = lines.filter(|(key, _)| key.eq_ignore_ascii_case("authorization")).map(|(_, value)| value);
    Ok(Some((target, authorization.next().unwrap_or_default().to_owned())))
}

async fn answer(stream: &mut TcpStream, code: u16, body: &Value) -> std::io::Result<()> {
    write(stream, code, &body.to_string()).await
}

async fn write(stream: &mut TcpStream, code: u16, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

/// A watch: chunks of any size, here two a line, until there are no more.
async fn tell(stream: &mut TcpStream, mut lines: mpsc::Receiver<String>) -> std::io::Result<()> {
    stream
        .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        .await?;
    while let Some(line) = lines.recv().await {
        let (first, second) = line.split_at(line.len() / 2);
        for part in [first, second] {
            stream.write_all(format!("{:x}\r\n{part}\r\n", part.len()).as_bytes()).await?;
            tokio::task::yield_now().await;
        }
    }
    stream.write_all(b"0\r\n\r\n").await
}
