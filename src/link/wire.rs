//! Bytes to and from a server, plain or under TLS, and what is known of it by them.

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
    pub(super) signs: Arc<Signs>,
}

/// What a wire tells of its server.
#[derive(Default)]
pub(super) struct Signs {
    /// Set with each byte that is read.
    pub(super) heard: AtomicBool,
    /// It takes nothing more. What it said before it stopped can still be read, and says why.
    pub(super) deaf: AtomicBool,
}

impl Wire {
    fn is_deaf(&self) -> bool {
        self.signs.deaf.load(Ordering::Relaxed)
    }

    /// What became of bytes to be written: once the server has closed, they are as good as written, since hyper would not
    /// read any more after a failure, and so not see an answer that came before the whole of a long request.
    fn written<T>(&self, result: Poll<io::Result<T>>, as_written: T) -> Poll<io::Result<T>> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        match result {
            Poll::Ready(Err(error)) if matches!(error.kind(), BrokenPipe | ConnectionReset) => {
                self.signs.deaf.store(true, Ordering::Relaxed);
                Poll::Ready(Ok(as_written))
            }
            result => result,
        }
    }
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
        match &mut $wire.stream {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Secure(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(stream!(this, poll_read, cx, buf))?;
        if buf.filled().len() > before {
            this.signs.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_deaf() {
            return Poll::Ready(Ok(buf.len()));
        }
        let written = stream!(this, poll_write, cx, buf);
        this.written(written, buf.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let len = bufs.iter().map(|buf| buf.len()).sum();
        if this.is_deaf() {
            return Poll::Ready(Ok(len));
        }
        let written = stream!(this, poll_write_vectored, cx, bufs);
        this.written(written, len)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.is_deaf() {
            return Poll::Ready(Ok(()));
        }
        let flushed = stream!(this, poll_flush, cx);
        this.written(flushed, ())
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self.get_mut(), poll_shutdown, cx)
    }
}
