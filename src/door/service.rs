//! The way from HTTP to the handlers: a request is looked at, handed on, and kept open until its answer has gone.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};

use super::House;
use super::answer::Answer;
use super::course::{Course, Open};
use super::front::Handled;
use super::guard::judge;
use crate::error::GatewayError;
use crate::quiet::quietly;
use crate::request_id::{self, REQUEST_ID};

/// What serves the requests of one connection.
pub(super) struct Attendant {
    pub(super) house: Arc<House>,
    pub(super) course: Arc<Course>,
}

impl hyper::service::Service<Request<Incoming>> for Attendant {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Call;

    fn call(&self, request: Request<Incoming>) -> Call {
        let open = Some(self.course.begin());
        let id = request_id::given(request.headers());
        let judged = match self.course.had_bare_line() {
            true => Err(GatewayError::bad_request("a line of the request's head ends in LF alone, not in CRLF", None)),
            false => judge(&request, &self.house.limits),
        };
        self.course.expect_body(request.body().size_hint().exact());
        let state = match judged {
            Ok(()) => {
                let request = request.map(|body| Body::new(Heard { body, course: Arc::clone(&self.course) }));
                State::Handled(self.house.front.answer(request))
            }
            Err(error) => {
                self.house.metrics.bad_head(error.outcome());
                State::Refused(Some(last(error, id.clone())))
            }
        };
        Call { open, id, state }
    }
}

/// A request's body, whose end the course is told of: of one in chunks nobody else knows it.
struct Heard {
    body: Incoming,
    course: Arc<Course>,
}

impl hyper::body::Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { body, course } = self.get_mut();
        let mut poll = || Pin::new(&mut *body).poll_frame(cx);
        // In HTTP/1 taking the last piece leaves the connection nothing to do.
        let (polled, called) = if course.is_multiplexed() { (poll(), false) } else { quietly(poll) };
        let has_ended = matches!(polled, Poll::Ready(None)) || body.is_end_stream();
        if called && !has_ended {
            course.wake();
        }
        let frame = ready!(polled);
        if has_ended {
            course.end_body();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// One request until its answer begins.
pub(super) struct Call {
    open: Option<Open>,
    /// The client's own name for it.
    id: Option<HeaderValue>,
    state: State,
}

enum State {
    Handled(Handled),
    Refused(Option<Response<Body>>),
}

impl Future for Call {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let cut = this.open.as_ref().is_some_and(|open| open.course().is_cut());
        let answered = match &mut this.state {
            State::Refused(refusal) => Err(refusal.take()),
            State::Handled(_) if cut => Err(None),
            State::Handled(handled) => Ok(ready!(Pin::new(handled).poll(cx))),
        };
        let open = this.open.take().expect("a future is not polled after it is ready");
        Poll::Ready(Ok(match answered {
            Ok(mut answered) => {
                if open.course().must_end() {
                    end_connection(&mut answered.response);
                }
                Answer::of(answered, open)
            }
            Err(refusal) => {
                let stopping = || last(GatewayError::Stopping, this.id.take());
                Answer::last(refusal.unwrap_or_else(stopping), open)
            }
        }))
    }
}

/// An answer after which the connection ends: what follows on it may not be what it seems.
fn last(error: GatewayError, id: Option<HeaderValue>) -> Response<Body> {
    let mut response = error.into_response::<Body>();
    response.headers_mut().insert(REQUEST_ID, id.unwrap_or_else(request_id::refused));
    end_connection(&mut response);
    response
}

fn end_connection(response: &mut Response<Body>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
}
