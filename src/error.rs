//! What can go wrong with a request, and what the client is told. HTTP statuses stand here and nowhere else.

use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use warmpath_core::ids::WorkerId;
use warmpath_core::observe::Side;
use warmpath_core::queue::Refusal;
use warmpath_core::retry::Failure;
use warmpath_core::scheduler::PlaceError;

mod retry;

pub use retry::{Retry, SHOULD_RETRY, retry_after};

/// A cause whose type nobody needs.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

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
    /// What the request is addressed to is longer than the limit.
    #[error("the request's target is longer than {limit} bytes")]
    UriTooLong {
        /// `limits.uri_bytes`.
        limit: usize,
    },
    /// The request's head is larger than the limits.
    #[error("the request's head has more than {bytes} bytes or {fields} fields")]
    HeadTooLarge {
        /// `limits.header_bytes`.
        bytes: usize,
        /// `limits.headers`.
        fields: usize,
    },
    /// The request's head came too slowly.
    #[error("the request's head did not arrive in time")]
    HeadTimeout,
    /// There are as many connections as may be.
    #[error("there are too many connections")]
    TooManyConnections,
    /// The router stops, and its grace is over.
    #[error("the router is shutting down")]
    Stopping,
    /// The client's body did not arrive whole.
    #[error("the request body could not be read")]
    Body,
    /// The body is larger than the limit.
    #[error("the request body is larger than {limit} bytes")]
    BodyTooLarge {
        /// `limits.body`.
        limit: u64,
    },
    /// The body is compressed, and would have to be read.
    #[error(
        "the body is sent with `Content-Encoding: {coding}`, which is not read here: send it as it is, uncompressed"
    )]
    Encoded {
        /// The coding, as the client named it.
        coding: String,
    },
    /// The bodies of all requests together are as large as they may be.
    #[error("the router holds too many request bodies")]
    NoRoom,
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
    /// The request may not wait for a worker, or not any longer.
    #[error("{refusal}")]
    Queue {
        /// Why.
        refusal: Refusal,
        /// After which time another attempt may fare better.
        retry: Duration,
    },
    /// As many requests are in flight as may be, and none may wait.
    #[error("too many requests are in flight")]
    TooManyInFlight,
    /// The fleet changed under a placement.
    #[error("the worker has left")]
    NoSuchSlot,
    /// `timeouts.total`, or what the client allowed, is over, and nothing has gone to the client.
    #[error("the request was not answered in time")]
    Deadline,
    /// A worker could not be reached, or broke off.
    #[error("{}", failed(*failure))]
    Upstream {
        /// The worker.
        worker: WorkerId,
        /// What happened.
        failure: Failure,
        /// When the worker said to come back.
        retry_after: Option<Duration>,
        /// The cause.
        #[source]
        source: Option<BoxError>,
    },
    /// The head of this worker's answer is larger than is read.
    #[error("the head of a worker's answer is too large")]
    AnswerHead(WorkerId),
    /// A worker failed, and too many other requests are being tried again.
    #[error("a worker failed, and too many requests are being tried again already")]
    NoTurn {
        /// The worker.
        worker: WorkerId,
    },
    /// The connections of two workers broke under this request, or others with the same bytes.
    #[error("workers broke under this request: it is not sent to another one for now")]
    Suspect,
    /// A fault of the router's own.
    #[error("the router failed")]
    Internal,
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

    /// A worker failed, and did not say when it is to be asked again.
    pub(crate) fn upstream(worker: &WorkerId, failure: Failure, source: Option<BoxError>) -> Self {
        Self::Upstream { worker: worker.clone(), failure, retry_after: None, source }
    }

    /// The status that the client sees.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest { .. } | Self::Body => StatusCode::BAD_REQUEST,
            Self::BodyTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Encoded { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::BodyTimeout | Self::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::UriTooLong { .. } => StatusCode::URI_TOO_LONG,
            Self::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::TooManyConnections | Self::NoRoom | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::UnknownPath { .. } | Self::UnknownModel { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Place { .. } | Self::NoSuchSlot | Self::TooManyInFlight => StatusCode::SERVICE_UNAVAILABLE,
            Self::Queue { refusal: Refusal::TenantFull, .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Queue { .. } | Self::NoTurn { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Deadline => StatusCode::GATEWAY_TIMEOUT,
            Self::Suspect | Self::AnswerHead(_) => StatusCode::BAD_GATEWAY,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Upstream { failure, .. } => match failure {
                Failure::Connect | Failure::Starved | Failure::Unavailable | Failure::Ejected => {
                    StatusCode::SERVICE_UNAVAILABLE
                }
                Failure::Broken | Failure::Stale | Failure::ServerError | Failure::Denied => StatusCode::BAD_GATEWAY,
                Failure::Silent => StatusCode::GATEWAY_TIMEOUT,
                Failure::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
                Failure::NotServed => StatusCode::NOT_FOUND,
            },
        }
    }

    /// Whose fault it is.
    pub fn side(&self) -> Side {
        match self {
            Self::Upstream { failure: Failure::Starved, .. } => Side::Router,
            Self::Upstream { .. } | Self::AnswerHead(_) | Self::NoTurn { .. } | Self::Deadline => Side::Worker,
            Self::Queue { refusal: Refusal::TenantFull, .. } => Side::Client,
            Self::Place { .. }
            | Self::NoSuchSlot
            | Self::TooManyInFlight
            | Self::Internal
            | Self::Queue { .. }
            | Self::TooManyConnections
            | Self::NoRoom
            | Self::Stopping => Side::Router,
            _ => Side::Client,
        }
    }

    /// The worker that failed it last, which only the log may name.
    pub fn worker(&self) -> Option<&WorkerId> {
        match self {
            Self::Upstream { worker, .. } | Self::AnswerHead(worker) | Self::NoTurn { worker } => Some(worker),
            _ => None,
        }
    }

    /// The label of `requests_total`.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Place { source: PlaceError::AllBusy } => "all_busy",
            Self::Place { source: PlaceError::NoWorker } | Self::NoSuchSlot => "no_worker",
            Self::Queue { refusal: Refusal::TenantFull, .. } => "tenant_full",
            Self::Queue { .. } => "queue_refused",
            Self::TooManyInFlight => "too_many_in_flight",
            Self::Deadline => "deadline",
            Self::TooManyConnections => "too_many_connections",
            Self::NoRoom => "no_room",
            Self::Stopping => "shutting_down",
            Self::Upstream { failure: Failure::Starved, .. } => "no_descriptors",
            Self::Upstream { .. } | Self::AnswerHead(_) | Self::NoTurn { .. } => "upstream_error",
            Self::Suspect => "suspect",
            Self::Internal => "internal",
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
            Self::Queue { refusal, .. } => match refusal {
                Refusal::TenantFull => ("rate_limit_error", Some("rate_limit_exceeded")),
                Refusal::Full | Refusal::Displaced => ("service_unavailable", Some("queue_full")),
                Refusal::Expired => ("service_unavailable", Some("queue_timeout")),
            },
            Self::TooManyInFlight => ("service_unavailable", Some("too_many_in_flight")),
            Self::TooManyConnections => ("service_unavailable", Some("too_many_connections")),
            Self::NoRoom => ("service_unavailable", Some("too_many_bodies")),
            Self::Stopping => ("service_unavailable", Some("shutting_down")),
            Self::Deadline => ("upstream_error", Some("deadline_exceeded")),
            Self::Upstream { failure: Failure::Starved, .. } => ("service_unavailable", Some("no_descriptors")),
            Self::Upstream { failure: Failure::Silent, .. } => ("upstream_error", Some("upstream_timeout")),
            Self::Upstream { failure: Failure::TooManyRequests, .. } => {
                ("rate_limit_error", Some("rate_limit_exceeded"))
            }
            Self::Upstream { failure: Failure::NotServed, .. } => ("invalid_request_error", Some("model_not_found")),
            Self::Upstream { .. } => ("upstream_error", Some("upstream_failed")),
            Self::AnswerHead(_) => ("upstream_error", Some("upstream_head_too_large")),
            Self::NoTurn { .. } => ("upstream_error", Some("too_many_retries")),
            Self::Suspect => ("upstream_error", Some("request_suspect")),
            Self::Internal => ("server_error", Some("internal_error")),
            _ => ("invalid_request_error", None),
        }
    }

    /// What the client had better do: OpenAI's clients send a request up to three times, by default at once.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Queue { retry, .. } => Retry::After(*retry),
            Self::Upstream { failure, retry_after, .. } => match failure {
                // Nothing was computed.
                Failure::Connect
                | Failure::Starved
                | Failure::Ejected
                | Failure::Unavailable
                | Failure::TooManyRequests => Retry::After(retry_after.unwrap_or(RETRY_DEFAULT)),
                // Workers have tried and failed as often as is good for them, or need their operator.
                Failure::Broken | Failure::Stale | Failure::Silent | Failure::ServerError => Retry::Never,
                Failure::Denied | Failure::NotServed => Retry::Never,
            },
            Self::AnswerHead(_) | Self::NoTurn { .. } | Self::Suspect => Retry::Never,
            _ => match self.status() {
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => Retry::After(RETRY_DEFAULT),
                // It would be computed once more, and be as late.
                StatusCode::GATEWAY_TIMEOUT => Retry::Never,
                _ => Retry::Unsaid,
            },
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
        self.retry().tell(headers);
        response
    }
}

