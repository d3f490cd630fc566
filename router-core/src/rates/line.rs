//! How long an interval of work lasts, learned from those that were seen.

use super::work::{Amount, Decoding, QUANTITIES, STEP, Work};
use crate::real::Number;

/// What is believed before anything was seen, in ms: for an interval, for a thousand tokens, for a million pairs, for a
/// thousand tokens from the host, from a disk and from shared storage, for a stream in a step and for a hundred thousand
/// tokens to which streams attend in a step. A model of eight billion parameters on one GPU, and what PCIe, an NVMe disk and
/// a network give for 130 KB a token.
const PRIOR: [f64; QUANTITIES] = [20.0, 30.0, 0.0, 8.0, 40.0, 60.0, 0.0, 0.0];

/// How many samples of one unit each belief is worth. It is never forgotten: where all prompts are alike, only their sum is
/// seen, and what nobody tells apart must not drift to where a short prompt takes as long as a long one: nobody would
/// send one to find out.
const PRIOR_WEIGHTS: [f64; QUANTITIES] = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 100.0, 10.0];

/// The beliefs that grow with how slow machines seem as a whole: for an interval, and for tokens.
const SCALED: usize = 2;

/// The assumption that machines are as believed weighs as much as this many ms of intervals.
const ASSUMED_MS: f64 = 300.0;

/// What is left of a sample's weight after another. Half after some 350.
const KEEP: f64 = 0.998;

/// A sample that is several times off is taken as that many times off: a hang is no rate. Whatever really changed still
/// arrives within a few samples more.
const OFF_MAX: f64 = 4.0;

/// Before there are so many samples, one may be further off: a belief is no measurement.
const SURE: u32 = 20;

/// See [`SURE`].
const OFF_MAX_YOUNG: f64 = 10.0;

/// Passes over the unknowns after each sample. They start where the last ones ended, so a few do.
const PASSES: usize = 8;

/// No token is computed in less than this, in ms a thousand.
const TOKENS_LEAST: f64 = 1e-3;

/// A line through intervals: `fixed + per_token·tokens + per_pair·pairs + Σ per_fetched·fetched + (per_stream·streams +
/// per_context·context)·steps`, none of them below zero, by least squares over samples that are forgotten slowly, and beliefs
/// that are not. Without samples of some kind its rate stays as believed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    squares: [[f64; QUANTITIES]; QUANTITIES],
    products: [f64; QUANTITIES],
    rates: [f64; QUANTITIES],
    samples: u32,
    /// How long intervals were, and how long by what was believed, in ms, old ones counting less.
    taken: (f64, f64),
}

impl Default for Line {
    fn default() -> Self {
        Self {
            squares: [[0.0; QUANTITIES]; QUANTITIES],
            products: [0.0; QUANTITIES],
            rates: PRIOR,
            samples: 0,
            taken: (ASSUMED_MS, ASSUMED_MS),
        }
    }
}

impl Line {
    /// How long so much work should take, in ms; nothing for none.
    pub(super) fn ms(&self, work: &Work) -> f64 {
        self.ms_beside(&self.amount(work), self.decode_ms(work.beside))
    }

    /// What its time depends on.
    pub(super) fn amount(&self, work: &Work) -> Amount {
        let fetching = work.fetches().then(|| self.fetching_ms(work.fetched));
        Amount { tokens: work.tokens, pairs: work.pairs, fetching }
    }

    /// How long it takes to fetch so much, as in [`Work::fetched`].
    pub(super) fn fetching_ms(&self, fetched: [f64; 3]) -> f64 {
        let [_, _, _, host, disk, external, ..] = self.rates;
        host * fetched[0] + disk * fetched[1] + external * fetched[2]
    }

    /// How long so much takes beside streams that make a step so many ms longer; nothing for none.
    #[inline(always)]
    pub(super) fn ms_beside<N: Number>(&self, amount: &Amount<N>, decode: N) -> N {
        amount.tokens.if_positive(self.step_ms(decode) + (self.alone_ms(amount) + slowed_ms(amount, decode)))
    }

