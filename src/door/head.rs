//! The head of a request, and what it says of the body and of the connection (RFC 9112, 3, 6 and 9.3).

use std::mem::MaybeUninit;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HeaderMap, TRANSFER_ENCODING};
use http::{HeaderName, HeaderValue, Method, Request, Uri, Version};
use httparse::{Header, ParserConfig, Status};

use crate::http1::{Framing, copied, number, tokens};

/// Fields for which there is room on the stack.
const FIELDS_USUAL: usize = 100;

/// See the module.
#[derive(Debug)]
pub(super) struct Head {
    /// The request without its body.
    pub(super) request: Request<()>,
    /// What is to come of the body.
    pub(super) framing: Framing,
    /// Whether the client wants to ask more on the connection, and nothing about this request forbids it.
    pub(super) keeps_open: bool,
    /// Whether the client sends the body only when it is invited to.
    pub(super) expects_invitation: bool,
}

/// Why there is no head in what was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadFault {
    /// It has more fields than it may.
    TooMany,
    /// It is no head of HTTP/1, or could be read in two ways.
    Invalid,
}

impl Head {
    /// The head that `said` is, of so many fields at most.
    pub(super) fn parse(said: &[u8], fields_max: usize) -> Result<Self, HeadFault> {
        with_lines(fields_max, |lines| {
            let mut parsed = httparse::Request::new(&mut []);
            match ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, said, lines)? {
                Status::Complete(len) if len == said.len() => Self::of(&parsed, said),
                _ => Err(HeadFault::Invalid),
            }
        })
    }

    /// Whether `said` can be the beginning of a head.
    pub(super) fn check_begun(said: &[u8], fields_max: usize) -> Result<(), HeadFault> {
        with_lines(fields_max, |lines| {
            let mut parsed = httparse::Request::new(&mut []);
            ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, said, lines)?;
            Ok(())
        })
    }

    fn of(parsed: &httparse::Request<'_, '_>, said: &[u8]) -> Result<Self, HeadFault> {
        let (Some(method), Some(target)) = (parsed.method, parsed.path) else { return Err(HeadFault::Invalid) };
        // A fragment is no part of a target (RFC 9112, 3.2), and is dropped by its reader.
        if memchr::memchr(b'#', target.as_bytes()).is_some() {
            return Err(HeadFault::Invalid);
        }
        // Values are parts of one copy.
        let copy = Bytes::copy_from_slice(said);
        let from = target.as_ptr().addr().saturating_sub(said.as_ptr().addr());
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(method.as_bytes()).map_err(|_| HeadFault::Invalid)?;
        *request.uri_mut() =
            Uri::from_maybe_shared(copy.slice(from..from + target.len())).map_err(|_| HeadFault::Invalid)?;
        let is_http_11 = parsed.version == Some(1);
        *request.version_mut() = if is_http_11 { Version::HTTP_11 } else { Version::HTTP_10 };
        let mut reading = Reading::new(is_http_11, parsed.headers.len())?;
        for line in parsed.headers.iter() {
            let (name, value) = copied(&copy, said, (line.name, line.value)).ok_or(HeadFault::Invalid)?;
            match name {
                CONTENT_LENGTH => reading.length(value)?,
                TRANSFER_ENCODING => reading.coding(value)?,
                CONNECTION => reading.connection(value)?,
                EXPECT => {
                    reading.expects_invitation = value.as_bytes().eq_ignore_ascii_case(b"100-continue");
                    reading.keep(name, value)?;
                }
                _ => reading.keep(name, value)?,
            }
        }
        reading.conclude(request)
    }
}

/// Lends room for so many fields.
fn with_lines<'a, T>(fields_max: usize, read: impl FnOnce(&mut [MaybeUninit<Header<'a>>]) -> T) -> T {
    let mut usual = [const { MaybeUninit::uninit() }; FIELDS_USUAL];
    if let Some(lines) = usual.get_mut(..fields_max) {
        return read(lines);
    }
    let mut many = Vec::new();
    many.resize_with(fields_max, MaybeUninit::uninit);
    read(&mut many)
}

impl From<httparse::Error> for HeadFault {
    fn from(error: httparse::Error) -> Self {
        if error == httparse::Error::TooManyHeaders { Self::TooMany } else { Self::Invalid }
    }
}

