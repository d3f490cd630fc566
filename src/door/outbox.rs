//! An answer as HTTP/1.1 writes it, and what of it the client has not taken yet.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::ext::ReasonPhrase;
use tokio::io::AsyncWrite;

use super::date;
use super::socket::Socket;
use crate::http1::{line, number, tokens};

/// With so much kept for its client, an answer waits.
const FULL: usize = 16 * 1024;

/// Up to here it costs less to copy data than to write it from where it is.
const SMALL: usize = 2 * 1024;

/// What a field of a head usually has at most.
const FIELD_USUAL: usize = 48;

/// Whom an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asker {
    /// Whether only the head was asked for.
    pub(super) wants_head: bool,
    /// Whether it speaks HTTP/1.0.
    pub(super) is_http_10: bool,
}

impl Asker {
    pub(super) fn of<B>(request: &http::Request<B>) -> Self {
        Self { wants_head: request.method() == Method::HEAD, is_http_10: request.version() == Version::HTTP_10 }
    }
}

/// How an answer's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// There is none to be sent.
    Nothing,
    /// So many bytes are left of it.
    Length(u64),
    /// In chunks.
    Chunks,
    /// It ends with the connection.
    Rest,
}

/// See the module.
#[derive(Default)]
pub(super) struct Outbox {
    /// What goes first: heads, sizes of chunks, small data.
    front: Vec<u8>,
    /// Data behind it, where it lies.
    data: Bytes,
    /// What goes behind that.
    back: &'static [u8],
    /// Bytes of all three that the socket has taken.
    written: usize,
}

impl Outbox {
    /// Bytes that have not left.
    pub(super) fn left(&self) -> usize {
        self.front.len() + self.data.len() + self.back.len() - self.written
    }

    /// Whether nothing was put into it since all had left.
    fn is_empty(&self) -> bool {
        self.front.is_empty() && self.data.is_empty() && self.back.is_empty()
    }

    /// Whether more can be put into it.
    pub(super) fn has_room(&self) -> bool {
        self.data.is_empty() && self.front.len() < FULL
    }

    /// The head of an answer, and how its body is to follow. With `is_last`, whether it is the connection's last, the client
    /// is told so; a body that ends with the connection makes it that.
    pub(super) fn begin<B: http_body::Body>(
        &mut self,
        response: &Response<B>,
        asker: Asker,
        is_last: &mut bool,
    ) -> Extent {
        let fields = response.headers();
        let told = fields.get(header::CONTENT_LENGTH).and_then(|length| number(length.as_bytes()));
        let known = response.body().size_hint().exact();
        let extent = extent(response.status(), asker, told.or(known));
        let mut words = fields.get_all(header::CONNECTION).into_iter().flat_map(tokens);
        *is_last |= extent == Extent::Rest || words.any(|word| word.eq_ignore_ascii_case(b"close"));
        let head = &mut self.front;
        head.reserve(
            FIELD_USUAL * (fields.len() + 3) + known.map_or(0, |known| SMALL.min(known.try_into().unwrap_or(SMALL))),
        );
        status_line(head, response, asker);
        for (name, value) in fields {
            // These are about the connection.
            if !matches!(*name, header::CONTENT_LENGTH | header::TRANSFER_ENCODING | header::CONNECTION) {
                line(head, name, value.as_bytes());
            }
        }
        match extent {
            Extent::Length(len) => line(head, &header::CONTENT_LENGTH, HeaderValue::from(len).as_bytes()),
            Extent::Chunks => line(head, &header::TRANSFER_ENCODING, b"chunked"),
            // What `GET` would have; nothing where nobody said so.
            Extent::Nothing if tells_length(response.status()) => {
                let len = told.or(known.filter(|known| *known > 0));
                len.iter().for_each(|len| line(head, &header::CONTENT_LENGTH, HeaderValue::from(*len).as_bytes()));
            }
            Extent::Nothing | Extent::Rest => {}
        }
        match (*is_last, asker.is_http_10) {
            (true, _) => line(head, &header::CONNECTION, b"close"),
            (false, true) => line(head, &header::CONNECTION, b"keep-alive"),
            (false, false) => {}
        }
        if !fields.contains_key(header::DATE) {
            head.extend_from_slice(b"date: ");
            date::write(head);
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        extent
    }

    /// Data of a body. What is beyond its length stays behind.
    pub(super) fn put(&mut self, mut data: Bytes, extent: &mut Extent) {
        match extent {
            Extent::Nothing => return,
            Extent::Length(left) => {
                data.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= u64::try_from(data.len()).unwrap_or(*left);
            }
            // An empty chunk would be the end.
            Extent::Chunks if data.is_empty() => return,
            Extent::Chunks => {
                size(&mut self.front, data.len());
                self.back = b"\r\n";
            }
            Extent::Rest => {}
        }
        if data.len() <= SMALL {
            self.front.extend_from_slice(&data);
            self.front.extend_from_slice(std::mem::take(&mut self.back));
        } else {
            self.data = data;
        }
    }

    /// The end of a body. False if it is not all there.
    pub(super) fn end(&mut self, extent: Extent) -> bool {
        if extent == Extent::Chunks {
            const END: &[u8] = b"0\r\n\r\n";
            if self.data.is_empty() {
                self.front.extend_from_slice(END);
            } else {
                self.back = b"\r\n0\r\n\r\n";
            }
        }
        !matches!(extent, Extent::Length(1..))
    }

    /// Words without a head.
    pub(super) fn say(&mut self, words: &'static [u8]) {
        self.front.extend_from_slice(words);
    }

    /// Ready once the client has been sent all of it, which costs no memory any more.
    pub(super) fn poll_leave(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut socket = Pin::new(socket);
        while self.left() > 0 {
            let written = if self.data.is_empty() {
                ready!(socket.as_mut().poll_write(cx, &self.front[self.written..]))
            } else {
                ready!(socket.as_mut().poll_write_vectored(cx, &self.slices()))
            };
            match written? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written += written,
            }
        }
        ready!(socket.poll_flush(cx))?;
        *self = Self::default();
        Poll::Ready(Ok(()))
    }

