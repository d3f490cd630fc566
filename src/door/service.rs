//! The way from HTTP/2 to the handlers: a request is looked at, handed on, and kept open until its answer has gone.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use http::{HeaderValue, Request, Response, header};
use hyper::body::Incoming;

use super::answer::Answer;
use super::course::{Course, Open};
use super::front::Handled;
use super::guard::judge;
use super::stream::Pace;
use super::{House, refusal};
use crate::error::GatewayError;
use crate::request_id;

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
        let state = match judge(&request, &self.house.limits) {
            Ok(()) => State::Handled(self.house.front.answer(addressed(request).map(Body::new))),
            Err(error) => {
                self.house.metrics.bad_head(error.outcome());
                State::Refused(Some(refusal::response(error, id.clone())))
            }
        };
        Call { open, id, state }
    }
}

/// The request with its `Host`, which handlers read; in HTTP/2 `:authority` stands for it.
fn addressed(mut request: Request<Incoming>) -> Request<Incoming> {
    let host = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let (Some(host), false) = (host, request.headers().contains_key(header::HOST)) {
        request.headers_mut().insert(header::HOST, host);
    }
    request
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
        let (open, pace) = (this.open.take().expect("a future is not polled after it is ready"), Pace::of_task());
        Poll::Ready(Ok(match answered {
            Ok(answered) => Answer::of(answered, pace, open),
            Err(refusal) => {
                let stopping = || refusal::response(GatewayError::Stopping, this.id.take());
                Answer::last(refusal.unwrap_or_else(stopping), pace, open)
            }
        }))
    }
}
