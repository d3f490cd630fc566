//! What is wrong with a request's head that HTTP's reader takes, so that no two servers on a request's way can read it
//! differently: one that is addressed to nobody or to two, to another host than its target, or to a tunnel.
//!
//! The framing needs hardly a look: the body is read whole and framed anew for the worker, whatever the client framed it
//! with. Only a coding beneath the chunks would be lost by that, and is refused. The reader refuses what is ambiguous, but
//! for two leniencies of its own: of `Content-Length` beside chunks only the chunks count and the connection ends, and a
//! `Content-Length` that is repeated counts once. A third, lines that end in LF
//! alone, the wire sees.

use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::Scheme;
use http::{Method, Request, Uri, Version};

use super::DoorLimits;
use crate::error::GatewayError;

/// What a field costs HTTP/2's reader beside its name and value (RFC 9113, 6.5.2).
const FIELD_OVERHEAD: usize = 32;

/// # Errors
/// What is wrong, in the client's words.
pub(super) fn judge<B>(request: &Request<B>, limits: &DoorLimits) -> Result<(), GatewayError> {
    if request.method() == Method::CONNECT {
        return Err(GatewayError::Method { allow: "GET, HEAD, POST, PUT, PATCH, DELETE" });
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    if target > limits.uri_bytes {
        return Err(GatewayError::UriTooLong { limit: limits.uri_bytes });
    }
    if request.version() == Version::HTTP_2 && is_large(request, limits) {
        return Err(GatewayError::HeadTooLarge { bytes: limits.header_bytes, fields: limits.headers });
    }
    match address(request).or_else(|| coding(request)) {
        Some(fault) => Err(GatewayError::bad_request(fault, None)),
        None => Ok(()),
    }
}

/// HTTP/1's reader counts by itself.
fn is_large<B>(request: &Request<B>, limits: &DoorLimits) -> bool {
    let fields = request.headers().iter();
    let bytes = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD_OVERHEAD).sum::<usize>();
    request.headers().len() > limits.headers || bytes > limits.header_bytes
}

/// What is wrong with what the request is addressed to.
fn address<B>(request: &Request<B>) -> Option<&'static str> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let (host, second) = (hosts.next().map(http::HeaderValue::as_bytes), hosts.next());
    if second.is_some() {
        return Some("the request has more than one `Host`");
    }
    if host.is_some_and(|host| !is_host(host)) {
        return Some("`Host` is not valid");
    }
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    match (authority, host) {
        (Some(authority), _) if !is_host(authority) => Some("the request's target is not valid"),
        (Some(_), _) if request.uri().path_and_query().is_none() || !is_http(request.uri()) => {
            Some("the request's target is not valid")
        }
        (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
            Some("the request's target and its `Host` differ")
        }
        (None, None) if request.version() != Version::HTTP_10 => Some("the request has no `Host`"),
        // A target that names its host needs no other, but HTTP/1.1 asks for one.
        (Some(_), None) if request.version() == Version::HTTP_11 => Some("the request has no `Host`"),
        _ => None,
    }
}

fn is_http(uri: &Uri) -> bool {
    uri.scheme().is_none_or(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS)
}

/// What is wrong with how the request's body is coded on its way.
fn coding<B>(request: &Request<B>) -> Option<&'static str> {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    let (coding, second) = (codings.next()?, codings.next());
    let is_chunked = second.is_none() && coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    (!is_chunked).then_some("`Transfer-Encoding` may be `chunked` and nothing else")
}