    /// What is left of all three.
    fn slices(&self) -> [IoSlice<'_>; 3] {
        let mut skip = self.written;
        [&self.front[..], &self.data, self.back].map(|part| {
            let gone = skip.min(part.len());
            skip -= gone;
            IoSlice::new(&part[gone..])
        })
    }
}

/// How the body of an answer is framed whose length may be known (RFC 9112, 6.3).
fn extent(status: StatusCode, asker: Asker, len: Option<u64>) -> Extent {
    match len {
        _ if asker.wants_head || !tells_length(status) => Extent::Nothing,
        Some(len) => Extent::Length(len),
        None if asker.is_http_10 => Extent::Rest,
        None => Extent::Chunks,
    }
}

/// Whether answers of this status have a body, if only one that is left out.
fn tells_length(status: StatusCode) -> bool {
    !status.is_informational() && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn status_line<B>(head: &mut Vec<u8>, response: &Response<B>, asker: Asker) {
    let (status, reason) = (response.status(), response.extensions().get::<ReasonPhrase>());
    let reason = reason.map(ReasonPhrase::as_bytes);
    let reason = reason.unwrap_or_else(|| status.canonical_reason().unwrap_or("<none>").as_bytes());
    head.extend_from_slice(if asker.is_http_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    head.extend_from_slice(status.as_str().as_bytes());
    head.push(b' ');
    head.extend_from_slice(reason);
    head.extend_from_slice(b"\r\n");
}

/// The line before a chunk.
fn size(front: &mut Vec<u8>, len: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let significant = len.checked_ilog2().map_or(1, |bits| bits / 4 + 1);
    for digit in (0..significant).rev() {
        front.push(DIGITS[len >> (4 * digit) & 0xf]);
    }
    front.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const USUAL: Asker = Asker { wants_head: false, is_http_10: false };

    /// What is written of an answer whose body comes in these pieces, but for its date.
    fn written(response: Response<Body>, asker: Asker, mut is_last: bool, pieces: &[&'static str]) -> (String, bool) {
        let mut outbox = Outbox::default();
        let mut extent = outbox.begin(&response, asker, &mut is_last);
        pieces.iter().for_each(|piece| outbox.put(Bytes::from_static(piece.as_bytes()), &mut extent));
        let is_whole = outbox.end(extent);
        let text = String::from_utf8(outbox.front).unwrap();
        let lines = text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: "));
        (lines.collect::<String>().replace("\r\n", "|"), is_whole)
    }

    fn of(status: u16, fields: &[(&'static str, &'static str)], body: impl Into<Body>) -> Response<Body> {
        let with = |response: http::response::Builder, (name, value): &(_, _)| response.header(*name, *value);
        let response = fields.iter().fold(Response::builder().status(status), with);
        response.body(body.into()).unwrap()
    }

    fn unknown() -> Body {
        Body::from_stream(futures_util::stream::pending::<Result<Bytes, io::Error>>())
    }

    #[test]
    fn a_body_is_framed_by_what_is_known_of_its_length() {
        let head = Asker { wants_head: true, ..USUAL };
        let old = Asker { is_http_10: true, ..USUAL };
        let length = &[("content-length", "5")][..];
        for (response, asker, is_last, pieces, expected) in [
            (
                of(200, &[("x", "1")], "hello"),
                USUAL,
                false,
                &["hello"][..],
                "HTTP/1.1 200 OK|x: 1|content-length: 5||hello",
            ),
            (of(200, length, unknown()), USUAL, false, &["he", "llo"], "HTTP/1.1 200 OK|content-length: 5||hello"),
            (of(200, length, unknown()), USUAL, false, &["hello!"], "HTTP/1.1 200 OK|content-length: 5||hello"),
            (
                of(200, &[("transfer-encoding", "gzip")], unknown()),
                USUAL,
                false,
                &["hello", "", "0123456789abcdefg"],
                "HTTP/1.1 200 OK|transfer-encoding: chunked||5|hello|11|0123456789abcdefg|0||",
            ),
            (of(200, &[], ""), USUAL, true, &[], "HTTP/1.1 200 OK|content-length: 0|connection: close||"),
            (
                of(418, &[("connection", "x, close")], ""),
                USUAL,
                false,
                &[],
                "HTTP/1.1 418 I'm a teapot|content-length: 0|connection: close||",
            ),
            (of(599, &[], ""), USUAL, false, &[], "HTTP/1.1 599 <none>|content-length: 0||"),
            (of(204, length, ""), USUAL, false, &[], "HTTP/1.1 204 No Content||"),
            (of(304, &[], ""), USUAL, false, &[], "HTTP/1.1 304 Not Modified||"),
            (of(200, length, ""), head, false, &[], "HTTP/1.1 200 OK|content-length: 5||"),
            (of(200, &[], "hello"), head, false, &["hello"], "HTTP/1.1 200 OK|content-length: 5||"),
            (of(200, &[], ""), head, false, &[], "HTTP/1.1 200 OK||"),
            (of(200, &[], unknown()), head, false, &[], "HTTP/1.1 200 OK||"),
            (of(200, &[], unknown()), old, false, &["hello"], "HTTP/1.0 200 OK|connection: close||hello"),
            (
                of(200, length, unknown()),
                old,
                false,
                &["hello"],
                "HTTP/1.0 200 OK|content-length: 5|connection: keep-alive||hello",
            ),
        ] {
            assert_eq!(written(response, asker, is_last, pieces), (expected.to_owned(), true));
        }
        let (_, is_whole) = written(of(200, length, unknown()), USUAL, false, &["hell"]);
        assert!(!is_whole, "a byte of it did not come");
    }

    #[test]
    fn an_answer_tells_its_time_unless_its_worker_did() {
        for (fields, expected) in [(&[][..], 1), (&[("date", "then")], 1)] {
            let mut outbox = Outbox::default();
            outbox.begin(&of(200, fields, ""), USUAL, &mut false);
            assert_eq!(String::from_utf8(outbox.front).unwrap().matches("\r\ndate: ").count(), expected);
        }
    }

    #[tokio::test]
    async fn all_of_it_leaves_however_little_is_taken_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap());
        let (client, server) = tokio::join!(client, listener.accept());
        let (mut client, mut socket) = (client.unwrap(), Socket::Plain(server.unwrap().0));
        let mut outbox = Outbox::default();
        let mut extent = Extent::Chunks;
        let data: Bytes = (0..5_000_000_u32).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
        outbox.put(Bytes::from_static(b"small"), &mut extent);
        assert!(outbox.has_room());
        outbox.put(data.clone(), &mut extent);
        assert!(!outbox.has_room());
        assert!(outbox.end(extent));
        let expected = [b"5\r\nsmall\r\n4c4b40\r\n", &data[..], b"\r\n0\r\n\r\n"].concat();
        assert_eq!(outbox.left(), expected.len());
        let leaving = async {
            std::future::poll_fn(|cx| outbox.poll_leave(&mut socket, cx)).await.unwrap();
            assert!(outbox.left() == 0 && outbox.has_room());
            drop(socket);
        };
        let taking = async {
            let mut taken = Vec::new();
            client.read_to_end(&mut taken).await.unwrap();
            taken
        };
        let ((), taken) = tokio::join!(leaving, taking);
        assert!(taken == expected);
    }
}
