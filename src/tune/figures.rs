//! What a choice of weights is judged by.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use warmpath_core::count::real_len;
use warmpath_simulator::fleet::RequestOutcome;

use crate::replay::simulated::Tried;

/// What is to be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    /// A low mean time to first token.
    MeanTtft,
    /// A low 99th percentile of it.
    P99Ttft,
    /// Many answers within the limits.
    Goodput,
}

/// No aim has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown aim (known: mean-ttft, p99-ttft, goodput)")]
pub struct UnknownAim;

/// What an answer must keep to count as good, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Limits {
    /// To its first token.
    pub ttft_ms: f64,
    /// Between its tokens, in the mean.
    pub itl_ms: f64,
}

/// What came of one fleet and load, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Figures {
    /// Mean time to first token; of several the geometric mean, so that none counts for more than another.
    pub ttft_mean_ms: f64,
    /// Its 99th percentile; of several the same.
    pub ttft_p99_ms: f64,
    /// Mean gap between tokens; of several the same.
    pub itl_mean_ms: f64,
    /// Mean time to the last token; of several the same.
    pub e2e_mean_ms: f64,
    /// Cached over input tokens; of several the mean.
    pub hit_rate: f64,
    /// Share of the requests whose answer keeps the limits; of several the mean.
    pub good: f64,
    /// Share of the requests that were answered whole, which are those that times and hits are of; of several the mean.
    pub completed: f64,
}

impl Limits {
    fn keeps(&self, request: &RequestOutcome) -> bool {
        let gaps = f64::from(request.output_tokens.saturating_sub(1).max(1));
        request.completed && request.ttft.0 <= self.ttft_ms && (request.e2e - request.ttft).0 / gaps <= self.itl_ms
    }
}

impl Figures {
    /// Of one simulation, without the first `warm_up` requests.
    pub fn of(tried: &Tried, warm_up: usize, limits: &Limits) -> Self {
        let counted = &tried.outcome.requests[warm_up.min(tried.outcome.requests.len())..];
        let good = counted.iter().filter(|request| limits.keeps(request)).count();
        Self {
            ttft_mean_ms: tried.row.ttft_ms.mean,
            ttft_p99_ms: tried.row.ttft_ms.p99,
            itl_mean_ms: tried.row.itl_ms.mean,
            e2e_mean_ms: tried.row.e2e_ms.mean,
            hit_rate: tried.row.hit_rate.unwrap_or_default(),
            good: real_len(good) / real_len(counted.len().max(1)),
            completed: real_len(tried.row.completed) / real_len(tried.row.requests.max(1)),
        }
    }

    /// Of several fleets and loads together; zeros for none.
    pub fn over(cells: &[Self]) -> Self {
        if cells.is_empty() {
            return Self::default();
        }
        let count = real_len(cells.len());
        let mean = |figure: fn(&Self) -> f64| cells.iter().map(figure).sum::<f64>() / count;
        // A product of hundreds of times in ms does not overflow as a sum of logarithms.
        let geometric = |figure: fn(&Self) -> f64| {
            (cells.iter().map(|cell| figure(cell).max(f64::MIN_POSITIVE).ln()).sum::<f64>() / count).exp()
        };
        Self {
            ttft_mean_ms: geometric(|cell| cell.ttft_mean_ms),
            ttft_p99_ms: geometric(|cell| cell.ttft_p99_ms),
            itl_mean_ms: geometric(|cell| cell.itl_mean_ms),
            e2e_mean_ms: geometric(|cell| cell.e2e_mean_ms),
            hit_rate: mean(|cell| cell.hit_rate),
            good: mean(|cell| cell.good),
            completed: mean(|cell| cell.completed),
        }
    }
}

impl Aim {
    /// How far these figures are from the aim. Lower is better.
    pub fn score(self, figures: &Figures) -> f64 {
        match self {
            Self::MeanTtft => figures.ttft_mean_ms,
            Self::P99Ttft => figures.ttft_p99_ms,
            Self::Goodput => 1.0 - figures.good,
        }
    }

