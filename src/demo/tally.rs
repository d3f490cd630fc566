//! Outcomes of a replay, added up to a row.

use std::collections::BTreeMap;
use std::time::Duration;

use warmpath_core::policy::PolicyName;

use super::{DemoOptions, Outcome};
use crate::real::{real, real_len};
use crate::replay::reachable;
use crate::replay::report::{Distribution, Row, max_over_mean};
use crate::replay::trace::TraceRequest;

/// Tokens in a block of the demo's engines.
pub(super) const BLOCK: u32 = 16;

#[derive(Default)]
pub(super) struct Tally {
    completed: usize,
    input: u64,
    cached: u64,
    predicted: u64,
    exact: usize,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    e2e: Vec<f64>,
    by_worker: BTreeMap<String, (usize, f64)>,
    balance: Vec<f64>,
}

impl Tally {
    pub(super) fn add(&mut self, outcome: Outcome) {
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
        worker.1 += f64::from(prompt - cached);
    }

    pub(super) fn sample_balance(&mut self, score: f64) {
        self.balance.push(score);
    }

    pub(super) fn row(
        self,
        options: &DemoOptions,
        policy: PolicyName,
        requests: &[TraceRequest],
        wall: Duration,
    ) -> Row {
        let ids_in_block = (options.scale / BLOCK).max(1);
        let fine: Vec<_> = requests.iter().map(|request| request.split(ids_in_block)).collect();
        let blocks = usize::try_from(options.cache_blocks).unwrap_or(usize::MAX);
        let per_worker: Vec<_> = self.by_worker.values().copied().collect();
        let counts: Vec<_> = per_worker.iter().map(|(requests, _)| real_len(*requests)).collect();
        let tokens: Vec<_> = per_worker.iter().map(|(_, tokens)| *tokens).collect();
        Row {
            policy: policy.to_string(),
            workers: options.workers,
            speed: options.speed,
            seed: options.seed,
            requests: requests.len(),
            completed: self.completed,
            input_tokens: self.input,
            cached_tokens: self.cached,
            hit_rate: real(self.cached) / real(self.input.max(1)),
            reachable_hit_rate: reachable::hit_rate(&fine, BLOCK, options.workers * blocks),
            ttft_ms: Distribution::of(self.ttft),
            itl_ms: Distribution::of(self.gaps),
            e2e_ms: Distribution::of(self.e2e),
            requests_per_s: real_len(self.completed) / wall.as_secs_f64().max(1e-9),
            requests_max_over_mean: max_over_mean(&counts),
            new_tokens_max_over_mean: max_over_mean(&tokens),
            load_balance_score: self.balance.iter().sum::<f64>() / real_len(self.balance.len().max(1)),
            wall_s: wall.as_secs_f64(),
            requests_by_worker: per_worker.iter().map(|(requests, _)| *requests).collect(),
            predicted_cached_tokens: self.predicted,
            predicted_exact_requests: self.exact,
            ablation: None,
            lag_ms: None,
        }
    }
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
