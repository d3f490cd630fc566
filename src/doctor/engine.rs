//! One engine, as it is asked over HTTP. Every wait ends, every answer has a bound.

use std::time::Duration;

use bytes::BytesMut;
use reqwest::RequestBuilder;
use reqwest::redirect::Policy;
use serde::Deserialize;
use serde_json::{Value, json};
use warmpath_core::ids::{Rank, TokenId};
use warmpath_core::observe::Usage;

use crate::config::{MetricNames, Worker};
use crate::fleet::scrape::Scrape;
use crate::upstream::{RANK_HEADER, usage};

/// The most of an answer that is read: a million token ids with their commas.
const ANSWER_MAX: usize = 16 << 20;

/// Characters of an engine's own words that are repeated.
const WORDS_MAX: usize = 200;

/// One engine.
pub(super) struct Engine {
    client: reqwest::Client,
    base: String,
    key: Option<String>,
    /// Whether it is told which of its ranks is meant.
    tells_rank: bool,
    presets: Vec<MetricNames>,
    timeout: Duration,
}

/// What it answered.
pub(super) struct Reply {
    pub(super) status: u16,
    body: BytesMut,
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

/// The client of all engines: no proxy and no redirection comes between, as none does in the router.
pub(super) fn client(timeout: Duration) -> reqwest::Client {
    let client = reqwest::Client::builder().timeout(timeout).no_proxy().redirect(Policy::none()).build();
    client.expect("a client without TLS has nothing to fail on")
}

impl Engine {
    pub(super) fn new(client: reqwest::Client, worker: &Worker, presets: &[MetricNames], timeout: Duration) -> Self {
        Self {
            client,
            base: worker.url.value.to_string(),
            key: worker.api_key.as_ref().map(|key| key.expose().to_owned()),
            tells_rank: worker.dp_ranks.value.get() > 1,
            presets: presets.to_vec(),
            timeout,
        }
    }

    /// Where it answers.
    pub(super) fn base(&self) -> &str {
        &self.base
    }

    pub(super) fn http(&self) -> &reqwest::Client {
        &self.client
    }

    pub(super) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(super) async fn get(&self, path: &str) -> Result<Reply, NoReply> {
        self.ask(self.client.get(format!("{}{path}", self.base))).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Reply, NoReply> {
        self.ask(self.client.post(format!("{}{path}", self.base)).json(body)).await
    }

    /// Asks a rank to go on from `prompt` by one token.
    pub(super) async fn complete(&self, model: &str, prompt: &[TokenId], rank: Option<Rank>) -> Result<Reply, NoReply> {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "n": 1, "temperature": 0});
        let request = self.client.post(format!("{}/v1/completions", self.base)).json(&body);
        self.ask(match rank.filter(|_| self.tells_rank) {
            Some(rank) => request.header(RANK_HEADER, rank.0),
            None => request,
        })
        .await
    }

    /// What its metrics say of `rank`; none where they cannot be had or no known engine speaks.
    pub(super) async fn scrape(&self, rank: Option<Rank>) -> Option<Scrape> {
        let reply = self.get("/metrics").await.ok().filter(Reply::is_good)?;
        Scrape::read(reply.text(), rank, &self.presets)
    }

    async fn ask(&self, request: RequestBuilder) -> Result<Reply, NoReply> {
        let request = match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        };
        let broken = |error: reqwest::Error| self.broken(&error);
        let mut answer = request.send().await.map_err(broken)?;
        let (status, mut body) = (answer.status().as_u16(), BytesMut::new());
        while let Some(chunk) = answer.chunk().await.map_err(broken)? {
            if body.len() + chunk.len() > ANSWER_MAX {
                return Err(NoReply::TooLong);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Reply { status, body })
    }

    /// The innermost cause says most.
    fn broken(&self, error: &reqwest::Error) -> NoReply {
        if error.is_timeout() {
            return NoReply::Late(self.timeout);
        }
        let mut cause: &dyn std::error::Error = error;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        NoReply::Broken(cause.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_in_the_engines_words() {
        let told = |status, body: &str| Reply { status, body: body.as_bytes().into() }.refusal();
        assert_eq!(told(404, r#"{"error":{"message":"no such model","code":404}}"#), "HTTP 404: no such model");
        assert_eq!(told(401, r#"{"error":"Unauthorized"}"#), "HTTP 401: Unauthorized");
        assert_eq!(told(400, r#"{"object":"error","message":"too long"}"#), "HTTP 400: too long");
        assert_eq!(told(503, "<html>"), "HTTP 503");
        let long = told(400, &format!(r#"{{"message":"{}"}}"#, "é".repeat(300)));
        assert_eq!(long, format!("HTTP 400: {}", "é".repeat(200)));
    }
}
