//! `warmpath demo`: real input through the real gateway to simulated engines, under two policies.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;
use warmpath_core::count::real;
use warmpath_core::policy::PolicyName;

use crate::link::{Site, TlsFiles};
use crate::replay::live::{self, Shot};
use crate::replay::reachable;
use crate::replay::report::{self, Row};
use crate::replay::tally::{Run, Tally};
use crate::replay::trace::{self, TraceError, TraceRequest};
use crate::shutdown::Tasks;
use fleet::DemoFleet;

pub mod fleet;

/// Every k-th conversation of the Mooncake trace; `src/demo/README.md` tells the rule and the origin.
const SLICE: &[u8] = include_bytes!("demo/conversation-slice.jsonl.gz");

/// Tokens that a block id of the trace stands for.
const TRACE_BLOCK: u32 = 512;

/// Tokens in a block of the demo's engines.
const BLOCK: u32 = 16;

/// What the demo does.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// A NATS server for the engines' events; none is the bus inside the process.
    pub bus: Option<String>,
    /// Simulated engines.
    pub workers: usize,
    /// Blocks of 16 tokens in each engine's cache.
    pub cache_blocks: u32,
    /// Requests of the slice; none is all.
    pub requests: Option<usize>,
    /// Tokens in place of 512.
    pub scale: u32,
    /// How much faster than recorded requests arrive.
    pub speed: f64,
    /// Seed of chance.
    pub seed: u64,
    /// The policies, one after the other.
    pub policies: Vec<PolicyName>,
    /// Whether a progress bar may be shown.
    pub progress: bool,
}

impl Default for DemoOptions {
    fn default() -> Self {
        Self {
            bus: None,
            workers: 4,
            cache_blocks: 4096,
            requests: None,
            scale: 64,
            speed: 140.0,
            seed: 1,
            policies: vec![PolicyName::RoundRobin, PolicyName::Kv],
            progress: true,
        }
    }
}

/// Why the demo could not run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The bundled trace is damaged.
    #[error("the bundled trace cannot be read")]
    Trace(#[from] TraceError),
    /// Engines or router could not start.
    #[error("the demo's fleet cannot start")]
    Start(#[source] crate::error::BoxError),
}

/// The demo's slice of the trace, scaled, and cut to the first `requests`.
///
/// # Errors
/// When the bundled file is damaged.
pub fn slice(options: &DemoOptions) -> Result<Vec<TraceRequest>, TraceError> {
    let mut requests = trace::read(SLICE)?;
    requests.truncate(options.requests.unwrap_or(usize::MAX));
    let scaled = requests.iter().map(|request| request.scaled(TRACE_BLOCK, options.scale));
    Ok(scaled.collect())
}

/// Runs every policy on a fresh fleet. Returns a row for each, and the last fleet, still serving.
///
/// # Errors
/// When something could not start.
pub async fn run(options: &DemoOptions) -> Result<(Vec<Row>, Option<DemoFleet>), DemoError> {
    let requests = slice(options)?;
    let mut rows = Vec::new();
    let mut last = None;
    for policy in &options.policies {
        if let Some(fleet) = last.take() {
            DemoFleet::stop(fleet).await;
        }
        let fleet = DemoFleet::start(options, *policy).await.map_err(DemoError::Start)?;
        rows.push(replay(options, *policy, &requests, &fleet).await);
        last = Some(fleet);
    }
    Ok((rows, last))
}

async fn replay(options: &DemoOptions, policy: PolicyName, requests: &[TraceRequest], fleet: &DemoFleet) -> Row {
    let (to, mut outcomes) = mpsc::channel(requests.len().max(1));
    let shots: Vec<Shot> =
        requests.iter().enumerate().map(|(number, request)| shot(number, request, options)).collect();
    let bar = progress_bar(options, policy, requests.len());
    let start = Instant::now();
    let mut tally = Tally::of_fleet(fleet.workers());
    let base = fleet.base();
    let site = Site::new(&base, TlsFiles::default(), Tasks::new()).expect("it is bound to an address");
    let firing = live::fire(&site, shots, live::PATIENCE, to);
    tokio::pin!(firing);
    let mut sampling = tokio::time::interval(Duration::from_millis(100));
    let mut fired = false;
    loop {
        tokio::select! {
            () = &mut firing, if !fired => fired = true,
            outcome = outcomes.recv() => match outcome {
                Some(outcome) => {
                    tally.add(outcome);
                    bar.inc(1);
                }
                None => break,
            },
            _ = sampling.tick() => tally.sample_balance(fleet.load_balance_score()),
        }
    }
    bar.finish_and_clear();
    let wall = start.elapsed();
    let fine: Vec<_> = requests.iter().map(|request| request.split((options.scale / BLOCK).max(1))).collect();
    let blocks = usize::try_from(options.cache_blocks).unwrap_or(usize::MAX);
    tally.row(Run {
        policy: policy.to_string(),
        speed: options.speed,
        seed: Some(options.seed),
        requests: requests.len(),
        reachable_hit_rate: reachable::hit_rate(&fine, BLOCK, options.workers.saturating_mul(blocks)),
        wall,
    })
}

fn shot(number: usize, request: &TraceRequest, options: &DemoOptions) -> Shot {
    #[derive(serde::Serialize)]
    struct Body<'a> {
        model: &'a str,
        prompt: Vec<u32>,
        max_tokens: u32,
        stream: bool,
        stream_options: StreamOptions,
    }
    #[derive(serde::Serialize)]
    struct StreamOptions {
        include_usage: bool,
    }
    let body = Body {
        model: fleet::MODEL,
        prompt: request.tokens(number, options.scale, fleet::VOCABULARY),
        max_tokens: request.output_length,
        stream: true,
        stream_options: StreamOptions { include_usage: true },
    };
    let body = serde_json::to_vec(&body).expect("numbers always serialise").into();
    let at_ms = real(request.at_ms);
    Shot { at: Duration::from_secs_f64(at_ms / 1e3 / options.speed), body }
}

