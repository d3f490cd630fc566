//! The way to one HTTP server: HTTP/1.1 over TCP or TLS, on connections that are kept between requests.
//!
//! A stack of hyper's own `SendRequest`s: the connection that was used last is used next, so that the others grow old
//! and are closed before the server would close them. hyper's pooled client does the same at a higher price, and tells
//! neither whether a connection was kept nor whether a byte of the answer came, which decides what may be tried again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, header};
use http_body_util::Full;
use rustls::pki_types::ServerName;
use tokio::time::timeout;

use crate::config::{Config, Timeouts};
use crate::error::{BoxError, is_starved};
use crate::shutdown::Tasks;
use connection::{Connection, Failed};
use dial::dial;
use idle::Idle;

pub use ask::{Ask, AskError};
pub use inflow::Inflow;
pub use site::{Site, SiteError};
pub use tls::{ClientTls, TlsError, TlsFiles};

mod ask;
mod connection;
mod dial;
mod idle;
mod inflow;
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
}

impl LinkLimits {
    /// Those of the configuration.
    pub fn of(timeouts: &Timeouts) -> Self {
        Self { connect: timeouts.connect.get(), idle: timeouts.worker_idle.get() }
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
    kept: Mutex<Idle<Connection>>,
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
    Stage::TooLarge => "the head of the answer has more than 16 KiB",
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
        Ok(Self::new(LinkLimits::of(&config.timeouts), ClientTls::load(files)?, tasks.clone()))
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

    /// Sends a request, whose target is a path, and waits for the head of its answer; `Host` is set here. Dropping the
    /// future or the body closes the connection.
    ///
    /// # Errors
    /// See [`Stage`].
    pub async fn send(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
        way: Way,
    ) -> Result<Response<Inflow>, SendError> {
        let mut request = request;
        request.headers_mut().insert(header::HOST, self.host.clone());
        while let Some(mut connection) = self.take(way).await {
            match connection.exchange(request).await {
                Ok(response) => return Ok(self.flowing(connection, response)),
                // It had closed before anything was written.
                Err(Failed { unsent: Some(unsent), .. }) => request = unsent,
                Err(Failed { source, unsent: None }) => {
                    let stage = if connection.has_heard() { broke(&source) } else { Stage::Stale };
                    return Err(SendError { stage, source: source.into() });
                }
            }
        }
        // In a box of its own: it is large, and seldom needed.
        let connected = Box::pin(self.connect()).await;
        let mut connection = connected.map_err(|source| SendError { stage: stage_of(&source), source })?;
        match connection.exchange(request).await {
            Ok(response) => Ok(self.flowing(connection, response)),
            Err(Failed { source, .. }) => Err(SendError { stage: broke(&source), source: source.into() }),
        }
    }

    fn flowing(
        self: &Arc<Self>,
        connection: Connection,
        response: Response<hyper::body::Incoming>,
    ) -> Response<Inflow> {
        response.map(|body| Inflow::new(body, connection, self))
    }

    /// The connection that was used last, if it still stands and may be used.
    async fn take(&self, way: Way) -> Option<Connection> {
        loop {
            if way == Way::Fresh {
                return None;
            }
            let mut connection = self.lock_kept().take(Instant::now())?;
            if connection.is_ready().await {
                return Some(connection);
            }
        }
    }

    fn keep(&self, connection: Connection) {
        if connection.stands() {
            self.lock_kept().put(Instant::now(), connection);
        }
    }

    fn lock_kept(&self) -> MutexGuard<'_, Idle<Connection>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connect(&self) -> Result<Connection, BoxError> {
        let connecting = async {
            let dialled = dial(&self.authority, self.secure.as_ref(), &self.shared.tls).await?;
            Ok(Connection::over(dialled).await?)
        };
        timeout(self.shared.limits.connect, connecting).await.map_err(|_| "not in time")?
    }
}

/// How far it came where no connection could be made.
fn stage_of(error: &BoxError) -> Stage {
    if error.downcast_ref().is_some_and(is_starved) { Stage::Starved } else { Stage::Connect }
}

/// What became of an answer that had begun.
fn broke(error: &hyper::Error) -> Stage {
    if error.is_parse_too_large() { Stage::TooLarge } else { Stage::Broken }
}
