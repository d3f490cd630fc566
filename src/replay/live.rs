//! A trace against a live gateway: open loop, over real HTTP.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::timeout;
use warmpath_core::observe::Usage;

use crate::link::Site;
use crate::shutdown::Tasks;
use crate::upstream::sse::SseScanner;
use crate::upstream::usage;

/// One request of a replay, ready to be sent.
#[derive(Clone, Debug)]
pub struct Shot {
    /// When, since the replay began.
    pub at: Duration,
    /// Its body, a streaming completion.
    pub body: Bytes,
}

/// Why a request was not answered whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// There was no connection, or it ended before the head of an answer.
    #[error("without an answer")]
    NoAnswer,
    /// Nothing came for longer than one is patient, before the head or behind it.
    #[error("silent for too long")]
    Silent,
    /// The answer has a status that tells of no success.
    #[error("with status {}", .0.as_u16())]
    Status(StatusCode),
    /// The stream told of an error.
    #[error("with an error in the stream")]
    Told,
    /// The stream ended before its last event.
    #[error("cut short")]
    CutShort,
}

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why its stream did not come whole; none where it did.
    pub failure: Option<Failure>,
    /// How far behind its time it was sent.
    pub lag: Duration,
    /// From sending to the first event.
    pub ttft: Duration,
    /// Gaps between events with tokens, in ms.
    pub gaps_ms: Vec<f64>,
    /// From sending to the end.
    pub e2e: Duration,
    /// What the engine reported.
    pub usage: Usage,
    /// What the router predicted (`x-warmpath-overlap-tokens`).
    pub predicted: Option<u32>,
    /// Who answered (`x-warmpath-worker`).
    pub worker: Option<String>,
}

/// How long a gateway may say nothing, unless it is said otherwise: engines under load let prompts wait.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// How long the gateway may take to say what it serves.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Makes sure that a gateway answers and, where it lists its models, that `model` is one of them.
///
/// # Errors
/// It does not, or is not.
pub async fn find(gateway: &Site, model: &str) -> anyhow::Result<()> {
    let asking = gateway.get("/v1/models", HeaderMap::new(), (ANSWERED_WITHIN, LISTED_MAX));
    let (status, listed) =
        asking.await.with_context(|| format!("no gateway answers at {gateway}; a router's is its `listen.data`"))?;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
    anyhow::ensure!(
        status != StatusCode::NOT_FOUND,
        "{gateway} has no /v1/models: give the address before /v1, that of clients; a router's is its `listen.data`"
    );
    let Some(listed) = listed["data"].as_array() else { return Ok(()) };
    let ids: Vec<&str> = listed.iter().filter_map(|one| one["id"].as_str()).collect();
    anyhow::ensure!(ids.contains(&model), "{gateway} serves {}, not `{model}`: name one with --model", ids.join(", "));
    Ok(())
}

/// The most of the list of models that is read.
const LISTED_MAX: usize = 1 << 20;

/// Sends every shot at its time, whatever became of the others, and hands its outcome on. Returns when all have ended; one
/// to which nothing comes for longer than `patience` has.
pub async fn fire(
    gateway: &Site,
    shots: impl IntoIterator<Item = Shot>,
    patience: Duration,
    to: mpsc::Sender<Outcome>,
) {
    let tasks = Tasks::new();
    let start = Instant::now();
    for shot in shots {
        let due = start + shot.at;
        tokio::time::sleep_until(due.into()).await;
        let (gateway, to) = (gateway.clone(), to.clone());
        tasks.spawn(async move {
            let outcome = send(&gateway, shot.body, due, patience).await;
            // The receiver may have gone: then nobody wants to know.
            let _ = to.send(outcome).await;
        });
    }
    drop(to);
    tasks.drain(Duration::MAX).await;
}

async fn send(gateway: &Site, body: Bytes, due: Instant, patience: Duration) -> Outcome {
    let sent = Instant::now();
    let mut outcome = Outcome {
        failure: Some(Failure::NoAnswer),
        lag: sent.saturating_duration_since(due),
        ttft: Duration::ZERO,
        gaps_ms: Vec::new(),
        e2e: Duration::ZERO,
        usage: Usage::default(),
        predicted: None,
        worker: None,
    };
    let headers = HeaderMap::new();
    let mut response = match timeout(patience, gateway.post("/v1/completions", &headers, body)).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => return outcome,
        Err(_) => return Outcome { failure: Some(Failure::Silent), ..outcome },
    };
    let header = |name: &str| -> Option<String> { Some(response.headers().get(name)?.to_str().ok()?.to_owned()) };
    outcome.predicted = header("x-warmpath-overlap-tokens").and_then(|tokens| tokens.parse().ok());
    outcome.worker = header("x-warmpath-worker");
    let mut scanner = SseScanner::default();
    let mut last: Option<Instant> = None;
    let is_silent = loop {
        let frame = match timeout(patience, response.body_mut().frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(_) => break false,
            Err(_) => break true,
        };
        let Ok(chunk) = frame.into_data() else { continue };
        let (events, had_usage) = (scanner.seen().events, scanner.seen().usage.is_some());
        scanner.scan(&chunk);
        // The event that bears the usage bears no token.
        let bears_usage = u32::from(!had_usage && scanner.seen().usage.is_some());
        let now = Instant::now();
        for _ in 0..(scanner.seen().events - events).saturating_sub(bears_usage) {
            match last {
                None => outcome.ttft = now - sent,
                Some(last) => outcome.gaps_ms.push((now - last).as_secs_f64() * 1e3),
            }
            last = Some(now);
        }
    };
    outcome.e2e = sent.elapsed();
    outcome.usage = scanner.seen().usage.as_deref().map(usage::read).unwrap_or_default();
    outcome.failure = match scanner.seen() {
        _ if !response.status().is_success() => Some(Failure::Status(response.status())),
        seen if seen.error.is_some() => Some(Failure::Told),
        seen if seen.done => None,
        _ if is_silent => Some(Failure::Silent),
        _ => Some(Failure::CutShort),
    };
    outcome
}
