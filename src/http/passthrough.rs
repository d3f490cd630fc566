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
use super::bulk;
use super::coding::unencoded;
use super::destination::Destination;
use super::forward::{Relayed, Understood, forward};
use super::gateway::Gateway;
use super::sender::SessionNames;
use crate::aside::in_place;
use crate::door::Answered;
use crate::error::GatewayError;
use crate::link::Outgoing;
use crate::openai::{Raw, has_few_messages, nests_within_reason, without_mark};
use crate::tokenize::Prompts;
use crate::upstream::end_to_end;

mod multipart;

/// What a worker may be asked to do; whether it does is for it to say.
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
const ALLOW: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// The fields of a body that are read; of messages how many there are.
#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(borrow)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow)]
    messages: Option<Raw<'a>>,
}

/// What a body says of its session, where it is text; what else stands there, or twice, is for the worker to judge.
#[derive(Default, Deserialize)]
struct Session<'a> {
    #[serde(borrow)]
    prompt_cache_key: Option<Raw<'a>>,
    #[serde(borrow)]
    user: Option<Raw<'a>>,
}

impl<'a> Session<'a> {
    /// O(body).
    fn read(body: &'a [u8]) -> [Option<Cow<'a, str>>; 2] {
        let Self { prompt_cache_key, user } = serde_json::from_slice(body).unwrap_or_default();
        [prompt_cache_key, user].map(|value| serde_json::from_str(value?.get()).ok())
    }
}

/// What a body is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Json,
    /// Forms too: nearly all of one is a file. Who reads them does so each in a way of its own.
    Media,
}

impl Kind {
    /// About how many tokens it comes to.
    fn tokens(self, body: &[u8]) -> Tokens {
        match self {
            Kind::Json => bulk::of_json(body),
            Kind::Media => bulk::of_media(body),
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
    let senders = &gateway.behaviour.senders;
    let read = || -> Result<_, GatewayError> {
        let content = Content::read(&parts.headers, &body, gateway.behaviour.messages_max)?;
        let is_read = content.kind == Kind::Json && senders.read_bodies();
        let session = if is_read { Session::read(&body) } else { [None, None] };
        let tokens = content.kind.tokens(&body);
        Ok((content, session, tokens))
    };
    let (Content { kind, model }, [prompt_cache_key, user], tokens) = in_place(body.len(), read)?;
    let destination = Destination::of(gateway, model.as_deref())?;
    let names_model = kind == Kind::Json && model.is_some();
    let pool = Arc::clone(&destination.pool);
    arrival.concerns(&pool);
    let (class, tenant) = (senders.class(&parts.headers, 0)?, senders.tenant(&parts.headers));
    let names = SessionNames { prompt_cache_key: prompt_cache_key.as_deref(), user: user.as_deref() };
    let affinity = senders.session(&parts.headers, names);
    let mut headers = end_to_end(parts.headers);
    arrival.name(&mut headers);
    let root = destination.root(None, pool.block_size, gateway.behaviour.index_seed);
    let path = parts.uri.into_parts().path_and_query;
    arrival.access.iter().for_each(|access| access.asks(&pool.model, tokens));
    let understood = Understood {
        access: arrival.access.clone(),
        key: arrival.key,
        id: arrival.id.clone(),
        arrived: arrival.at,
        deadline: arrival.deadline,
        shape: Shape { class, tenant, affinity, whole: true, unread: true, ..Shape::of(tokens, pool.block_size) },
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
            body,
        },
    };
    forward(gateway, &understood).await
}

/// What is understood of a body.
#[derive(Debug, PartialEq, Eq)]
struct Content<'a> {
    kind: Kind,
    /// The model that it names.
    model: Option<Cow<'a, str>>,
}

impl<'a> Content<'a> {
    /// O(body).
    ///
    /// # Errors
    /// Where two readers could disagree: it is JSON that is broken, or names a model twice, or is a form beyond what is read,
    /// or either is compressed.
    /// Where it is JSON beyond the limits of what engines are to read: nested too deep, or with more than `messages_max`.
    fn read(headers: &HeaderMap, body: &'a [u8], messages_max: usize) -> Result<Self, GatewayError> {
        let content_type = headers.get(header::CONTENT_TYPE).map_or(&[][..], |value| value.as_bytes());
        // What names no type is JSON to engines.
        let is_for_json = content_type.is_empty() || is_json(content_type);
        let boundary = multipart::boundary(content_type);
        if (is_for_json || boundary.is_some()) && !body.is_empty() {
            unencoded(headers)?;
        }
        if let Some(boundary) = boundary {
            let model = multipart::field(body, boundary, "model");
            let model = model.map_err(|unclear| {
                let field = (unclear != multipart::Unclear::LongBoundary).then_some("model");
                GatewayError::bad_request(unclear.to_string(), field)
            })?;
            return Ok(Self { kind: Kind::Media, model: model.map(Cow::Borrowed) });
        }
        let begin = without_mark(body).trim_ascii_start().first();
        if is_for_json && is_wide(body) {
            return Err(GatewayError::bad_request("the body is not UTF-8", None));
        }
        if begin == Some(&b'{') || begin == Some(&b'[') && is_for_json {
            nests_within_reason(body)?;
        }
        // What a mark precedes is not what every reader takes.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Ok(Self { kind: Kind::Media, model: None });
        }
        let fields: Result<Fields<'a>, _> = serde_json::from_slice(body);
        let Fields { model, messages } = fields.map_err(|error| {
            let what = if error.is_data() { "a valid request" } else { "valid JSON" };
            GatewayError::bad_request(format!("the body is not {what}: {error}"), None)
        })?;
        messages.map_or(Ok(()), |messages| has_few_messages(messages, messages_max))?;
        Ok(Self { kind: Kind::Json, model })
    }
}

