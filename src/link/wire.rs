//! Bytes to and from a server, plain or under TLS, and whether any have come.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connected stream.
pub(super) struct Wire {
    pub(super) stream: Stream,
    /// Set with each byte that is read.
    pub(super) heard: Arc<AtomicBool>,
}

/// What the bytes go over.
pub(super) enum Stream {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

impl Drop for Wire {
    /// Says goodbye where TLS wants it said, as far as that can be done at once.
    fn drop(&mut self) {
        if let Stream::Secure(stream) = &mut self.stream {
            let _ = Pin::new(stream.as_mut()).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}

/// Calls the same method of whichever stream it is.
macro_rules! stream {
    ($wire:expr, $method:ident $(, $argument:expr)*) => {
        match &mut $wire.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Secure(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(stream!(self.as_mut(), poll_read, cx, buf))?;
        if buf.filled().len() > before {
            self.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        stream!(self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        stream!(self, poll_write_vectored, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_shutdown, cx)
    }
}