fn progress_bar(options: &DemoOptions, policy: PolicyName, requests: usize) -> ProgressBar {
    if !options.progress {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(u64::try_from(requests).unwrap_or(0));
    let style = ProgressStyle::with_template("{prefix:<12} [{wide_bar}] {pos}/{len} requests, {eta} left");
    bar.set_style(style.expect("the template is well formed").progress_chars("=> "));
    bar.set_prefix(policy.to_string());
    bar
}

/// What the demo does, in words, for the head of its output.
pub fn describe(options: &DemoOptions, requests: &[TraceRequest]) -> String {
    let tokens: u64 = requests.iter().map(|request| u64::from(request.input_length)).sum();
    format!(
        "{} requests of the Mooncake conversation trace, {} prompt tokens: lengths scaled by {}/{}, arrivals {} times as\n\
         fast as recorded, over real HTTP to {} simulated engines (8B model on one H100, {} blocks of 16 tokens each).",
        requests.len(),
        tokens,
        options.scale,
        TRACE_BLOCK,
        options.speed,
        options.workers,
        options.cache_blocks,
    )
}

/// The outcome of the demo for people.
pub fn table(rows: &[Row]) -> String {
    let mut text = report::table(rows);
    if let [base, .., best] = rows
        && let (Some(base_hits), Some(best_hits)) = (base.hit_rate, best.hit_rate)
        && base_hits > 0.0
        && base.ttft_ms.mean > 0.0
    {
        text += &format!(
            "\n{} against {}: hit rate x{:.2}, mean time to first token {}\n",
            best.policy,
            base.policy,
            best_hits / base_hits,
            shorter(base.ttft_ms.mean, best.ttft_ms.mean),
        );
    }
    text
}

/// How a time has changed, in words.
fn shorter(was: f64, is: f64) -> String {
    let percent = (1.0 - is / was) * 100.0;
    let word = if percent < 0.0 { "longer" } else { "shorter" };
    format!("{:.0} % {word}", percent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_time_is_told_in_words() {
        assert_eq!([shorter(100.0, 64.0), shorter(100.0, 125.0)], ["36 % shorter", "25 % longer"]);
    }

    #[test]
    fn the_bundled_slice_is_whole_and_in_order() {
        let options = DemoOptions { scale: TRACE_BLOCK, ..DemoOptions::default() };
        let requests = slice(&options).unwrap();
        assert!((500..=1_200).contains(&requests.len()), "{} requests", requests.len());
        assert!(requests.is_sorted_by_key(|request| request.at_ms));
        for request in &requests {
            assert_eq!(request.hash_ids.len(), usize::try_from(request.input_length.div_ceil(512)).unwrap());
        }
    }
}
