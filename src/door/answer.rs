//! The answer on its way out: it keeps its request open until it has ended, and says goodbye when the router must stop.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::course::Open;
use super::front::Answered;
use super::stream::Pace;
use crate::error::{BoxError, GatewayError, error_json};

/// Between the last words and the cut: a body that fails takes what was not flushed with it.
const LAST_WORDS: Duration = Duration::from_millis(10);

/// The type of a stream of server-sent events, whatever follows it.
const EVENTS: &[u8] = b"text/event-stream";

/// The most that is handed on at once. HTTP takes whatever it is given, and keeps it; and with the last of it the answer ends,
/// whether the client has it or not.
const PIECE: usize = 16 * 1024;

/// See the module.
pub(super) struct Answer {
    inner: Body,
    /// What is left of a frame.
    rest: Bytes,
    open: Open,
    pace: Option<Arc<Pace>>,
    state: State,
}

enum State {
    /// Passes on; whether it is a stream of server-sent events.
    Passing(bool),
    /// The last words of a connection: passes on, whatever comes.
    Last,
    /// The error event is out. The body must not end cleanly, or the client would take it for whole.
    Parting(Pin<Box<Sleep>>),
    Over,
}

impl Answer {
    /// `response` as it leaves.
    pub(super) fn of(Answered { response, until }: Answered, open: Open) -> Response<Self> {
        let content_type = response.headers().get(header::CONTENT_TYPE);
        let begins =
            |value: &HeaderValue| value.as_bytes().get(..EVENTS.len()).map(|kind| kind.eq_ignore_ascii_case(EVENTS));
        let events = content_type.and_then(begins).unwrap_or(false);
        let pace = Pace::of_task();
        if let Some(until) = until {
            let deadline = Instant::from_std(until);
            match &pace {
                Some(pace) => pace.answer_until(deadline),
                None => open.course().answer_until(deadline),
            }
        }
        let state = State::Passing(events);
        response.map(|inner| Self { inner, rest: Bytes::new(), open, pace, state })
    }

    /// `response` as the last one that leaves.
    pub(super) fn last(response: Response<Body>, open: Open) -> Response<Self> {
        let (rest, pace) = (Bytes::new(), Pace::of_task());
        response.map(|inner| Self { inner, rest, open, pace, state: State::Last })
    }

