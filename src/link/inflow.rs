//! The body of an answer, and with it the connection that it comes over. Its trailers stay behind: they are no data, nobody has
//! asked for them, and a body that hands them on is taken to have ended.

use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::connection::Connection;
use super::{Fault, Link};
use crate::http1::Framing;

/// A body whose connection is kept as soon as all of it has come, and closed when it is dropped before.
pub struct Inflow {
    /// What has come and was not taken.
    first: Bytes,
    /// What is to come.
    framing: Framing,
    /// None once nothing is to come.
    connection: Option<Box<Connection>>,
    link: Arc<Link>,
}

impl Inflow {
    pub(super) fn new(first: Bytes, framing: Framing, connection: Box<Connection>, link: &Arc<Link>) -> Self {
        let mut inflow = Self { first, framing, connection: Some(connection), link: Arc::clone(link) };
        inflow.let_go();
        inflow
    }

    /// Keeps the connection once all has come.
    fn let_go(&mut self) {
        if self.framing.has_ended()
            && let Some(connection) = self.connection.take()
        {
            self.link.keep(connection);
        }
    }

    /// Ends it here. Its connection is closed.
    pub fn give_up(&mut self) {
        (self.first, self.framing, self.connection) = (Bytes::new(), Framing::Length(0), None);
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Bytes, Fault>> {
        if !self.first.is_empty() {
            return Poll::Ready(Ok(take(&mut self.first)));
        }
        let Some(connection) = &mut self.connection else { return Poll::Ready(Ok(Bytes::new())) };
        let data = ready!(connection.poll_data(&mut self.framing, cx));
        if data.is_err() {
            self.connection = None;
        }
        self.let_go();
        Poll::Ready(data)
    }
}

impl std::fmt::Debug for Inflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflow").field("framing", &self.framing).finish_non_exhaustive()
    }
}

impl Body for Inflow {
    type Data = Bytes;
    type Error = Fault;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let data = ready!(self.get_mut().poll_data(cx));
        Poll::Ready(match data {
            Ok(data) if data.is_empty() => None,
            data => Some(data.map(Frame::data)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_empty() && self.framing.has_ended()
    }

    fn size_hint(&self) -> SizeHint {
        match self.framing {
            Framing::Length(left) => {
                let first = u64::try_from(self.first.len()).unwrap_or(u64::MAX);
                SizeHint::with_exact(left.saturating_add(first))
            }
            Framing::Chunked { .. } | Framing::UntilClose => SizeHint::default(),
        }
    }
}
