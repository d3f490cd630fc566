//! Who answers the requests that come in: a router, and before it whoever knows some of them at a glance.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::future::RouteFuture;
use http::{HeaderValue, Request, Response, header};
use tower::Service as _;

/// An answer.
pub struct Answered {
    /// What is said.
    pub response: Response<Body>,
    /// Until when all of it must have been given, if there is a limit. The body sees to that while it is asked, the door
    /// while the client takes nothing.
    pub until: Option<Instant>,
    /// Whether its client knows what an error of OpenAI's is in a stream of events.
    pub takes_errors: bool,
}

/// An answer in the making.
pub type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;

/// What an answer keeps on its way through a router.
#[derive(Clone, Copy)]
struct Kept {
    until: Option<Instant>,
    takes_errors: bool,
    /// A router tells the length of a body that is empty, be it one that `HEAD` does not show.
    tells_length: bool,
}

impl IntoResponse for Answered {
    fn into_response(self) -> Response<Body> {
        let Self { mut response, until, takes_errors } = self;
        let tells_length = response.headers().contains_key(header::CONTENT_LENGTH);
        response.extensions_mut().insert(Kept { until, takes_errors, tells_length });
        response
    }
}

impl From<Response<Body>> for Answered {
    /// What has come through a router.
    fn from(mut response: Response<Body>) -> Self {
        let Some(Kept { until, takes_errors, tells_length }) = response.extensions_mut().remove() else {
            return Self { response, until: None, takes_errors: false };
        };
        let is_made_up = |length: &HeaderValue| !tells_length && length == "0";
        if response.headers().get(header::CONTENT_LENGTH).is_some_and(is_made_up) {
            // HTTP tells it where nothing is left out.
            response.headers_mut().remove(header::CONTENT_LENGTH);
        }
        Self { response, until, takes_errors }
    }
}

/// Takes a request, or lets it go on.
type First = dyn Fn(Request<Body>) -> ControlFlow<Answering, Request<Body>> + Send + Sync;

/// Who answers.
pub struct Front {
    first: Option<Arc<First>>,
    router: Router,
}

impl Front {
    /// Asks `first` before this router: a router moves and boxes each request several times, which costs a microsecond or two.
    pub fn with_first(
        router: Router,
        first: impl Fn(Request<Body>) -> ControlFlow<Answering, Request<Body>> + Send + Sync + 'static,
    ) -> Self {
        Self { first: Some(Arc::new(first)), router }
    }

    pub(super) fn answer(&self, request: Request<Body>) -> Handled {
        let taken = match &self.first {
            Some(first) => first(request),
            None => ControlFlow::Continue(request),
        };
        match taken {
            ControlFlow::Break(answering) => Handled::First(answering),
            ControlFlow::Continue(request) => Handled::Routed(Box::new(self.router.clone().call(request))),
        }
    }
}

impl From<Router> for Front {
    fn from(router: Router) -> Self {
        Self { first: None, router }
    }
}

/// Whoever took it, at work.
pub(super) enum Handled {
    First(Answering),
    Routed(Box<RouteFuture<Infallible>>),
}

impl Future for Handled {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answered> {
        match self.get_mut() {
            Self::First(answering) => answering.as_mut().poll(cx),
            Self::Routed(routed) => Pin::new(routed).poll(cx).map(|Ok(response)| response.into()),
        }
    }
}
