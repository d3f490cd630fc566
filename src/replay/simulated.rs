//! Traces through simulated fleets: what is tried, several at once, and the rows that come of it.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use warmpath_core::count::{real, real_len};
use warmpath_core::units::BlockSize;
use warmpath_simulator::fleet::{Arrival, Effect, Outcome, Prepared, RequestOutcome, Scenario, ScenarioError, run};

use super::reachable;
use super::report::{Distribution, Row, max_over_mean, mean};
use super::trace::TraceRequest;

mod decisions;

/// A trace in the simulator's form.
pub fn prepare(trace: &[TraceRequest], block_size: BlockSize) -> Prepared {
    let arrivals = trace.iter().map(|request| Arrival {
        at_ms: request.at_ms,
        input_tokens: request.input_length,
        output_tokens: request.output_length,
        block_ids: &request.hash_ids,
        session: request.session(),
    });
    Prepared::new(arrivals, block_size)
}

/// One scenario of several, and which effect it leaves out.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What is tried.
    pub scenario: Scenario,
    /// The effect that it leaves out, where it is compared with the whole model.
    pub without: Option<Effect>,
}

/// What came of a trial.
#[derive(Clone, Debug)]
pub struct Tried {
    /// The figures.
    pub row: Row,
    /// All that they were made of, but for the gaps between tokens.
    pub outcome: Outcome,
    /// Blocks that can be cached in the whole fleet, in all tiers together.
    pub capacity: usize,
}

/// A trace, and what all trials on it share.
#[derive(Debug)]
pub struct Trials<'a> {
    trace: &'a [TraceRequest],
    prepared: Prepared,
    /// Requests at the beginning that count in no figure.
    warm_up: usize,
    /// By capacity and by how many requests warm it.
    reachable: Mutex<BTreeMap<(usize, usize), f64>>,
}

impl<'a> Trials<'a> {
    /// Trials on this trace, of whose requests the first `warm_up` count in no figure.
    pub fn new(trace: &'a [TraceRequest], block_size: BlockSize, warm_up: usize) -> Self {
        Self { trace, prepared: prepare(trace, block_size), warm_up, reachable: Mutex::default() }
    }

    /// Requests at the beginning that count in no figure.
    pub fn warm_up(&self) -> usize {
        self.warm_up
    }

    /// The trace as the simulator sees it.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The share of prompt tokens that one cache of as many blocks as the fleet of `tried` has had by the time of each arrival,
    /// in ms; of the requests that its engines took.
    pub fn reachable_by_time(&self, tried: &Tried) -> Vec<(f64, f64)> {
        let trace = taken(self.trace, &tried.outcome.requests);
        let course = reachable::course(&trace, self.prepared.block_size().get(), tried.capacity);
        let begin = self.trace.first().map_or(0, |request| request.at_ms);
        let mut sums = (0, 0);
        let mut by_time: Vec<(f64, f64)> = Vec::new();
        for ((input, cached), request) in course.zip(&*trace) {
            sums = (sums.0 + input, sums.1 + cached);
            let now = (real(request.at_ms.saturating_sub(begin)), real(sums.1) / real(sums.0.max(1)));
            match by_time.last_mut() {
                Some(last) if last.0.total_cmp(&now.0).is_eq() => *last = now,
                _ => by_time.push(now),
            }
        }
        by_time
    }

    /// Tries everything on `threads` threads. The results stand in the order of the trials, and depend on nothing else but
    /// their scenarios; `ended` is called for each request that ends.
    ///
    /// # Errors
    /// The first trial that makes no sense.
    ///
    /// # Panics
    /// Where a trial asks for checks and one fails.
    pub fn run(
        &self,
        trials: &[Trial],
        threads: usize,
        ended: &(dyn Fn() + Sync),
    ) -> Result<Vec<Tried>, ScenarioError> {
        let mut tried = self.each(trials, threads, ended, &|tried| tried)?;
        compare(trials, &mut tried);
        Ok(tried)
    }

