//! A trace against a live gateway: open loop, over real HTTP.

use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
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

/// What became of one request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Whether its stream came whole.
    pub completed: bool,
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

/// How long the gateway may take to say what it serves.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Makes sure that a gateway answers and, where it lists its models, that `model` is one of them.
///
/// # Errors
/// It does not, or is not.
pub async fn find(gateway: &Site, model: &str) -> anyhow::Result<()> {
    let asking = gateway.get("/v1/models", HeaderMap::new(), (ANSWERED_WITHIN, LISTED_MAX));
    let (_, listed) =
        asking.await.with_context(|| format!("no gateway answers at {gateway}; a router's is its `listen.data`"))?;
    let listed: serde_json::Value = serde_json::from_slice(&listed).unwrap_or_default();
    let Some(listed) = listed["data"].as_array() else { return Ok(()) };
    let ids: Vec<&str> = listed.iter().filter_map(|one| one["id"].as_str()).collect();
    anyhow::ensure!(ids.contains(&model), "{gateway} serves {}, not `{model}`: name one with --model", ids.join(", "));
    Ok(())
}

/// The most of the list of models that is read.
const LISTED_MAX: usize = 1 << 20;

/// Sends every shot at its time, whatever became of the others, and hands its outcome on. Returns when all have ended.
pub async fn fire(gateway: &Site, shots: impl IntoIterator<Item = Shot>, to: mpsc::Sender<Outcome>) {
    let tasks = Tasks::new();
    let start = Instant::now();
    for shot in shots {
        let due = start + shot.at;
        tokio::time::sleep_until(due.into()).await;
        let (gateway, to) = (gateway.clone(), to.clone());
        tasks.spawn(async move {
            let outcome = send(&gateway, shot.body, due).await;
            // The receiver may have gone: then nobody wants to know.
            let _ = to.send(outcome).await;
        });
    }
    drop(to);
    tasks.drain(Duration::MAX).await;
}

async fn send(gateway: &Site, body: Bytes, due: Instant) -> Outcome {
    let sent = Instant::now();
    let mut outcome = Outcome {
        completed: false,
        lag: sent.saturating_duration_since(due),
        ttft: Duration::ZERO,
        gaps_ms: Vec::new(),
        e2e: Duration::ZERO,
        usage: Usage::default(),
        predicted: None,
        worker: None,
    };
    let answer = gateway.post("/v1/completions", &HeaderMap::new(), body).await;
    let Ok(mut response) = answer else { return outcome };
    let header = |name: &str| -> Option<String> { Some(response.headers().get(name)?.to_str().ok()?.to_owned()) };
    outcome.predicted = header("x-warmpath-overlap-tokens").and_then(|tokens| tokens.parse().ok());
    outcome.worker = header("x-warmpath-worker");
    let ok = response.status().is_success();
    let mut scanner = SseScanner::default();
    let mut last: Option<Instant> = None;
    while let Some(Ok(frame)) = response.body_mut().frame().await {
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
    }
    outcome.e2e = sent.elapsed();
    outcome.usage = scanner.seen().usage.as_deref().map(usage::read).unwrap_or_default();
    outcome.completed = ok && scanner.seen().done && scanner.seen().error.is_none();
    outcome
}