/// Whether it begins as JSON of two or four bytes a character does, which some engines read, and nobody writes (RFC 8259, 8.1).
fn is_wide(body: &[u8]) -> bool {
    let marks: [&[u8]; 2] = [b"\xfe\xff", b"\xff\xfe"];
    marks.iter().any(|mark| body.starts_with(mark)) || body.iter().take(4).any(|byte| *byte == 0)
}

/// Whether a `Content-Type` is JSON, `application/vnd.x+json` among them.
fn is_json(content_type: &[u8]) -> bool {
    let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    media.len() >= 4 && media[media.len() - 4..].eq_ignore_ascii_case(b"json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(content_type: &'static str, body: &str) -> Result<(Option<String>, Kind), String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
        let found = Content::read(&headers, body.as_bytes(), 3).map_err(|error| error.to_string())?;
        Ok((found.model.map(Cow::into_owned), found.kind))
    }

    #[test]
    fn a_model_is_read_where_there_is_one() {
        const JSON: &str = "application/json";
        assert_eq!(named(JSON, r#" {"input":[[[1]]],"model":"a\u0062"}"#), Ok((Some("ab".to_owned()), Kind::Json)));
        assert_eq!(named(JSON, r#"{"input":{"model":"x"},"model":null}"#), Ok((None, Kind::Json)));
        assert_eq!(named(JSON, "\u{feff}{\"model\":\"m\"}"), Ok((None, Kind::Media)));
        assert_eq!(named(JSON, ""), Ok((None, Kind::Media)));
        assert_eq!(named("audio/wav", "RIFF"), Ok((None, Kind::Media)));
        let form = "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nw\r\n--b--\r\n";
        assert_eq!(named("multipart/form-data; boundary=b", form), Ok((Some("w".to_owned()), Kind::Media)));
    }

    #[test]
    fn a_session_is_read_where_its_name_is_text() {
        let names = |body: &str| {
            let [key, user] = Session::read(body.as_bytes()).map(|name| name.map(Cow::into_owned));
            (key, user)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(names(r#"{"prompt_cache_key":"a\u0062","user":"u"}"#), (text("ab"), text("u")));
        assert_eq!(names(r#"{"prompt_cache_key":{"k":1},"user":null}"#), (None, None));
        assert_eq!(names(r#"{"metadata":{"user":"u"}}"#), (None, None));
        assert_eq!(names(r#"{"user":"u","user":"v"}"#), (None, None));
        assert!(named("application/json", r#"{"model":"m","user":"u","user":"v"}"#).is_ok(), "for the worker to judge");
    }

    #[test]
    fn bodies_that_can_be_read_in_two_ways_are_refused() {
        for body in [r#"{"model":"a","model":"b"}"#, r#"{"model":"a"} {}"#, r#"{"model":"#, r#"{"model":3}"#] {
            assert!(named("application/json", body).is_err(), "{body}");
        }
    }

    #[test]
    fn json_in_wide_characters_is_refused_as_its_depth_is_not_seen() {
        let text = r#"{"model":"m"}"#;
        let wide = |unit: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(unit).collect::<Vec<u8>>();
        let (big, little) = (wide(u16::to_be_bytes), wide(u16::to_le_bytes));
        for body in [&big, &little, &[&b"\xfe\xff"[..], &big].concat(), &[&b"\xff\xfe"[..], &little].concat()] {
            let read = |content_type| {
                let mut headers = HeaderMap::new();
                headers.insert(header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
                Content::read(&headers, body, 3).map_err(|error| error.status().as_u16())
            };
            assert_eq!([read("application/json"), read("application/json; charset=utf-16")], [Err(400), Err(400)]);
        }
        assert_eq!(named("audio/wav", "\0\0RIFF"), Ok((None, Kind::Media)));
    }

    #[test]
    fn json_is_held_to_the_limits_of_depth_and_of_messages() {
        let json = |content_type, body: &str| named(content_type, body).map(|(_, kind)| kind);
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let deep = Err("the body is nested deeper than 64 levels".to_owned());
        let body = |value: &str| format!(r#"{{"model":"m","x":{value}}}"#);
        assert_eq!(json("application/json", &body(&nested(63))), Ok(Kind::Json));
        for levels in [64, 100_000] {
            assert_eq!(json("application/json", &body(&nested(levels))), deep);
            assert_eq!(json("text/plain", &body(&nested(levels))), deep);
            assert_eq!(json("", &format!("\u{feff}{}", body(&nested(levels)))), deep);
        }
        for content_type in ["", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert_eq!(json(content_type, &nested(65)), deep, "{content_type}");
        }
        assert_eq!(json("audio/wav", &nested(65)), Ok(Kind::Media));
        let messages = |list: &str| json("application/json", &format!(r#"{{"messages":{list}}}"#));
        for list in ["[1,{},[]]", "[]", "null", "7", "{}"] {
            assert_eq!(messages(list), Ok(Kind::Json), "{list}");
        }
        assert_eq!(messages("[1,2,3,4]"), Err("`messages` may have at most 3 elements".to_owned()));
    }
}