    /// The same, where only what `keep` makes of each result is kept.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As [`run`](Self::run).
    pub fn each<T: Send>(
        &self,
        trials: &[Trial],
        threads: usize,
        ended: &(dyn Fn() + Sync),
        keep: &(dyn Fn(Tried) -> T + Sync),
    ) -> Result<Vec<T>, ScenarioError> {
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<Option<Result<T, ScenarioError>>>> = Mutex::new(trials.iter().map(|_| None).collect());
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, trials.len().max(1)) {
                scope.spawn(|| {
                    while let place = next.fetch_add(1, Ordering::Relaxed)
                        && let Some(trial) = trials.get(place)
                    {
                        let kept = self.one(trial, &|| ended()).map(keep);
                        results.lock().unwrap_or_else(PoisonError::into_inner)[place] = Some(kept);
                    }
                });
            }
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        results.into_iter().flatten().collect()
    }

    fn one(&self, trial: &Trial, ended: &dyn Fn()) -> Result<Tried, ScenarioError> {
        let start = Instant::now();
        let mut outcome = run(&self.prepared, &trial.scenario, ended)?;
        let wall_s = start.elapsed().as_secs_f64();
        let capacity = usize::try_from(trial.scenario.fitted(&self.prepared).capacity()).unwrap_or(usize::MAX);
        let row = self.row(&trial.scenario, &outcome, capacity, wall_s);
        outcome.gaps = Vec::new();
        Ok(Tried { row, outcome, capacity })
    }

    /// The share of prompt tokens that a cache of `capacity` blocks has, once so many requests have warmed it, over the
    /// requests that engines took.
    fn reachable(&self, capacity: usize, warm_up: usize, outcomes: &[RequestOutcome]) -> f64 {
        if !outcomes.iter().all(is_taken) {
            let warm = outcomes[..warm_up].iter().filter(|outcome| is_taken(outcome)).count();
            let trace = taken(self.trace, outcomes);
            return reachable::hit_rate_after(warm, &trace, self.prepared.block_size().get(), capacity);
        }
        let key = (capacity, warm_up);
        let known = |reachable: &Mutex<BTreeMap<_, f64>>| {
            reachable.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied()
        };
        if let Some(rate) = known(&self.reachable) {
            return rate;
        }
        let rate = reachable::hit_rate_after(warm_up, self.trace, self.prepared.block_size().get(), capacity);
        self.reachable.lock().unwrap_or_else(PoisonError::into_inner).insert(key, rate);
        rate
    }

    fn row(&self, scenario: &Scenario, outcome: &Outcome, capacity: usize, wall_s: f64) -> Row {
        let warm_up = if scenario.conditions.warm_up { self.warm_up.min(outcome.requests.len()) } else { 0 };
        let counted = &outcome.requests[warm_up..];
        let done = || counted.iter().filter(|request| request.completed);
        let sum = |figure: fn(&RequestOutcome) -> u32| done().map(|request| u64::from(figure(request))).sum::<u64>();
        let spans = |span: fn(&RequestOutcome) -> f64| Distribution::of(done().map(span).collect());
        let (input, cached) = (sum(|request| request.input_tokens), sum(|request| request.cached_tokens));
        let is_done = |number: u32| {
            let place = usize::try_from(number).ok().and_then(|number| number.checked_sub(warm_up));
            place.and_then(|place| counted.get(place)).is_some_and(|request| request.completed)
        };
        let gaps = outcome.gaps.iter().filter(|(number, _)| is_done(*number)).map(|(_, gap)| f64::from(*gap)).collect();
        let begin = counted.first().map_or(0.0, |request| request.arrived.0);
        let samples = outcome.samples.iter().filter(|sample| sample.at.0 >= begin).map(|sample| sample.balance);
        let samples: Vec<f64> = samples.collect();
        let mut by_worker = vec![0; usize::from(scenario.workers)];
        let mut new_tokens = vec![0.0; by_worker.len()];
        for request in done() {
            let worker = usize::from(request.worker.unwrap_or_default());
            by_worker[worker] += 1;
            new_tokens[worker] += f64::from(request.input_tokens - request.cached_tokens);
        }
        let counts: Vec<f64> = by_worker.iter().copied().map(real_len).collect();
        let completed = done().count();
        Row {
            policy: scenario.router.policy.to_string(),
            workers: usize::from(scenario.workers),
            speed: scenario.speed,
            seed: Some(scenario.seed),
            requests: counted.len(),
            completed,
            input_tokens: input,
            cached_tokens: Some(cached),
            hit_rate: Some(real(cached) / real(input.max(1))),
            reachable_hit_rate: self.reachable(capacity, warm_up, &outcome.requests),
            ttft_ms: spans(|request| request.ttft.0),
            itl_ms: Distribution::of(gaps),
            e2e_ms: spans(|request| request.e2e.0),
            requests_per_s: real_len(completed) * 1e3 / (outcome.end.0 - begin).max(1e-9),
            requests_max_over_mean: Some(max_over_mean(&counts)),
            new_tokens_max_over_mean: Some(max_over_mean(&new_tokens)),
            load_balance_score: mean(&samples),
            wall_s,
            requests_by_worker: by_worker,
            predicted_cached_tokens: Some(sum(|request| request.predicted_tokens)),
            predicted_exact_requests: Some(
                done().filter(|request| request.predicted_tokens == request.cached_tokens).count(),
            ),
            failures: failures(counted),
            ablation: None,
            lag_ms: None,
            decisions: decisions::told(scenario, outcome),
        }
    }
}

