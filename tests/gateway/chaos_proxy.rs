//! A TCP proxy that breaks what it carries: cut after so many bytes of an answer, in several manners, or closed when idle.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use warmpath::shutdown::Tasks;

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// RST.
    Reset,
    /// FIN, and nothing is read any more.
    Close,
    /// FIN, and what comes is still read until the other side closes.
    HalfClose,
    /// FIN after a while of silence.
    SlowClose,
    /// FIN, after every byte has come by itself.
    Dribble,
}

pub(crate) const MANNERS: [Manner; 5] =
    [Manner::Reset, Manner::Close, Manner::HalfClose, Manner::SlowClose, Manner::Dribble];

/// The next cut: after so many bytes of the answer to the next request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CutAt {
    pub(crate) bytes: usize,
    pub(crate) manner: Manner,
}

/// The proxy.
pub(crate) struct ChaosProxy {
    pub(crate) address: SocketAddr,
    state: Arc<State>,
    _tasks: Tasks,
}

struct State {
    backend: SocketAddr,
    /// Taken by the first request that comes.
    next: Mutex<Option<CutAt>>,
    /// Connections on which nothing has passed for so long after an answer are closed, as engines do.
    idle: Option<Duration>,
    connections: AtomicUsize,
}

impl ChaosProxy {
    /// In front of `backend`; connections that are idle for so long after an answer are closed.
    pub(crate) async fn start(backend: SocketAddr, idle: Option<Duration>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has free ports");
        let address = listener.local_addr().expect("a bound socket has an address");
        let state = Arc::new(State { backend, next: Mutex::default(), idle, connections: AtomicUsize::new(0) });
        let tasks = Tasks::new();
        let (shared, more) = (Arc::clone(&state), tasks.clone());
        tasks.spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&shared);
                state.connections.fetch_add(1, Ordering::SeqCst);
                more.spawn(async move { carry(client, &state).await.unwrap_or_default() });
            }
        });
        Self { address, state, _tasks: tasks }
    }

    /// Cuts the answer to the next POST.
    pub(crate) fn cut_next(&self, cut: CutAt) {
        *self.state.next.lock().unwrap() = Some(cut);
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

async fn carry(mut client: TcpStream, state: &State) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    let mut worker = TcpStream::connect(state.backend).await?;
    worker.set_nodelay(true)?;
    let mut cut: Option<CutAt> = None;
    let mut is_idle = false;
    let (mut up, mut down) = (vec![0; 16 * 1024], vec![0; 16 * 1024]);
    loop {
        let passing = async {
            tokio::select! {
                read = client.read(&mut up) => (true, read),
                read = worker.read(&mut down) => (false, read),
            }
        };
        let passed = match state.idle.filter(|_| is_idle) {
            Some(idle) => timeout(idle, passing).await,
            None => Ok(passing.await),
        };
        // Idle for too long: both ends are closed.
        let Ok((is_request, read)) = passed else { return Ok(()) };
        let read = read?;
        if read == 0 {
            return Ok(());
        }
        is_idle = !is_request;
        if is_request {
            if up.starts_with(b"POST ") {
                cut = state.next.lock().unwrap().take();
            }
            if let Some(CutAt { bytes: 0, manner }) = cut {
                return end(client, manner).await;
            }
            worker.write_all(&up[..read]).await?;
            continue;
        }
        let Some(CutAt { bytes, manner }) = &mut cut else {
            client.write_all(&down[..read]).await?;
            continue;
        };
        let passes = read.min(*bytes);
        if *manner == Manner::Dribble {
            for byte in &down[..passes] {
                client.write_all(std::slice::from_ref(byte)).await?;
                tokio::task::yield_now().await;
            }
        } else {
            client.write_all(&down[..passes]).await?;
        }
        *bytes -= passes;
        if *bytes == 0 {
            return end(client, *manner).await;
        }
    }
}

async fn end(mut client: TcpStream, manner: Manner) -> std::io::Result<()> {
    match manner {
        Manner::Reset => client.set_zero_linger()?,
        Manner::Close | Manner::Dribble => {
            // What is unread would make a RST of the FIN.
            let mut rest = vec![0; 16 * 1024];
            while client.try_read(&mut rest).is_ok_and(|read| read > 0) {}
            client.shutdown().await?;
        }
        Manner::HalfClose => {
            client.shutdown().await?;
            let mut rest = Vec::new();
            client.read_to_end(&mut rest).await?;
        }
        Manner::SlowClose => {
            tokio::time::sleep(Duration::from_millis(15)).await;
            client.shutdown().await?;
        }
    }
    Ok(())
}
