//! The answer to a request of HTTP/2 on its way out: it keeps its request open until it has ended, says goodbye when the
//! router must stop, and breaks off no sooner than the client has what came before.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::Response;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::course::Open;
use super::front::Answered;
use super::goodbye::Goodbye;
use super::stream::Pace;
use crate::error::{BoxError, GatewayError};

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
    /// The last words are out, and are seen to leave. Then the body must not end cleanly, or the client would take it for
    /// whole.
    Parting(oneshot::Receiver<()>, Option<BoxError>),
    Over,
}

/// The last words of an answer that breaks off: a body that fails takes what has not left with it, and these are dropped once
/// they have left, after all that was given before.
struct LastWords {
    words: Bytes,
    _leave: oneshot::Sender<()>,
}

impl AsRef<[u8]> for LastWords {
    fn as_ref(&self) -> &[u8] {
        &self.words
    }
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

    /// Says the last words, which may be none, and lets go of whoever makes the answer. How long the client may take for them is
    /// seen to by its [`Pace`], as for any piece.
    fn part(&mut self, words: Bytes, why: BoxError) -> Frame<Bytes> {
        let (leave, left) = oneshot::channel();
        (self.inner, self.state) = (Body::empty(), State::Parting(left, Some(why)));
        self.pace.gave();
        Frame::data(Bytes::from_owner(LastWords { words, _leave: leave }))
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        match &mut this.state {
            State::Passing(_) | State::Last => this.pace.asked(),
            State::Parting(left, why) => {
                // It is never used: that it is dropped says all.
                let _ = ready!(Pin::new(left).poll(cx));
                let why = why.take();
                this.state = State::Over;
                return Poll::Ready(why.map(Err));
            }
            State::Over => return Poll::Ready(None),
        }
        if let State::Passing(goodbye) = &this.state
            && this.open.course().is_cut()
        {
            let words = goodbye.event().unwrap_or_default();
            return Poll::Ready(Some(Ok(this.part(words, GatewayError::Stopping.into()))));
        }
        match ready!(this.piece(cx)) {
            Some(Err(why)) => Poll::Ready(Some(Ok(this.part(Bytes::new(), why)))),
            piece => Poll::Ready(piece),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self.state {
            State::Passing(_) | State::Last => self.rest.is_empty() && self.inner.is_end_stream(),
            State::Parting(..) => false,
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
    use std::time::Duration;

    use futures_util::FutureExt;
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
        assert!(!answer.is_end_stream() && next(&mut answer).now_or_never().is_none(), "it has not left");
        drop(event);
        assert_eq!(next(&mut answer).await.unwrap_err(), "the router is shutting down");
        assert!(answer.frame().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn another_answer_that_is_cut_just_breaks() {
        let course = Course::new(Instant::now());
        let mut answer = answer(&course, "application/json");
        course.cut();
        assert_eq!(next(&mut answer).await.unwrap(), "");
        assert_eq!(next(&mut answer).await.unwrap_err(), "the router is shutting down");
        assert!(answer.is_end_stream());
    }

    /// The client has as long for it as for any piece.
    #[tokio::test(start_paused = true)]
    async fn an_answer_that_breaks_off_does_so_once_what_it_was_given_has_left() {
        let course = Course::new(Instant::now());
        let pieces = [Ok(Frame::data(Bytes::from_static(b"a"))), Err(BoxError::from("it broke"))];
        let response = Response::new(Body::new(StreamBody::new(futures_util::stream::iter(pieces)))).into();
        let pace = Arc::new(Pace::new(&course));
        let mut answer = Answer::of(response, Arc::clone(&pace), course.begin()).into_body();
        assert_eq!(next(&mut answer).await.unwrap(), "a");
        let words = next(&mut answer).await.unwrap();
        assert_eq!(words, "");
        assert!(next(&mut answer).now_or_never().is_none() && pace.expiry(Duration::ZERO).is_some());
        drop(words);
        assert_eq!(next(&mut answer).await.unwrap_err(), "it broke");
        assert!(answer.is_end_stream() && answer.frame().await.is_none());
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
