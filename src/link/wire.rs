//! Bytes to and from a server, plain or under TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// A connected stream.
pub(super) enum Wire {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

/// Calls the same method of whichever stream it is.
macro_rules! stream {
    ($wire:expr, $method:ident $(, $argument:expr)*) => {
        match $wire {
            Wire::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Wire::Secure(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl Wire {
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_read, cx, buf)
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        stream!(self, poll_write_vectored, cx, bufs)
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self, poll_flush, cx)
    }
}

impl Drop for Wire {
    /// Says goodbye where TLS wants it said, as far as that can be done at once.
    fn drop(&mut self) {
        if let Self::Secure(stream) = self {
            let _ = Pin::new(stream.as_mut()).poll_shutdown(&mut Context::from_waker(Waker::noop()));
        }
    }
}