/// What a client is told of a failed attempt: never whose it was, which is for the log.
fn failed(failure: Failure) -> &'static str {
    match failure {
        Failure::Starved => "the router has no file descriptor left for a connection to a worker",
        Failure::TooManyRequests => "the workers have too much to do",
        Failure::NotServed => "no worker that was asked serves the model",
        _ => "a worker failed",
    }
}

/// Whether the process or the system has no file descriptor left (`EMFILE`, `ENFILE`).
pub fn is_starved(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(24 | 23))
}

/// After which time to try again where nothing better is known.
const RETRY_DEFAULT: Duration = Duration::from_secs(1);

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
    fn a_client_is_told_whether_and_when_to_try_again() {
        let told = |error: GatewayError| {
            let response: http::Response<Vec<u8>> = error.into_response();
            let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            let [after, after_ms, should] = ["retry-after", "retry-after-ms", "x-should-retry"].map(header);
            (response.status().as_u16(), after, after_ms, should)
        };
        let later = |status, after: &str, after_ms: &str| {
            (status, Some(after.to_owned()), Some(after_ms.to_owned()), Some("true".to_owned()))
        };
        let queue = |refusal, millis| GatewayError::Queue { refusal, retry: Duration::from_millis(millis) };
        assert_eq!(told(queue(Refusal::TenantFull, 100)), later(429, "1", "100"));
        assert_eq!(told(queue(Refusal::Full, 1_001)), later(503, "2", "1001"));
        assert_eq!(told(queue(Refusal::Displaced, 2_000)), later(503, "2", "2000"));
        assert_eq!(told(queue(Refusal::Expired, 30_000)), later(503, "30", "30000"));
        assert_eq!(told(PlaceError::NoWorker.into()), later(503, "1", "1000"));
        assert_eq!(told(GatewayError::Deadline), (504, None, None, Some("false".to_owned())));
        assert_eq!(told(GatewayError::Body), (400, None, None, None));
    }

    #[test]
    fn clients_come_back_only_where_nothing_was_computed() {
        let told = |failure, retry_after| {
            let error = GatewayError::Upstream { worker: "w".into(), failure, retry_after, source: None };
            (error.status().as_u16(), error.retry())
        };
        let second = Duration::from_secs(1);
        assert_eq!(told(Failure::Connect, None), (503, Retry::After(second)));
        assert_eq!(told(Failure::Unavailable, Some(second * 3)), (503, Retry::After(second * 3)));
        assert_eq!(told(Failure::TooManyRequests, Some(second / 2)), (429, Retry::After(second / 2)));
        assert_eq!(told(Failure::Broken, None), (502, Retry::Never));
        assert_eq!(told(Failure::Silent, None), (504, Retry::Never));
        assert_eq!(GatewayError::Suspect.retry(), Retry::Never);
        assert_eq!(GatewayError::Deadline.retry(), Retry::Never);
        assert_eq!(GatewayError::Internal.retry(), Retry::Unsaid);
    }

    #[test]
    fn no_client_hears_a_workers_name() {
        let failures = [
            Failure::Connect,
            Failure::Starved,
            Failure::Stale,
            Failure::Broken,
            Failure::Silent,
            Failure::Unavailable,
            Failure::TooManyRequests,
            Failure::ServerError,
            Failure::Denied,
            Failure::NotServed,
            Failure::Ejected,
        ];
        let upstream = |failure| {
            let source = Some("gpu-7 is at 10.0.0.7".into());
            GatewayError::Upstream { worker: "gpu-7".into(), failure, retry_after: None, source }
        };
        for error in failures.map(upstream).into_iter().chain([GatewayError::NoTurn { worker: "gpu-7".into() }]) {
            assert_eq!(error.worker(), Some(&"gpu-7".into()));
            let told = parts(error).1.to_string();
            assert!(!told.contains("gpu-7") && !told.contains("10.0.0.7"), "{told}");
        }
    }

    #[test]
    fn an_unknown_model_is_404() {
        let (status, body, _) = parts(GatewayError::UnknownModel { model: "x".into() });
        assert_eq!((status, body["error"]["code"].as_str()), (404, Some("model_not_found")));
    }
}
