//! A trace against a live gateway, and the row that comes of it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;

use super::live::{self, Outcome, Shot};
use super::reachable;
use super::report::{Distribution, Row, max_over_mean};
use super::trace::TraceRequest;
use crate::real::{real, real_len};

/// A gateway and what it is sent.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Its base address.
    pub base: String,
    /// The model that requests ask for.
    pub model: String,
    /// Prompt tokens are below this number.
    pub vocabulary: u32,
    /// Tokens in a block of the trace.
    pub block_size: u32,
    /// How much faster than recorded requests are sent.
    pub speed: f64,
}

/// Sends every request at its time, whatever became of the others. `ended` is called for each that ends. The row tells
/// how far behind their times requests were sent: figures of a lag that is not small beside them are those of the sender.
pub async fn replay(trace: &[TraceRequest], gateway: &Gateway, ended: impl Fn()) -> Row {
    let (to, mut outcomes) = mpsc::channel(trace.len().max(1));
    let start = Instant::now();
    let mut tally = Tally::default();
    let firing = live::fire(&gateway.base, shots(trace, gateway), to);
    tokio::pin!(firing);
    let mut fired = false;
    loop {
        tokio::select! {
            () = &mut firing, if !fired => fired = true,
            outcome = outcomes.recv() => match outcome {
                Some(outcome) => {
                    tally.add(outcome);
                    ended();
                }
                None => break,
            },
        }
    }
    tally.row(trace, gateway, start.elapsed())
}

/// Bodies are made when they are due: a trace's tokens at once would be gigabytes.
fn shots(trace: &[TraceRequest], gateway: &Gateway) -> impl Iterator<Item = Shot> + Send {
    let begin = trace.first().map_or(0, |request| request.at_ms);
    trace.iter().map(move |request| {
        let at_ms = real(request.at_ms.saturating_sub(begin)) / gateway.speed;
        Shot { at: Duration::from_secs_f64(at_ms / 1e3), body: body(request, gateway).into() }
    })
}

fn body(request: &TraceRequest, gateway: &Gateway) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        model: &'a str,
        prompt: Vec<u32>,
        max_tokens: u32,
        ignore_eos: bool,
        stream: bool,
        stream_options: StreamOptions,
    }
    #[derive(Serialize)]
    struct StreamOptions {
        include_usage: bool,
    }
    let body = Body {
        model: &gateway.model,
        prompt: request.tokens(gateway.block_size, gateway.vocabulary),
        max_tokens: request.output_length.max(1),
        ignore_eos: true,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
    };
    serde_json::to_vec(&body).expect("numbers always serialise")
}

#[derive(Default)]
struct Tally {
    completed: usize,
    input: u64,
    cached: u64,
    predicted: u64,
    exact: usize,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    e2e: Vec<f64>,
    lag: Vec<f64>,
    by_worker: BTreeMap<String, (usize, f64)>,
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        let ms = |span: Duration| span.as_secs_f64() * 1e3;
        self.lag.push(ms(outcome.lag));
        if !outcome.completed {
            return;
        }
        let prompt = outcome.usage.prompt.unwrap_or_default().0;
        let cached = outcome.usage.cached.unwrap_or_default().0;
        self.completed += 1;
        self.input += u64::from(prompt);
        self.cached += u64::from(cached);
        self.predicted += u64::from(outcome.predicted.unwrap_or(0));
        self.exact += usize::from(outcome.predicted == Some(cached));
        self.ttft.push(ms(outcome.ttft));
        self.e2e.push(ms(outcome.e2e));
        self.gaps.extend(outcome.gaps_ms);
        let worker = self.by_worker.entry(outcome.worker.unwrap_or_default()).or_default();
        worker.0 += 1;
        worker.1 += f64::from(prompt.saturating_sub(cached));
    }

    fn row(self, trace: &[TraceRequest], gateway: &Gateway, wall: Duration) -> Row {
        let requests: Vec<usize> = self.by_worker.values().map(|(requests, _)| *requests).collect();
        let counts: Vec<f64> = requests.iter().copied().map(real_len).collect();
        let tokens: Vec<f64> = self.by_worker.values().map(|(_, tokens)| *tokens).collect();
        Row {
            policy: "live".to_owned(),
            workers: self.by_worker.len(),
            speed: gateway.speed,
            seed: 0,
            requests: trace.len(),
            completed: self.completed,
            input_tokens: self.input,
            cached_tokens: self.cached,
            hit_rate: real(self.cached) / real(self.input.max(1)),
            reachable_hit_rate: reachable::hit_rate(trace, gateway.block_size, usize::MAX),
            ttft_ms: Distribution::of(self.ttft),
            itl_ms: Distribution::of(self.gaps),
            e2e_ms: Distribution::of(self.e2e),
            requests_per_s: real_len(self.completed) / wall.as_secs_f64().max(1e-9),
            requests_max_over_mean: max_over_mean(&counts),
            new_tokens_max_over_mean: max_over_mean(&tokens),
            load_balance_score: 0.0,
            wall_s: wall.as_secs_f64(),
            requests_by_worker: requests,
            predicted_cached_tokens: self.predicted,
            predicted_exact_requests: self.exact,
            ablation: None,
            lag_ms: Some(Distribution::of(self.lag)),
        }
    }
}
