//! What a replay showed: rows, as a table and as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use warmpath_core::count::real_len;

use crate::decisions::told::Told;

/// One policy on one fleet.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The policy.
    pub policy: String,
    /// Workers; of a live gateway those that answered, as far as it names them: of others it does not tell.
    pub workers: usize,
    /// How much faster than recorded requests arrived.
    pub speed: f64,
    /// Seed of chance; none where chance is a live gateway's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Requests sent.
    pub requests: usize,
    /// Requests answered whole.
    pub completed: usize,
    /// Prompt tokens as the engines counted them.
    pub input_tokens: u64,
    /// Of these, taken from the engines' caches; none where no engine told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Cached over input tokens; none where no engine told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<f64>,
    /// The same for one cache as large as the fleet's together.
    pub reachable_hit_rate: f64,
    /// Time to first token.
    pub ttft_ms: Distribution,
    /// Over all gaps between tokens.
    pub itl_ms: Distribution,
    /// Time to the last token.
    pub e2e_ms: Distribution,
    /// Completed requests over the time until the last one ended.
    pub requests_per_s: f64,
    /// Requests of the busiest worker over the mean of all; none where it is not known who they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_max_over_mean: Option<f64>,
    /// Computed prompt tokens of the busiest worker over the mean of all; none where it is not known who they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_tokens_max_over_mean: Option<f64>,
    /// Deviation of the workers' KV load over its mean, averaged over the run; none where it was never looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_balance_score: Option<f64>,
    /// Seconds on the clock.
    pub wall_s: f64,
    /// Requests by worker; none where nobody names them.
    pub requests_by_worker: Vec<usize>,
    /// Cached tokens as the router predicted them; none where it told of no prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_cached_tokens: Option<u64>,
    /// Requests whose prediction was exact; none where it told of none, or no engine told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_exact_requests: Option<usize>,
    /// Why requests were not answered whole, and how many.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub failures: BTreeMap<String, usize>,
    /// The effect of the model that was left out, and what that changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ablation: Option<Ablation>,
    /// Over HTTP: how far behind their times requests were sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lag_ms: Option<Distribution>,
    /// The decisions that were to be told, with every term of every candidate.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decisions: Vec<Told>,
}

/// What is different where an effect of the model is left out: this row less the one of the whole model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ablation {
    /// The effect.
    pub without: String,
    /// Of the hit rate.
    pub hit_rate: f64,
    /// Of the mean time to first token.
    pub ttft_mean_ms: f64,
    /// Of its 99th percentile.
    pub ttft_p99_ms: f64,
    /// Of the mean gap between tokens.
    pub itl_mean_ms: f64,
    /// Of the mean time to the last token.
    pub e2e_mean_ms: f64,
    /// Of the requests a second.
    pub requests_per_s: f64,
}

impl Row {
    /// Notes that this row is `whole` but for one effect of the model.
    #[must_use]
    pub fn beside(mut self, whole: &Row, without: String) -> Self {
        self.ablation = Some(Ablation {
            without,
            hit_rate: self.hit_rate.unwrap_or_default() - whole.hit_rate.unwrap_or_default(),
            ttft_mean_ms: self.ttft_ms.mean - whole.ttft_ms.mean,
            ttft_p99_ms: self.ttft_ms.p99 - whole.ttft_ms.p99,
            itl_mean_ms: self.itl_ms.mean - whole.itl_ms.mean,
            e2e_mean_ms: self.e2e_ms.mean - whole.e2e_ms.mean,
            requests_per_s: self.requests_per_s - whole.requests_per_s,
        });
        self
    }
}

/// A distribution, in ms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Half are at or below.
    pub p50: f64,
    /// Nine in ten.
    pub p90: f64,
    /// Nineteen in twenty.
    pub p95: f64,
    /// Ninety-nine in a hundred.
    pub p99: f64,
}

impl Distribution {
    /// The distribution of these values; zeros for none. Percentiles by nearest rank. O(values): gaps between tokens come by
    /// the million, and sorting them would take a third of a simulation's time.
    pub fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / real_len(values.len());
        // Below the last rank that was asked for everything is smaller, and stays where it is.
        let mut from = 0;
        let mut rank = |percent: usize| {
            let at = (values.len() * percent).div_ceil(100).max(1) - 1;
            let (_, value, _) = values[from..].select_nth_unstable_by(at - from, f64::total_cmp);
            from = at;
            *value
        };
        Self { mean, p50: rank(50), p90: rank(90), p95: rank(95), p99: rank(99) }
    }
}

/// The largest over the mean; 0 for none or zeros.
pub fn max_over_mean(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / real_len(values.len().max(1));
    if mean == 0.0 { 0.0 } else { values.iter().copied().fold(0.0, f64::max) / mean }
}

/// The mean; none of no values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / real_len(values.len()))
}

/// A figure that not every run has, with so many decimals.
pub fn shown(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "–".to_owned(), |figure| format!("{figure:.decimals$}"))
}

