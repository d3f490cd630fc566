//! Towards the workers: one attempt, from the request to the first data of the answer.

use std::pin::pin;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, response};
use http_body::Body as _;
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::Instant;
use warmpath_core::retry::Failure;

use crate::alarm::in_time;
use crate::error::{GatewayError, error_json, retry_after};
use crate::fleet::Worker;
use crate::link::{Fault, Inflow, Outgoing, SendError, Stage, Way};
use crate::room::Room;
use headers::{RANK, is_media, to_client};
use sse::{ErrorEvent, SseScanner};

pub use headers::end_to_end;

pub mod guard;
mod headers;
pub mod progress;
pub mod record;
pub mod relay;
pub mod sse;
mod tail;
pub mod usage;
pub mod without_usage;

/// The most of a stream that is held back to see its first event.
const BEGIN_MAX: usize = 64 * 1024;

/// The most of a plain answer, or of an error, that is held back until it is whole: up to here another worker can take over.
const WHOLE_MAX: usize = 1024 * 1024;

/// How engines with several data-parallel ranks are told which one was chosen (vLLM).
pub(crate) const RANK_HEADER: HeaderName = HeaderName::from_static(RANK);

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

/// An answer whose first data is here.
#[derive(Debug)]
pub struct Answer {
    /// Status and end-to-end headers.
    pub parts: response::Parts,
    /// What it is.
    pub content: Content,
    /// The first data; none for an empty body.
    pub first: Option<Bytes>,
    /// The rest.
    pub rest: Inflow,
}

/// What an answer is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Server-sent events, of which the first is here.
    Events,
    /// The same, and the first says that the request is at fault.
    Refusal,
    /// Anything else.
    Other,
}

impl Answer {
    /// All of the body, where it was small enough to be held back.
    pub fn whole(&self) -> Option<Bytes> {
        self.is_whole().then(|| self.first.clone().unwrap_or_default())
    }

    /// Whether nothing more of the body is to come.
    pub fn is_whole(&self) -> bool {
        self.rest.is_end_stream()
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

    /// Sends a request and waits for the first event of a streamed answer, or for the whole of a plain one or an error.
    /// Engines send a stream's head at once, before prefill: only data says that work was done. Dropping the future closes
    /// the connection, and so cancels the work. What is held back takes `room`; where there is none left, it goes on as it comes.
    ///
    /// # Errors
    /// [`GatewayError::Upstream`] and [`GatewayError::AnswerHead`], always before the client has seen anything.
    pub async fn send(
        &self,
        worker: &Worker,
        outgoing: &Outgoing,
        way: Way,
        room: &Room,
    ) -> Result<Answer, GatewayError> {
        let until = Instant::now() + self.timeouts.first_byte;
        let own = own(worker);
        let sending = pin!(worker.link.send(outgoing, &own, way));
        let Some(sent) = in_time(until, sending).await else {
            return Err(GatewayError::upstream(&worker.id, Failure::Silent, None));
        };
        let response = sent.map_err(|SendError { stage, source }| {
            let failure = match stage {
                // It lives, and its client may have made it say so much: so would any other.
                Stage::TooLarge => return GatewayError::AnswerHead(worker.id.clone()),
                Stage::Connect => Failure::Connect,
                Stage::Starved => Failure::Starved,
                Stage::Stale => Failure::Stale,
                Stage::Broken => Failure::Broken,
            };
            GatewayError::upstream(&worker.id, failure, Some(source))
        })?;
        let (mut parts, mut rest) = response.into_parts();
        let failure = match parts.status {
            // Another protocol, for which nobody has asked.
            status if status.is_informational() => Some(Failure::Broken),
            StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
                Some(Failure::Unavailable)
            }
            StatusCode::TOO_MANY_REQUESTS => Some(Failure::TooManyRequests),
            _ => None,
        };
        if let Some(failure) = failure {
            let retry_after = retry_after(&parts.headers, SystemTime::now());
            drain(rest).await;
            return Err(GatewayError::Upstream { worker: worker.id.clone(), failure, retry_after, source: None });
        }
        let cut = |cut| match cut {
            Cut::Late => GatewayError::upstream(&worker.id, Failure::Silent, None),
            Cut::Broken(source) => GatewayError::upstream(&worker.id, Failure::Broken, Some(source.into())),
            Cut::Unserved(failure) => GatewayError::upstream(&worker.id, failure, None),
        };
        let patience = Patience { until, idle: self.timeouts.idle };
        let (content, first) = if is_event_stream(&parts, &outgoing.method) {
            let (content, first) = first_event(&mut rest, patience).await.map_err(cut)?;
            (content, Some(first))
        } else {
            let first = match whole(&mut rest, patience, (held_back(&parts), room)).await {
                Err(_) if parts.status.is_client_error() => Some(without_reason(&mut parts, &mut rest)),
                first => first.map_err(cut)?,
            };
            (Content::Other, first)
        };
        to_client(&mut parts, &outgoing.method, worker.link.authority());
        Ok(Answer { parts, content, first, rest })
    }
}

