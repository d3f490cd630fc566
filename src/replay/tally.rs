//! Outcomes of an open-loop replay against a gateway, added up to a row.

use std::collections::BTreeMap;
use std::time::Duration;

use warmpath_core::count::{real, real_len};

use super::live::{Failure, Outcome};
use super::report::{Distribution, Row, max_over_mean, mean};

/// What has come of the requests so far.
#[derive(Default)]
pub struct Tally {
    completed: usize,
    input: u64,
    /// What engines took from their caches, once one has told.
    cached: Option<u64>,
    predicted: Predicted,
    ttft: Vec<f64>,
    gaps: Vec<f64>,
    e2e: Vec<f64>,
    lag: Vec<f64>,
    failures: BTreeMap<Failure, usize>,
    /// The fleet's workers in order, those that answered nothing among them; where the fleet is not known, those that have
    /// answered.
    workers: Vec<Share>,
    is_fleet_known: bool,
    balance: Vec<f64>,
}

/// What the router predicted of the requests of which it told.
#[derive(Clone, Copy, Default)]
struct Predicted {
    requests: usize,
    cached: u64,
    exact: usize,
}

/// What one worker has answered.
struct Share {
    worker: String,
    requests: usize,
    /// Prompt tokens that it computed.
    computed: f64,
}

impl Share {
    fn none(worker: String) -> Self {
        Self { worker, requests: 0, computed: 0.0 }
    }
}

/// What outcomes do not tell of a run.
pub struct Run {
    /// The policy, or what stands for it.
    pub policy: String,
    /// How much faster than recorded requests arrived.
    pub speed: f64,
    /// Seed of chance, where it is known.
    pub seed: Option<u64>,
    /// Requests sent.
    pub requests: usize,
    /// The hit rate of one cache as large as the fleet's together.
    pub reachable_hit_rate: f64,
    /// Time until the last request ended.
    pub wall: Duration,
}

impl Tally {
    /// Of a fleet whose workers have these names. One that is not known tells nothing of balance: who did not answer at all
    /// would be missing.
    pub fn of_fleet(workers: impl IntoIterator<Item = String>) -> Self {
        Self { workers: workers.into_iter().map(Share::none).collect(), is_fleet_known: true, ..Self::default() }
    }

    /// A request has ended; of one that was not answered whole only its lag counts.
    pub fn add(&mut self, outcome: Outcome) {
        self.lag.push(milliseconds(outcome.lag));
        if let Some(failure) = outcome.failure {
            *self.failures.entry(failure).or_default() += 1;
            return;
        }
        let prompt = outcome.usage.prompt.unwrap_or_default().0;
        if let Some(cached) = outcome.usage.cached {
            *self.cached.get_or_insert(0) += u64::from(cached.0);
        }
        // Where others tell, silence is none: many releases of vLLM leave a count of 0 out.
        let cached = outcome.usage.cached.unwrap_or_default().0;
        self.completed += 1;
        self.input += u64::from(prompt);
        if let Some(predicted) = outcome.predicted {
            self.predicted.requests += 1;
            self.predicted.cached += u64::from(predicted);
            self.predicted.exact += usize::from(predicted == cached);
        }
        self.ttft.push(milliseconds(outcome.ttft));
        self.e2e.push(milliseconds(outcome.e2e));
        self.gaps.extend(outcome.gaps_ms);
        let Some(worker) = outcome.worker else { return };
        let share = self.share(worker);
        share.requests += 1;
        share.computed += f64::from(prompt.saturating_sub(cached));
    }

    fn share(&mut self, worker: String) -> &mut Share {
        let place = self.workers.iter().position(|share| share.worker == worker).unwrap_or_else(|| {
            self.workers.push(Share::none(worker));
            self.workers.len() - 1
        });
        &mut self.workers[place]
    }

    /// How uneven the workers' load is at this moment.
    pub fn sample_balance(&mut self, score: f64) {
        self.balance.push(score);
    }

    /// The row of the run. O(outcomes × log outcomes).
    pub fn row(mut self, run: Run) -> Row {
        if !self.is_fleet_known {
            self.workers.sort_by(|one, other| one.worker.cmp(&other.worker));
        }
        let requests: Vec<usize> = self.workers.iter().map(|share| share.requests).collect();
        let counts: Vec<f64> = requests.iter().copied().map(real_len).collect();
        let tokens: Vec<f64> = self.workers.iter().map(|share| share.computed).collect();
        let predicted = (self.predicted.requests > 0).then_some(self.predicted);
        let exact = predicted.filter(|_| self.cached.is_some()).map(|predicted| predicted.exact);
        let of_fleet = |values: &[f64]| self.is_fleet_known.then(|| max_over_mean(values));
        Row {
            policy: run.policy,
            workers: requests.len(),
            speed: run.speed,
            seed: run.seed,
            requests: run.requests,
            completed: self.completed,
            input_tokens: self.input,
            cached_tokens: self.cached,
            hit_rate: self.cached.map(|cached| real(cached) / real(self.input.max(1))),
            reachable_hit_rate: run.reachable_hit_rate,
            ttft_ms: Distribution::of(self.ttft),
            itl_ms: Distribution::of(self.gaps),
            e2e_ms: Distribution::of(self.e2e),
            requests_per_s: real_len(self.completed) / run.wall.as_secs_f64().max(1e-9),
            requests_max_over_mean: of_fleet(&counts),
            new_tokens_max_over_mean: of_fleet(&tokens),
            load_balance_score: mean(&self.balance),
            wall_s: run.wall.as_secs_f64(),
            requests_by_worker: requests,
            predicted_cached_tokens: predicted.map(|predicted| predicted.cached),
            predicted_exact_requests: exact,
            failures: self.failures.into_iter().map(|(why, count)| (why.to_string(), count)).collect(),
            ablation: None,
            lag_ms: Some(Distribution::of(self.lag)),
            decisions: Vec::new(),
        }
    }
}

fn milliseconds(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use warmpath_core::observe::Usage;
    use warmpath_core::units::Tokens;

    use super::*;

    fn row(cached: [Option<u32>; 2]) -> Row {
        let mut tally = Tally::default();
        for cached in cached {
            tally.add(Outcome {
                failure: None,
                lag: Duration::ZERO,
                ttft: Duration::ZERO,
                gaps_ms: Vec::new(),
                e2e: Duration::ZERO,
                usage: Usage { prompt: Some(Tokens(40)), cached: cached.map(Tokens), ..Usage::default() },
                predicted: Some(0),
                worker: None,
            });
        }
        tally.row(Run {
            policy: "live".to_owned(),
            speed: 1.0,
            seed: None,
            requests: 2,
            reachable_hit_rate: 0.0,
            wall: Duration::ZERO,
        })
    }

    #[test]
    fn a_hit_rate_is_known_once_one_engine_tells_and_silence_is_then_no_hit() {
        let figures = |cached| {
            let row = row(cached);
            (row.hit_rate, row.cached_tokens, row.predicted_exact_requests)
        };
        assert_eq!(figures([None, Some(20)]), (Some(0.25), Some(20), Some(1)));
        assert_eq!(figures([Some(0), None]), (Some(0.0), Some(0), Some(2)));
        assert_eq!(figures([None, None]), (None, None, None));
        assert_eq!(row([None, None]).predicted_cached_tokens, Some(0), "what was predicted is known");
    }
}
