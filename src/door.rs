//! Where clients come in: listening, connections and their time-outs, TLS, HTTP/1.1 and HTTP/2, and what is refused before
//! any handler is asked. Axum's own loop has no time-out for a request's head and no bound on connections.
//!
//! A connection's way: [`Listener`] accepts it, the [`Census`] gives it a seat or turns it away, [`Tls`] opens it where it
//! is guarded, then HTTP speaks over a [`Wire`](wire::Wire). The [`Course`] is what all of these know of it, and tells the
//! connection's task when it has taken too long. Each request passes the [`guard`] and its answer leaves as an
//! [`Answer`](answer::Answer).

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::shutdown::Tasks;
use crate::telemetry::metrics::DoorMetrics;
use census::Census;
use course::Course;

pub use front::{Answered, Answering, Front};
pub use intake::{Intake, IntakeFault, read_whole};
pub use listener::Listener;
pub use tls::{Tls, TlsFiles};

mod answer;
mod bare;
mod census;
mod connection;
mod conversation;
mod course;
mod date;
mod delivery;
mod front;
mod gathered;
mod goodbye;
mod guard;
mod head;
mod http2;
mod inbox;
mod intake;
mod listener;
mod moment;
mod outbox;
mod refusal;
mod section;
mod service;
mod socket;
mod stream;
mod tls;
mod upload;
mod wire;

/// What one door lets in.
#[derive(Clone, Copy, Debug)]
pub struct DoorLimits {
    /// Connections at once; further ones are turned away.
    pub connections: usize,
    /// The same of one address; of IPv6, of one /64 network.
    pub connections_per_address: usize,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
    /// Bytes of a request's head.
    pub header_bytes: usize,
    /// Header fields of a request.
    pub headers: usize,
    /// Bytes of a request's target.
    pub uri_bytes: usize,
    /// Time for a request's head, from its first byte, and for a TLS handshake.
    pub header_timeout: Duration,
    /// How long a connection may have no request.
    pub idle_timeout: Duration,
    /// How long a client may take nothing of what it is sent.
    pub stall_timeout: Duration,
}

impl Default for DoorLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            connections_per_address: 16_384,
            streams: 100,
            header_bytes: 64 * 1024,
            headers: 100,
            uri_bytes: 8 * 1024,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(60),
        }
    }
}

/// An open door. Dropping it leaves it open.
#[derive(Clone)]
pub struct Door {
    house: Arc<House>,
}

/// What the connections of one door share.
struct House {
    front: Front,
    limits: DoorLimits,
    tls: Option<Arc<Tls>>,
    metrics: DoorMetrics,
    census: Census,
    tasks: Tasks,
    /// Whether each answer over HTTP/1 is the last of its connection.
    parting: AtomicBool,
    closed: CancellationToken,
}

impl Door {
    /// Lets in whoever comes, to `front`. Connections are tasks of `tasks`.
    pub fn open(
        listener: Listener,
        front: impl Into<Front>,
        (limits, tls): (DoorLimits, Option<Arc<Tls>>),
        metrics: DoorMetrics,
        tasks: &Tasks,
    ) -> Self {
        let house = Arc::new(House {
            front: front.into(),
            limits,
            tls,
            metrics,
            census: Census::new(limits.connections, limits.connections_per_address),
            tasks: tasks.clone(),
            parting: AtomicBool::new(false),
            closed: CancellationToken::new(),
        });
        let door = Self { house: Arc::clone(&house) };
        tasks.spawn(house.receive(listener));
        door
    }

    /// Tells whoever asks over HTTP/1 from now on that the answer is the last of its connection: who is told asks elsewhere, and
    /// has nothing on the way when the connection ends.
    pub fn part(&self) {
        self.house.parting.store(true, Ordering::Relaxed);
    }

    /// Lets nobody in any more. Connections without a request end, the others with their answers.
    pub fn close(&self) {
        self.house.closed.cancel();
        self.house.census.each(Course::ask_to_stop);
    }

    /// Ends every answer: with an error where it has not begun, and with an error event where it is a stream. Returns how
    /// many connections were left.
    pub fn cut(&self) -> usize {
        self.close();
        self.house.metrics.cut();
        self.house.census.each(Course::cut)
    }
}

impl House {
    async fn receive(self: Arc<Self>, mut listener: Listener) {
        loop {
            let (stream, peer) = tokio::select! {
                biased;
                () = self.closed.cancelled() => break,
                accepted = listener.accept(&self.metrics) => accepted,
            };
            self.let_in(stream, peer);
        }
        // Who waits to be let in may have asked already.
        for _ in 0..listener::BACKLOG {
            // Constrained, it would be as if nobody waited after the first 128.
            let next = tokio::task::unconstrained(listener.accept(&self.metrics)).now_or_never();
            let Some((stream, peer)) = next else { return };
            self.let_in(stream, peer);
        }
    }

    fn let_in(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        match self.census.admit(peer.ip()) {
            Ok(seat) => self.tasks.spawn(connection::attend(stream, seat, Arc::clone(self))),
            Err(reason) => self.turn_away(stream, reason),
        }
    }

    /// Says why where that is possible without waiting; a client that has sent its request already may only see that the
    /// connection is reset.
    fn turn_away(&self, stream: TcpStream, reason: census::Refused) {
        self.metrics.refused(reason.label());
        let Ok(stream) = stream.into_std() else { return };
        if self.tls.is_none() {
            let told = std::io::Write::write(&mut &stream, &refusal::too_many_connections());
            tracing::debug!(reason = reason.label(), told = told.is_ok(), "connection refused");
        }
    }
}
