//! What can go wrong with a request, and what the client is told. HTTP statuses stand here and nowhere else.

use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use warmpath_core::ids::WorkerId;
use warmpath_core::observe::Side;
use warmpath_core::scheduler::PlaceError;

/// A cause whose type nobody needs.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A request that was not answered as it should be.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The client's request makes no sense.
    #[error("{message}")]
    BadRequest {
        /// What is wrong and how to mend it.
        message: String,
        /// The field at fault.
        param: Option<String>,
    },
    /// The client's body did not arrive whole.
    #[error("the request body could not be read")]
    Body,
    /// The body is larger than the limit.
    #[error("the request body is larger than {limit} bytes")]
    BodyTooLarge {
        /// `limits.body`.
        limit: u64,
    },
    /// The client's body came too slowly.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// No such path.
    #[error("unknown path `{path}`")]
    UnknownPath {
        /// The path.
        path: String,
    },
    /// The path exists, the method does not.
    #[error("method not allowed")]
    Method {
        /// The methods that are, as `Allow` has them.
        allow: &'static str,
    },
    /// No pool has this name.
    #[error("the model `{model}` does not exist")]
    UnknownModel {
        /// The model asked for.
        model: String,
    },
    /// No worker could be chosen.
    #[error("{source}")]
    Place {
        /// Why.
        #[source]
        source: PlaceError,
    },
    /// The fleet changed under a placement.
    #[error("the worker has left")]
    NoSuchSlot,
    /// `timeouts.total` is over, and nothing has gone to the client.
    #[error("the request was not answered in time")]
    Deadline,
    /// A worker could not be reached, or broke off.
    #[error("worker `{worker}` failed")]
    Upstream {
        /// The worker.
        worker: WorkerId,
        /// What happened.
        failure: UpstreamFailure,
        /// The cause.
        #[source]
        source: Option<BoxError>,
    },
}

/// How an attempt on a worker failed before the client had seen anything of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamFailure {
    /// No connection.
    Connect,
    /// The connection broke before the first data of the body.
    Broken,
    /// No data within the first-byte time-out.
    FirstByteTimeout,
    /// It said that it cannot serve now (502, 503, 504), or its stream began with an error.
    Unavailable,
    /// It said that it has too much to do (429).
    TooManyRequests,
    /// An operator ejected it.
    Ejected,
}

impl UpstreamFailure {
    /// The label of `retries_total`.
    pub fn label(self) -> &'static str {
        match self {
            UpstreamFailure::Connect => "connect",
            UpstreamFailure::Broken => "broken",
            UpstreamFailure::FirstByteTimeout => "first_byte_timeout",
            UpstreamFailure::Unavailable => "unavailable",
            UpstreamFailure::TooManyRequests => "too_many_requests",
            UpstreamFailure::Ejected => "ejected",
        }
    }

    /// Whether it tells against the worker's health. Too much to do is a load, not a fault.
    pub fn is_fault(self) -> bool {
        !matches!(self, UpstreamFailure::TooManyRequests | UpstreamFailure::Ejected)
    }
}

/// The error object of the OpenAI API.
#[derive(Debug, Serialize)]
struct Envelope<'a> {
    error: Body<'a>,
}

#[derive(Debug, Serialize)]
struct Body<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