    /// The next piece: of what is left of a frame, or of another one.
    fn piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if self.rest.is_empty() {
            let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                ended => return Poll::Ready(ended.map(|frame| frame.map_err(Into::into))),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(other) => return Poll::Ready(Some(Ok(other))),
            }
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE));
        match &self.pace {
            Some(pace) => pace.gave(),
            None => self.open.course().gave(piece.len()),
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn part(&mut self, events: bool) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !events {
            self.state = State::Over;
            return Poll::Ready(Some(Err(GatewayError::Stopping.into())));
        }
        self.state = State::Parting(Box::pin(tokio::time::sleep_until(Instant::now() + LAST_WORDS)));
        let error = GatewayError::Stopping.to_string();
        let mut event = b"\n\ndata: ".to_vec();
        event.extend(error_json(&error, "service_unavailable", None, Some("shutting_down")));
        event.extend(b"\n\n");
        Poll::Ready(Some(Ok(Frame::data(event.into()))))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        if let Some(pace) = &this.pace {
            pace.asked();
        }
        match &mut this.state {
            State::Passing(events) => {
                let events = *events;
                if this.open.course().is_cut() {
                    return this.part(events);
                }
                if this.pace.is_none() && this.open.course().holds_back() {
                    return Poll::Pending;
                }
            }
            State::Last => {}
            State::Parting(end) => {
                ready!(end.as_mut().poll(cx));
                this.state = State::Over;
                return Poll::Ready(Some(Err(GatewayError::Stopping.into())));
            }
            State::Over => return Poll::Ready(None),
        }
        this.piece(cx)
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            State::Passing(_) | State::Last => self.rest.is_empty() && self.inner.is_end_stream(),
            State::Parting(_) => false,
            State::Over => true,
        }
    }

    /// Asked before anything was given.
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use futures_util::task::{ArcWake, waker};
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::door::course::{Course, Expiry};

    fn answer(course: &Arc<Course>, kind: &'static str) -> Answer {
        let pieces =
            futures_util::stream::repeat_with(|| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"data: a\n\n"))));
        let response = Response::builder().header(header::CONTENT_TYPE, kind).body(Body::new(StreamBody::new(pieces)));
        Answer::of(response.unwrap().into(), course.begin()).into_body()
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl ArcWake for Woken {
        fn wake_by_ref(this: &Arc<Self>) {
            this.0.store(true, Ordering::Relaxed);
        }
    }

    async fn next(answer: &mut Answer) -> Result<Bytes, String> {
        let frame = answer.frame().await.expect("it has not ended").map_err(|error| error.to_string())?;
        Ok(frame.into_data().expect("data"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_cut_ends_with_an_error_event_and_not_cleanly() {
        let course = Course::new(Instant::now());
        let mut answer = answer(&course, "text/event-stream; charset=utf-8");
        assert_eq!(next(&mut answer).await.unwrap(), "data: a\n\n");
        course.cut();
        let event = next(&mut answer).await.unwrap();
        let expected = "\n\ndata: {\"error\":{\"message\":\"the router is shutting down\",\
                        \"type\":\"service_unavailable\",\"param\":null,\"code\":\"shutting_down\"}}\n\n";
        assert_eq!(event, expected);
        assert!(!answer.is_end_stream());
        assert_eq!(next(&mut answer).await.unwrap_err(), "the router is shutting down");
        assert!(answer.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn another_answer_that_is_cut_just_breaks() {
        let course = Course::new(Instant::now());
        let mut answer = answer(&course, "application/json");
        course.cut();
        assert_eq!(next(&mut answer).await.unwrap_err(), "the router is shutting down");
        assert!(answer.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_waits_until_what_went_before_has_left() {
        let course = Course::new(Instant::now());
        let mut answer = answer(&course, "application/json");
        let piece = next(&mut answer).await.unwrap().len();
        let mut given = piece;
        while let Some(frame) = answer.frame().now_or_never() {
            given += frame.unwrap().unwrap().into_data().unwrap().len();
        }
        assert!((16 * 1024..16 * 1024 + piece).contains(&given), "{given}");
        let woken = Arc::new(Woken::default());
        course.watch(&waker(Arc::clone(&woken)));
        course.flushed();
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(answer.frame().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_frame_is_handed_on_in_pieces_and_the_request_stays_open_until_the_last() {
        let (course, limits) = (Course::new(Instant::now()), crate::door::DoorLimits::default());
        let whole = Bytes::from(vec![b'x'; 3 * PIECE + 1]);
        let mut answer = Answer::of(Response::new(Body::from(whole.clone())).into(), course.begin()).into_body();
        assert_eq!(answer.size_hint().exact(), Some(3 * 16 * 1024 + 1));
        let mut given = Vec::new();
        for left in (0..4).rev() {
            let piece = next(&mut answer).await.unwrap();
            assert!(piece.as_ptr() == whole[given.len()..].as_ptr(), "it is not copied");
            given.extend_from_slice(&piece);
            assert_eq!(answer.is_end_stream(), left == 0);
            assert!(left == 0 || answer.frame().now_or_never().is_none(), "it waits until that has left");
            course.flushed();
        }
        assert_eq!(given, whole);
        course.sent(true);
        drop(answer);
        let why = || course.expiry(&limits).map(|(_, why)| why);
        assert_eq!(why(), Some(Expiry::Stalled), "the last of it has not left");
        course.sent(false);
        assert_eq!(why(), Some(Expiry::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_open_until_its_answer_is_dropped() {
        let (course, limits) = (Course::new(Instant::now()), crate::door::DoorLimits::default());
        let answer = answer(&course, "application/json");
        assert_eq!(course.expiry(&limits), None);
        drop(answer);
        assert!(course.expiry(&limits).is_some());
    }
}