    /// What is different in `found`: of times a part of what they were, of good answers in shares of all requests.
    pub fn change(self, start: &Figures, found: &Figures) -> f64 {
        match self {
            Self::MeanTtft | Self::P99Ttft => self.score(found) / self.score(start).max(f64::MIN_POSITIVE) - 1.0,
            Self::Goodput => found.good - start.good,
        }
    }

    /// By how much `found` reaches more, so that gains can be added up: of times a difference of logarithms.
    pub fn gain(self, start: &Figures, found: &Figures) -> f64 {
        let logarithm = |figures: &Figures| self.score(figures).max(f64::MIN_POSITIVE).ln();
        match self {
            Self::MeanTtft | Self::P99Ttft => logarithm(start) - logarithm(found),
            Self::Goodput => found.good - start.good,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MeanTtft => "mean-ttft",
            Self::P99Ttft => "p99-ttft",
            Self::Goodput => "goodput",
        }
    }
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Aim {
    type Err = UnknownAim;

    fn from_str(text: &str) -> Result<Self, UnknownAim> {
        let all = [Self::MeanTtft, Self::P99Ttft, Self::Goodput];
        all.into_iter().find(|aim| aim.as_str() == text).ok_or(UnknownAim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warmpath_simulator::Ms;

    fn figures(ttft_mean_ms: f64, good: f64) -> Figures {
        let (hit_rate, completed) = (good / 2.0, 1.0);
        Figures { ttft_mean_ms, ttft_p99_ms: 1.0, itl_mean_ms: 1.0, e2e_mean_ms: 1.0, hit_rate, good, completed }
    }

    #[test]
    fn of_several_fleets_none_counts_for_more_because_its_times_are_longer() {
        let all = Figures::over(&[figures(100.0, 0.5), figures(400.0, 1.0)]);
        assert!((all.ttft_mean_ms - 200.0).abs() < 1e-9, "{all:?}");
        assert!((all.good - 0.75).abs() < 1e-12 && (all.hit_rate - 0.375).abs() < 1e-12);
        assert_eq!(Figures::over(&[]), Figures::default());
    }

    #[test]
    fn an_answer_is_good_if_it_is_whole_and_keeps_both_limits() {
        let limits = Limits { ttft_ms: 100.0, itl_ms: 10.0 };
        let answer = |ttft: f64, e2e: f64, output_tokens| RequestOutcome {
            completed: true,
            ttft: Ms(ttft),
            e2e: Ms(e2e),
            output_tokens,
            ..RequestOutcome::default()
        };
        assert!(limits.keeps(&answer(100.0, 200.0, 11)), "ten gaps of 10 ms");
        assert!(!limits.keeps(&answer(100.1, 200.0, 11)));
        assert!(!limits.keeps(&answer(100.0, 200.1, 11)));
        assert!(limits.keeps(&answer(100.0, 100.0, 1)), "one token has no gaps");
        assert!(!limits.keeps(&RequestOutcome { completed: false, ..answer(1.0, 2.0, 2) }));
    }

    #[test]
    fn every_aim_knows_what_is_better_and_is_read_back_from_its_name() {
        let (start, found) = (figures(200.0, 0.5), figures(150.0, 0.6));
        for aim in [Aim::MeanTtft, Aim::Goodput] {
            assert!(aim.score(&found) < aim.score(&start), "{aim}");
            assert_eq!(aim.to_string().parse(), Ok(aim));
        }
        assert!((Aim::MeanTtft.change(&start, &found) + 0.25).abs() < 1e-12);
        assert!((Aim::Goodput.change(&start, &found) - 0.1).abs() < 1e-12);
        let (time, good) = (Aim::MeanTtft.gain(&start, &found), Aim::Goodput.gain(&start, &found));
        assert!(((-time).exp() - 0.75).abs() < 1e-12 && (good - 0.1).abs() < 1e-12, "{time} {good}");
        assert_eq!("ttft".parse::<Aim>(), Err(UnknownAim));
    }
}