/// An error object as JSON.
pub fn error_json(message: &str, kind: &'static str, param: Option<&str>, code: Option<&'static str>) -> Vec<u8> {
    let envelope = Envelope { error: Body { message, r#type: kind, param, code } };
    serde_json::to_vec(&envelope).expect("strings always serialise")
}

impl GatewayError {
    /// A request that makes no sense.
    pub fn bad_request(message: impl Into<String>, param: Option<&str>) -> Self {
        Self::BadRequest { message: message.into(), param: param.map(str::to_owned) }
    }

    /// The status that the client sees.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::Body => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::UnknownPath { .. } | Self::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Place { .. } | Self::NoSuchSlot => StatusCode::SERVICE_UNAVAILABLE,
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Self::Upstream { failure, .. } => match failure {
                UpstreamFailure::Connect | UpstreamFailure::Unavailable | UpstreamFailure::Ejected => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                UpstreamFailure::Broken => StatusCode::BAD_GATEWAY,
                UpstreamFailure::FirstByteTimeout => StatusCode::GATEWAY_TIMEOUT,
                UpstreamFailure::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            },
        }
    }

    /// Whose fault it is.
    pub fn side(&self) -> Side {
        match self {
            Self::Upstream { .. } | Self::Deadline => Side::Worker,
            Self::Place { .. } | Self::NoSuchSlot => Side::Router,
            _ => Side::Client,
        }
    }

    /// The label of `requests_total`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Place { source: PlaceError::AllBusy } => "all_busy",
            Self::Place { source: PlaceError::NoWorker } | Self::NoSuchSlot => "no_worker",
            Self::Deadline => "deadline",
            Self::Upstream { .. } => "upstream_error",
            Self::UnknownModel { .. } => "unknown_model",
            _ => "bad_request",
        }
    }

    /// Type and code of the OpenAI error object.
    fn kind_and_code(&self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::UnknownModel { .. } => ("invalid_request_error", Some("model_not_found")),
            Self::Place { source: PlaceError::AllBusy } => ("service_unavailable", Some("all_workers_busy")),
            Self::Place { source: PlaceError::NoWorker } | Self::NoSuchSlot => {
                ("service_unavailable", Some("no_worker"))
            }
            Self::Deadline => ("upstream_error", Some("deadline_exceeded")),
            Self::Upstream { failure: UpstreamFailure::FirstByteTimeout, .. } => {
                ("upstream_error", Some("upstream_timeout"))
            }
            Self::Upstream { .. } => ("upstream_error", Some("upstream_failed")),
            _ => ("invalid_request_error", None),
        }
    }

    /// The whole answer. Where a retry may help, its headers say when.
    pub fn into_response<B: From<Vec<u8>>>(self) -> http::Response<B> {
        let (kind, code) = self.kind_and_code();
        let param = match &self {
            Self::BadRequest { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            _ => None,
        };
        let mut response = http::Response::new(B::from(error_json(&self.to_string(), kind, param, code)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Self::Method { allow } = self {
            headers.insert(header::ALLOW, HeaderValue::from_static(allow));
        }
        if matches!(self.status(), StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert("retry-after-ms", HeaderValue::from_static("1000"));
        }
        response
    }
}

impl From<PlaceError> for GatewayError {
    fn from(source: PlaceError) -> Self {
        Self::Place { source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(error: GatewayError) -> (u16, serde_json::Value, bool) {
        let response: http::Response<Vec<u8>> = error.into_response();
        let retry = response.headers().contains_key(header::RETRY_AFTER);
        (response.status().as_u16(), serde_json::from_slice(response.body()).unwrap(), retry)
    }

    #[test]
    fn a_bad_request_names_its_field() {
        let (status, body, retry) = parts(GatewayError::bad_request("`prompt` is empty", Some("prompt")));
        assert_eq!((status, retry), (400, false));
        let expected = serde_json::json!({"error": {"message": "`prompt` is empty", "type": "invalid_request_error",
            "param": "prompt", "code": null}});
        assert_eq!(body, expected);
    }

    ///
    #[test]
    fn r025_all_busy_is_503_with_a_time_to_retry() {
        let (status, body, retry) = parts(PlaceError::AllBusy.into());
        assert_eq!((status, retry), (503, true));
        assert_eq!(body["error"]["code"], "all_workers_busy");
    }

    #[test]
    fn an_unknown_model_is_404() {
        let (status, body, _) = parts(GatewayError::UnknownModel { model: "x".into() });
        assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    }
}