impl From<http::header::MaxSizeReached> for HeadFault {
    fn from(_: http::header::MaxSizeReached) -> Self {
        Self::TooMany
    }
}

/// What the fields say that are about the connection.
struct Reading {
    fields: HeaderMap,
    is_http_11: bool,
    length: Option<u64>,
    /// Whether a transfer coding is told, and if so, whether the last one is `chunked`.
    is_chunked: Option<bool>,
    says_length: bool,
    says_close: bool,
    says_keep: bool,
    expects_invitation: bool,
}

impl Reading {
    fn new(is_http_11: bool, fields: usize) -> Result<Self, HeadFault> {
        Ok(Self {
            fields: HeaderMap::try_with_capacity(fields)?,
            is_http_11,
            length: None,
            is_chunked: None,
            says_length: false,
            says_close: false,
            says_keep: false,
            expects_invitation: false,
        })
    }

    fn keep(&mut self, name: HeaderName, value: HeaderValue) -> Result<(), HeadFault> {
        self.fields.try_append(name, value)?;
        Ok(())
    }

    /// A length that is told twice counts once; two lengths are none.
    fn length(&mut self, value: HeaderValue) -> Result<(), HeadFault> {
        self.says_length = true;
        let length = number(value.as_bytes()).ok_or(HeadFault::Invalid)?;
        match self.length.replace(length) {
            Some(before) if before != length => Err(HeadFault::Invalid),
            Some(_) => Ok(()),
            None => self.keep(CONTENT_LENGTH, value),
        }
    }

