//! One connection from its acceptance to its end: handshake, which HTTP is spoken, and the clock.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::census::Seat;
use super::course::{Course, Expiry};
use super::service::Attendant;
use super::stream::Streams;
use super::wire::{Socket, Wire};
use super::{DoorLimits, House};
use crate::alarm::Alarm;
use crate::error::GatewayError;
use crate::quiet::Bell;

/// What HTTP/2 begins with (RFC 9113, 3.4); spoken without TLS by clients that know.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// HTTP/1's reader takes no smaller buffer.
const BUFFER_MIN: usize = 8192;

/// The headers that HTTP/1's reader takes where nothing is said.
const HEADERS_USUAL: usize = 100;

/// What of an answer is kept for a client that is slow, in each stream of HTTP/2; beside it the kernel keeps some.
const STREAM_BUFFER: usize = 16 * 1024;

/// What a client may send ahead: of one request, and of all on a connection.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// An HTTP/2 client that is still there answers a ping.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// An HTTP/2 client that was told to go has this long.
const PARTING: Duration = Duration::from_secs(1);

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The client left, or the last answer said that it was the last.
    Done,
    /// HTTP broke: the client left in the middle, or makes no sense.
    Broken,
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
            End::Broken => "broken",
            End::Handshake => "handshake",
            End::Stopped => "stopped",
            End::Expired(Expiry::Head) => "head_timeout",
            End::Expired(Expiry::Idle) => "idle",
            End::Expired(Expiry::Stalled) => "stalled",
            End::Expired(Expiry::Late) => "late",
        }
    }
}

/// How HTTP/1 is read and written. Its own clock for heads is off: it would run between requests as well, and end kept
/// connections; the course has one that does not.
pub(super) fn http1_settings(limits: &DoorLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(BUFFER_MIN))
        .half_close(false);
    // Said, even its own number costs two allocations a request.
    if limits.headers != HEADERS_USUAL {
        builder.max_headers(limits.headers);
    }
    builder
}

/// Serves a connection until it ends.
pub(super) async fn attend(stream: TcpStream, seat: Seat, house: Arc<House>) {
    let _counted = house.metrics.opened();
    if house.closed.is_cancelled() {
        seat.course().ask_to_stop();
    }
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(error = %error, "set_nodelay");
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
    let mut wire = Wire::new(socket, Arc::clone(course), house.limits);
    let is_http2 = match agreed {
        Some(is_http2) => is_http2,
        None => match detect(&mut wire, course, &house.limits).await {
            Ok(is_http2) => is_http2,
            Err(end) => {
                part(wire, course, house, end).await;
                return end;
            }
        },
    };
    let attendant = Attendant { house: Arc::clone(house), course: Arc::clone(course) };
    if is_http2 { http2(wire, course, house, attendant).await } else { http1(wire, course, house, attendant).await }
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

/// Whether HTTP/2 is spoken, or else how the connection ends before it is known.
async fn detect(wire: &mut Wire, course: &Course, limits: &DoorLimits) -> Result<bool, End> {
    let deadline = course.opened() + limits.header_timeout;
    let read = tokio::select! {
        read = timeout_at(deadline, wire.begins_with(PREFACE)) => read,
        // Whoever has said nothing has nothing to lose; others are heard to the end.
        () = course.stopped(), if !course.is_in_head() => return Err(End::Stopped),
    };
    match read {
        Ok(Ok(_)) if wire.is_over() => Err(End::Done),
        Ok(Ok(is_http2)) => Ok(is_http2),
        Ok(Err(_)) => Err(End::Broken),
        Err(_) => Err(End::Expired(Expiry::Head)),
    }
}

async fn http1(wire: Wire, course: &Arc<Course>, house: &Arc<House>, attendant: Attendant) -> End {
    let mut connection = house.http1.serve_connection(TokioIo::new(wire), attendant);
    let end = watch_over(Pin::new(&mut connection), http1::Connection::graceful_shutdown, course, &house.limits).await;
    part(connection.into_parts().io.into_inner(), course, house, end).await;
    end
}

/// Says what is left to say. Answers that were not read, or are not whole, are not waited for.
async fn part(mut wire: Wire, course: &Course, house: &House, end: End) {
    match end {
        End::Expired(Expiry::Head) if course.is_in_head() => wire.refuse(GatewayError::HeadTimeout).await,
        End::Expired(Expiry::Stalled | Expiry::Late) => return wire.abort(),
        End::Expired(_) | End::Stopped | End::Handshake => return,
        End::Done | End::Broken => {}
    }
    match wire.refused() {
        Some(outcome) => house.metrics.bad_head(outcome),
        // Who was answered in full has nothing to say any more.
        None if course.is_stopping() => return,
        None => {}
    }
    wire.linger().await;
}

async fn http2(wire: Wire, course: &Arc<Course>, house: &Arc<House>, attendant: Attendant) -> End {
    let limits = &house.limits;
    course.multiplex();
    let mut builder = http2::Builder::new(Streams {
        tasks: house.tasks.clone(),
        course: Arc::clone(course),
        stall_timeout: limits.stall_timeout,
        metrics: house.metrics.clone(),
    });
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_BUFFER)
        // What is not much too large reaches the guard, which says so in words.
        .max_header_list_size(u32::try_from(limits.header_bytes.saturating_mul(2)).unwrap_or(u32::MAX))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    let connection = builder.serve_connection(TokioIo::new(wire), attendant);
    tokio::pin!(connection);
    let end = watch_over(connection.as_mut(), http2::Connection::graceful_shutdown, course, limits).await;
    if matches!(end, End::Expired(Expiry::Idle | Expiry::Head)) {
        connection.as_mut().graceful_shutdown();
        drop(timeout(PARTING, connection).await);
    }
    end
}

/// Drives a connection to its end, and ends it where the course says that it took too long.
async fn watch_over<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    stop: fn(Pin<&mut C>),
    course: &Course,
    limits: &DoorLimits,
) -> End {
    let mut alarm = Alarm::default();
    let mut bell = Bell::default();
    let mut stopping = false;
    poll_fn(|cx| {
        course.watch(cx.waker());
        if !stopping && course.is_stopping() {
            stopping = true;
            stop(connection.as_mut());
        }
        if let Poll::Ready(result) = connection.as_mut().poll(&mut Context::from_waker(bell.of(cx.waker()))) {
            if let Err(error) = &result {
                tracing::debug!(error = %error, "HTTP ended");
            }
            return Poll::Ready(if result.is_ok() { End::Done } else { End::Broken });
        }
        match course.expiry(limits) {
            Some((at, why)) => alarm.poll(at, cx).map(|()| End::Expired(why)),
            None => Poll::Pending,
        }
    })
    .await
}
