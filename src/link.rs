//! The way to one HTTP server: HTTP/1.1 over TCP or TLS, on connections that are kept between requests.
//!
//! A stack of connections: the one that was used last is used next, so that the others grow old and are closed before the
//! server would close them. What is spoken on them is our own (`connection`), on `httparse`: hyper's client takes twice
//! the instructions for it, holds a buffer for each stream that is silent, and does not tell whether a byte of the answer
//! came, which decides what may be tried again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Method, Response};
use rustls::pki_types::ServerName;
use tokio::time::timeout;

use crate::config::Config;
use crate::error::{BoxError, is_starved};
use crate::shutdown::Tasks;
use connection::{Begun, Connection};
use dial::dial;
use idle::Idle;

pub use ask::AskError;
pub use fault::Fault;
pub use inflow::Inflow;
pub use outgoing::Outgoing;
pub use site::{Site, SiteError};
pub use tls::{ClientTls, TlsError, TlsFiles};

mod ask;
mod connection;
mod dial;
mod fault;
mod head;
mod idle;
mod inflow;
mod outgoing;
mod site;
mod tls;
mod wire;

/// Connections that are kept for one server at most; more are made where they are needed, and closed after use.
const KEPT_MAX: usize = 1024;

/// Bounds on connections.
#[derive(Clone, Copy, Debug)]
pub struct LinkLimits {
    /// For making one, name look-up and TLS included.
    pub connect: Duration,
    /// For one that nobody uses; shorter than the server's own limit, 5 s in vLLM.
    pub idle: Duration,
    /// For the head of an answer, in bytes.
    pub head: usize,
}

/// What the head of an answer has of its own, in bytes.
pub const HEAD_MAX: usize = 16 * 1024;

impl LinkLimits {
    /// Those of the configuration. A server may repeat in its answer what a client has sent: as much is read.
    pub fn of(config: &Config) -> Self {
        let (limits, timeouts) = (&config.limits, &config.timeouts);
        let head = limits.header_bytes.as_usize().saturating_add(HEAD_MAX);
        Self { connect: timeouts.connect.get(), idle: timeouts.worker_idle.get(), head }
    }
}

/// What all links share. Cloning is cheap.
#[derive(Clone)]
pub struct Links {
    shared: Arc<Shared>,
}

struct Shared {
    limits: LinkLimits,
    tls: ClientTls,
    known: Mutex<Vec<Weak<Link>>>,
}

/// The way to one server.
pub struct Link {
    secure: Option<ServerName<'static>>,
    authority: Authority,
    host: HeaderValue,
    shared: Arc<Shared>,
    kept: Mutex<Idle<Box<Connection>>>,
}

/// Which connection a request goes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One that was kept, if there is one.
    Kept,
    /// A new one.
    Fresh,
}

/// How far a request came that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There was no connection: nothing was sent.
    Connect,
    /// There was no connection, as no file descriptor was left for one: not the server's fault.
    Starved,
    /// A kept connection ended before a byte of the answer came. The server most likely closed it while it was idle.
    Stale,
    /// The head of the answer was larger than is read ahead.
    TooLarge,
    /// The connection broke.
    Broken,
}

/// A request was not answered.
#[derive(Debug, thiserror::Error)]
#[error("{}", match .stage {
    Stage::Connect => "no connection",
    Stage::Starved => "no file descriptor left for a connection",
    Stage::Stale => "a kept connection ended without an answer",
    Stage::TooLarge => "the head of the answer has more bytes or headers than are read",
    Stage::Broken => "the connection broke",
})]
pub struct SendError {
    /// How far it came.
    pub stage: Stage,
    /// Why.
    #[source]
    pub source: BoxError,
}

impl Links {
    /// Links that `tasks` tidies up after.
    pub fn new(limits: LinkLimits, tls: ClientTls, tasks: Tasks) -> Self {
        let shared = Arc::new(Shared { limits, tls, known: Mutex::default() });
        tasks.spawn(sweep(Arc::downgrade(&shared)));
        if shared.tls.has_files() {
            tasks.spawn(tls::keep_fresh(Arc::downgrade(&shared)));
        }
        Self { shared }
    }

    /// Links as the configuration has them.
    ///
    /// # Errors
    /// When a file of `upstream_tls` cannot be used.
    pub fn configured(config: &Config, tasks: &Tasks) -> Result<Self, TlsError> {
        let tls = &config.upstream_tls;
        let identity = tls.certificate.as_ref().zip(tls.key.as_ref());
        let files = TlsFiles {
            authorities: tls.authorities.clone(),
            identity: identity.map(|(certificate, key)| (certificate.value.clone(), key.value.clone())),
        };
        Ok(Self::new(LinkLimits::of(config), ClientTls::load(files)?, tasks.clone()))
    }