    fn coding(&mut self, value: HeaderValue) -> Result<(), HeadFault> {
        if !self.is_http_11 {
            return Err(HeadFault::Invalid);
        }
        self.is_chunked = Some(tokens(&value).last().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked")));
        self.keep(TRANSFER_ENCODING, value)
    }

    fn connection(&mut self, value: HeaderValue) -> Result<(), HeadFault> {
        self.says_close |= tokens(&value).any(|word| word.eq_ignore_ascii_case(b"close"));
        self.says_keep |= tokens(&value).any(|word| word.eq_ignore_ascii_case(b"keep-alive"));
        self.keep(CONNECTION, value)
    }

    fn conclude(mut self, mut request: Request<()>) -> Result<Head, HeadFault> {
        let framing = match self.is_chunked {
            Some(false) => return Err(HeadFault::Invalid),
            // The chunks count alone (RFC 9112, 6.3), and what follows them is not trusted.
            Some(true) => {
                self.fields.remove(CONTENT_LENGTH);
                Framing::CHUNKED
            }
            None => Framing::Length(self.length.unwrap_or(0)),
        };
        let is_ambiguous = self.is_chunked.is_some() && self.says_length;
        let keeps_open = !self.says_close && !is_ambiguous && (self.is_http_11 || self.says_keep);
        *request.headers_mut() = self.fields;
        Ok(Head {
            request,
            framing,
            keeps_open,
            // HTTP/1.0 knows of no invitations (RFC 9110, 10.1.1).
            expects_invitation: self.expects_invitation && self.is_http_11 && !framing.has_ended(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(lines: &str) -> Result<Head, HeadFault> {
        Head::parse((lines.replace('\n', "\r\n") + "\r\n\r\n").as_bytes(), 100)
    }

    #[test]
    fn a_head_is_read_as_it_came() {
        let head = parse("POST /v1/x?y=%20 HTTP/1.1\nHost: r\nX-Twice: 1\nx-twice:\t2 \nContent-Length: 5").unwrap();
        let request = &head.request;
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "/v1/x?y=%20"));
        let fields = request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        assert_eq!(
            fields.collect::<Vec<_>>(),
            [("host", "r"), ("x-twice", "1"), ("x-twice", "2"), ("content-length", "5")]
        );
        assert_eq!((head.framing, head.keeps_open, head.expects_invitation), (Framing::Length(5), true, false));
    }

    #[test]
    fn where_the_body_ends_is_read_in_one_way_or_not_at_all() {
        for (fields, expected) in [
            ("", Ok(Framing::ENDED)),
            ("\nContent-Length: 7", Ok(Framing::Length(7))),
            ("\nContent-Length: 7\nContent-Length: 07", Ok(Framing::Length(7))),
            ("\nTransfer-Encoding: chunked", Ok(Framing::CHUNKED)),
            ("\nTransfer-Encoding: gzip, Chunked", Ok(Framing::CHUNKED)),
            ("\nTransfer-Encoding: gzip\nTransfer-Encoding: chunked", Ok(Framing::CHUNKED)),
            ("\nContent-Length: 7\nTransfer-Encoding: chunked", Ok(Framing::CHUNKED)),
            ("\nTransfer-Encoding: chunked\nContent-Length: 7", Ok(Framing::CHUNKED)),
            ("\nContent-Length: 7\nContent-Length: 8", Err(HeadFault::Invalid)),
            ("\nContent-Length: 7, 7", Err(HeadFault::Invalid)),
            ("\nContent-Length: +7", Err(HeadFault::Invalid)),
            ("\nTransfer-Encoding: chunked, gzip", Err(HeadFault::Invalid)),
            ("\nTransfer-Encoding: chunked\nTransfer-Encoding: gzip", Err(HeadFault::Invalid)),
            ("\nTransfer-Encoding:", Err(HeadFault::Invalid)),
        ] {
            let read = parse(&format!("POST / HTTP/1.1{fields}")).map(|head| head.framing);
            assert_eq!(read, expected, "{fields}");
        }
        let chunked = parse("POST / HTTP/1.1\nContent-Length: 7\nTransfer-Encoding: chunked").unwrap();
        assert!(!chunked.keeps_open && !chunked.request.headers().contains_key(CONTENT_LENGTH));
        assert_eq!(parse("POST / HTTP/1.0\nTransfer-Encoding: chunked").unwrap_err(), HeadFault::Invalid);
    }

    #[test]
    fn what_it_says_of_the_connection_is_heard() {
        for (lines, keeps_open, expects_invitation) in [
            ("GET / HTTP/1.1", true, false),
            ("GET / HTTP/1.1\nConnection: x, Close", false, false),
            ("GET / HTTP/1.1\nConnection: close\nConnection: keep-alive", false, false),
            ("GET / HTTP/1.0", false, false),
            ("GET / HTTP/1.0\nConnection: Keep-Alive", true, false),
            ("POST / HTTP/1.1\nExpect: 100-Continue\nContent-Length: 1", true, true),
            ("POST / HTTP/1.1\nExpect: 100-continue", true, false),
            ("POST / HTTP/1.0\nExpect: 100-continue\nContent-Length: 1", false, false),
        ] {
            let head = parse(lines).unwrap();
            assert_eq!((head.keeps_open, head.expects_invitation), (keeps_open, expects_invitation), "{lines}");
        }
    }

    #[test]
    fn fields_have_their_number_and_what_is_no_head_is_none() {
        for (fields_max, count, expected) in [
            (100, 100, None),
            (100, 101, Some(HeadFault::TooMany)),
            (2, 2, None),
            (2, 3, Some(HeadFault::TooMany)),
            (300, 300, None),
            (300, 301, Some(HeadFault::TooMany)),
        ] {
            let lines = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(count));
            assert_eq!(Head::parse(lines.as_bytes(), fields_max).err(), expected, "{count} of {fields_max}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "X: 1\r\n".repeat(40_000));
        assert_eq!(Head::parse(many.as_bytes(), 50_000).err(), Some(HeadFault::TooMany), "more than a map has");
        for no_head in [
            "",
            "GET /",
            "GET /#x HTTP/1.1",
            "GET http://a/#x HTTP/1.1",
            "GET / HTTP/1.2",
            "GET /a b HTTP/1.1",
            "GET / HTTP/1.1\nX : 1",
            "GET / HTTP/1.1\nX",
        ] {
            assert_eq!(parse(no_head).err(), Some(HeadFault::Invalid), "{no_head:?}");
        }
        assert_eq!(Head::parse(b"GET / HTTP/1.1\r\n\r\nGET", 100).err(), Some(HeadFault::Invalid));
        for (begun, expected) in [
            ("GE", Ok(())),
            ("GET / HTTP/1.1\r\nX: 1\r\nY", Ok(())),
            ("\x16\x03\x01", Err(HeadFault::Invalid)),
            ("GET / HTTP/1.1\r\nX: 1\r\nY: 1\r\nZ: 1\r\n", Err(HeadFault::TooMany)),
        ] {
            assert_eq!(Head::check_begun(begun.as_bytes(), 2), expected, "{begun:?}");
        }
    }
}
