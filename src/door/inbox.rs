//! What a client has sent and belongs to no request yet, and the requests that it makes.

use std::mem::take;

use bytes::BytesMut;

use super::DoorLimits;
use super::head::{Head, HeadFault};
use super::section::Section;
use super::upload::PIECE;
use crate::error::GatewayError;
use crate::http1::Framing;

/// Up to here it costs nothing to see whether what comes can be a request.
const GLANCE: usize = 64;

/// See the module.
#[derive(Default)]
pub(super) struct Inbox {
    kept: Vec<u8>,
    /// The head that comes next, as far as it was looked at.
    section: Section,
    looked_at: usize,
}

/// A request that has come.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) head: Head,
    /// Whether a line of its head ended in LF alone.
    pub(super) has_bare_line: bool,
    /// What has come of its body. There is room for the rest of it where that is not much.
    pub(super) body: BytesMut,
}

impl Inbox {
    /// One in which this is.
    pub(super) fn of(kept: Vec<u8>) -> Self {
        Self { kept, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Keeps what is no part of the next request's head yet, as nobody asks for that.
    pub(super) fn keep(&mut self, more: &[u8]) {
        self.kept.extend_from_slice(more);
    }

    /// Where bodies leave what is behind them.
    pub(super) fn behind(&mut self) -> &mut Vec<u8> {
        &mut self.kept
    }

    /// The next request, of which `more` has just come, or nothing, if all of its head is there. Each byte is looked at once
    /// or twice, except in heads that come line by line.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn next(&mut self, more: &[u8], limits: &DoorLimits) -> Result<Option<Arrived>, GatewayError> {
        // Mostly it is all there at once, and nothing is kept.
        if self.kept.is_empty() {
            let said = without_empty_lines(more);
            let len = self.section.read(said);
            if self.section.is_whole() {
                let (head, rest) = said.split_at(len);
                return self.arrive(head, rest, limits).map(Some);
            }
            self.kept.extend_from_slice(said);
            self.looked_at = len;
            return self.check_begun(0, limits).map(|()| None);
        }
        self.kept.extend_from_slice(more);
        if self.looked_at == 0 {
            let empty = self.kept.len() - without_empty_lines(&self.kept).len();
            self.kept.drain(..empty);
            if self.kept.is_empty() {
                self.kept = Vec::new();
            }
        }
        let from = self.looked_at;
        self.looked_at += self.section.read(&self.kept[from..]);
        if self.section.is_whole() {
            let said = take(&mut self.kept);
            let (head, rest) = said.split_at(self.looked_at);
            return self.arrive(head, rest, limits).map(Some);
        }
        self.check_begun(from, limits).map(|()| None)
    }

    /// Whether the head that has begun, of which the bytes before `from` were looked at before, can still be one. That takes a
    /// look at all of it only with a further line, of which there are not many, or as long as it was short.
    fn check_begun(&self, from: usize, limits: &DoorLimits) -> Result<(), GatewayError> {
        let more = &self.kept[from..];
        if self.kept.len() > limits.header_bytes {
            return Err(self.too_large(limits));
        }
        if more.is_empty() || from > GLANCE && memchr::memchr(b'\n', more).is_none() {
            return Ok(());
        }
        Head::check_begun(&self.kept, limits.headers).map_err(|fault| self.fault(fault, limits))
    }

    /// A request whose head is this and of which `rest` has come, perhaps with another one behind it.
    fn arrive(&mut self, head: &[u8], rest: &[u8], limits: &DoorLimits) -> Result<Arrived, GatewayError> {
        if head.len() > limits.header_bytes {
            return Err(self.too_large(limits));
        }
        let mut head = Head::parse(head, limits.headers).map_err(|fault| self.fault(fault, limits))?;
        let has_bare_line = take(&mut self.section).is_bare();
        self.looked_at = 0;
        let mut body = BytesMut::new();
        let taken = if let Framing::Length(left) = &mut head.framing {
            let whole = usize::try_from(*left).unwrap_or(usize::MAX);
            let taken = whole.min(rest.len());
            body.reserve(whole.min(PIECE));
            body.extend_from_slice(&rest[..taken]);
            *left -= u64::try_from(taken).unwrap_or(*left);
            taken
        } else {
            // That they make no sense is seen by whoever reads on.
            let (data, taken) = head.framing.take(rest).unwrap_or_default();
            body.extend_from_slice(&data);
            taken
        };
        self.kept.extend_from_slice(&rest[taken..]);
        Ok(Arrived { head, has_bare_line, body })
    }

    fn fault(&self, fault: HeadFault, limits: &DoorLimits) -> GatewayError {
        match fault {
            HeadFault::TooMany => self.too_large(limits),
            HeadFault::Invalid => GatewayError::bad_request("the request's head is not valid HTTP/1.1", None),
        }
    }

    fn too_large(&self, limits: &DoorLimits) -> GatewayError {
        if self.section.first_line() > limits.uri_bytes {
            GatewayError::UriTooLong { limit: limits.uri_bytes }
        } else {
            GatewayError::HeadTooLarge { bytes: limits.header_bytes, fields: limits.headers }
        }
    }
}

/// What begins a request: some clients send empty lines behind a body (RFC 9112, 2.2), which begin nothing. However many
/// come, the clocks run on.
fn without_empty_lines(said: &[u8]) -> &[u8] {
    let empty = said.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    &said[empty..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Targets and what has come of bodies, and what is said where one is no request.
    fn read(pieces: &[&[u8]]) -> (Vec<(String, Vec<u8>)>, Option<u16>) {
        let (mut inbox, limits, mut seen) = (Inbox::default(), DoorLimits::default(), Vec::new());
        for piece in pieces {
            let mut more = *piece;
            loop {
                match inbox.next(more, &limits) {
                    Ok(Some(arrived)) => {
                        seen.push((arrived.head.request.uri().to_string(), arrived.body.to_vec()));
                    }
                    Ok(None) => break,
                    Err(error) => return (seen, Some(error.status().as_u16())),
                }
                more = &[];
            }
        }
        (seen, None)
    }

    #[test]
    fn requests_are_the_same_however_they_are_cut() {
        let all =
            "\r\nGET /a HTTP/1.1\r\nHost: r\r\n\r\n\r\n\nGET /b HTTP/1.1\r\nHost: r\r\n\r\nGET /c HTTP/1.1\r\n\r\n";
        let (expected, refused) = read(&[all.as_bytes()]);
        let targets: Vec<&str> = expected.iter().map(|(target, _)| target.as_str()).collect();
        assert_eq!((targets, refused), (vec!["/a", "/b", "/c"], None));
        for cut in 0..=all.len() {
            let (begin, rest) = all.as_bytes().split_at(cut);
            assert_eq!(read(&[begin, rest]), (expected.clone(), None), "{cut}");
        }
        let bytes: Vec<&[u8]> = all.as_bytes().chunks(1).collect();
        assert_eq!(read(&bytes), (expected, None));
    }

    #[test]
    fn what_has_come_of_a_body_comes_with_its_head_and_what_is_behind_it_does_not() {
        let next = "GET /b HTTP/1.1\r\n\r\n";
        for (head, body) in [("Content-Length: 5", "hello"), ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n")]
        {
            let all = format!("POST /a HTTP/1.1\r\n{head}\r\n\r\n{body}{next}");
            let (seen, refused) = read(&[all.as_bytes()]);
            assert_eq!(seen, [("/a".to_owned(), b"hello".to_vec()), ("/b".to_owned(), Vec::new())], "{head}");
            assert_eq!(refused, None);
        }
        let mut inbox = Inbox::default();
        let begun = b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nhel";
        let arrived = inbox.next(begun, &DoorLimits::default()).unwrap().unwrap();
        assert_eq!(
            (arrived.head.framing, &arrived.body[..], arrived.body.capacity()),
            (Framing::Length(6), &b"hel"[..], 9)
        );
        let enormous = b"POST /a HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n";
        let arrived = inbox.next(enormous, &DoorLimits::default()).unwrap().unwrap();
        assert_eq!(arrived.body.capacity(), PIECE, "what is only announced gets no room");
    }

    #[test]
    fn what_can_be_no_request_is_refused_before_its_end() {
        let limits = DoorLimits::default();
        let long_target = format!("GET /{}", "x".repeat(limits.header_bytes));
        let large = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(limits.header_bytes));
        let many = format!("GET / HTTP/1.1\r\n{}", "X: 1\r\n".repeat(limits.headers + 1));
        for (bytes, status) in [
            (&b"\x16\x03\x01\x02\x00"[..], 400),
            (&[0; 100], 400),
            (b"GET / HTTP/3.0\r\n", 400),
            (b"GET / HTTP/1.1\r\nX : 1\r\n", 400),
            (long_target.as_bytes(), 414),
            (large.as_bytes(), 431),
            (many.as_bytes(), 431),
        ] {
            assert_eq!(read(&[bytes]).1, Some(status), "{}", String::from_utf8_lossy(&bytes[..20.min(bytes.len())]));
            for piece in [1, 1000] {
                let pieces: Vec<&[u8]> = bytes.chunks(piece).collect();
                assert_eq!(read(&pieces).1, Some(status), "in pieces of {piece}");
            }
        }
        let no_version = b"GET /a/long/path/that/goes/on/and/on/until/there/is/a/version/which/is/none HTTP/7.7";
        assert_eq!(read(&[no_version]).1, Some(400), "however long it is before its line ends");
    }

    #[test]
    fn what_has_gone_holds_no_memory() {
        let (mut inbox, limits) = (Inbox::default(), DoorLimits::default());
        inbox.keep(&b"\r\n".repeat(10_000));
        assert!(inbox.next(&[], &limits).unwrap().is_none());
        assert_eq!((inbox.is_empty(), inbox.kept.capacity()), (true, 0));
        inbox.keep(b"GET / HTTP/1.1\r\n\r\n");
        assert!(inbox.next(&[], &limits).unwrap().is_some());
        assert_eq!(inbox.kept.capacity(), 0);
    }
}