    /// The way to `authority`. Nothing is connected yet.
    ///
    /// # Errors
    /// `https` without authorities to trust, or towards something that is no name.
    pub fn link(&self, scheme: &Scheme, authority: &Authority) -> Result<Arc<Link>, TlsError> {
        let secure = if *scheme == Scheme::HTTPS {
            self.shared.tls.config()?;
            let name = bare(authority.host()).to_owned();
            Some(ServerName::try_from(name).map_err(|_| TlsError::Name { host: authority.host().to_owned() })?)
        } else {
            None
        };
        let host = HeaderValue::from_str(authority.as_str()).expect("an authority is visible ASCII");
        let kept = Mutex::new(Idle::new(KEPT_MAX, self.shared.limits.idle));
        let link = Link { secure, authority: authority.clone(), host, shared: Arc::clone(&self.shared), kept };
        let link = Arc::new(link);
        self.shared.lock_known().push(Arc::downgrade(&link));
        Ok(link)
    }
}

/// A host as an address or a name: IPv6 without its brackets.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

impl Shared {
    fn lock_known(&self) -> MutexGuard<'_, Vec<Weak<Link>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes what has been idle for too long, for as long as anybody holds a link.
async fn sweep(shared: Weak<Shared>) {
    loop {
        let Some(period) = shared.upgrade().map(|shared| shared.limits.idle / 4) else { return };
        tokio::time::sleep(period.clamp(Duration::from_millis(5), Duration::from_secs(1))).await;
        let Some(shared) = shared.upgrade() else { return };
        let now = Instant::now();
        shared.lock_known().retain(|link| match link.upgrade() {
            Some(link) => {
                // Closed when nobody is kept waiting by it.
                let gone = link.lock_kept().sweep(now);
                drop(gone);
                true
            }
            None => false,
        });
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl Link {
    /// Host and port.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Connections that are kept at this moment.
    pub fn kept(&self) -> usize {
        self.lock_kept().len()
    }

    /// Sends a request, with `own` headers in the place of those of the same name, and waits for the head of its answer.
    /// Dropping the future or the body closes the connection.
    ///
    /// # Errors
    /// See [`Stage`].
    pub async fn send(
        self: &Arc<Self>,
        outgoing: &Outgoing,
        own: &HeaderMap,
        way: Way,
    ) -> Result<Response<Inflow>, SendError> {
        let kept = if way == Way::Kept { self.take().await } else { None };
        let is_kept = kept.is_some();
        let mut connection = match kept {
            Some(connection) => connection,
            // In a box of its own: it is large, and seldom needed.
            None => {
                let connected = Box::pin(self.connect()).await;
                connected.map_err(|source| SendError { stage: stage_of(&source), source })?
            }
        };
        let head = outgoing.head(&self.host, own);
        let is_of_head = outgoing.method == Method::HEAD;
        match connection.exchange(head, outgoing.body.clone(), is_of_head).await {
            Ok(begun) => Ok(self.flowing(connection, begun)),
            Err(fault) => {
                let stage = match &fault {
                    _ if is_kept && !connection.has_heard() => Stage::Stale,
                    Fault::TooLarge => Stage::TooLarge,
                    Fault::Closed | Fault::Io(_) | Fault::NoHttp(_) => Stage::Broken,
                };
                Err(SendError { stage, source: fault.into() })
            }
        }
    }

    fn flowing(self: &Arc<Self>, connection: Box<Connection>, begun: Begun) -> Response<Inflow> {
        let Begun { head, framing, first } = begun;
        let mut response = Response::new(Inflow::new(first, framing, connection, self));
        *response.status_mut() = head.status;
        *response.headers_mut() = head.headers;
        head.reason.map(|reason| response.extensions_mut().insert(reason));
        response
    }

    /// The connection that was used last, if it still stands.
    async fn take(&self) -> Option<Box<Connection>> {
        loop {
            let mut connection = self.lock_kept().take(Instant::now())?;
            if connection.is_silent().await {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: Box<Connection>) {
        if connection.is_reusable() {
            self.lock_kept().put(Instant::now(), connection);
        }
    }

    fn lock_kept(&self) -> MutexGuard<'_, Idle<Box<Connection>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Box<Connection>, BoxError> {
        let dialling = dial(&self.authority, self.secure.as_ref(), &self.shared.tls);
        let wire = timeout(self.shared.limits.connect, dialling).await.map_err(|_| "not in time")??;
        Ok(Box::new(Connection::over(wire, self.shared.limits.head)))
    }
}

/// How far it came where no connection could be made.
fn stage_of(error: &BoxError) -> Stage {
    if error.downcast_ref().is_some_and(is_starved) { Stage::Starved } else { Stage::Connect }
}