    /// How much longer some work makes a step that there is anyway, where nothing decodes in it.
    #[inline(always)]
    pub(super) fn alone_ms<N: Number>(&self, amount: &Amount<N>) -> N {
        let [_, per_token, per_pair, ..] = self.rates;
        let computed = N::all(per_token) * amount.tokens + N::all(per_pair) * amount.pairs;
        amount.fetching.map_or(computed, |fetching| computed + fetching)
    }

    /// How long a step is that streams make so much longer, and in which nothing else is done.
    #[inline(always)]
    pub(super) fn step_ms<N: Number>(&self, decode: N) -> N {
        N::all(self.rates[0]) + decode
    }

    /// By how much streams make a step longer.
    #[inline(always)]
    pub(super) fn decode_ms<N: Number>(&self, Decoding { streams, context }: Decoding<N>) -> N {
        let [.., per_stream, per_context] = self.rates;
        N::all(per_stream) * streams + N::all(per_context) * context
    }

    /// Learns that so much work took `ms`. O(1).
    pub(super) fn add(&mut self, work: &Work, ms: f64) {
        let x = work.quantities();
        let expected = dot(&self.rates, &x);
        let off_max = if self.samples < SURE { OFF_MAX_YOUNG } else { OFF_MAX };
        let ms = ms.clamp(expected / off_max, expected * off_max);
        self.samples = self.samples.saturating_add(1);
        let assumed = ASSUMED_MS * (1.0 - KEEP);
        self.taken.0 = self.taken.0 * KEEP + assumed + ms;
        self.taken.1 = self.taken.1 * KEEP + assumed + dot(&PRIOR, &x);
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

    /// The best rate of one quantity while the others stay.
    fn solve_one(&mut self, at: usize) {
        let (row, weight) = (&self.squares[at], PRIOR_WEIGHTS[at]);
        let scale = if at < SCALED { self.taken.0 / self.taken.1 } else { 1.0 };
        let others = dot(row, &self.rates) - row[at] * self.rates[at];
        let product = self.products[at] - others + weight * scale * PRIOR[at];
        let least = if at == 1 { TOKENS_LEAST } else { 0.0 };
        self.rates[at] = (product / (row[at] + weight)).max(least);
    }
}

/// How much longer streams make work that make each step so much longer.
#[inline(always)]
pub(super) fn slowed_ms<N: Number>(amount: &Amount<N>, decode: N) -> N {
    decode * amount.tokens * N::all(1.0 / STEP)
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
            Work { tokens, pairs: tokens * (tokens * 2.0 - tokens / 2.0), ..Work::default() }
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
        let work = Work { tokens: 2.0, pairs: 7.0, fetched: [1.0, 0.5, 0.25], ..Work::default() };
        assert!((Line::default().ms(&work) - (20.0 + 60.0 + 8.0 + 20.0 + 15.0)).abs() < 1e-12);
        assert!(Line::default().ms(&Work::default()).abs() < f64::EPSILON);
    }

    #[test]
    fn a_known_line_is_found_with_and_without_attention() {
        for truth in [[16.5, 20.6, 0.0], [5.0, 32.5, 1.06], [40.0, 300.0, 4.0]] {
            let line = learned(truth);
            for work in works() {
                let expected = truth[0] + truth[1] * work.tokens + truth[2] * work.pairs;
                // What is believed weighs 5 of 400: a few ms for what has little in it, next to nothing for the rest.
                let off = if work.tokens < 3.0 { 4.0 + 0.2 * expected } else { 0.03 * expected };
                assert!((line.ms(&work) - expected).abs() < off, "{truth:?}: {work:?}");
            }
            assert!((line.rates[3] - 8.0).abs() < 1e-9, "nothing was fetched, nothing learned of it");
        }
    }

