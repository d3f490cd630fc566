//! A request on its way to a server.

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use crate::http1::line;

/// A request: the bytes that its sender has, and nothing of a connection.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: PathAndQuery,
    /// End-to-end headers. `Host` and the length of the body are set by the link, whatever is said of them here.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

impl Outgoing {
    /// A question without headers and body.
    pub fn get(path: &'static str) -> Self {
        let path = PathAndQuery::from_static(path);
        Self { method: Method::GET, path, headers: HeaderMap::new(), body: Bytes::new() }
    }

    /// A request to do something.
    pub fn post(path: &'static str, body: impl Into<Bytes>) -> Self {
        Self { method: Method::POST, body: body.into(), ..Self::get(path) }
    }

    /// The head as HTTP/1.1 writes it (RFC 9112, 3), with `own` headers in the place of those of the same name. O(bytes).
    pub(super) fn head(&self, host: &HeaderValue, own: &HeaderMap) -> Vec<u8> {
        const LINE_USUAL: usize = 64;
        let mut head = Vec::with_capacity(LINE_USUAL * (self.headers.len() + 4));
        head.extend_from_slice(self.method.as_str().as_bytes());
        head.push(b' ');
        head.extend_from_slice(self.path.as_str().as_bytes());
        head.extend_from_slice(b" HTTP/1.1\r\n");
        line(&mut head, &header::HOST, host.as_bytes());
        let theirs = self.headers.iter().filter(|(name, _)| !is_of_link(name) && !own.contains_key(*name));
        for (name, value) in theirs.chain(own) {
            line(&mut head, name, value.as_bytes());
        }
        if self.has_body() {
            line(&mut head, &header::CONTENT_LENGTH, HeaderValue::from(self.body.len()).as_bytes());
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Whether the length of its body is told: where there is one, and where a method without one would be unusual (RFC
    /// 9110, 8.6).
    fn has_body(&self) -> bool {
        !self.body.is_empty() || matches!(self.method, Method::POST | Method::PUT | Method::PATCH)
    }
}

/// Whether a header is the link's to write.
fn is_of_link(name: &HeaderName) -> bool {
    *name == header::HOST || *name == header::CONTENT_LENGTH || *name == header::TRANSFER_ENCODING
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(outgoing: &Outgoing, own: &[(HeaderName, &'static str)]) -> String {
        let own = own.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect();
        String::from_utf8(outgoing.head(&HeaderValue::from_static("worker:1"), &own)).unwrap()
    }

    #[test]
    fn a_head_has_its_own_host_and_length_and_everything_else_as_it_came() {
        let mut outgoing = Outgoing::post("/v1/x?y=%20", "12345");
        for (name, value) in [
            ("host", "router"),
            ("content-length", "9"),
            ("transfer-encoding", "chunked"),
            ("x-twice", "1"),
            ("x-twice", "2"),
            ("authorization", "theirs"),
        ] {
            outgoing.headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let own = [(header::AUTHORIZATION, "ours")];
        let expected = "POST /v1/x?y=%20 HTTP/1.1\r\nhost: worker:1\r\nx-twice: 1\r\nx-twice: 2\r\n\
                        authorization: ours\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(written(&outgoing, &own), expected);
    }

    #[test]
    fn only_where_there_is_none_to_expect_no_length_is_told() {
        assert_eq!(written(&Outgoing::get("/"), &[]), "GET / HTTP/1.1\r\nhost: worker:1\r\n\r\n");
        assert!(written(&Outgoing::post("/", ""), &[]).ends_with("\r\ncontent-length: 0\r\n\r\n"));
        let told = Outgoing { body: "1".into(), ..Outgoing::get("/") };
        assert!(written(&told, &[]).ends_with("\r\ncontent-length: 1\r\n\r\n"));
    }
}