/// A share that not every run has, in percent with so many decimals.
fn percent(share: Option<f64>, decimals: usize, unit: &str) -> String {
    share.map_or_else(|| "–".to_owned(), |share| format!("{:.decimals$}{unit}", share * 100.0))
}

/// A count that not every run has.
fn counted(count: Option<impl ToString>) -> String {
    count.map_or_else(|| "–".to_owned(), |count| count.to_string())
}

/// A table with a row for each figure and a column for each policy.
pub fn table(rows: &[Row]) -> String {
    type Show = fn(&Row) -> String;
    let figures: [(&str, Show); 13] = [
        ("completed", |row| format!("{} of {}", row.completed, row.requests)),
        ("hit rate", |row| percent(row.hit_rate, 1, " %")),
        ("  reachable", |row| format!("{:.1} %", row.reachable_hit_rate * 100.0)),
        ("TTFT mean", |row| format!("{:.1} ms", row.ttft_ms.mean)),
        ("  p50", |row| format!("{:.1} ms", row.ttft_ms.p50)),
        ("  p99", |row| format!("{:.1} ms", row.ttft_ms.p99)),
        ("ITL mean", |row| format!("{:.2} ms", row.itl_ms.mean)),
        ("  p99", |row| format!("{:.2} ms", row.itl_ms.p99)),
        ("requests by worker", |row| {
            let counts: Vec<String> = row.requests_by_worker.iter().map(ToString::to_string).collect();
            counts.join(" ")
        }),
        ("busiest / mean", |row| shown(row.requests_max_over_mean, 2)),
        ("cached, reported", |row| counted(row.cached_tokens)),
        ("cached, predicted", |row| counted(row.predicted_cached_tokens)),
        ("predicted exactly", |row| format!("{} of {}", counted(row.predicted_exact_requests), row.completed)),
    ];
    let mut text = format!("{:<20}", "");
    rows.iter().for_each(|row| text += &format!("{:>20}", row.policy));
    for (name, show) in figures {
        text += &format!("\n{name:<20}");
        rows.iter().for_each(|row| text += &format!("{:>20}", show(row)));
    }
    text.push('\n');
    text
}

/// A table with a line for each row.
pub fn lines(rows: &[Row]) -> String {
    let mut text = format!(
        "{:<20} {:>7} {:>6} {:>7} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9} {:>8} {:>8}\n",
        "policy",
        "workers",
        "speed",
        "hit",
        "reachable",
        "TTFT mean",
        "p50",
        "p99",
        "ITL mean",
        "E2E mean",
        "requests",
        "tokens",
    );
    for row in rows {
        text += &format!(
            "{:<20} {:>7} {:>6} {:>7} {:>8.2}% {:>6.0} ms {:>6.0} ms {:>6.0} ms {:>5.1} ms {:>6.0} ms {:>8} {:>8}\n",
            row.ablation.as_ref().map_or_else(|| row.policy.clone(), |left_out| format!("- {}", left_out.without)),
            row.workers,
            row.speed,
            percent(row.hit_rate, 2, "%"),
            row.reachable_hit_rate * 100.0,
            row.ttft_ms.mean,
            row.ttft_ms.p50,
            row.ttft_ms.p99,
            row.itl_ms.mean,
            row.e2e_ms.mean,
            shown(row.requests_max_over_mean, 2),
            shown(row.new_tokens_max_over_mean, 2),
        );
    }
    text += "\nrequests and tokens: of the busiest worker over the mean, tokens as far as they were computed\n";
    for row in rows.iter().filter(|row| row.completed < row.requests) {
        let Row { policy, workers, speed, completed, requests, .. } = row;
        text += &format!(
            "{policy}, {workers} workers, speed {speed}: {completed} of {requests} requests were completed; times are theirs\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let values = (1_u32..=200).map(f64::from).collect();
        let expected = Distribution { mean: 100.5, p50: 100.0, p90: 180.0, p95: 190.0, p99: 198.0 };
        assert_eq!(Distribution::of(values), expected);
        assert_eq!(Distribution::of(Vec::new()), Distribution::default());
        assert!((Distribution::of(vec![7.0]).p99 - 7.0).abs() < 1e-12);
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_values_however_they_come() {
        for len in [1, 2, 3, 19, 20, 99, 100, 101, 1000] {
            let mut values: Vec<f64> = (0..len).map(|at: u32| f64::from(at.wrapping_mul(2_654_435_761) % 50)).collect();
            let found = Distribution::of(values.clone());
            values.sort_by(f64::total_cmp);
            let rank = |percent: usize| values[(values.len() * percent).div_ceil(100) - 1];
            let expected = [50, 90, 95, 99].map(rank);
            assert_eq!([found.p50, found.p90, found.p95, found.p99], expected, "{len} values");
        }
    }

    #[test]
    fn balance_is_the_busiest_over_the_mean() {
        assert!((max_over_mean(&[1.0, 3.0]) - 1.5).abs() < 1e-12);
        assert!(max_over_mean(&[]).abs() < 1e-12);
    }
}
