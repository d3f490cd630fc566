//! HTTP/2 with one client, as hyper speaks it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::Instant;

use super::connection::End;
use super::course::{Course, Expiry};
use super::service::Attendant;
use super::stream::Streams;
use super::wire::Wire;
use super::{DoorLimits, House};
use crate::alarm::Alarm;

/// What of an answer is kept for a client that is slow, in each stream of HTTP/2; beside it the kernel keeps some.
const STREAM_BUFFER: usize = 16 * 1024;

/// What a client may send ahead: of one request, and of all on a connection.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// An HTTP/2 client that is still there answers a ping.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// An HTTP/2 client that was told to go has this long.
const PARTING: Duration = Duration::from_secs(1);

type Connection = http2::Connection<TokioIo<Wire>, Attendant, Streams>;

/// Serves a connection until it ends.
pub(super) async fn serve(wire: Wire, course: &Arc<Course>, house: &Arc<House>) -> End {
    let limits = &house.limits;
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
        .max_header_list_size(head_most(limits))
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    let attendant = Attendant { house: Arc::clone(house), course: Arc::clone(course) };
    let connection = builder.serve_connection(TokioIo::new(wire), attendant);
    tokio::pin!(connection);
    watch_over(connection, course, limits).await
}

/// How large a head a client is told that it may send: more than is served, and as much as it may send of a body anyway. Up to
/// here the guard says in words what is wrong; beyond it the library answers 431 by itself, to which the wire adds the words.
fn head_most(limits: &DoorLimits) -> u32 {
    let served = u32::try_from(limits.header_bytes).unwrap_or(u32::MAX);
    STREAM_WINDOW.max(served.saturating_mul(2))
}

/// Drives a connection to its end, and ends it where the course says that it took too long. Whoever asks for nothing is told to
/// go first: what crosses that on its way is answered as ever.
async fn watch_over(mut connection: Pin<&mut Connection>, course: &Course, limits: &DoorLimits) -> End {
    let mut alarm = Alarm::default();
    let (mut told, mut rested) = (None, None);
    poll_fn(|cx| {
        loop {
            course.watch(cx.waker());
            if told.is_none() && course.is_stopping() {
                told = Some(Instant::now());
                connection.as_mut().graceful_shutdown();
            }
            if let Poll::Ready(result) = connection.as_mut().poll(cx) {
                if let Err(error) = &result {
                    tracing::debug!(error = %error, "HTTP ended");
                }
                let ended = if result.is_ok() { End::Done } else { End::Broken };
                return Poll::Ready(rested.map_or(ended, End::Expired));
            }
            let Some((at, why)) = expiry(course, limits, told) else { return Poll::Pending };
            if alarm.poll(at, cx).is_pending() {
                return Poll::Pending;
            }
            if told.is_some() || !matches!(why, Expiry::Idle | Expiry::Head) {
                return Poll::Ready(End::Expired(why));
            }
            (told, rested) = (Some(Instant::now()), Some(why));
            connection.as_mut().graceful_shutdown();
        }
    })
    .await
}

/// What it will have taken too long for, and when. Whoever was told to go and asks for nothing has little time, however long it
/// had: that it answers no ping shows late.
fn expiry(course: &Course, limits: &DoorLimits, told: Option<Instant>) -> Option<(Instant, Expiry)> {
    let (at, why) = course.expiry(limits)?;
    match (told, why) {
        // The end of its last answer may still have to leave.
        (Some(told), Expiry::Idle) => Some((told.max(at - limits.idle_timeout) + PARTING, why)),
        (Some(told), Expiry::Head) => Some((told + PARTING, why)),
        _ => Some((at, why)),
    }
}
