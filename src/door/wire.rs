//! The bytes of a connection on their way to HTTP/2 and from it: tells the connection's [`Course`] whether its client takes
//! what it is sent.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::course::Course;
use super::socket::Socket;

/// See the module.
pub(super) struct Wire {
    socket: Socket,
    /// What came before it was known what is spoken.
    early: Vec<u8>,
    course: Arc<Course>,
}

impl Wire {
    pub(super) fn new(socket: Socket, early: Vec<u8>, course: Arc<Course>) -> Self {
        Self { socket, early, course }
    }

    /// Takes note of whether the client took something.
    fn sent<T>(&self, written: Poll<T>) -> Poll<T> {
        self.course.sent(written.is_pending());
        written
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
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.sent(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}
