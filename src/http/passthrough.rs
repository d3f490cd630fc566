//! Requests of which only the model is understood: they go to one of its workers by load, and pass as they came.

use std::borrow::Cow;
use std::pin::pin;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, Method, header};
use serde::Deserialize;
use warmpath_core::shape::Shape;
use warmpath_core::units::Tokens;

use super::arrival::Arrival;
use super::completions::BYTES_PER_TOKEN;
use super::destination::Destination;
use super::forward::{Relayed, Understood, forward};
use super::gateway::Gateway;
use crate::door::Answered;
use crate::error::GatewayError;
use crate::link::Outgoing;
use crate::tokenize::Prompts;
use crate::upstream::end_to_end;

mod multipart;

/// What a worker may be asked to do; whether it does is for it to say.
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
const ALLOW: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// Bytes of sound or image that cost an engine as much as a token, about: half a minute of speech is 1 500 of them for
/// Whisper, and between 0.2 and 1 MB.
const MEDIA_BYTES_PER_TOKEN: usize = 512;

/// The one field of a body that is read.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
}

/// What a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    /// Forms too: nearly all of one is a file. Who reads them does so each in a way of its own.
    Media,
}

impl Kind {
    fn bytes_per_token(self) -> usize {
        match self {
            Kind::Json => BYTES_PER_TOKEN,
            Kind::Media => MEDIA_BYTES_PER_TOKEN,
        }
    }
}

/// Any path that has no handler of its own.
pub(super) async fn pass(State(gateway): State<Arc<Gateway>>, request: Request) -> Answered {
    let path = request.uri().path();
    let is_passed = gateway.passthrough.iter().any(|passed| passed.covers(path));
    let mut arrival = Arrival::now(&gateway, request.headers(), if is_passed { "passed" } else { "refused" });
    if !is_passed {
        let path = path.chars().take(200).collect();
        return arrival.refuse(&gateway, GatewayError::UnknownPath { path });
    }
    if !METHODS.contains(request.method()) {
        return arrival.refuse(&gateway, GatewayError::Method { allow: ALLOW });
    }
    if let Err(error) = arrival.hurry(&gateway, request.headers()) {
        return arrival.refuse(&gateway, error);
    }
    let handled = pin!(handle(&gateway, &arrival, request));
    arrival.conclude(&gateway, handled).await
}

async fn handle(gateway: &Gateway, arrival: &Arrival, request: Request) -> Result<Response, GatewayError> {
    let (parts, body) = request.into_parts();
    let body = gateway.read_body(body, arrival.at).await?;
    let (model, kind) = model(&parts.headers, &body)?;
    let destination = Destination::of(gateway, model.as_deref())?;
    let names_model = kind == Kind::Json && model.is_some();
    let pool = Arc::clone(&destination.pool);
    arrival.concerns(&pool);
    let senders = &gateway.behaviour.senders;
    let (class, tenant) = (senders.class(&parts.headers, 0)?, senders.tenant(&parts.headers));
    let affinity = senders.session(&parts.headers, None);
    let mut headers = end_to_end(parts.headers);
    arrival.name(&mut headers);
    let tokens = Tokens(u32::try_from(body.len() / kind.bytes_per_token()).unwrap_or(u32::MAX));
    let root = destination.root(None, pool.block_size, gateway.behaviour.index_seed);
    let path = parts.uri.into_parts().path_and_query;
    arrival.access.iter().for_each(|access| access.asks(&pool.model, tokens));
    let understood = Understood {
        access: arrival.access.clone(),
        key: arrival.key,
        id: arrival.id.clone(),
        arrived: arrival.at,
        deadline: arrival.deadline,
        shape: Shape { class, tenant, affinity, whole: true, ..Shape::of(tokens, pool.block_size) },
        root,
        prompts: Prompts::Ids(Vec::new()),
        texts: (root, Vec::new()),
        relayed: Relayed::Unread,
        adapter: destination.adapter,
        alias: destination.alias,
        names_model,
        pool,
        outgoing: Outgoing {
            method: parts.method,
            path: path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")),
            headers,
            body: body.clone(),
        },
    };
    forward(gateway, &understood).await
}

/// The model that a body names, if it does, and what the body is. O(body).
///
/// # Errors
/// Where two readers could disagree: it is JSON that is broken, or names a model twice, or is a form beyond what is read.
fn model<'a>(headers: &HeaderMap, body: &'a [u8]) -> Result<(Option<Cow<'a, str>>, Kind), GatewayError> {
    let content_type = headers.get(header::CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
    if let Some(boundary) = multipart::boundary(content_type) {
        let model = multipart::field(body, boundary, "model");
        let model = model.map_err(|unclear| GatewayError::bad_request(unclear.to_string(), Some("model")))?;
        return Ok((model.map(Cow::Borrowed), Kind::Media));
    }
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Ok((None, Kind::Media));
    }
    let fields: Result<Fields<'a>, _> = serde_json::from_slice(body);
    let Fields { model } = fields.map_err(|error| {
        let what = if error.is_data() { "a valid request" } else { "valid JSON" };
        GatewayError::bad_request(format!("the body is not {what}: {error}"), None)
    })?;
    Ok((model, Kind::Json))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(content_type: &'static str, body: &str) -> Result<(Option<String>, Kind), String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        let found = model(&headers, body.as_bytes()).map_err(|error| error.to_string())?;
        Ok((found.0.map(Cow::into_owned), found.1))
    }

    #[test]
    fn a_model_is_read_where_there_is_one() {
        const JSON: &str = "application/json";
        assert_eq!(named(JSON, r#" {"input":[[[1]]],"model":"a\u0062"}"#), Ok((Some("ab".to_owned()), Kind::Json)));
        assert_eq!(named(JSON, r#"{"input":{"model":"x"},"model":null}"#), Ok((None, Kind::Json)));
        assert_eq!(named(JSON, ""), Ok((None, Kind::Media)));
        assert_eq!(named("audio/wav", "RIFF"), Ok((None, Kind::Media)));
        let form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nw\r\n--b--\r\n";
        assert_eq!(named("multipart/form-data; boundary=b", form), Ok((Some("w".to_owned()), Kind::Media)));
    }

    #[test]
    fn bodies_that_can_be_read_in_two_ways_are_refused() {
        for body in [r#"{"model":"a","model":"b"}"#, r#"{"model":"a"} {}"#, r#"{"model":"#, r#"{"model":3}"#] {
            assert!(named("application/json", body).is_err(), "{body}");
        }
        let deep = format!(r#"{{"x":{}1{},"model":"m"}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(named("application/json", &deep), Ok((Some("m".to_owned()), Kind::Json)));
    }
}
