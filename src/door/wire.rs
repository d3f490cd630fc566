//! The bytes of a connection on their way to HTTP/2 and from it: tells the connection's [`Course`] whether its client takes
//! what it is sent, and adds the words to what HTTP/2 answers without any.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::House;
use super::bare::{Bare, Frames, Next};
use super::course::Course;
use super::refusal;
use super::socket::Socket;
use crate::error::GatewayError;

/// See the module.
pub(super) struct Wire {
    socket: Socket,
    /// What came before it was known what is spoken.
    early: Vec<u8>,
    course: Arc<Course>,
    house: Arc<House>,
    frames: Frames,
    /// What was added and has not left yet.
    added: Vec<u8>,
}

impl Wire {
    pub(super) fn new(socket: Socket, early: Vec<u8>, course: &Arc<Course>, house: &Arc<House>) -> Self {
        let (course, house) = (Arc::clone(course), Arc::clone(house));
        Self { socket, early, course, house, frames: Frames::default(), added: Vec::new() }
    }

    /// Takes note of whether the client took something.
    fn sent<T>(&self, written: Poll<T>) -> Poll<T> {
        self.course.sent(written.is_pending());
        written
    }

    /// Says why, in place of a bare status.
    fn complete(&mut self, bare: &Bare<'_>) {
        let limits = &self.house.limits;
        let error = GatewayError::HeadTooLarge { bytes: limits.header_bytes, fields: limits.headers };
        self.house.metrics.bad_head(error.outcome());
        let refusal = refusal::whole(error);
        self.added = bare.completed(refusal.headers(), refusal.body());
    }

    /// Ready once what was added has left.
    fn poll_added(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.added.is_empty() {
            let written = Pin::new(&mut self.socket).poll_write(cx, &self.added);
            match ready!(self.sent(written))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => drop(self.added.drain(..written)),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.early.is_empty() {
            return Pin::new(&mut this.socket).poll_read(cx, buf);
        }
        let len = this.early.len().min(buf.remaining());
        buf.put_slice(&this.early[..len]);
        this.early.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_added(cx))?;
        match this.frames.next(buf) {
            Next::AsTheyAre { len, .. } => {
                let written = Pin::new(&mut this.socket).poll_write(cx, &buf[..len]);
                let written = ready!(this.sent(written))?;
                this.frames.passed(buf, written);
                Poll::Ready(Ok(written))
            }
            Next::Bare(bare) => {
                this.complete(&bare);
                Poll::Ready(Ok(bare.len()))
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_added(cx))?;
        let (first, beyond) = first_of(bufs);
        // What is not in the first is what its last frame carries.
        match this.frames.next(first) {
            Next::AsTheyAre { len, left } if len == first.len() && left >= beyond => {
                let written = Pin::new(&mut this.socket).poll_write_vectored(cx, bufs);
                let written = ready!(this.sent(written))?;
                this.frames.passed(first, written.min(len));
                this.frames.passed_within(written.saturating_sub(len));
                Poll::Ready(Ok(written))
            }
            _ => Pin::new(this).poll_write(cx, first),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_added(cx))?;
        let flushed = Pin::new(&mut this.socket).poll_flush(cx);
        this.sent(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_added(cx))?;
        Pin::new(&mut this.socket).poll_shutdown(cx)
    }
}

/// The first that is not empty, and how much is in those behind it.
fn first_of<'a>(bufs: &'a [IoSlice<'_>]) -> (&'a [u8], usize) {
    let mut bufs = bufs.iter().skip_while(|buf| buf.is_empty());
    (bufs.next().map_or(&[], |first| first), bufs.map(|buf| buf.len()).sum())
}