/// Why requests were not answered whole, and how many.
fn failures(counted: &[RequestOutcome]) -> BTreeMap<String, usize> {
    let mut failures = BTreeMap::new();
    for failure in counted.iter().filter_map(|request| request.failure) {
        *failures.entry(failure.to_string()).or_default() += 1;
    }
    failures
}

/// Sets every row that leaves something out beside the last one before it that does not.
fn compare(trials: &[Trial], tried: &mut [Tried]) {
    let mut whole = None;
    for (trial, tried) in trials.iter().zip(tried) {
        match (trial.without, &whole) {
            (Some(effect), Some(whole)) => tried.row = tried.row.clone().beside(whole, effect.to_string()),
            (Some(_), None) => {}
            (None, _) => whole = Some(tried.row.clone()),
        }
    }
}

/// The requests of all trials as comma-separated values, with a line of names; requests and workers numbered from 1.
pub fn csv(tried: &[Tried]) -> String {
    let mut text = "policy,workers,speed,without,request,arrived_ms,worker,completed,input_tokens,cached_tokens,\
                    predicted_tokens,output_tokens,queued_ms,ttft_ms,e2e_ms\n"
        .to_owned();
    for Tried { row, outcome, .. } in tried {
        let without = row.ablation.as_ref().map_or("", |left_out| &left_out.without);
        for (number, request) in (1..).zip(&outcome.requests) {
            let worker = request.worker.map(|worker| (worker + 1).to_string()).unwrap_or_default();
            let RequestOutcome { completed, input_tokens, cached_tokens, predicted_tokens, output_tokens, .. } =
                request;
            let _ = writeln!(
                text,
                "{},{},{},{without},{number},{},{worker},{completed},{input_tokens},{cached_tokens},{predicted_tokens},\
                 {output_tokens},{:.3},{:.3},{:.3}",
                row.policy, row.workers, row.speed, request.arrived.0, request.queued.0, request.ttft.0, request.e2e.0,
            );
        }
    }
    text
}

/// Whether an engine took the request, whatever became of it then.
fn is_taken(outcome: &RequestOutcome) -> bool {
    outcome.completed || outcome.output_tokens > 0
}

/// The requests of `trace` that engines took.
fn taken<'a>(trace: &'a [TraceRequest], outcomes: &[RequestOutcome]) -> Cow<'a, [TraceRequest]> {
    if outcomes.iter().all(is_taken) {
        return Cow::Borrowed(trace);
    }
    let taken = trace.iter().zip(outcomes).filter(|(_, outcome)| is_taken(outcome));
    taken.map(|(request, _)| request.clone()).collect()
}

#[cfg(test)]
mod conditions;
#[cfg(test)]
mod ladder;
#[cfg(test)]
mod profiles;
