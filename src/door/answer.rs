//! The answer to a request of HTTP/2 on its way out: it keeps its request open until it has ended, and says goodbye when the
//! router must stop.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

use super::course::Open;
use super::front::Answered;
use super::goodbye::Goodbye;
use super::stream::Pace;
use crate::error::{BoxError, GatewayError};

/// Between the last words and the cut: a body that fails takes what was not flushed with it.
const LAST_WORDS: Duration = Duration::from_millis(10);

/// The most that is handed on at once. HTTP takes whatever it is given, and keeps it; and with the last of it the answer ends,
/// whether the client has it or not.
const PIECE: usize = 16 * 1024;

/// See the module.
pub(super) struct Answer {
    inner: Body,
    /// What is left of a frame.
    rest: Bytes,
    open: Open,
    pace: Arc<Pace>,
    state: State,
}

enum State {
    /// Passes on.
    Passing(Goodbye),
    /// The last words of a connection: passes on, whatever comes.
    Last,
    /// The error event is out. The body must not end cleanly, or the client would take it for whole.
    Parting(Pin<Box<Sleep>>),
    Over,
}

impl Answer {
    /// `response` as it leaves.
    pub(super) fn of(answered: Answered, pace: Arc<Pace>, open: Open) -> Response<Self> {
        if let Some(until) = answered.until {
            pace.answer_until(Instant::from_std(until));
        }
        let state = State::Passing(Goodbye::of(&answered));
        answered.response.map(|inner| Self { inner, rest: Bytes::new(), open, pace, state })
    }

    /// `response` as the last one that leaves.
    pub(super) fn last(response: Response<Body>, pace: Arc<Pace>, open: Open) -> Response<Self> {
        response.map(|inner| Self { inner, rest: Bytes::new(), open, pace, state: State::Last })
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
        if let State::Passing(goodbye) = &mut self.state {
            goodbye.passed(&piece);
        }
        self.pace.gave();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn part(&mut self, event: Option<Bytes>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(event) = event else {
            self.state = State::Over;
            return Poll::Ready(Some(Err(GatewayError::Stopping.into())));
        };
        self.state = State::Parting(Box::pin(tokio::time::sleep_until(Instant::now() + LAST_WORDS)));
        Poll::Ready(Some(Ok(Frame::data(event))))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        this.pace.asked();
        match &mut this.state {
            State::Passing(goodbye) => {
                if this.open.course().is_cut() {
                    let event = goodbye.event();
                    return this.part(event);
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
    use http::header;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;
    use crate::door::course::Course;

    fn answer(course: &Arc<Course>, kind: &'static str) -> Answer {
        let pieces =
            futures_util::stream::repeat_with(|| Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"data: a\n\n"))));
        let response = Response::builder().header(header::CONTENT_TYPE, kind).body(Body::new(StreamBody::new(pieces)));
        let answered = Answered { response: response.unwrap(), until: None, takes_errors: true };
        Answer::of(answered, Arc::new(Pace::new(course)), course.begin()).into_body()
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
    async fn a_large_frame_is_handed_on_in_pieces_and_the_request_stays_open_until_the_last() {
        let course = Course::new(Instant::now());
        let whole = Bytes::from(vec![b'x'; 3 * PIECE + 1]);
        let response = Response::new(Body::from(whole.clone())).into();
        let mut answer = Answer::of(response, Arc::new(Pace::new(&course)), course.begin()).into_body();
        assert_eq!(answer.size_hint().exact(), Some(3 * 16 * 1024 + 1));
        let mut given = Vec::new();
        for left in (0..4).rev() {
            let piece = next(&mut answer).await.unwrap();
            assert!(piece.as_ptr() == whole[given.len()..].as_ptr(), "it is not copied");
            given.extend_from_slice(&piece);
            assert_eq!((answer.is_end_stream(), course.is_open()), (left == 0, true));
        }
        assert_eq!(given, whole);
        drop(answer);
        assert!(!course.is_open());
    }
}
