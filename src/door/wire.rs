//! The bytes of one connection, between the socket and HTTP.
//!
//! It tells the connection's [`Course`] what passes. It gives HTTP/1's reader one head at a time and what belongs to it, and
//! keeps what comes behind until its turn: so whatever is read as a head was looked at as one, and has its clock. And it
//! says in our words what HTTP/1's reader says in its own: a head that cannot be read is answered by the reader itself, with
//! a status and nothing else. Those bytes come when no request is being answered and none is on its way, so they are known;
//! they are held back and an error object is sent instead.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::course::{Course, Next};
use super::section::{Announced, Section};
use super::{DoorLimits, refusal};
use crate::error::GatewayError;

/// What is read before it is known what is spoken: most requests' heads at once.
const EARLY: usize = 1024;

/// What is read behind a request that is being answered: as long as more may come, it is seen when the client leaves.
const AHEAD: usize = 64 * 1024;

/// After a refusal: what is still read, and for how long, so that the client finds it. A socket that is closed with
/// something unread resets the connection, and the answer with it.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 8 * 1024 * 1024;

/// Room for what is read and dropped.
const DROPPED: usize = 16 * 1024;

/// A client's socket.
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// See the module.
pub(super) struct Wire {
    socket: Socket,
    /// What has come and was not given to HTTP: what came before it began, or behind a head or a body.
    early: Bytes,
    course: Arc<Course>,
    limits: DoorLimits,
    /// What HTTP was given of the present head.
    head: Section,
    /// The same of a body in chunks.
    chunks: Section,
    /// What is said instead of what the reader said.
    reply: Option<Bytes>,
    /// The label of what was refused.
    refused: Option<&'static str>,
    heard_end: bool,
}

impl Wire {
    pub(super) fn new(socket: Socket, course: Arc<Course>, limits: DoorLimits) -> Self {
        Self {
            socket,
            early: Bytes::new(),
            course,
            limits,
            head: Section::default(),
            chunks: Section::default(),
            reply: None,
            refused: None,
            heard_end: false,
        }
    }

    /// Whether the client begins with `preface`. Reads until that is clear, and keeps what was read. Cancelling it loses
    /// nothing.
    pub(super) async fn begins_with(&mut self, preface: &[u8]) -> io::Result<bool> {
        loop {
            let common = self.early.len().min(preface.len());
            if self.early[..common] != preface[..common] || common == preface.len() {
                return Ok(common == preface.len() && self.early.starts_with(preface));
            }
            let mut read = BytesMut::with_capacity(EARLY);
            if self.socket.read_buf(&mut read).await? == 0 {
                self.heard_end = true;
                return Ok(false);
            }
            self.course.received();
            self.early = if self.early.is_empty() { read.freeze() } else { [&self.early[..], &read].concat().into() };
        }
    }

    /// Whether the client said nothing and has gone.
    pub(super) fn is_over(&self) -> bool {
        self.heard_end && self.early.is_empty()
    }

