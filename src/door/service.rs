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
        let judged = match self.course.had_bare_line() {
            true => Err(GatewayError::bad_request("a line of the request's head ends in LF alone, not in CRLF", None)),
            false => judge(&request, &self.house.limits),
        };
        self.course.expect_body(!request.body().is_end_stream());
        match judged {
            Ok(()) => {
                let request = request.map(|body| Body::new(Heard { body, course: Arc::clone(&self.course) }));
                Call { open, state: State::Handled(self.house.front.answer(request)) }
            }
            Err(error) => {
                self.house.metrics.bad_head(error.outcome());
                Call { open, state: State::Refused(Some(error)) }
            }
        }
    }
}

/// A request's body, whose end the course is told of.
struct Heard {
    body: Incoming,
    course: Arc<Course>,
}

impl hyper::body::Body for Heard {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if frame.is_none() || self.body.is_end_stream() {
            self.course.expect_body(false);
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
    state: State,
}

enum State {
    Handled(Handled),
    Refused(Option<GatewayError>),
}

impl Future for Call {
    type Output = Result<Response<Answer>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let cut = this.open.as_ref().is_some_and(|open| open.course().is_cut());
        let routed = match &mut this.state {
            _ if cut => Err(GatewayError::Stopping),
            State::Refused(error) => Err(error.take().unwrap_or(GatewayError::Stopping)),
            State::Handled(handled) => Ok(ready!(Pin::new(handled).poll(cx))),
        };
        let open = this.open.take().expect("a future is not polled after it is ready");
        Poll::Ready(Ok(match routed {
            Ok(response) => Answer::of(response, open),
            Err(error) => Answer::last(last(error), open),
        }))
    }
}

/// An answer after which the connection ends: what follows on it may not be what it seems.
fn last(error: GatewayError) -> Response<Body> {
    let mut response = error.into_response::<Body>();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}
