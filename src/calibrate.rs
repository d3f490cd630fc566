//! Measures one prefill and one decode on a live engine, as its clients see them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use rand::RngExt;
use serde_json::{Value, json};
use tokio::time::timeout;
use warmpath_core::count::real_len;
use warmpath_core::ids::TokenId;
use warmpath_simulator::{DecodePoint, Ms, PrefillPoint};

use crate::error::BoxError;
use crate::link::{Inflow, Site};
use crate::upstream::sse::SseScanner;
use crate::upstream::usage;

/// Tokens that every vocabulary has and that mean nothing special.
const ORDINARY: std::ops::Range<TokenId> = 1_000..20_000;

/// Tokens generated for a decode point.
const DECODED: usize = 65;

/// The most of a model list or of an answer that is read, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// Characters of what an engine says that are repeated.
const SAID_MAX: usize = 300;

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Measuring {
    /// The engine.
    pub site: Site,
    /// The model; none is the first that the engine lists.
    pub model: Option<String>,
    /// What the engine wants as a bearer token.
    pub api_key: Option<String>,
    /// Tokens of the cold prompts.
    pub prefill_tokens: usize,
    /// Tokens of the prompts behind which is decoded.
    pub context: usize,
    /// Measurements of each kind; the middle one counts.
    pub rounds: usize,
    /// For each answer.
    pub patience: Duration,
}

/// Asks an otherwise idle engine, one request at a time.
struct Engine<'a> {
    measuring: &'a Measuring,
    headers: HeaderMap,
    model: String,
}

/// Both points, each the median of its rounds.
///
/// # Errors
/// When the engine does not answer, refuses, or has cached what should be cold.
pub async fn measure(measuring: &Measuring) -> Result<(PrefillPoint, DecodePoint), BoxError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = &measuring.api_key {
        let mut bearer = HeaderValue::try_from(format!("Bearer {key}"))?;
        bearer.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, bearer);
    }
    let mut engine = Engine { measuring, headers, model: String::new() };
    engine.model = match &measuring.model {
        Some(model) => model.clone(),
        None => engine.first_model().await?,
    };
    let (mut prefills, mut decodes) = (Vec::new(), Vec::new());
    // The first answer of an engine can be slow for reasons that do not return.
    engine.prefill().await?;
    for _ in 0..measuring.rounds.max(1) {
        prefills.push(engine.prefill().await?);
        decodes.push(engine.decode().await?);
    }
    let prefill = PrefillPoint { tokens: measuring.prefill_tokens, time: median(prefills) };
    let decode = DecodePoint { batch: 1, context: measuring.context + DECODED / 2, time: median(decodes) };
    Ok((prefill, decode))
}

fn median(mut times: Vec<Ms>) -> Ms {
    times.sort_by(|one, other| one.0.total_cmp(&other.0));
    times.get(times.len() / 2).copied().unwrap_or(Ms::ZERO)
}

fn ms(span: Duration) -> Ms {
    Ms(span.as_secs_f64() * 1e3)
}

impl Engine<'_> {
    async fn first_model(&self) -> Result<String, BoxError> {
        let bounds = (self.measuring.patience, ANSWER_MAX);
        let (status, models) = self.measuring.site.get("/v1/models", self.headers.clone(), bounds).await?;
        if !status.is_success() {
            return Err(refusal(status, "/v1/models", &models));
        }
        let models: Value = serde_json::from_slice(&models)?;
        let name = models["data"][0]["id"].as_str().ok_or("the engine lists no model")?;
        Ok(name.to_owned())
    }

    /// From sending a cold prompt to the whole answer of one token.
    async fn prefill(&self) -> Result<Ms, BoxError> {
        let request = self.completion(self.measuring.prefill_tokens, 1);
        let begun = Instant::now();
        let body = self.in_time(async { whole(self.send(request).await?).await }).await?;
        let took = begun.elapsed();
        match usage::read(&body).cached {
            Some(cached) if cached.0 > 0 => Err(format!("{} tokens of a new prompt were cached", cached.0).into()),
            _ => Ok(ms(took)),
        }
    }

    /// The mean gap between two tokens of one request.
    async fn decode(&self) -> Result<Ms, BoxError> {
        self.in_time(self.decode_once()).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, BoxError>>) -> Result<T, BoxError> {
        let patience = self.measuring.patience;
        timeout(patience, work).await.map_err(|_| format!("no answer within {patience:?}"))?
    }

    async fn decode_once(&self) -> Result<Ms, BoxError> {
        let mut response = self.send(self.completion(self.measuring.context, DECODED)).await?;
        let (mut scanner, mut first, mut last) = (SseScanner::default(), None, None);
        while let Some(frame) = response.body_mut().frame().await {
            let Ok(chunk) = frame?.into_data() else { continue };
            let before = scanner.seen().events;
            scanner.scan(&chunk);
            let events = scanner.seen().events;
            if events > before {
                first = first.or(Some((Instant::now(), events)));
                last = Some((Instant::now(), events));
            }
        }
        if scanner.seen().error.is_some() {
            return Err("the engine answered with an error in its stream".into());
        }
        let ((begun, first), (ended, last)) = first.zip(last).ok_or("the engine generated nothing")?;
        let gaps = usize::try_from(last - first)?;
        if gaps < DECODED / 2 {
            return Err(
                format!("the engine ended its answer after {gaps} of {DECODED} tokens, or sent many at once").into()
            );
        }
        Ok(Ms(ms(ended - begun).0 / real_len(gaps)))
    }

    fn completion(&self, tokens: usize, output: usize) -> Vec<u8> {
        let mut rng = rand::rng();
        let prompt: Vec<TokenId> = (0..tokens).map(|_| rng.random_range(ORDINARY)).collect();
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": true,
            "stream": output > 1,
        });
        body.to_string().into_bytes()
    }

    async fn send(&self, body: Vec<u8>) -> Result<Response<Inflow>, BoxError> {
        let response = self.measuring.site.post("/v1/completions", &self.headers, body.into()).await?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        Err(refusal(status, "/v1/completions", &whole(response).await.unwrap_or_default()))
    }
}

/// What the engine says where it refuses, and what can be done about it.
fn refusal(status: StatusCode, path: &str, body: &[u8]) -> BoxError {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let said = body.pointer("/error/message").or_else(|| body.get("message")).and_then(Value::as_str);
    let said = said.map_or_else(String::new, |said| format!(": {}", said.chars().take(SAID_MAX).collect::<String>()));
    let remedy = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; give its key by --api-key or WARMPATH_ENGINE_KEY",
        _ => "",
    };
    format!("the engine answered {status} to {path}{said}{remedy}").into()
}

async fn whole(response: Response<Inflow>) -> Result<Bytes, BoxError> {
    Ok(Limited::new(response.into_body(), ANSWER_MAX).collect().await?.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_round_of_three_does_not_count() {
        assert_eq!(median(vec![Ms(90.0), Ms(8.0), Ms(9.0)]), Ms(9.0));
        assert_eq!(median(vec![]), Ms::ZERO);
    }
}
