//! The body of an answer, and with it the connection that it comes over. Its trailers stay behind: they are no data, nobody has
//! asked for them, and a body that hands them on is taken to have ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::Link;
use super::connection::Connection;
use crate::quiet::quietly;

/// A body whose connection is kept when it has ended, and closed when it is dropped before.
pub struct Inflow {
    body: Incoming,
    connection: Option<Connection>,
    link: Arc<Link>,
    /// It has said so, which one in chunks does not know before.
    has_ended: bool,
}

impl Inflow {
    pub(super) fn new(body: Incoming, connection: Connection, link: &Arc<Link>) -> Self {
        let mut inflow = Self { body, connection: Some(connection), link: Arc::clone(link), has_ended: false };
        if inflow.body.is_end_stream() {
            inflow.ended();
        }
        inflow
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        // What is taken makes room for more, which is seen to when nothing is left.
        let mut frame = quietly(|| Pin::new(&mut self.body).poll_frame(cx)).0;
        if let (true, Some(connection)) = (frame.is_pending(), &mut self.connection) {
            connection.drive(cx);
            frame = quietly(|| Pin::new(&mut self.body).poll_frame(cx)).0;
        }
        frame
    }

    fn ended(&mut self) {
        self.has_ended = true;
        if let Some(connection) = self.connection.take() {
            self.link.keep(connection);
        }
    }
}

impl std::fmt::Debug for Inflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflow").field("body", &self.body).finish_non_exhaustive()
    }
}

impl Body for Inflow {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = self.get_mut();
        let mut frame = ready!(this.next(cx));
        while let Some(Ok(trailers)) = &frame
            && !trailers.is_data()
        {
            frame = ready!(this.next(cx));
        }
        match &frame {
            Some(Ok(_)) if !this.body.is_end_stream() => {}
            Some(Ok(_)) | None => this.ended(),
            Some(Err(_)) => this.connection = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
