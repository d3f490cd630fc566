//! A worker that plays a script on a bare socket: it says exactly what a test wants, and tells what it has seen.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use warmpath::shutdown::Tasks;

/// What a scripted worker does next.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits for [`Scripted::go`].
    Await,
    /// Is silent until the router closes the connection, and counts that.
    Hold,
    /// Closes the connection. A script that does not end so waits for the next request.
    Close,
}

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Seen {
    /// The values of a header, in order.
    pub(crate) fn header(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).collect()
    }
}

/// The worker. It is well, and answers what the router asks of itself; everything else gets the script.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    stage: Arc<Stage>,
    tasks: Tasks,
}

struct Stage {
    script: Mutex<Vec<Step>>,
    seen: Mutex<Vec<Seen>>,
    checks: AtomicUsize,
    hangups: AtomicUsize,
    signals: Semaphore,
    metrics: Mutex<Option<String>>,
    models: Mutex<Option<String>>,
}

impl Scripted {
    /// Listens, and plays `script` for every request of a client.
    pub(crate) async fn start(script: Vec<Step>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let stage = Arc::new(Stage {
            script: Mutex::new(script),
            seen: Mutex::default(),
            checks: AtomicUsize::new(0),
            hangups: AtomicUsize::new(0),
            signals: Semaphore::new(0),
            metrics: Mutex::new(Some(String::new())),
            models: Mutex::new(Some(String::new())),
        });
        let tasks = Tasks::new();
        let (on_stage, more) = (Arc::clone(&stage), tasks.clone());
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let stage = Arc::clone(&on_stage);
                more.spawn(async move { serve(stream, &stage).await.unwrap_or_default() });
            }
        });
        Self { address, stage, tasks }
    }

    /// What it plays from now on.
    pub(crate) fn plays(&self, script: Vec<Step>) {
        *self.stage.script.lock().unwrap() = script;
    }

    /// What its `/metrics` say from now on; none: they never answer again.
    pub(crate) fn says(&self, metrics: Option<&str>) {
        *self.stage.metrics.lock().unwrap() = metrics.map(str::to_owned);
    }

    /// What its `/v1/models` answers from now on.
    pub(crate) fn offers(&self, models: &str) {
        *self.stage.models.lock().unwrap() = Some(models.to_owned());
    }

    /// Its `/v1/models` never answers from now on.
    pub(crate) fn offers_nothing(&self) {
        *self.stage.models.lock().unwrap() = None;
    }

    /// Lets one [`Step::Await`] pass.
    pub(crate) fn go(&self) {
        self.stage.signals.add_permits(1);
    }

    /// The requests so far, checks of its health apart.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.stage.seen.lock().unwrap().clone()
    }

    /// Connections that the router closed while the worker held them.
    pub(crate) fn hangups(&self) -> usize {
        self.stage.hangups.load(Ordering::SeqCst)
    }

    /// Waits until it has been asked how it is.
    pub(crate) async fn checked(&self) {
        until("the worker is checked", || self.stage.checks.load(Ordering::SeqCst) > 0).await;
    }

    /// Waits until it has got `count` requests.
    pub(crate) async fn asked(&self, count: usize) {
        until("the worker is asked", || self.stage.seen.lock().unwrap().len() >= count).await;
    }

    /// Listens no more, and closes every connection: further ones are refused.
    pub(crate) async fn leave(&self) {
        self.tasks.drain(Duration::ZERO).await;
    }
}

/// Waits until `check` holds.
pub(crate) async fn until(what: &str, check: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !check() {
        assert!(Instant::now() < deadline, "it did not come true that {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn serve(mut stream: TcpStream, stage: &Stage) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    while let Some(seen) = read_request(&mut stream).await? {
        let asks = |path: &str| seen.head.starts_with(&format!("GET {path} "));
        if ["/health", "/metrics", "/v1/models"].into_iter().any(asks) {
            if seen.head.starts_with("GET /health") {
                stage.checks.fetch_add(1, Ordering::SeqCst);
            }
            let said = match () {
                () if asks("/v1/models") => stage.models.lock().unwrap().clone(),
                () if asks("/metrics") => stage.metrics.lock().unwrap().clone(),
                () => Some(String::new()),
            };
            let text = match said {
                Some(text) => text,
                None => std::future::pending().await,
            };
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            stream.write_all((head + &text).as_bytes()).await?;
            continue;
        }
        stage.seen.lock().unwrap().push(seen);
        let script = stage.script.lock().unwrap().clone();
        for step in script {
            match step {
                Step::Send(bytes) => stream.write_all(&bytes).await?,
                Step::Await => stage.signals.acquire().await.expect("it is never closed").forget(),
                Step::Hold => {
                    let mut byte = [0];
                    if matches!(stream.read(&mut byte).await, Ok(0) | Err(_)) {
                        stage.hangups.fetch_add(1, Ordering::SeqCst);
                    }
                    return Ok(());
                }
                Step::Close => return Ok(()),
            }
        }
    }
    Ok(())
}

pub(crate) async fn read_request(stream: &mut TcpStream) -> std::io::Result<Option<Seen>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await? == 0 {
            return Ok(None);
        }
    };
    let body = bytes.split_off(end);
    let mut seen = Seen { head: String::from_utf8_lossy(&bytes).into_owned(), body };
    let length = seen.header("content-length").first().map_or(0, |length| length.parse().expect("a length"));
    while seen.body.len() < length {
        if stream.read_buf(&mut seen.body).await? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(seen))
}

/// The head of a streamed answer.
pub(crate) fn head() -> Step {
    Step::Send(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
            .to_vec(),
    )
}

/// A piece of a streamed answer's body.
pub(crate) fn piece(data: impl AsRef<[u8]>) -> Step {
    let data = data.as_ref();
    Step::Send([format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat())
}

/// The proper end of a streamed answer's body.
pub(crate) fn end() -> Step {
    Step::Send(b"0\r\n\r\n".to_vec())
}

/// A whole answer that is JSON.
pub(crate) fn whole(status: &str, body: &str) -> Step {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n");
    Step::Send((head + body).into_bytes())
}

/// An event with one token's text.
pub(crate) fn event(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":null}}]}}\n\n")
}

/// A whole stream of one token.
pub(crate) fn good_stream() -> Vec<Step> {
    vec![head(), piece(event("a")), piece("data: [DONE]\n\n"), end()]
}
