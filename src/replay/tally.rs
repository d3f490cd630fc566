//! Outcomes of an open-loop replay against a gateway, added up to a row.

use std::collections::BTreeMap;
use std::time::Duration;

use super::live::Outcome;
use super::report::{Distribution, Row, max_over_mean};
use crate::real::{real, real_len};

/// What has come of the requests so far.
#[derive(Default)]
pub struct Tally {
    completed: usize,
    input: u64,
    cached: u64,
    predicted: u64,
    exact: usize,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    e2e: Vec<f64>,
    lag: Vec<f64>,
    /// Requests and computed prompt tokens.
    by_worker: BTreeMap<String, (usize, f64)>,
    balance: Vec<f64>,
}

/// What outcomes do not tell of a run.
pub struct Run {
    /// The policy, or what stands for it.
    pub policy: String,
    /// Workers of the fleet.
    pub workers: usize,
    /// How much faster than recorded requests arrived.
    pub speed: f64,
    /// Seed of chance.
    pub seed: u64,
    /// Requests sent.
    pub requests: usize,
    /// The hit rate of one cache as large as the fleet's together.
    pub reachable_hit_rate: f64,
    /// Time until the last request ended.
    pub wall: Duration,
}

impl Tally {
    /// A request has ended; of one that was not answered whole only its lag counts.
    pub fn add(&mut self, outcome: Outcome) {
        self.lag.push(milliseconds(outcome.lag));
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
        self.ttft.push(milliseconds(outcome.ttft));
        self.e2e.push(milliseconds(outcome.e2e));
        self.gaps.extend(outcome.gaps_ms);
        let worker = self.by_worker.entry(outcome.worker.unwrap_or_default()).or_default();
        worker.0 += 1;
        worker.1 += f64::from(prompt.saturating_sub(cached));
    }

    /// How uneven the workers' load is at this moment.
    pub fn sample_balance(&mut self, score: f64) {
        self.balance.push(score);
    }

    /// Workers that have answered.
    pub fn workers(&self) -> usize {
        self.by_worker.len()
    }

    /// The row of the run. O(outcomes × log outcomes).
    pub fn row(self, run: Run) -> Row {
        let requests: Vec<usize> = self.by_worker.values().map(|(requests, _)| *requests).collect();
        let counts: Vec<f64> = requests.iter().copied().map(real_len).collect();
        let tokens: Vec<f64> = self.by_worker.values().map(|(_, tokens)| *tokens).collect();
        Row {
            policy: run.policy,
            workers: run.workers,
            speed: run.speed,
            seed: run.seed,
            requests: run.requests,
            completed: self.completed,
            input_tokens: self.input,
            cached_tokens: self.cached,
            hit_rate: real(self.cached) / real(self.input.max(1)),
            reachable_hit_rate: run.reachable_hit_rate,
            ttft_ms: Distribution::of(self.ttft),
            itl_ms: Distribution::of(self.gaps),
            e2e_ms: Distribution::of(self.e2e),
            requests_per_s: real_len(self.completed) / run.wall.as_secs_f64().max(1e-9),
            requests_max_over_mean: max_over_mean(&counts),
            new_tokens_max_over_mean: max_over_mean(&tokens),
            load_balance_score: self.balance.iter().sum::<f64>() / real_len(self.balance.len().max(1)),
            wall_s: run.wall.as_secs_f64(),
            requests_by_worker: requests,
            predicted_cached_tokens: self.predicted,
            predicted_exact_requests: self.exact,
            ablation: None,
            lag_ms: Some(Distribution::of(self.lag)),
        }
    }
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
