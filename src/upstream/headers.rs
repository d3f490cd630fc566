//! Headers on their way through: those of a connection stay behind, and names that are ours are nobody else's.

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, StatusCode, response};
use smallvec::SmallVec;

/// How engines with several data-parallel ranks are told which one was chosen (vLLM).
pub(super) const RANK: &str = "x-data-parallel-rank";

/// Whether a header belongs to one connection (RFC 9110, 7.6.1), or is framing that is written anew.
fn is_of_connection(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "trailer"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// A client's headers as a worker may see them: without those of the connection or for proxies, and without names that are
/// ours. `Host` and the length of the body stay: the link writes its own in their place.
pub fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers, |name| name == "expect" || is_ours(name));
    join_cookies(&mut headers);
    headers
}

/// HTTP/2 may bring each cookie by itself, which HTTP/1 has in one header (RFC 9113, 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(header::COOKIE).iter();
    if let (Some(_), Some(_)) = (cookies.next(), cookies.next()) {
        let all: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
            headers.insert(header::COOKIE, joined);
        }
    }
}

fn is_ours(name: &str) -> bool {
    is_told_by_us(name) || name.starts_with("proxy-") || name == "x-tenant-id" || name == RANK
}

/// Whether clients take a header for the router's own word.
fn is_told_by_us(name: &str) -> bool {
    name.starts_with("x-warmpath-")
}

/// Makes of a worker's head what clients may see: without headers of the connection or names that are ours, and without the
/// worker's own authority, `own`. An answer to `method` that has no body by its nature keeps the length that it would have.
pub(super) fn to_client(parts: &mut response::Parts, method: &Method, own: &Authority) {
    let is_bodiless = *method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED;
    let length = parts.headers.get(header::CONTENT_LENGTH).filter(|length| is_bodiless && is_number(length)).cloned();
    strip(&mut parts.headers, |name| matches!(name, "content-length" | "host") || is_told_by_us(name));
    if let Some(length) = length {
        parts.headers.insert(header::CONTENT_LENGTH, length);
    }
    if let Some(location) = parts.headers.get(header::LOCATION).and_then(|location| relative(location, own)) {
        parts.headers.insert(header::LOCATION, location);
    }
}

fn is_number(value: &HeaderValue) -> bool {
    !value.is_empty() && value.as_bytes().iter().all(u8::is_ascii_digit)
}

/// A reference to something of the worker's own, without its authority; none for any other.
fn relative(location: &HeaderValue, own: &Authority) -> Option<HeaderValue> {
    let (scheme, rest) = location.to_str().ok()?.split_once("//")?;
    if !scheme.is_empty() && !matches!(scheme.find([':', '/', '?', '#']), Some(at) if at + 1 == scheme.len()) {
        return None;
    }
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // Two slashes would begin with another authority.
    let path = ["/", path.trim_start_matches('/')].concat();
    authority.eq_ignore_ascii_case(own.as_str()).then(|| HeaderValue::try_from(path).ok())?
}

/// Whether these headers name this media type, whatever its parameters. Case means nothing in it (RFC 9110, 8.3.1).
pub(super) fn is_media(headers: &HeaderMap, media: &str) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| {
        let named = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        named.trim_ascii().eq_ignore_ascii_case(media.as_bytes())
    })
}

/// Takes out the headers of the connection, those that it names, and `others`. One look at each header: to remove by name
/// would hash a dozen names that are not there.
fn strip(headers: &mut HeaderMap, others: impl Fn(&str) -> bool) {
    let listed =
        headers.get_all(header::CONNECTION).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut gone: SmallVec<[HeaderName; 4]> =
        listed.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok()).collect();
    gone.extend(headers.keys().filter(|name| is_of_connection(name.as_str()) || others(name.as_str())).cloned());
    for name in gone {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn only_end_to_end_headers_pass() {
        let sent = [
            ("authorization", "Bearer k"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("x-custom", "2"),
            ("content-length", "9"),
            ("transfer-encoding", "chunked"),
            ("x-warmpath-worker", "forged"),
            ("x-tenant-id", "forged"),
            ("x-data-parallel-rank", "3"),
            ("host", "router"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "5"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "Basic eA=="),
        ];
        let kept = [("authorization", "Bearer k"), ("x-custom", "2"), ("content-length", "9"), ("host", "router")];
        assert_eq!(end_to_end(headers(&sent)), headers(&kept));
    }

    #[test]
    fn cookies_become_one_header() {
        let cookies = |values: &[&'static str]| {
            let each = values.iter().map(|value| (header::COOKIE, HeaderValue::from_static(value)));
            let sent = end_to_end(each.collect());
            sent.get_all(header::COOKIE).iter().cloned().collect::<Vec<_>>()
        };
        assert_eq!(cookies(&["a=1", "b=2; c", "d"]), ["a=1; b=2; c; d"]);
        assert_eq!(cookies(&["a=1"]), ["a=1"]);
    }

    #[test]
    fn what_a_connection_names_stays_behind_beside_bytes_that_are_no_text() {
        let mut odd = headers(&[("x-hop", "1"), ("x-custom", "2")]);
        odd.insert(header::CONNECTION, HeaderValue::from_bytes(b"\xff, X-Hop ,").unwrap());
        assert_eq!(end_to_end(odd), headers(&[("x-custom", "2")]));
    }

    fn seen(status: u16, method: &Method, pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let (mut parts, ()) = http::Response::builder().status(status).body(()).unwrap().into_parts();
        parts.headers = headers(pairs);
        to_client(&mut parts, method, &Authority::from_static("10.0.0.1:8000"));
        parts.headers
    }

    #[test]
    fn what_a_worker_says_in_our_name_stays_behind() {
        let passed = seen(200, &Method::POST, &[("x-warmpath-worker", "forged"), ("server", "uvicorn")]);
        assert_eq!(passed, headers(&[("server", "uvicorn")]));
    }

    #[test]
    fn only_an_answer_without_a_body_keeps_its_length() {
        let length = &[("content-length", "9")];
        assert_eq!(seen(200, &Method::HEAD, length), headers(length));
        assert_eq!(seen(304, &Method::GET, length), headers(length));
        assert_eq!(seen(200, &Method::GET, length), HeaderMap::new());
        assert_eq!(seen(200, &Method::HEAD, &[("content-length", "+9")]), HeaderMap::new());
    }

    #[test]
    fn a_location_does_not_tell_where_the_worker_is() {
        for (location, told) in [
            ("http://10.0.0.1:8000/v1/x?a=//b#c", "/v1/x?a=//b#c"),
            ("HTTPS://10.0.0.1:8000?a", "/?a"),
            ("//10.0.0.1:8000", "/"),
            ("http://10.0.0.1:8000//other/x", "/other/x"),
            ("http://10.0.0.1:80/x", "http://10.0.0.1:80/x"),
            ("https://other/x", "https://other/x"),
            ("/x//10.0.0.1:8000/y", "/x//10.0.0.1:8000/y"),
            ("/x?to=http://10.0.0.1:8000/y", "/x?to=http://10.0.0.1:8000/y"),
        ] {
            assert_eq!(seen(307, &Method::GET, &[("location", location)])["location"], told, "{location}");
        }
    }

    #[test]
    fn media_types_are_compared_without_case_and_parameters() {
        let is = |value: &'static str| is_media(&headers(&[("content-type", value)]), "text/event-stream");
        assert_eq!(["text/event-stream", "Text/Event-Stream ; charset=utf-8"].map(is), [true; 2]);
        assert_eq!(["text/event-streams", "text/plain; text/event-stream"].map(is), [false; 2]);
    }
}