/// A name or an address, and perhaps a port (RFC 3986, 3.2.2, 3.2.3); nobody's name and password.
fn is_host(text: &[u8]) -> bool {
    let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(byte);
    text.iter().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(version: Version, target: &str, hosts: &[&str]) -> Result<(), (u16, String)> {
        let mut request = Request::builder().version(version).uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let request = request.body(()).unwrap();
        judge(&request, &DoorLimits::default()).map_err(|error| (error.status().as_u16(), error.to_string()))
    }

    fn refused(message: &str) -> Result<(), (u16, String)> {
        Err((400, message.to_owned()))
    }

    #[test]
    fn a_request_is_addressed_to_one_host() {
        for (version, target, hosts, expected) in [
            (Version::HTTP_11, "/", &["a"][..], Ok(())),
            (Version::HTTP_11, "/", &["a.example:8080"], Ok(())),
            (Version::HTTP_11, "/", &["[::1]:8080"], Ok(())),
            (Version::HTTP_11, "/", &[""], Ok(())),
            (Version::HTTP_11, "*", &["a"], Ok(())),
            (Version::HTTP_10, "/", &[], Ok(())),
            (Version::HTTP_2, "http://a/", &[], Ok(())),
            (Version::HTTP_2, "http://a/", &["a"], Ok(())),
            (Version::HTTP_11, "http://a:80/", &["A:80"], Ok(())),
            (Version::HTTP_11, "/", &[], refused("the request has no `Host`")),
            (Version::HTTP_11, "http://a/", &[], refused("the request has no `Host`")),
            (Version::HTTP_2, "/", &[], refused("the request has no `Host`")),
            (Version::HTTP_11, "/", &["a", "a"], refused("the request has more than one `Host`")),
            (Version::HTTP_10, "/", &["a", "b"], refused("the request has more than one `Host`")),
            (Version::HTTP_11, "/", &["a/b"], refused("`Host` is not valid")),
            (Version::HTTP_11, "/", &["u@a"], refused("`Host` is not valid")),
            (Version::HTTP_11, "/", &["a b"], refused("`Host` is not valid")),
            (Version::HTTP_11, "http://b/", &["a"], refused("the request's target and its `Host` differ")),
            (Version::HTTP_2, "http://b/", &["a"], refused("the request's target and its `Host` differ")),
            (Version::HTTP_11, "http://u@a/", &["a"], refused("the request's target is not valid")),
            (Version::HTTP_11, "https://a/", &["a"], Ok(())),
            (Version::HTTP_11, "ftp://a/", &["a"], refused("the request's target is not valid")),
            (Version::HTTP_2, "ftp://a/", &[], refused("the request's target is not valid")),
            (Version::HTTP_11, "a:80", &["a:80"], refused("the request's target is not valid")),
        ] {
            assert_eq!(judged(version, target, hosts), expected, "{version:?} {target} {hosts:?}");
        }
    }

    #[test]
    fn no_tunnel_is_opened() {
        let request = Request::builder().method(Method::CONNECT).uri("a:80").header(HOST, "a:80").body(()).unwrap();
        assert_eq!(judge(&request, &DoorLimits::default()).unwrap_err().status().as_u16(), 405);
    }

    #[test]
    fn a_long_target_and_a_large_head_are_refused_at_their_limits() {
        let path = |len: usize| format!("/{}", "x".repeat(len - 1));
        assert_eq!(judged(Version::HTTP_11, &path(8192), &["a"]), Ok(()));
        assert_eq!(judged(Version::HTTP_11, &path(8193), &["a"]).unwrap_err().0, 414);
        let of_host = |len: usize| format!("http://{}{}", "h".repeat(200), path(len));
        assert_eq!(judged(Version::HTTP_2, &of_host(8192), &[]), Ok(()), "where the host stands makes no difference");
        assert_eq!(judged(Version::HTTP_2, &of_host(8193), &[]).unwrap_err().0, 414);
        let limits = DoorLimits { header_bytes: 100, headers: 2, ..DoorLimits::default() };
        let status = |fields: &[(&str, &str)]| {
            let mut request = Request::builder().version(Version::HTTP_2).uri("http://a/");
            for (name, value) in fields {
                request = request.header(*name, *value);
            }
            judge(&request.body(()).unwrap(), &limits).map_err(|error| error.status().as_u16())
        };
        assert_eq!(status(&[("a", "1"), ("b", "2")]), Ok(()));
        assert_eq!(status(&[("a", "1"), ("b", "2"), ("c", "3")]), Err(431));
        assert_eq!(status(&[("a", &"1".repeat(67))]), Ok(()));
        assert_eq!(status(&[("a", &"1".repeat(68))]), Err(431));
    }
}
