//! Towards the workers: one attempt, from the request to the first data of the answer.

use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::PathAndQuery;
use http::{Method, Request, StatusCode, response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, timeout_at};
use warmpath_core::retry::Failure;

use crate::error::{BoxError, GatewayError, retry_after};
use crate::fleet::Worker;
use crate::link::{Inflow, SendError, Stage, Way};
use sse::SseScanner;

pub mod guard;
pub mod progress;
pub mod record;
pub mod relay;
pub mod sse;
pub mod usage;
pub mod without_usage;

/// The most of a stream that is held back to see its first event.
const BEGIN_MAX: usize = 64 * 1024;

/// The most of a plain answer that is held back until it is whole: up to here another worker can take over.
const WHOLE_MAX: usize = 1024 * 1024;

/// How engines with several data-parallel ranks are told which one was chosen (vLLM).
pub(crate) const RANK_HEADER: HeaderName = HeaderName::from_static(RANK);
const RANK: &str = "x-data-parallel-rank";

/// How long an attempt may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// Until the first data of the body.
    pub first_byte: Duration,
    /// Between two pieces of the body.
    pub idle: Duration,
}

/// Makes attempts.
#[derive(Clone, Copy, Debug)]
pub struct Upstream {
    timeouts: Timeouts,
}

/// What goes to a worker: the client's bytes as they came.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: PathAndQuery,
    /// The client's headers without those of its connection: [`end_to_end`].
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
}

/// An answer whose first data is here.
#[derive(Debug)]
pub struct Answer {
    /// Status and end-to-end headers.
    pub parts: response::Parts,
    /// The first data; none for an empty body.
    pub first: Option<Bytes>,
    /// The rest.
    pub rest: Inflow,
}

impl Answer {
    /// The whole body, of an answer that is no success: those are small.
    ///
    /// # Errors
    /// When the worker breaks off, or sends more than `limit` bytes.
    pub async fn collect(self, limit: usize) -> Result<(response::Parts, Bytes), crate::error::BoxError> {
        let rest = http_body_util::Limited::new(self.rest, limit).collect().await?.to_bytes();
        let body = match self.first {
            Some(first) if rest.is_empty() => first,
            Some(first) => [first, rest].concat().into(),
            None => rest,
        };
        Ok((self.parts, body))
    }

    /// Whether it is a stream of server-sent events.
    pub fn is_event_stream(&self) -> bool {
        is_event_stream(&self.parts)
    }
}

impl Upstream {
    /// Attempts with these time-outs.
    pub fn new(timeouts: Timeouts) -> Self {
        Self { timeouts }
    }

    /// The time-outs.
    pub fn timeouts(&self) -> Timeouts {
        self.timeouts
    }

    /// Sends a request and waits for the first event of a streamed answer, or for the whole of a plain one. Engines send a
    /// stream's head at once, before prefill: only data says that work was done. Dropping the future closes the connection, and so cancels the work.
    ///
    /// # Errors
    /// [`GatewayError::Upstream`], always before the client has seen anything.
    pub async fn send(&self, worker: &Worker, outgoing: &Outgoing, way: Way) -> Result<Answer, GatewayError> {
        let until = Instant::now() + self.timeouts.first_byte;
        let sent = timeout_at(until, worker.link.send(addressed(worker, outgoing), way)).await;
        let Ok(sent) = sent else { return Err(failed(worker, Failure::Silent, None)) };
        let response = sent.map_err(|SendError { stage, source }| {
            let failure = match stage {
                Stage::Connect => Failure::Connect,
                Stage::Starved => Failure::Starved,
                Stage::Stale => Failure::Stale,
                Stage::Broken => Failure::Broken,
            };
            failed(worker, failure, Some(source))
        })?;
        let (mut parts, mut rest) = response.into_parts();
        strip_connection_headers(&mut parts.headers);
        let failure = match parts.status {
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Some(Failure::Unavailable)
            }
            StatusCode::TOO_MANY_REQUESTS => Some(Failure::TooManyRequests),
            _ => None,
        };
        if let Some(failure) = failure {
            let retry_after = retry_after(&parts.headers);
            drain(rest).await;
            return Err(GatewayError::Upstream { worker: worker.id.clone(), failure, retry_after, source: None });
        }
        let cut = |cut| match cut {
            Cut::Late => failed(worker, Failure::Silent, None),
            Cut::Broken(source) => failed(worker, Failure::Broken, Some(source.into())),
        };
        let patience = Patience { until, idle: self.timeouts.idle };
        if !is_event_stream(&parts) {
            let first = whole(&mut rest, patience, held_back(&parts)).await.map_err(cut)?;
            return Ok(Answer { parts, first, rest });
        }
        match first_event(&mut rest, patience).await.map_err(cut)? {
            Some(first) => Ok(Answer { parts, first: Some(first), rest }),
            None => Err(failed(worker, Failure::Unavailable, None)),
        }
    }
}

/// Reads the rest of a small answer that is at hand, so that its connection can be kept.
async fn drain(rest: Inflow) {
    const AT_HAND: Duration = Duration::from_millis(5);
    const REST_MAX: usize = 64 * 1024;
    let rest = http_body_util::Limited::new(rest, REST_MAX);
    // Whatever does not end so soon is closed instead.
    drop(tokio::time::timeout(AT_HAND, rest.collect()).await);
}

