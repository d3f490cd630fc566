//! What the door says by itself, without a handler: the same objects that handlers answer with.

use axum::body::Body;
use http::{HeaderValue, Response};

use crate::error::{GatewayError, error_json};
use crate::request_id::{self, REQUEST_ID};

/// The answer to a request, which may have a name.
pub(super) fn response(error: GatewayError, id: Option<HeaderValue>) -> Response<Body> {
    let mut response = error.into_response::<Body>();
    response.headers_mut().insert(REQUEST_ID, id.unwrap_or_else(request_id::refused));
    response
}

/// The last event of a stream that ends because the router does.
pub(super) fn last_event() -> Vec<u8> {
    let error = GatewayError::Stopping.to_string();
    let mut event = b"\n\ndata: ".to_vec();
    event.extend(error_json(&error, "service_unavailable", None, Some("shutting_down")));
    event.extend(b"\n\n");
    event
}

/// For whom there is no seat.
pub(super) fn too_many_connections() -> Vec<u8> {
    bytes(GatewayError::TooManyConnections)
}

/// A whole answer to a request of which nothing is known.
pub(super) fn whole(error: GatewayError) -> Response<Vec<u8>> {
    let mut response = error.into_response::<Vec<u8>>();
    response.headers_mut().insert(REQUEST_ID, request_id::refused());
    response
}

/// The same as bytes of HTTP/1, after which the connection ends.
pub(super) fn bytes(error: GatewayError) -> Vec<u8> {
    let response = whole(error);
    let status = response.status();
    let reason = status.canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in response.headers() {
        bytes.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend(format!("connection: close\r\ncontent-length: {}\r\n\r\n", response.body().len()).into_bytes());
    bytes.extend(response.body());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_whole_answer() {
        let text = String::from_utf8(bytes(GatewayError::UriTooLong { limit: 8192 })).unwrap();
        let body = "{\"error\":{\"message\":\"the request's target is longer than 8192 bytes\",\
                    \"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}";
        let (begin, rest) = text.split_once("x-request-id: wp-").expect("it has a name");
        let (_, end) = rest.split_once("\r\n").expect("the line ends");
        assert_eq!(begin, "HTTP/1.1 414 URI Too Long\r\ncontent-type: application/json\r\n");
        assert_eq!(end, format!("connection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    #[test]
    fn whoever_is_turned_away_is_told_when_to_come_back() {
        let text = String::from_utf8(too_many_connections()).unwrap();
        assert!(
            text.starts_with("HTTP/1.1 503 Service Unavailable\r\n") && text.contains("retry-after: 1\r\n"),
            "{text}"
        );
        assert!(text.contains("\"code\":\"too_many_connections\""), "{text}");
    }
}