    #[test]
    fn where_all_prompts_are_alike_short_ones_are_still_taken_for_short() {
        // Steps are shared, so the same prompt takes half as long, or half as long again, and a longer one seems faster.
        let mut line = Line::default();
        let odd = [(10.5, 351.0), (11.25, 117.0), (10.75, 240.0)];
        for at in 0..2_000 {
            let (tokens, ms) = odd.get(at % 20).copied().unwrap_or((10.5, 235.0));
            line.add(&Work { tokens, pairs: tokens * tokens / 2.0, ..Work::default() }, ms);
        }
        let short = line.ms(&Work { tokens: 0.25, pairs: 2.6, ..Work::default() });
        let whole = line.ms(&Work { tokens: 10.5, pairs: 55.125, ..Work::default() });
        assert!(
            (whole - 235.0).abs() < 5.0 && (10.0..whole / 3.0).contains(&short),
            "{short}, {whole}: {:?}",
            line.rates
        );
    }

    #[test]
    fn a_hang_is_no_rate_and_a_change_is_one() {
        let mut line = learned([16.5, 20.6, 0.0]);
        let work = Work { tokens: 4.0, pairs: 24.0, ..Work::default() };
        let before = line.ms(&work);
        line.add(&work, 60_000.0);
        assert!(line.ms(&work) / before < 1.06, "{}", line.ms(&work) / before);
        for _ in 0..3 {
            works().for_each(|work| line.add(&work, 10.0 * (16.5 + 20.6 * work.tokens)));
        }
        assert!((line.ms(&work) / (10.0 * (16.5 + 82.4)) - 1.0).abs() < 0.1, "{}", line.ms(&work));
    }

    /// A first answer that waits for a compilation must not make all prompts cost alike.
    #[test]
    fn a_hang_before_anything_was_seen_is_no_rate_either() {
        let mut line = Line::default();
        let works: Vec<Work> = works().collect();
        line.add(&works[0], 60_000.0);
        works.iter().take(60).for_each(|work| line.add(work, 20.0 + 30.0 * work.tokens));
        let [short, long] = [0.3, 9.0].map(|tokens| Work { tokens, pairs: 0.0, ..Work::default() });
        assert!(line.ms(&long) > 2.5 * line.ms(&short), "{} {}", line.ms(&short), line.ms(&long));
        assert!(line.ms(&long) < 2.0 * (20.0 + 270.0), "{}", line.ms(&long));
    }

    /// As many and as long ones are slower than as many short ones, and it is seen.
    #[test]
    fn what_streams_attend_to_is_told_from_how_many_they_are() {
        let mut line = Line::default();
        let slows = |Decoding { streams, context }: Decoding| 0.05 * streams + 2.0 * context;
        for (at, work) in works().enumerate() {
            let beside = Decoding { streams: [10.0, 60.0][at % 2], context: [1.0, 8.0, 3.0][at % 3] };
            let work = work.beside(beside);
            line.add(&work, 16.5 + 20.6 * work.tokens + slows(beside) * (1.0 + work.tokens / 8.0));
        }
        let step = |streams, context| line.decode_ms(Decoding { streams, context });
        for (streams, context) in [(10.0, 8.0), (60.0, 1.0), (30.0, 4.0)] {
            let expected = slows(Decoding { streams, context });
            assert!(
                (step(streams, context) / expected - 1.0).abs() < 0.2,
                "{streams}, {context}: {}",
                step(streams, context)
            );
        }
    }

    #[test]
    fn streams_beside_it_are_told_from_a_slow_machine() {
        let beside = |streams| Decoding { streams, context: 0.0 };
        let mut line = Line::default();
        for (at, work) in works().enumerate() {
            let work = work.beside(beside([0.0, 30.0, 60.0][at % 3]));
            line.add(&work, 16.5 + 20.6 * work.tokens + 0.4 * work.beside.streams * (1.0 + work.tokens / 8.0));
        }
        let work = Work { tokens: 4.0, pairs: 24.0, ..Work::default() };
        let alone = 16.5 + 82.4;
        assert!((line.ms(&work) / alone - 1.0).abs() < 0.05, "{}", line.ms(&work));
        let crowded = line.ms(&work.beside(beside(50.0)));
        assert!((crowded / (alone + 30.0) - 1.0).abs() < 0.05, "{crowded}");
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