    /// What a head was refused for, if one was.
    pub(super) fn refused(&self) -> Option<&'static str> {
        self.refused
    }

    /// Refuses in the place of HTTP/1, which has ended.
    pub(super) async fn refuse(&mut self, error: GatewayError) {
        self.refused = Some(error.outcome());
        self.reply = Some(refusal::bytes(error).into());
        drop(timeout(LINGER, self.shutdown()).await);
    }

    /// Says that nothing more comes, and reads on for a while, so that the client gets what it was sent: it learns at once
    /// of an answer that breaks off.
    pub(super) async fn linger(mut self) {
        drop(timeout(LINGER, self.shutdown()).await);
        if self.heard_end {
            return;
        }
        let read = async {
            let mut dropped = Vec::with_capacity(DROPPED);
            let mut total = 0;
            while total < LINGER_BYTES {
                dropped.clear();
                match self.socket.read_buf(&mut dropped).await {
                    Ok(0) | Err(_) => return,
                    Ok(len) => total += len,
                }
            }
        };
        drop(timeout(LINGER, read).await);
    }

    /// Ends the connection without what the client has not taken.
    pub(super) fn abort(self) {
        let stream = match &self.socket {
            Socket::Plain(stream) => stream,
            Socket::Tls(stream) => stream.get_ref().0,
        };
        if let Err(error) = stream.set_zero_linger() {
            tracing::debug!(error = %error, "set_zero_linger");
        }
    }

    /// How many of these bytes HTTP may have now.
    fn due(&mut self, bytes: &[u8]) -> usize {
        match self.course.next() {
            Next::Head => self.read_head(bytes),
            Next::Body(left) => {
                let due = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                self.course.gave_body(u64::try_from(due).unwrap_or(left));
                due
            }
            Next::Chunks => {
                // An empty line ends them, though not each one does.
                if self.chunks.is_whole() || self.chunks.read(bytes) < bytes.len() {
                    self.course.overrun();
                }
                bytes.len()
            }
            Next::Later => 0,
            Next::Frames => bytes.len(),
        }
    }

    /// The bytes up to the head's end, and those of the body behind it where the head came at once and says how many these
    /// are: most requests are read as they came.
    fn read_head(&mut self, bytes: &[u8]) -> usize {
        let begins = !self.course.is_in_head();
        if begins {
            (self.head, self.chunks) = (Section::default(), Section::default());
        }
        self.course.received();
        let mut announced = Announced::default();
        let len = self.head.read_lines(bytes, |line| announced.see(line));
        if self.head.is_bare() {
            self.course.note_bare_line();
        }
        if !begins || len == bytes.len() {
            return len;
        }
        let body = announced.length().unwrap_or(0).min(bytes.len() - len);
        self.course.gave_with_head(u64::try_from(body).unwrap_or(u64::MAX));
        len + body
    }

    /// Whether a head comes next, now or later.
    fn is_between_heads(&self) -> bool {
        matches!(self.course.next(), Next::Head | Next::Later) && !self.course.is_in_head()
    }

    /// Drops empty lines ahead of a head, which some clients send behind a body (RFC 9112, 2.2): they begin nothing. However
    /// many come, the clocks of the connection and of its request run on.
    fn drop_empty_lines(&mut self) {
        if !self.early.is_empty() && self.is_between_heads() {
            let empty = self.early.iter().take_while(|byte| is_line_end(byte)).count();
            self.early.advance(empty);
            self.course.keep(self.early.len());
        }
    }

    /// Reads on behind what is kept. Ready once the client has gone: then nobody wants to have it answered.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.early.len() < AHEAD {
            let mut room = [0; EARLY];
            let mut more = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut self.socket).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                (self.early, self.heard_end) = (Bytes::new(), true);
                return Poll::Ready(Ok(()));
            }
            self.keep([&self.early[..], more.filled()].concat().into());
        }
        Poll::Pending
    }

    /// Keeps what is not due.
    fn keep(&mut self, rest: Bytes) {
        self.course.keep(rest.len());
        self.early = rest;
    }

    /// Holds back what the reader says of a head; none where it says something else.
    fn hold_back(&mut self, begin: &[u8], len: usize) -> Option<usize> {
        if self.reply.is_none() {
            let status = begin.get(b"HTTP/1.1 ".len()..)?.get(..3)?;
            let status = std::str::from_utf8(status).ok()?.parse().ok().filter(|status| (400..500).contains(status))?;
            // The reader only sees that the head is too large.
            let status = if status == 431 && self.head.first_line() > self.limits.uri_bytes { 414 } else { status };
            let error = refusal::of_head(status, &self.limits);
            self.refused = Some(error.outcome());
            self.reply = Some(refusal::bytes(error).into());
        }
        Some(len)
    }

    fn poll_reply(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(reply) = self.reply.as_mut().filter(|reply| reply.has_remaining()) {
            let written = ready!(Pin::new(&mut self.socket).poll_write(cx, reply))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            reply.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

fn is_line_end(byte: &u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}

impl AsyncRead for Wire {
    /// Pending while something is kept whose turn has not come, unless the client leaves: then a flush wakes the task, for HTTP
    /// goes on to the next request when the answer has left.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        loop {
            this.drop_empty_lines();
            let due = if this.early.is_empty() {
                ready!(Pin::new(&mut this.socket).poll_read(cx, buf))?;
                let came = &buf.filled()[before..];
                if came.is_empty() {
                    this.heard_end = true;
                    return Poll::Ready(Ok(()));
                }
                let is_to_be_cut = came.first().is_some_and(is_line_end) && this.is_between_heads();
                let due = if is_to_be_cut { 0 } else { this.due(came) };
                if due < came.len() {
                    this.keep(Bytes::copy_from_slice(&came[due..]));
                    buf.set_filled(before + due);
                }
                if is_to_be_cut {
                    continue;
                }
                due
            } else {
                let mut early = std::mem::take(&mut this.early);
                let due = this.due(&early[..early.len().min(buf.remaining())]);
                buf.put_slice(&early.split_to(due));
                this.keep(early);
                due
            };
            return if due > 0 { Poll::Ready(Ok(())) } else { this.poll_ahead(cx) };
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.course.is_quiet()
            && let Some(len) = self.hold_back(buf, buf.len())
        {
            return Poll::Ready(Ok(len));
        }
        let written = Pin::new(&mut self.socket).poll_write(cx, buf);
        self.course.sent(written.is_pending());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.course.is_quiet() {
            let (first, len) = (bufs.first().map_or(&[][..], |buf| buf), bufs.iter().map(|buf| buf.len()).sum());
            if let Some(len) = self.hold_back(first, len) {
                return Poll::Ready(Ok(len));
            }
        }
        let written = Pin::new(&mut self.socket).poll_write_vectored(cx, bufs);
        self.course.sent(written.is_pending());
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_reply(cx))?;
        let flushed = Pin::new(&mut self.socket).poll_flush(cx);
        self.course.sent(flushed.is_pending());
        if let Poll::Ready(Ok(())) = flushed {
            self.course.flushed();
            if !self.early.is_empty() && !self.course.is_open() {
                cx.waker().wake_by_ref();
            }
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_reply(cx))?;
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Socket::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Socket::Plain(stream) => stream.is_write_vectored(),
            Socket::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
