//! The head of an answer, and what it says of the body (RFC 9112, 4 and 6.3).

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, StatusCode, header};
use httparse::{ParserConfig, Response, Status};
use hyper::ext::ReasonPhrase;

use super::Fault;
use crate::http1::{Framing, copied, number, tokens};

/// Headers of one answer at most: more than those of a request (`limits.headers`), which it may repeat.
const HEADERS_MAX: usize = 256;

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// What stands behind the status, if it is not the usual.
    pub(super) reason: Option<ReasonPhrase>,
    /// Bytes that it has.
    pub(super) len: usize,
    is_http_11: bool,
}

impl Head {
    /// The head that `said` begins with; none if it is not all there.
    pub(super) fn parse(said: &[u8]) -> Result<Option<Self>, Fault> {
        let mut lines = [const { MaybeUninit::uninit() }; HEADERS_MAX];
        let mut answer = Response::new(&mut []);
        let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut answer, said, &mut lines)?;
        let Status::Complete(len) = parsed else { return Ok(None) };
        let status = answer.code.and_then(|code| StatusCode::from_u16(code).ok());
        let status = status.ok_or(Fault::NoHttp("its status"))?;
        let reason = answer.reason.filter(|reason| status.canonical_reason() != Some(reason));
        // Values are parts of one copy.
        let whole = Bytes::copy_from_slice(&said[..len]);
        let mut headers = HeaderMap::with_capacity(answer.headers.len());
        for line in answer.headers.iter() {
            let (name, value) = copied(&whole, said, (line.name, line.value)).ok_or(Fault::NoHttp("a header"))?;
            headers.append(name, value);
        }
        let reason = reason.and_then(|reason| ReasonPhrase::try_from(reason.as_bytes()).ok());
        Ok(Some(Self { status, headers, reason, len, is_http_11: answer.version == Some(1) }))
    }

    /// Whether it only promises an answer. Another protocol, for which nobody has asked, is none of that.
    pub(super) fn is_interim(&self) -> bool {
        self.status.is_informational() && self.status != StatusCode::SWITCHING_PROTOCOLS
    }

    /// Where the body ends.
    pub(super) fn framing(&self, is_of_head: bool) -> Result<Framing, Fault> {
        let is_bodiless = is_of_head
            || self.status.is_informational()
            || matches!(self.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if is_bodiless {
            return Ok(Framing::ENDED);
        }
        if self.headers.contains_key(header::TRANSFER_ENCODING) {
            if !self.is_http_11 {
                return Err(Fault::NoHttp("a transfer coding in HTTP/1.0"));
            }
            // A coding beneath the chunks would be lost on the way to the client.
            let mut codings = all(&self.headers, &header::TRANSFER_ENCODING);
            return match (codings.next(), codings.next()) {
                (Some(coding), None) if coding.eq_ignore_ascii_case(b"chunked") => Ok(Framing::CHUNKED),
                _ => Err(Fault::NoHttp("a transfer coding that is not `chunked` alone")),
            };
        }
        let mut lengths = all(&self.headers, &header::CONTENT_LENGTH).map(number);
        let Some(length) = lengths.next() else { return Ok(Framing::UntilClose) };
        match length {
            // Said twice, it is said once (RFC 9112, 6.3).
            Some(length) if lengths.all(|other| other == Some(length)) => Ok(Framing::Length(length)),
            _ => Err(Fault::NoHttp("its length")),
        }
    }

    /// Whether the connection stays open behind the answer.
    pub(super) fn keeps_open(&self) -> bool {
        let says = |word: &[u8]| all(&self.headers, &header::CONNECTION).any(|said| said.eq_ignore_ascii_case(word));
        // Behind a switch of protocols there is another one.
        let is_http = self.status != StatusCode::SWITCHING_PROTOCOLS;
        is_http && !says(b"close") && (self.is_http_11 || says(b"keep-alive"))
    }
}