fn is_event_stream(parts: &response::Parts) -> bool {
    let has = |name, value: &[u8]| parts.headers.get(name).is_some_and(|header| header.as_bytes().starts_with(value));
    // One that is compressed cannot be read: it passes as any other answer does.
    let is_plain = !parts.headers.contains_key(header::CONTENT_ENCODING) || has(header::CONTENT_ENCODING, b"identity");
    is_plain && has(header::CONTENT_TYPE, b"text/event-stream")
}

/// How long data is waited for: the first until a moment, what follows it for so long each time.
#[derive(Clone, Copy)]
struct Patience {
    until: Instant,
    idle: Duration,
}

/// Why there is no more data.
enum Cut {
    Late,
    Broken(hyper::Error),
}

impl Patience {
    /// The next data, as if nothing had come yet; none at the end.
    async fn first(self, body: &mut Inflow) -> Result<Option<Bytes>, Cut> {
        timeout_at(self.until, next_data(body)).await.map_err(|_| Cut::Late)?.map_err(Cut::Broken)
    }

    /// The next data, after others.
    async fn next(self, body: &mut Inflow) -> Result<Option<Bytes>, Cut> {
        Self { until: Instant::now() + self.idle, ..self }.first(body).await
    }
}

async fn next_data(body: &mut Inflow) -> Result<Option<Bytes>, hyper::Error> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

/// How much of an answer that is no stream of events is held back. Sound and the like may come as slowly as it is heard;
/// as soon as there is some, the work is being done.
fn held_back(parts: &response::Parts) -> usize {
    let content_type = parts.headers.get(header::CONTENT_TYPE);
    if content_type.is_none_or(|value| value.as_bytes().starts_with(b"application/json")) { WHOLE_MAX } else { 0 }
}

/// A plain answer, or its beginning where it has more than `max` bytes. None for an empty body.
async fn whole(body: &mut Inflow, patience: Patience, max: usize) -> Result<Option<Bytes>, Cut> {
    let Some(first) = patience.first(body).await? else { return Ok(None) };
    let mut pieces = vec![first];
    let mut len = pieces[0].len();
    while len <= max && !http_body::Body::is_end_stream(body) {
        let Some(data) = patience.next(body).await? else { break };
        len += data.len();
        pieces.push(data);
    }
    Ok(Some(if let [only] = pieces.as_slice() { only.clone() } else { pieces.concat().into() }))
}

/// What a stream begins with, up to its first whole event; comments promise nothing. None for a stream without events,
/// and for one that begins with an error: then nothing was done, and another worker may do it. Comments are no first data.
async fn first_event(body: &mut Inflow, patience: Patience) -> Result<Option<Bytes>, Cut> {
    let mut scanner = SseScanner::default();
    let mut begin = Bytes::new();
    while let Some(data) = patience.first(body).await? {
        scanner.scan(&data);
        begin = if begin.is_empty() { data } else { [begin, data].concat().into() };
        let seen = scanner.seen();
        if seen.began_with_error {
            return Ok(None);
        }
        if seen.events > 0 || seen.done || begin.len() > BEGIN_MAX {
            return Ok(Some(begin));
        }
    }
    Ok(None)
}

fn failed(worker: &Worker, failure: Failure, source: Option<BoxError>) -> GatewayError {
    GatewayError::Upstream { worker: worker.id.clone(), failure, retry_after: None, source }
}

fn addressed(worker: &Worker, outgoing: &Outgoing) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(outgoing.body.clone()));
    *request.method_mut() = outgoing.method.clone();
    *request.uri_mut() = outgoing.path.clone().into();
    *request.headers_mut() = outgoing.headers.clone();
    if let Some(authorization) = worker.authorization() {
        request.headers_mut().insert(header::AUTHORIZATION, authorization);
    }
    if let Some(rank) = worker.rank.filter(|_| worker.tells_rank) {
        request.headers_mut().insert(RANK_HEADER, HeaderValue::from(rank.0));
    }
    request
}

/// Whether a header belongs to one connection (RFC 9110, 7.6.1), or is framing that is written anew.
fn is_of_connection(name: &str) -> bool {
    matches!(
        name,
        "connection"
            | "content-length"
            | "host"
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
/// ours.
pub fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers, |name| name == "expect" || is_ours(name));
    headers
}

fn is_ours(name: &str) -> bool {
    name.starts_with("x-warmpath-") || name.starts_with("proxy-") || name == "x-tenant-id" || name == RANK
}

fn strip_connection_headers(headers: &mut HeaderMap) {
    strip(headers, |_| false);
}

/// Takes out the headers of the connection, those that it names, and `others`. One look at each header: to remove by name
/// would hash a dozen names that are not there.
fn strip(headers: &mut HeaderMap, others: impl Fn(&str) -> bool) {
    let listed = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let mut gone: Vec<HeaderName> =
        listed.flat_map(|value| value.split(',')).filter_map(|name| name.trim().parse().ok()).collect();
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
        let passed = end_to_end(headers(&[
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
        ]));
        assert_eq!(passed, headers(&[("authorization", "Bearer k"), ("x-custom", "2")]));
    }
}
