//! How long an interval of work lasts, learned from those that were seen.

use super::work::{QUANTITIES, Work};

/// What is believed before anything was seen, in ms: for an interval, for a thousand tokens, for a million pairs, for a
/// thousand tokens from the host, from a disk and from shared storage, and for a stream in a step. A model of eight billion parameters on one GPU, and
/// what PCIe, an NVMe disk and a network give for 130 KB a token.
const PRIOR: [f64; QUANTITIES] = [20.0, 30.0, 0.0, 8.0, 40.0, 60.0, 0.0];

/// How many samples of one unit each belief is worth.
const PRIOR_WEIGHTS: [f64; QUANTITIES] = [0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0];

/// What is left of a sample's weight after another. Half after some 350.
const KEEP: f64 = 0.998;

/// From so many samples on, one that is several times off is taken as that many times off: a hang is no rate. Whatever
/// really changed still arrives within a few samples more.
const SURE: u32 = 20;

/// See [`SURE`].
const OFF_MAX: f64 = 4.0;

/// Passes over the unknowns after each sample. They start where the last ones ended, so a few do.
const PASSES: usize = 8;

/// No token is computed in less than this, in ms a thousand.
const TOKENS_LEAST: f64 = 1e-3;

/// A line through intervals: `fixed + per_token·tokens + per_pair·pairs + Σ per_fetched·fetched + per_stream·streams·steps`, none
/// of them below zero, by least squares over samples that are forgotten slowly. Without samples of some kind its rate stays as believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    squares: [[f64; QUANTITIES]; QUANTITIES],
    products: [f64; QUANTITIES],
    rates: [f64; QUANTITIES],
    samples: u32,
}

impl Default for Line {
    fn default() -> Self {
        let mut squares = [[0.0; QUANTITIES]; QUANTITIES];
        let mut products = [0.0; QUANTITIES];
        for (at, (rate, weight)) in PRIOR.into_iter().zip(PRIOR_WEIGHTS).enumerate() {
            squares[at][at] = weight;
            products[at] = weight * rate;
        }
        Self { squares, products, rates: PRIOR, samples: 0 }
    }
}

impl Line {
    /// How long so much work should take, in ms; nothing for none.
    pub(super) fn ms(&self, work: &Work) -> f64 {
        if work.is_none() { 0.0 } else { dot(&self.rates, &work.quantities()) }
    }

    /// How much longer so much work makes an interval that there is anyway.
    pub(super) fn more_ms(&self, work: &Work) -> f64 {
        if work.is_none() { 0.0 } else { dot(&self.rates, &work.quantities()) - self.rates[0] }
    }

    /// Learns that so much work took `ms`. O(1).
    pub(super) fn add(&mut self, work: &Work, ms: f64) {
        let x = work.quantities();
        let expected = dot(&self.rates, &x);
        let ms = if self.samples < SURE { ms } else { ms.clamp(expected / OFF_MAX, expected * OFF_MAX) };
        self.samples = self.samples.saturating_add(1);
        for at in 0..QUANTITIES {
            for beside in 0..QUANTITIES {
                self.squares[at][beside] = self.squares[at][beside] * KEEP + x[at] * x[beside];
            }
            self.products[at] = self.products[at] * KEEP + x[at] * ms;
        }
        for _ in 0..PASSES {
            for at in 0..QUANTITIES {
                self.solve_one(at);
            }
        }
    }

    /// The best rate of one quantity while the others stay. What was never seen, or is all but forgotten, stays as it is.
    fn solve_one(&mut self, at: usize) {
        let row = self.squares[at];
        if row[at] > 1e-9 {
            let others = dot(&row, &self.rates) - row[at] * self.rates[at];
            let least = if at == 1 { TOKENS_LEAST } else { 0.0 };
            self.rates[at] = ((self.products[at] - others) / row[at]).max(least);
        }
    }
}

fn dot(a: &[f64; QUANTITIES], b: &[f64; QUANTITIES]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of prompts of 0.3 to 12 thousand tokens, half of each cached.
    fn works() -> impl Iterator<Item = Work> {
        (0..400).map(|at: u32| {
            let tokens = 0.3 + f64::from(at * 37 % 100) * 0.117;
            Work { tokens, pairs: tokens * (tokens * 2.0 - tokens / 2.0), fetched: [0.0; 3], streams: 0.0 }
        })
    }

    fn learned(truth: [f64; 3]) -> Line {
        let mut line = Line::default();
        for work in works() {
            line.add(&work, truth[0] + truth[1] * work.tokens + truth[2] * work.pairs);
        }
        line
    }

    #[test]
    fn before_anything_was_seen_the_prior_holds() {
        let work = Work { tokens: 2.0, pairs: 7.0, fetched: [1.0, 0.5, 0.25], streams: 0.0 };
        assert!((Line::default().ms(&work) - (20.0 + 60.0 + 8.0 + 20.0 + 15.0)).abs() < 1e-12);
        assert!(Line::default().ms(&Work::default()).abs() < f64::EPSILON);
    }

    #[test]
    fn a_known_line_is_found_with_and_without_attention() {
        for truth in [[16.5, 20.6, 0.0], [5.0, 32.5, 1.06], [40.0, 300.0, 4.0]] {
            let line = learned(truth);
            for work in works() {
                let expected = truth[0] + truth[1] * work.tokens + truth[2] * work.pairs;
                assert!((line.ms(&work) / expected - 1.0).abs() < 0.03, "{truth:?}: {work:?}");
            }
            assert!((line.rates[3] - 8.0).abs() < 1e-9, "nothing was fetched, nothing learned of it");
        }
    }

    #[test]
    fn a_hang_is_no_rate_and_a_change_is_one() {
        let mut line = learned([16.5, 20.6, 0.0]);
        let work = Work { tokens: 4.0, pairs: 24.0, fetched: [0.0; 3], streams: 0.0 };
        let before = line.ms(&work);
        line.add(&work, 60_000.0);
        assert!(line.ms(&work) / before < 1.06, "{}", line.ms(&work) / before);
        for _ in 0..3 {
            works().for_each(|work| line.add(&work, 10.0 * (16.5 + 20.6 * work.tokens)));
        }
        assert!((line.ms(&work) / (10.0 * (16.5 + 82.4)) - 1.0).abs() < 0.1, "{}", line.ms(&work));
    }

    #[test]
    fn streams_beside_it_are_told_from_a_slow_machine() {
        let mut line = Line::default();
        for (at, work) in works().enumerate() {
            let work = work.beside([0.0, 30.0, 60.0][at % 3]);
            line.add(&work, 16.5 + 20.6 * work.tokens + 0.4 * work.streams * (1.0 + work.tokens / 8.0));
        }
        let work = Work { tokens: 4.0, pairs: 24.0, ..Work::default() };
        let alone = 16.5 + 82.4;
        assert!((line.ms(&work) / alone - 1.0).abs() < 0.05, "{}", line.ms(&work));
        assert!((line.ms(&work.beside(50.0)) / (alone + 30.0) - 1.0).abs() < 0.05, "{}", line.ms(&work.beside(50.0)));
    }

    #[test]
    fn what_is_fetched_gets_a_rate_of_its_own() {
        let mut line = learned([16.5, 20.6, 0.0]);
        for work in works() {
            let host = work.tokens * 0.7 + 1.0 / work.tokens;
            let work = Work { fetched: [host, 0.0, 0.0], ..work };
            line.add(&work, 16.5 + 20.6 * work.tokens + 5.0 * host);
        }
        assert!((line.rates[3] - 5.0).abs() < 0.5, "{}", line.rates[3]);
    }
}