/// The elements of a header that is a list, on however many lines.
fn all<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).into_iter().flat_map(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(lines: &str) -> Head {
        let said = format!("{}\r\n\r\nbody", lines.replace('\n', "\r\n"));
        let head = Head::parse(said.as_bytes()).unwrap().unwrap();
        assert_eq!(head.len, said.len() - 4);
        head
    }

    #[test]
    fn a_head_is_a_status_a_reason_and_headers() {
        let said = head("HTTP/1.1 299 Well enough\nX-A: 1\nx-b:  2 3 \nx-a: \u{e4}");
        assert_eq!((said.status.as_u16(), said.reason.unwrap().as_bytes()), (299, b"Well enough".as_slice()));
        let headers: Vec<_> = said.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        assert_eq!(headers, [("x-a", b"1".as_slice()), ("x-a", "\u{e4}".as_bytes()), ("x-b", b"2 3")]);
        assert!(head("HTTP/1.1 200 OK").reason.is_none());
        assert!(Head::parse(b"HTTP/1.1 200 OK\r\nx: 1\r\n").unwrap().is_none());
        for said in ["HTTP/2 200 OK\r\n\r\n", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\nx : 1\r\n\r\n", "HTTP/1.1 20 OK\r\n"]
        {
            assert!(matches!(Head::parse(said.as_bytes()), Err(Fault::NoHttp(_))), "{said}");
        }
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "x: 1\r\n".repeat(HEADERS_MAX + 1));
        assert!(matches!(Head::parse(many.as_bytes()), Err(Fault::TooLarge)));
    }

    #[test]
    fn where_a_body_ends_is_said_by_the_head() {
        let framing = |lines, is_of_head| head(lines).framing(is_of_head).ok();
        for (lines, expected) in [
            ("HTTP/1.1 200 OK", Some(Framing::UntilClose)),
            ("HTTP/1.1 200 OK\ncontent-length: 7", Some(Framing::Length(7))),
            ("HTTP/1.1 200 OK\ncontent-length: 0", Some(Framing::ENDED)),
            ("HTTP/1.1 200 OK\ncontent-length: 7, 7\ncontent-length: 7", Some(Framing::Length(7))),
            ("HTTP/1.1 200 OK\ncontent-length: 7\ncontent-length: 8", None),
            ("HTTP/1.1 200 OK\ncontent-length: +7", None),
            ("HTTP/1.1 200 OK\ncontent-length:", None),
            ("HTTP/1.1 200 OK\ncontent-length: 99999999999999999999", None),
            ("HTTP/1.1 200 OK\ntransfer-encoding: Chunked\ncontent-length: 7", Some(Framing::CHUNKED)),
            ("HTTP/1.1 200 OK\ntransfer-encoding: gzip\ntransfer-encoding: chunked", None),
            ("HTTP/1.1 200 OK\ntransfer-encoding: chunked, gzip", None),
            ("HTTP/1.1 200 OK\ntransfer-encoding: identity", None),
            ("HTTP/1.0 200 OK\ntransfer-encoding: chunked", None),
            ("HTTP/1.1 204 No Content\ncontent-length: 7", Some(Framing::ENDED)),
            ("HTTP/1.1 304 Not Modified\ncontent-length: 7", Some(Framing::ENDED)),
        ] {
            assert_eq!(framing(lines, false), expected, "{lines}");
        }
        assert_eq!(framing("HTTP/1.1 200 OK\ncontent-length: 7", true), Some(Framing::ENDED));
    }

    #[test]
    fn a_connection_stays_open_unless_it_is_said_otherwise() {
        for (lines, expected) in [
            ("HTTP/1.1 200 OK", true),
            ("HTTP/1.1 200 OK\nconnection: keep-alive\nconnection: x, Close", false),
            ("HTTP/1.0 200 OK", false),
            ("HTTP/1.0 200 OK\nconnection: Keep-Alive", true),
            ("HTTP/1.1 101 Switching Protocols\nupgrade: x", false),
        ] {
            assert_eq!(head(lines).keeps_open(), expected, "{lines}");
        }
    }
}
