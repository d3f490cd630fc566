//! A trace against a live gateway, and the row that comes of it.

use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::mpsc;
use warmpath_core::count::real;

use super::live::{self, Shot};
use super::reachable;
use super::report::Row;
use super::tally::{Run, Tally};
use super::trace::TraceRequest;
use crate::link::Site;

/// A gateway and what it is sent.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// Where it answers.
    pub site: Site,
    /// The model that requests ask for.
    pub model: String,
    /// Prompt tokens are below this number.
    pub vocabulary: u32,
    /// Tokens in a block of the trace.
    pub block_size: u32,
    /// How much faster than recorded requests are sent.
    pub speed: f64,
    /// How long it may say nothing, before an answer and within one.
    pub patience: Duration,
}

/// Sends every request at its time, whatever became of the others. `ended` is called for each that ends. The row tells
/// how far behind their times requests were sent: figures of a lag that is not small beside them are those of the sender.
pub async fn replay(trace: &[TraceRequest], gateway: &Gateway, ended: impl Fn()) -> Row {
    let (to, mut outcomes) = mpsc::channel(trace.len().max(1));
    let start = Instant::now();
    let mut tally = Tally::default();
    let firing = live::fire(&gateway.site, shots(trace, gateway), gateway.patience, to);
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
    let run = Run {
        policy: "live".to_owned(),
        speed: gateway.speed,
        seed: None,
        requests: trace.len(),
        reachable_hit_rate: reachable::hit_rate(trace, gateway.block_size, usize::MAX),
        wall: start.elapsed(),
    };
    tally.row(run)
}

/// Bodies are made when they are due: a trace's tokens at once would be gigabytes.
fn shots(trace: &[TraceRequest], gateway: &Gateway) -> impl Iterator<Item = Shot> + Send {
    let begin = trace.first().map_or(0, |request| request.at_ms);
    trace.iter().enumerate().map(move |(number, request)| {
        let at_ms = real(request.at_ms.saturating_sub(begin)) / gateway.speed;
        Shot { at: Duration::from_secs_f64(at_ms / 1e3), body: body(number, request, gateway).into() }
    })
}

fn body(number: usize, request: &TraceRequest, gateway: &Gateway) -> Vec<u8> {
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
        prompt: request.tokens(number, gateway.block_size, gateway.vocabulary),
        max_tokens: request.output_length.max(1),
        ignore_eos: true,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
    };
    serde_json::to_vec(&body).expect("numbers always serialise")
}
