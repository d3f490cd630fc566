//! One engine, as it is asked over HTTP. Every wait ends, every answer has a bound.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, header};
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_core::ids::{Rank, TokenId};
use warmpath_core::observe::Usage;

use crate::config::{BaseUrl, MetricNames, Secret, Worker};
use crate::fleet::scrape::Scrape;
use crate::link::{AskError, Link, Links, Outgoing};
use crate::tokenize::remote::Fixed;
use crate::upstream::{RANK_HEADER, usage};

/// The most of an answer that is read: a million token ids with their commas.
const ANSWER_MAX: usize = 16 << 20;

/// Characters of an engine's own words that are repeated.
const WORDS_MAX: usize = 200;

/// One engine.
pub(super) struct Engine {
    link: Result<Arc<Link>, String>,
    base: String,
    authorization: Option<HeaderValue>,
    /// Whether it is told which of its ranks is meant.
    tells_rank: bool,
    presets: Vec<MetricNames>,
    timeout: Duration,
}

/// What it answered.
pub(super) struct Reply {
    pub(super) status: u16,
    body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoReply {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Broken(String),
    #[error("an answer of more than {ANSWER_MAX} bytes")]
    TooLong,
}

#[derive(Deserialize)]
struct Failure {
    error: Option<Value>,
    message: Option<Value>,
}

impl Reply {
    pub(super) fn is_good(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The JSON that it is.
    pub(super) fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok()
    }

    pub(super) fn usage(&self) -> Usage {
        usage::read(&self.body)
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap_or_default()
    }

    /// Its status, and the engine's own words for it.
    pub(super) fn refusal(&self) -> String {
        let failure: Option<Failure> = serde_json::from_slice(&self.body).ok();
        let message = failure.and_then(|failure| match failure.error {
            Some(Value::Object(mut error)) => error.remove("message"),
            error => failure.message.or(error),
        });
        match message.as_ref().and_then(Value::as_str) {
            Some(words) => format!("HTTP {}: {}", self.status, words.chars().take(WORDS_MAX).collect::<String>()),
            None => format!("HTTP {}", self.status),
        }
    }
}

impl Engine {
    pub(super) fn new(links: &Links, worker: &Worker, presets: &[MetricNames], timeout: Duration) -> Self {
        let url = &worker.url.value;
        let key = worker.api_key.as_ref().map(Secret::expose);
        Self {
            link: link_to(links, url),
            base: url.to_string(),
            // A configuration with a key that can be in no header is refused before.
            authorization: key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()),
            tells_rank: worker.dp_ranks.value.get() > 1,
            presets: presets.to_vec(),
            timeout,
        }
    }

    /// Where it answers.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    /// It as one that is asked for token ids, where there is a way to it.
    pub(super) fn tokenizing(&self) -> Option<Arc<Fixed>> {
        let link = Arc::clone(self.link.as_ref().ok()?);
        Some(Arc::new(Fixed { link, authorization: self.authorization.clone() }))
    }

    pub(super) async fn get(&self, path: &'static str) -> Result<Reply, NoReply> {
        self.ask(Outgoing::get(path)).await
    }

    pub(super) async fn post(&self, path: &'static str, body: &Value) -> Result<Reply, NoReply> {
        self.ask(json_to(path, body)).await
    }

    /// Asks a rank to go on from `prompt` by one token.
    pub(super) async fn complete(&self, model: &str, prompt: &[TokenId], rank: Option<Rank>) -> Result<Reply, NoReply> {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "n": 1, "temperature": 0});
        let mut ask = json_to("/v1/completions", &body);
        if let Some(rank) = rank.filter(|_| self.tells_rank) {
            ask.headers.insert(RANK_HEADER, HeaderValue::from(rank.0));
        }
        self.ask(ask).await
    }

    /// What its metrics say of `rank`; none where they cannot be had or no known engine speaks.
    pub(super) async fn scrape(&self, rank: Option<Rank>) -> Option<Scrape> {
        let reply = self.get("/metrics").await.ok().filter(Reply::is_good)?;
        Scrape::read(reply.text(), rank, &self.presets)
    }

    async fn ask(&self, mut ask: Outgoing) -> Result<Reply, NoReply> {
        let link = self.link.as_ref().map_err(|why| NoReply::Broken(why.clone()))?;
        if let Some(authorization) = &self.authorization {
            ask.headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        match link.ask(&ask, self.timeout, ANSWER_MAX).await {
            Ok((status, body)) => Ok(Reply { status: status.as_u16(), body }),
            Err(AskError::Timeout(time)) => Err(NoReply::Late(time)),
            Err(AskError::TooLong(_)) => Err(NoReply::TooLong),
            Err(error) => Err(NoReply::Broken(innermost(&error))),
        }
    }
}

/// The way to a worker.
///
/// # Errors
/// Why there is none, in words.
pub(super) fn link_to(links: &Links, url: &BaseUrl) -> Result<Arc<Link>, String> {
    let authority = url.authority().parse().map_err(|error: http::uri::InvalidUri| error.to_string())?;
    links.link(url.scheme(), &authority).map_err(|error| innermost(&error))
}

fn json_to(path: &'static str, body: &Value) -> Outgoing {
    let mut ask = Outgoing::post(path, body.to_string());
    ask.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    ask
}

/// The innermost cause says most.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_engines_words() {
        let told = |status, body: &str| Reply { status, body: Bytes::copy_from_slice(body.as_bytes()) }.refusal();
        assert_eq!(told(404, r#"{"error":{"message":"no such model","code":404}}"#), "HTTP 404: no such model");
        assert_eq!(told(401, r#"{"error":"Unauthorized"}"#), "HTTP 401: Unauthorized");
        assert_eq!(told(400, r#"{"object":"error","message":"too long"}"#), "HTTP 400: too long");
        assert_eq!(told(503, "<html>"), "HTTP 503");
        let long = told(400, &format!(r#"{{"message":"{}"}}"#, "é".repeat(300)));
        assert_eq!(long, format!("HTTP 400: {}", "é".repeat(200)));
    }
}
