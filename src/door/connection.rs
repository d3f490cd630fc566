//! One connection from its acceptance to its end: handshake, which HTTP is spoken, and the last words.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::census::Seat;
use super::conversation::Conversation;
use super::course::{Course, Expiry};
use super::socket::Socket;
use super::wire::Wire;
use super::{DoorLimits, House, http2, refusal};
use crate::error::GatewayError;
use crate::loss::end_when_lost;

/// What HTTP/2 begins with (RFC 9113, 3.4); spoken without TLS by clients that know.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a client sent before the router closed is seen within so long, on a connection that was let in with the last.
const LAST_CALL: Duration = Duration::from_millis(20);

/// What is read before it is known what is spoken: most requests' heads at once.
const EARLY: usize = 1024;

/// A client whose host does not answer for so long has left, unless it may take longer over reading: as long as over HTTP/2, where
/// it is asked by pings.
const LOST_AFTER: Duration = Duration::from_secs(40);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The client left, or the last answer said that it was the last.
    Done,
    /// HTTP broke: the client left in the middle, or makes no sense.
    Broken,
    /// An answer broke off that ends with its connection, which so must not end as others do.
    Torn,
    /// The TLS handshake failed.
    Handshake,
    /// The router stops.
    Stopped,
    /// It took too long.
    Expired(Expiry),
}

impl End {
    /// The label of `client_connections_closed_total`.
    fn label(self) -> &'static str {
        match self {
            End::Done => "done",
            End::Broken | End::Torn => "broken",
            End::Handshake => "handshake",
            End::Stopped => "stopped",
            End::Expired(Expiry::Head) => "head_timeout",
            End::Expired(Expiry::Idle) => "idle",
            End::Expired(Expiry::Stalled) => "stalled",
            End::Expired(Expiry::Late) => "late",
        }
    }
}

/// How a connection ended, and what is left to say.
#[derive(Debug)]
pub(super) struct Over {
    pub(super) end: End,
    pub(super) refusal: Option<GatewayError>,
}

impl Over {
    /// What came is no request.
    pub(super) fn refused(error: GatewayError) -> Self {
        Self { end: End::Broken, refusal: Some(error) }
    }
}

impl From<End> for Over {
    fn from(end: End) -> Self {
        Self { end, refusal: None }
    }
}

/// Serves a connection until it ends.
pub(super) async fn attend(stream: TcpStream, seat: Seat, house: Arc<House>) {
    let _counted = house.metrics.opened();
    if house.closed.is_cancelled() {
        seat.course().ask_to_stop();
    }
    let silent = house.limits.stall_timeout.max(LOST_AFTER);
    if let Err(error) = stream.set_nodelay(true).and_then(|()| end_when_lost(&stream, silent)) {
        tracing::debug!(error = %error, "options of a client's socket");
    }
    let end = serve(stream, seat.course(), &house).await;
    house.metrics.closed(end.label());
    tracing::debug!(end = end.label(), "connection ended");
}

async fn serve(stream: TcpStream, course: &Arc<Course>, house: &Arc<House>) -> End {
    let (socket, agreed) = match secure(stream, course, house).await {
        Ok(secured) => secured,
        Err(end) => return end,
    };
    let mut opening = Opening { socket, early: Vec::new() };
    let is_http2 = match agreed {
        Some(is_http2) => Ok(is_http2),
        None => detect(&mut opening, course, &house.limits).await,
    };
    let Opening { socket, early } = opening;
    let (socket, over) = match is_http2 {
        Ok(true) => return http2::serve(Wire::new(socket, early, course, house), course, house).await,
        Ok(false) => Conversation::begin(socket, early, course, house).hold().await,
        Err(over) => (socket, over),
    };
    let end = over.end;
    part(socket, course, house, over).await;
    end
}

/// The socket behind its handshake, and whether HTTP/2 was agreed on there.
async fn secure(stream: TcpStream, course: &Course, house: &House) -> Result<(Socket, Option<bool>), End> {
    let Some(tls) = &house.tls else { return Ok((Socket::Plain(stream), None)) };
    let handshake = timeout(house.limits.header_timeout, tls.accept(stream));
    let shaken = tokio::select! {
        shaken = handshake => shaken,
        () = course.stopped() => return Err(End::Stopped),
    };
    let failed = |reason| {
        house.metrics.handshake_failed(reason);
        Err(End::Handshake)
    };
    match shaken {
        Ok(Ok(stream)) => {
            course.expect_head(Instant::now());
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            Ok((Socket::Tls(Box::new(stream)), Some(is_http2)))
        }
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "TLS handshake failed");
            failed(super::tls::failure(&error))
        }
        Err(_) => failed("timeout"),
    }
}

/// A connection of which is not known yet what is spoken on it.
struct Opening {
    socket: Socket,
    /// What has come.
    early: Vec<u8>,
}

impl Opening {
    /// Whether the client begins with `preface`; none if it left without a word. Reads until that is clear, and keeps what was
    /// read. Cancelling it loses nothing.
    async fn begins_with(&mut self, preface: &[u8]) -> io::Result<Option<bool>> {
        loop {
            let common = self.early.len().min(preface.len());
            if self.early[..common] != preface[..common] || common == preface.len() {
                return Ok(Some(common == preface.len() && self.early.starts_with(preface)));
            }
            self.early.reserve(EARLY);
            if self.socket.read_buf(&mut self.early).await? == 0 {
                return Ok((!self.early.is_empty()).then_some(false));
            }
        }
    }
}

/// Whether HTTP/2 is spoken, or else how the connection ends before it is known.
async fn detect(opening: &mut Opening, course: &Course, limits: &DoorLimits) -> Result<bool, Over> {
    let deadline = course.opened() + limits.header_timeout;
    // Whoever has said nothing has nothing to lose; others are heard to the end.
    loop {
        let has_begun = !opening.early.is_empty();
        let read = tokio::select! {
            biased;
            read = timeout_at(deadline, opening.begins_with(PREFACE)) => read,
            () = last_call(course), if !has_begun => {
                if opening.early.is_empty() {
                    return Err(End::Stopped.into());
                }
                continue;
            }
        };
        return match read {
            Ok(Ok(Some(is_http2))) => Ok(is_http2),
            Ok(Ok(None)) => Err(End::Done.into()),
            Ok(Err(_)) => Err(End::Broken.into()),
            Err(_) => {
                let refusal = (!opening.early.is_empty()).then_some(GatewayError::HeadTimeout);
                Err(Over { end: End::Expired(Expiry::Head), refusal })
            }
        };
    }
}

/// Ready a moment after it is asked to stop.
async fn last_call(course: &Course) {
    course.stopped().await;
    sleep(LAST_CALL).await;
}

/// Says what is left to say. Answers that were not read, or are not whole, are not waited for.
async fn part(mut socket: Socket, course: &Course, house: &House, over: Over) {
    if let Some(refusal) = over.refusal {
        house.metrics.bad_head(refusal.outcome());
        socket.say(&refusal::bytes(refusal)).await;
        return socket.linger().await;
    }
    match over.end {
        End::Torn | End::Expired(Expiry::Stalled | Expiry::Late) => socket.abort(),
        End::Expired(_) | End::Stopped | End::Handshake => {}
        // Who was answered in full and has said nothing since loses nothing.
        End::Done | End::Broken if course.is_stopping() && !socket.has_more().await => {}
        End::Done | End::Broken => socket.linger().await,
    }
}