/// Whether an error says that there is no such model: as OpenAI does by its code, as vLLM by the field at fault.
pub fn disowns_model(error: &[u8]) -> bool {
    let error: Value = serde_json::from_slice(error).unwrap_or_default();
    // vLLM once told errors without an object around them.
    let error = error.get("error").unwrap_or(&error);
    error["code"] == "model_not_found" || error["param"] == "model"
}

/// What is said in the place of a worker's refusal that broke off: that it refused stands, and no other would say why.
fn without_reason(parts: &mut response::Parts, rest: &mut Inflow) -> Bytes {
    rest.give_up();
    parts.headers.remove(header::CONTENT_ENCODING);
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let message = "a worker refused the request, and its reason did not arrive";
    error_json(message, "upstream_error", None, Some("upstream_failed")).into()
}

/// Reads the rest of a small answer that is at hand, so that its connection can be kept.
async fn drain(rest: Inflow) {
    const AT_HAND: Duration = Duration::from_millis(5);
    const REST_MAX: usize = 64 * 1024;
    let rest = http_body_util::Limited::new(rest, REST_MAX);
    // Whatever does not end so soon is closed instead.
    drop(tokio::time::timeout(AT_HAND, rest.collect()).await);
}

/// Whether an answer to `method` is a stream whose first event tells whether the request is served.
fn is_event_stream(response::Parts { status, headers, .. }: &response::Parts, method: &Method) -> bool {
    let has_body = *method != Method::HEAD && !matches!(*status, StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT);
    // One that is compressed cannot be read: it passes as any other answer does.
    let encoding = headers.get(header::CONTENT_ENCODING);
    let is_plain = encoding.is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    status.is_success() && has_body && is_plain && is_media(headers, "text/event-stream")
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
    Broken(Fault),
    /// What came says that the request is not served.
    Unserved(Failure),
}

impl Patience {
    /// The next data, as if nothing had come yet; none at the end.
    async fn first(self, body: &mut Inflow) -> Result<Option<Bytes>, Cut> {
        in_time(self.until, next_data(body)).await.ok_or(Cut::Late)?.map_err(Cut::Broken)
    }

    /// The next data, after others.
    async fn next(self, body: &mut Inflow) -> Result<Option<Bytes>, Cut> {
        Self { until: Instant::now() + self.idle, ..self }.first(body).await
    }
}

async fn next_data(body: &mut Inflow) -> Result<Option<Bytes>, Fault> {
    while let Some(frame) = body.frame().await {
        match frame?.into_data() {
            Ok(data) if !data.is_empty() => return Ok(Some(data)),
            _ => {}
        }
    }
    Ok(None)
}

/// How much of an answer that is no stream of events is held back. Sound and the like may come as slowly as it is heard;
/// as soon as there is some, the work is being done. An error is as small whatever it is made of.
fn held_back(response::Parts { status, headers, .. }: &response::Parts) -> usize {
    let is_document = !headers.contains_key(header::CONTENT_TYPE) || is_media(headers, "application/json");
    if is_document || !status.is_success() { WHOLE_MAX } else { 0 }
}

/// A plain answer, or its beginning where it has more than `max` bytes or there is no room for more. None for an empty body.
async fn whole(body: &mut Inflow, patience: Patience, (max, room): (usize, &Room)) -> Result<Option<Bytes>, Cut> {
    let Some(first) = patience.first(body).await? else { return Ok(None) };
    let (mut pieces, mut held) = (vec![first], room.hold());
    let mut len = pieces[0].len();
    while held.grow_to(len) && len <= max && !body.is_end_stream() {
        let Some(data) = patience.next(body).await? else { break };
        len += data.len();
        pieces.push(data);
    }
    Ok(Some(held.keep(if let [only] = pieces.as_slice() { only.clone() } else { pieces.concat().into() })))
}

/// What a stream begins with, up to its first whole event; comments promise nothing, and are no first data. One that begins
/// with an error serves nothing: unless the request is at fault, another worker may.
async fn first_event(body: &mut Inflow, patience: Patience) -> Result<(Content, Bytes), Cut> {
    let mut scanner = SseScanner::default();
    let mut begin = Bytes::new();
    loop {
        let data = patience.first(body).await?;
        let is_over = data.is_none();
        if let Some(data) = data {
            scanner.scan(&data);
            begin = if begin.is_empty() { data } else { [begin, data].concat().into() };
        } else {
            scanner.finish();
        }
        let seen = scanner.seen();
        match seen.error.filter(|error| error.is_first).map(ErrorEvent::failure) {
            Some(Some(failure)) => return Err(Cut::Unserved(failure)),
            Some(None) => return Ok((Content::Refusal, begin)),
            None if is_over && !seen.done => return Err(Cut::Unserved(Failure::Unavailable)),
            None if seen.events > 0 || seen.done || begin.len() > BEGIN_MAX => return Ok((Content::Events, begin)),
            None => {}
        }
    }
}

/// What the worker is told by the router in the place of what its client says.
fn own(worker: &Worker) -> HeaderMap {
    let mut own = HeaderMap::new();
    if let Some(authorization) = worker.authorization() {
        own.insert(header::AUTHORIZATION, authorization);
    }
    if let Some(rank) = worker.rank.filter(|_| worker.tells_rank) {
        own.insert(RANK_HEADER, HeaderValue::from(rank.0));
    }
    own
}
