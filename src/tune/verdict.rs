//! What is said of the weights that were found, by what was held back. It is drawn several times: one run of a fleet is one of
//! many that differ by some per cent or more, and what differs by chance is no gain.

use serde::Serialize;
use warmpath_core::count::real_len;
use warmpath_simulator::fleet::Scenario;

use super::figures::{Aim, Figures};
use super::outcome::Share;

/// How often what was held back is drawn.
pub const DRAWS: u64 = 8;
/// How far steps last longer or shorter by chance in a draw, at least: hardly any, and yet not two runs are the same then,
/// also under policies that leave nothing to chance themselves.
const JITTER: f64 = 0.01;
/// Between the seeds of two draws: those of workers lie side by side, and none is to be that of another in another draw.
const APART: u64 = 0x9e37_79b9_7f4a_7c15;
/// How many of its standard errors a gain must be above. Of weights that change nothing one in fifty comes there by chance
/// (Student's t of eight draws).
const CLEAR: f64 = 2.5;

/// What the held-back part says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// What was found is better there, too.
    Better,
    /// It is better there in the mean of all draws, by no more than they differ by chance.
    Chance,
    /// It is not: the gain was one on the tuned part alone.
    NotConfirmed,
    /// Nothing was better than the start even on the tuned part.
    NothingFound,
}

/// The figures of one choice of weights on what was held back: of each draw those of all fleets and loads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Drawn(pub(super) Vec<Vec<Figures>>);

/// What was found beside the start, draw by draw.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gain {
    /// The change by the aim in each draw.
    pub(super) changes: Vec<f64>,
    /// By how much more is reached, in the mean: of times as a difference of logarithms.
    mean: f64,
    /// Its standard error, by how the draws differ.
    pub(super) error: f64,
}

/// The same fleet and load under other chances.
pub fn drawn(cell: &Scenario, draw: u64) -> Scenario {
    let mut cell = cell.clone();
    cell.seed = cell.seed.wrapping_add(draw.wrapping_mul(APART));
    cell.engine.realism.jitter = cell.engine.realism.jitter.max(JITTER);
    cell
}

impl Drawn {
    /// Over all draws: of each fleet and load, and of all.
    pub(super) fn share(&self) -> Share {
        let cells = self.0.first().map_or(0, Vec::len);
        let over = |cell: usize| Figures::over(&self.0.iter().map(|draw| draw[cell]).collect::<Vec<_>>());
        Share::of(&(0..cells).map(over).collect::<Vec<_>>())
    }
}

impl Gain {
    /// Of what was found over the start, on equal draws.
    pub(super) fn of(aim: Aim, start: &Drawn, found: &Drawn) -> Self {
        let pairs = start.0.iter().zip(&found.0).map(|(start, found)| (Figures::over(start), Figures::over(found)));
        let pairs: Vec<(Figures, Figures)> = pairs.collect();
        let gains: Vec<f64> = pairs.iter().map(|(start, found)| aim.gain(start, found)).collect();
        let count = real_len(gains.len().max(1));
        let mean = gains.iter().sum::<f64>() / count;
        let scatter = gains.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        let changes = pairs.iter().map(|(start, found)| aim.change(start, found)).collect();
        Self { changes, mean, error: (scatter / count).sqrt() }
    }

    /// What it says of weights that are others than those of the start.
    pub(super) fn verdict(&self) -> Verdict {
        match () {
            () if self.mean <= 0.0 => Verdict::NotConfirmed,
            () if self.mean <= CLEAR * self.error => Verdict::Chance,
            () => Verdict::Better,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws with these means on one fleet, and these shares of good answers.
    fn drawn(means: &[f64]) -> Drawn {
        let of = |mean: &f64| Figures { ttft_mean_ms: *mean, good: mean / 1e3, ..Figures::default() };
        Drawn(means.iter().map(|mean| vec![of(mean)]).collect())
    }

    /// What is said where times change by these per cent.
    fn of(percent: &[f64]) -> Gain {
        let start = drawn(&vec![100.0; percent.len()]);
        let found = drawn(&percent.iter().map(|percent| 100.0 + percent).collect::<Vec<_>>());
        Gain::of(Aim::MeanTtft, &start, &found)
    }

    #[test]
    fn what_scatters_more_than_it_gains_is_chance() {
        let chance = of(&[-1.6, 34.6, -1.5, -1.6, -20.0, -25.1, -41.7, -1.6]);
        assert_eq!(chance.verdict(), Verdict::Chance);
        assert!((chance.mean - 0.10226).abs() < 1e-5 && (chance.error - 0.08764).abs() < 1e-5, "{chance:?}");
        assert!((chance.changes[4] + 0.2).abs() < 1e-12, "{chance:?}");
        assert_eq!(of(&[-1.6, -1.5, -1.9, -1.1, -1.4, -2.0, -1.6, -1.3]).verdict(), Verdict::Better);
        assert_eq!(of(&[-5.0, -4.0, -6.0, 5.0, -3.0, -5.0, 3.0, -4.0]).verdict(), Verdict::Chance);
        assert_eq!(of(&[1.0, 2.0, -1.0, 1.5]).verdict(), Verdict::NotConfirmed);
        assert_eq!(of(&[0.0; 8]).verdict(), Verdict::NotConfirmed, "nothing is no gain");
    }

    #[test]
    fn of_good_answers_more_is_better() {
        let (few, many) = (drawn(&[500.0, 510.0, 490.0]), drawn(&[600.0, 620.0, 580.0]));
        let gain = Gain::of(Aim::Goodput, &few, &many);
        assert_eq!(gain.verdict(), Verdict::Better);
        assert!((gain.mean - 0.1).abs() < 1e-9 && (gain.changes[1] - 0.11).abs() < 1e-9, "{gain:?}");
        assert_eq!(Gain::of(Aim::Goodput, &many, &few).verdict(), Verdict::NotConfirmed);
    }

    #[test]
    fn no_draw_and_no_fleet_counts_for_more_than_another() {
        let of = |ttft_mean_ms: f64| Figures { ttft_mean_ms, good: 0.5, ..Figures::default() };
        let share = Drawn(vec![vec![of(100.0), of(10.0)], vec![of(400.0), of(10.0)]]).share();
        assert!((share.cells[0].ttft_mean_ms - 200.0).abs() < 1e-9 && share.cells.len() == 2, "{share:?}");
        assert!((share.all.ttft_mean_ms - 2000_f64.sqrt()).abs() < 1e-9, "{share:?}");
    }
}
