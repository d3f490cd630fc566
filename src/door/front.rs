//! Who answers the requests that come in: a router, and before it whoever knows some of them at a glance.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::Body;
use axum::routing::future::RouteFuture;
use http::{Request, Response};
use tower::Service as _;

/// An answer in the making.
pub type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

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
    type Output = Response<Body>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response<Body>> {
        match self.get_mut() {
            Self::First(answering) => answering.as_mut().poll(cx),
            Self::Routed(routed) => Pin::new(routed).poll(cx).map(|Ok(response)| response),
        }
    }
}
