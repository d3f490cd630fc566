//! A client's socket, plain or under TLS, and how it is left.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

/// After the last words: what is still read, and for how long, so that the client finds them. A socket that is closed with
/// something unread resets the connection, and the answer with it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 8 * 1024 * 1024;

/// Room for what is read and dropped.
const DROPPED: usize = 16 * 1024;

/// See the module.
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Calls the same method of whichever stream it is.
macro_rules! stream {
    ($socket:expr, $method:ident $(, $argument:expr)*) => {
        match $socket {
            Socket::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Socket::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl Socket {
    /// Says these last words, as far as the client takes them.
    pub(super) async fn say(&mut self, words: &[u8]) {
        let saying = async {
            self.write_all(words).await?;
            self.flush().await
        };
        if let Ok(Err(error)) = timeout(LINGER, saying).await {
            tracing::debug!(error = %error, "the client did not take the last words");
        }
    }

    /// Says that nothing more comes, and reads on for a while, so that the client gets what it was sent: it learns at once
    /// of an answer that breaks off.
    pub(super) async fn linger(mut self) {
        drop(timeout(LINGER, self.shutdown()).await);
        let read = async {
            let mut dropped = Vec::with_capacity(DROPPED);
            let mut total = 0;
            while total < LINGER_BYTES {
                dropped.clear();
                match self.read_buf(&mut dropped).await {
                    Ok(0) | Err(_) => return,
                    Ok(len) => total += len,
                }
            }
        };
        drop(timeout(LINGER, read).await);
    }

    /// Whether something has come that was not read; a part of it is lost by that.
    pub(super) async fn has_more(&mut self) -> bool {
        let mut byte = [0];
        let mut byte = ReadBuf::new(&mut byte);
        let read = poll_fn(|cx| Poll::Ready(Pin::new(&mut *self).poll_read(cx, &mut byte).is_ready())).await;
        read && !byte.filled().is_empty()
    }

    /// Ends the connection without what the client has not taken.
    pub(super) fn abort(self) {
        if let Err(error) = self.tcp().set_zero_linger() {
            tracing::debug!(error = %error, "set_zero_linger");
        }
    }

    /// Whether the client has closed its side, or the connection is broken, whatever is still to be read before that.
    pub(super) fn has_closed(&self) -> bool {
        // Priority data was never asked for: what is told under this name is that nothing more comes.
        let closed = pin!(self.tcp().ready(Interest::PRIORITY));
        closed.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        stream!(self.get_mut(), poll_read, cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        stream!(self.get_mut(), poll_write, cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        stream!(self.get_mut(), poll_write_vectored, cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self.get_mut(), poll_flush, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        stream!(self.get_mut(), poll_shutdown, cx)
    }
}
